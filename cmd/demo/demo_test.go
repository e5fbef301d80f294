package main

import (
	"context"
	"errors"
	"net/http"
	"os"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"
	"unicode/utf8"
)

// theater runs the demo with the stand-in for a relay.
func theater(t *testing.T, fault string) (options, *screen, func() string) {
	t.Helper()
	t.Setenv(standinEnv, fault)
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	out, err := os.Create(filepath.Join(t.TempDir(), "screen"))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { out.Close() })
	o := options{seconds: 3, rate: 80, walrelay: self, patience: 20 * time.Second}
	return o, newScreen(out), func() string {
		raw, err := os.ReadFile(out.Name())
		if err != nil {
			t.Fatal(err)
		}
		return string(raw)
	}
}

// gone checks that the processes and directories that the demo named are no
// more.
func gone(t *testing.T, output string) {
	t.Helper()
	pids := regexp.MustCompile(`pid (\d+)`).FindAllStringSubmatch(output, -1)
	if len(pids) == 0 {
		t.Error("no relay was started")
	}
	for _, m := range pids {
		pid, err := strconv.Atoi(m[1])
		if err != nil {
			t.Fatal(err)
		}
		if err := syscall.Kill(pid, 0); !errors.Is(err, syscall.ESRCH) {
			t.Errorf("process %d is still there (%v)", pid, err)
		}
	}
}

// The real relay, as make demo runs it.
func TestDemoShowsAnExactRelay(t *testing.T) {
	o, screen, output := theater(t, "exact")
	o.walrelay, o.patience = "", time.Minute
	exact, err := play(t.Context(), o, screen)
	if err != nil || !exact {
		t.Errorf("ended with %v, %v", exact, err)
	}
	text := output()
	for _, want := range []string{
		"a backfill brought the 20 rows", "opens for 3 s", "after created_at",
		"dies between its work and its XACK", "done before, so only the XACK is left",
		"killed with -9", "rows are waiting", "has caught up", "exit code 0",
		"lost                               0", "in the restart window", `"role": "streaming"`,
		"Nothing lost, nothing doubled, everything in commit order.",
	} {
		if !strings.Contains(text, want) {
			t.Errorf("does not say %q", want)
		}
	}
	for line := range strings.Lines(text) {
		if utf8.RuneCountInString(strings.TrimRight(line, "\n")) > 80 {
			t.Errorf("is wider than 80 columns: %s", line)
		}
	}
	if regexp.MustCompile(`\x1b|\r`).MatchString(text) {
		t.Error("draws on what is not a terminal")
	}
	gone(t, text)
	if t.Failed() {
		t.Log(text)
	}
}

func TestDemoFindsALoss(t *testing.T) {
	o, screen, output := theater(t, "lose")
	o.patience = 10 * time.Second // it waits in vain for the row
	exact, err := play(t.Context(), o, screen)
	if err != nil || exact {
		t.Errorf("ended with %v, %v", exact, err)
	}
	text := output()
	for _, want := range []string{
		"lost                               1", "not all rows arrived", "orders with work left", "NOT exactly once",
	} {
		if !strings.Contains(text, want) {
			t.Errorf("does not say %q:\n%s", want, text)
		}
	}
	gone(t, text)
}

func TestDemoFindsADuplicateAndKeepsItForALook(t *testing.T) {
	o, screen, output := theater(t, "double")
	o.keep = true
	ctx, stop := context.WithCancel(t.Context())
	defer stop()
	type end struct {
		exact bool
		err   error
	}
	ended := make(chan end, 1)
	go func() {
		exact, err := play(ctx, o, screen)
		ended <- end{exact, err}
	}()
	for !strings.Contains(output(), "stays up until Ctrl-C") {
		select {
		case e := <-ended:
			t.Fatalf("ended with %+v:\n%s", e, output())
		case <-time.After(10 * time.Millisecond):
		}
	}
	text := output()
	for _, want := range []string{"duplicated                         1", "NOT exactly once"} {
		if !strings.Contains(text, want) {
			t.Errorf("does not say %q:\n%s", want, text)
		}
	}
	url := regexp.MustCompile(`curl (\S+healthz)`).FindStringSubmatch(text)
	if len(url) == 0 {
		t.Fatalf("does not say how to look:\n%s", text)
	}
	response, err := http.Get(url[1])
	if err != nil {
		t.Error(err)
	} else {
		response.Body.Close()
	}
	stop()
	if e := <-ended; e.err != nil || e.exact {
		t.Errorf("ended with %+v", e)
	}
	gone(t, text)
}

func TestDemoCleansUpWhenItIsStopped(t *testing.T) {
	o, screen, output := theater(t, "exact")
	ctx, stop := context.WithCancel(t.Context())
	defer stop()
	ended := make(chan error, 1)
	go func() {
		_, err := play(ctx, o, screen)
		ended <- err
	}()
	for !strings.Contains(output(), "opens for") {
		select {
		case err := <-ended:
			t.Fatalf("ended with %v:\n%s", err, output())
		case <-time.After(10 * time.Millisecond):
		}
	}
	stop()
	if err := <-ended; !errors.Is(err, context.Canceled) {
		t.Errorf("ended with %v", err)
	}
	gone(t, output())
}

func TestDemoSaysWhyTheRelayEnded(t *testing.T) {
	o, screen, output := theater(t, "exact")
	script := filepath.Join(t.TempDir(), "walrelay")
	if err := os.WriteFile(script, []byte("#!/bin/sh\necho the sky is too low >&2\nexit 3\n"), 0o700); err != nil {
		t.Fatal(err)
	}
	o.walrelay = script
	_, err := play(t.Context(), o, screen)
	if err == nil || !strings.Contains(err.Error(), "exit status 3") || !strings.Contains(err.Error(), "the sky is too low") {
		t.Errorf("ended with %v", err)
	}
	gone(t, output())
}

func TestUsage(t *testing.T) {
	for args, want := range map[string]string{
		"--seconds 4":    "from 5 to 3600",
		"--seconds 3601": "from 5 to 3600",
		"--seconds soon": "--help",
		"--rate 0":       "from 1 to 1000",
		"--rate 1001":    "from 1 to 1000",
		"--fast":         "--help",
		"now":            "flags only",
	} {
		var stderr strings.Builder
		if code := run(strings.Fields(args), os.Stdout, &stderr); code != 2 {
			t.Errorf("%s: exit code %d, want 2", args, code)
		}
		if !strings.Contains(stderr.String(), want) {
			t.Errorf("%s: says %q, want %q", args, stderr.String(), want)
		}
	}
	var stderr strings.Builder
	if code := run([]string{"--help"}, os.Stdout, &stderr); code != 0 || !strings.Contains(stderr.String(), "-seconds") {
		t.Errorf("--help: exit code %d, says %q", code, stderr.String())
	}
}

func TestShort(t *testing.T) {
	for d, want := range map[time.Duration]string{
		1234 * time.Microsecond:   "1.2 ms",
		12345 * time.Microsecond:  "12 ms",
		999999 * time.Microsecond: "999 ms",
		1234 * time.Millisecond:   "1.23 s",
	} {
		if got := short(d); got != want {
			t.Errorf("%v is printed as %q, want %q", d, got, want)
		}
	}
}
