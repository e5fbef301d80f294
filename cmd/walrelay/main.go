// Command walrelay carries the rows of a transactional outbox from PostgreSQL
// to a Redis stream: each committed row once, in the order of the commits.
package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"os"
	"os/signal"
	"runtime"
	"runtime/debug"
	"sync"
	"syscall"

	"github.com/redis/go-redis/v9/logging"

	"github.com/stagedoor/walrelay/relay"
)

// The exit codes, as --help lists them.
const (
	exitDone    = 0
	exitFailure = 1
	exitUsage   = 2
)

func main() {
	limitMemory(os.Getenv)
	limitProcessors(os.Getenv)
	logging.Disable() // the Redis client also writes its errors to standard error, past our log
	os.Exit(realMain(os.Args[1:], os.Environ(), os.Stdin, os.Stdout, os.Stderr))
}

// limitMemory keeps the process small: the collector normally lets the heap
// double, which the queues of a relay that waits for Redis make tens of
// megabytes of garbage. The limit is soft, so nothing fails beyond it, and
// GOMEMLIMIT sets another. The program's own pages, 16 MiB, come on top, and
// the whole is to stay below 64 MiB.
// https://go.dev/doc/gc-guide#Memory_limit
func limitMemory(getenv func(string) string) {
	if getenv("GOMEMLIMIT") == "" {
		debug.SetMemoryLimit(40 << 20)
	}
}

// limitProcessors has one processor run our code, since one is enough: a row of a
// backlog takes us less than the server's process that sends it, which is one, too.
// With more, each row that comes by itself wakes a second thread, which finds that
// the first has done the work. GOMAXPROCS allows more.
func limitProcessors(getenv func(string) string) {
	if getenv("GOMAXPROCS") == "" {
		runtime.GOMAXPROCS(1)
	}
}

// realMain runs one command and returns the exit code.
func realMain(args, environ []string, stdin *os.File, stdout, stderr io.Writer) int {
	return watchedMain(args, environ, stdin, stdout, stderr, nil)
}

// watchedMain is realMain for tests that end the process at a step.
func watchedMain(args, environ []string, stdin *os.File, stdout, stderr io.Writer, onStep func(relay.Step)) int {
	cmd, cfg, warnings, err := parse(args, environ, stdout, stderr)
	if errors.Is(err, errHelp) {
		return exitDone
	}
	if err == nil {
		log := newLogger(stderr, cfg)
		for _, warning := range warnings {
			log.Warn("environment: " + warning)
		}
		err = untilSignal(log, os.Exit, func(ctx context.Context) error {
			return cmd.Run(ctx, &process{cfg: cfg, log: log, stdin: stdin, stdout: stdout, stderr: stderr, onStep: onStep})
		})
	}
	return exitCode(err, stderr)
}

// exitCode reports the error and maps it to the exit code.
func exitCode(err error, stderr io.Writer) int {
	if err == nil {
		return exitDone
	}
	fmt.Fprintln(stderr, "walrelay:", err)
	var usage *usageError
	if errors.As(err, &usage) {
		return exitUsage
	}
	return exitFailure
}

// untilSignal calls f with a context that the first SIGTERM or SIGINT cancels.
// A second one ends the process at once, for whoever cannot wait.
func untilSignal(log *slog.Logger, exit func(int), f func(context.Context) error) error {
	ctx, cancel := context.WithCancel(context.Background())
	defer cancel()
	signals := make(chan os.Signal, 2)
	signal.Notify(signals, syscall.SIGTERM, syscall.SIGINT)

	returned := make(chan struct{})
	var watcher sync.WaitGroup
	watcher.Go(func() {
		for {
			select {
			case <-returned:
				return
			case s := <-signals:
				if ctx.Err() != nil {
					log.Warn("second signal, ending at once", "signal", s.String())
					exit(exitFailure)
					return
				}
				log.Info("stopping", "signal", s.String())
				cancel()
			}
		}
	})
	defer watcher.Wait()
	defer close(returned)
	defer signal.Stop(signals)
	return f(ctx)
}
