package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strings"
	"syscall"
	"time"
)

// relayProgram is what is built.
const relayProgram = "github.com/stagedoor/walrelay/cmd/walrelay"

// relay is the walrelay program, started as anybody would start it. One process
// runs at a time.
type relay struct {
	binary string
	args   []string
	env    []string
	http   string // its address
	log    string // its log's path

	cmd  *exec.Cmd
	done chan struct{} // closed when the process was reaped
	err  error         // how it ended; valid once done is closed
}

// buildRelay builds the program into dir.
func buildRelay(ctx context.Context, dir string) (string, error) {
	binary := filepath.Join(dir, "walrelay")
	cmd := exec.CommandContext(ctx, "go", "build", "-buildvcs=false", "-o", binary, relayProgram)
	if out, err := cmd.CombinedOutput(); err != nil {
		return "", fmt.Errorf("build walrelay (go build %s): %w\n%s", relayProgram, err, out)
	}
	return binary, nil
}

// newRelay prepares the program. The addresses of the servers go by way of the
// environment, as passwords should.
func newRelay(binary, dir, postgres, redis, stream string) (*relay, error) {
	address, err := freeAddress()
	if err != nil {
		return nil, err
	}
	r := &relay{
		binary: binary,
		args:   []string{"run", "--stream", stream, "--http", address},
		http:   address,
		log:    filepath.Join(dir, "walrelay.log"),
	}
	for _, v := range os.Environ() {
		// Settings of the user's own relay or servers are not for this one.
		if !strings.HasPrefix(v, "WALRELAY_") && !strings.HasPrefix(v, "PG") {
			r.env = append(r.env, v)
		}
	}
	r.env = append(r.env, "WALRELAY_POSTGRES="+postgres, "WALRELAY_REDIS="+redis)
	return r, nil
}

// freeAddress is a port that nobody listens on. Somebody else may take it before
// the relay does; then the relay ends, and says so.
func freeAddress() (string, error) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return "", err
	}
	defer l.Close()
	return l.Addr().String(), nil
}

// start starts a process. It dies with us, even if we are killed: the kernel
// kills it when the thread that started it ends, so that thread is kept for it.
func (r *relay) start() error {
	log, err := os.OpenFile(r.log, os.O_WRONLY|os.O_CREATE|os.O_APPEND, 0o600)
	if err != nil {
		return err
	}
	defer log.Close()
	cmd := exec.Command(r.binary, r.args...)
	cmd.Env = r.env
	cmd.Stdout, cmd.Stderr = log, log
	cmd.SysProcAttr = &syscall.SysProcAttr{
		Setpgid:   true, // the terminal's Ctrl-C is for us, and we stop it in order
		Pdeathsig: syscall.SIGKILL,
	}
	started := make(chan error, 1)
	done := make(chan struct{})
	go func() {
		runtime.LockOSThread()
		defer runtime.UnlockOSThread()
		defer close(done)
		err := cmd.Start()
		started <- err
		if err == nil {
			r.err = cmd.Wait()
		}
	}()
	if err := <-started; err != nil {
		return fmt.Errorf("start walrelay: %w", err)
	}
	r.cmd, r.done = cmd, done
	return nil
}

func (r *relay) pid() int { return r.cmd.Process.Pid }

// kill is kill -9. It returns when the process is gone.
func (r *relay) kill() error {
	if r.cmd == nil {
		return nil
	}
	if err := r.cmd.Process.Kill(); err != nil && !errors.Is(err, os.ErrProcessDone) {
		return err
	}
	<-r.done
	return nil
}

// stop is what a process manager does, and wants to see exit code 0.
func (r *relay) stop() error {
	const patience = 15 * time.Second // above the relay's own --shutdown-timeout
	if err := r.cmd.Process.Signal(syscall.SIGTERM); err != nil && !errors.Is(err, os.ErrProcessDone) {
		return err
	}
	select {
	case <-r.done:
	case <-time.After(patience):
		return fmt.Errorf("walrelay still ran %v after SIGTERM%s", patience, r.logTail())
	}
	if r.err != nil {
		return fmt.Errorf("walrelay ended with %w after SIGTERM%s", r.err, r.logTail())
	}
	return nil
}

// running is an error once the process has ended by itself.
func (r *relay) running() error {
	select {
	case <-r.done:
		how := "exit status 0"
		if r.err != nil {
			how = r.err.Error()
		}
		return fmt.Errorf("walrelay ended by itself: %s%s", how, r.logTail())
	default:
		return nil
	}
}

// health asks /healthz.
func (r *relay) health(ctx context.Context) (code int, document []byte, err error) {
	ctx, cancel := context.WithTimeout(ctx, 2*time.Second)
	defer cancel()
	request, err := http.NewRequestWithContext(ctx, http.MethodGet, r.url(), nil)
	if err != nil {
		return 0, nil, err
	}
	request.Close = true // the relay is restarted; keep no connection to the old one
	response, err := http.DefaultClient.Do(request)
	if err != nil {
		return 0, nil, err
	}
	defer response.Body.Close()
	document, err = io.ReadAll(response.Body)
	return response.StatusCode, document, err
}

func (r *relay) url() string { return "http://" + r.http + "/healthz" }

// streaming reports whether the relay says that it streams.
func (r *relay) streaming(ctx context.Context) bool {
	_, document, err := r.health(ctx)
	var health struct {
		Role string `json:"role"`
	}
	return err == nil && json.Unmarshal(document, &health) == nil && health.Role == "streaming"
}

// logTail is the end of the log, to go behind an error.
func (r *relay) logTail() string {
	const lines = 15
	raw, err := os.ReadFile(r.log)
	if err != nil || len(raw) == 0 {
		return ""
	}
	all := strings.Split(strings.TrimSpace(string(raw)), "\n")
	return "\nthe end of its log:\n" + indent(strings.Join(all[max(0, len(all)-lines):], "\n"))
}
