package main

import (
	"bufio"
	"bytes"
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"log/slog"
	"math"
	"os"
	"os/exec"
	"runtime"
	"runtime/debug"
	"strings"
	"syscall"
	"testing"

	"go.uber.org/goleak"
)

// execEnv makes the test binary another program: walrelay itself, or a part of
// it that a test needs in a process of its own.
const execEnv = "TEST_BINARY_RUNS"

var update = flag.Bool("update", false, "write the files in testdata anew")

func TestMain(m *testing.M) {
	switch os.Getenv(execEnv) {
	case "walrelay":
		main()
	case "crash":
		crash()
	case "signals":
		waitForSignals()
	default:
		// Toxiproxy leaves these behind where a connection is closed while it
		// has something to pass on.
		goleak.VerifyTestMain(m,
			goleak.IgnoreAnyFunction("github.com/Shopify/toxiproxy/v2/stream.(*ChanWriter).Write"),
			goleak.IgnoreAnyFunction("github.com/Shopify/toxiproxy/v2/toxics.(*ToxicStub).Run"))
	}
}

// self is a command that runs the test binary as walrelay.
func self(t *testing.T, args ...string) *exec.Cmd {
	t.Helper()
	path, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	cmd := exec.Command(path, args...)
	cmd.Env = append(os.Environ(), execEnv+"=walrelay")
	return cmd
}

// walrelay calls realMain and returns what it printed.
func walrelay(environ []string, args ...string) (code int, stdout, stderr string) {
	var out, errOut bytes.Buffer
	code = realMain(args, environ, nil, &out, &errOut)
	return code, out.String(), errOut.String()
}

func TestTestBinaryRunsAsWalrelay(t *testing.T) {
	out, err := self(t, "version").Output()
	if err != nil || !strings.HasPrefix(string(out), "walrelay ") {
		t.Errorf("version printed %q, %v", out, err)
	}
	var exit *exec.ExitError
	if err := self(t, "nonsense").Run(); !errors.As(err, &exit) || exit.ExitCode() != exitUsage {
		t.Errorf("nonsense: %v; want exit code %d", err, exitUsage)
	}
}

func TestExitCodes(t *testing.T) {
	for _, tt := range []struct {
		err  error
		want int
	}{
		{nil, exitDone},
		{errors.New("PostgreSQL is on fire"), exitFailure},
		{fmt.Errorf("while looking: %w", usagef("--slot: wrong")), exitUsage},
	} {
		var stderr bytes.Buffer
		if got := exitCode(tt.err, &stderr); got != tt.want {
			t.Errorf("%v: exit code %d, want %d", tt.err, got, tt.want)
		}
		if tt.err != nil && stderr.String() != "walrelay: "+tt.err.Error()+"\n" {
			t.Errorf("%v: printed %q", tt.err, stderr.String())
		}
	}
}

// waitForSignals is what TestSecondSignalEndsAtOnce runs: a command that takes
// note of the first signal and never comes to an end.
func waitForSignals() {
	_ = untilSignal(slog.New(slog.DiscardHandler), os.Exit, func(ctx context.Context) error {
		fmt.Println("ready")
		<-ctx.Done()
		fmt.Println("cancelled")
		select {}
	})
}

func TestFirstSignalCancels(t *testing.T) {
	for _, sig := range []syscall.Signal{syscall.SIGTERM, syscall.SIGINT} {
		err := untilSignal(slog.New(slog.DiscardHandler), func(int) { t.Error("the first signal ended the process") }, func(ctx context.Context) error {
			if err := syscall.Kill(os.Getpid(), sig); err != nil {
				return err
			}
			<-ctx.Done()
			return errors.New("the command's own error")
		})
		if err == nil || err.Error() != "the command's own error" {
			t.Errorf("%v: %v", sig, err)
		}
	}
}

func TestSecondSignalEndsAtOnce(t *testing.T) {
	cmd := self(t)
	cmd.Env = append(cmd.Env, execEnv+"=signals")
	stdout, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	lines := bufio.NewScanner(stdout)
	for _, want := range []string{"ready", "cancelled"} {
		if !lines.Scan() || lines.Text() != want {
			t.Fatalf("printed %q, want %q", lines.Text(), want)
		}
		if err := cmd.Process.Signal(syscall.SIGTERM); err != nil {
			t.Fatal(err)
		}
	}
	_, _ = io.Copy(io.Discard, stdout)
	_ = cmd.Wait()
	if code := cmd.ProcessState.ExitCode(); code != exitFailure {
		t.Errorf("ended with %v, want exit code %d", cmd.ProcessState, exitFailure)
	}
}

func TestMemoryIsLimitedUnlessToldOtherwise(t *testing.T) {
	before := debug.SetMemoryLimit(math.MaxInt64)
	defer debug.SetMemoryLimit(before)

	limitMemory(func(string) string { return "1GiB" })
	if got := debug.SetMemoryLimit(-1); got != math.MaxInt64 {
		t.Errorf("with GOMEMLIMIT set, the limit became %d", got)
	}
	limitMemory(func(string) string { return "" })
	if got := debug.SetMemoryLimit(-1); got != 40<<20 {
		t.Errorf("the limit is %d, want 40 MiB", got)
	}
}

func TestOneProcessorIsUsedUnlessToldOtherwise(t *testing.T) {
	before := runtime.GOMAXPROCS(3)
	defer runtime.GOMAXPROCS(before)

	limitProcessors(func(string) string { return "3" })
	if got := runtime.GOMAXPROCS(0); got != 3 {
		t.Errorf("with GOMAXPROCS set, it became %d", got)
	}
	limitProcessors(func(string) string { return "" })
	if got := runtime.GOMAXPROCS(0); got != 1 {
		t.Errorf("GOMAXPROCS is %d, want 1", got)
	}
}
