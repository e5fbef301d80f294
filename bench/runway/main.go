// Runway measures how well walrelay foretells when the budget for WAL ends. It
// starts PostgreSQL with a small max_slot_wal_keep_size, Redis and a relay, has
// writers write WAL at a steady rate, stops Redis, and compares the runway_seconds
// of /healthz, every few seconds, with when safe_wal_size was then used up.
//
// It exits 0 when no runway was off by more than it may be, 1 when one was or when
// it could not measure, and 2 if it was called wrongly.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"os/signal"
	"syscall"
	"time"
)

// options is the command line.
type options struct {
	load     load
	rate     int // kB of WAL a second that the writers aim at
	budget   int // MB, max_slot_wal_keep_size
	before   int // seconds of writing before Redis stops
	every    int // seconds between two looks
	round    int // seconds, checkpoint_timeout
	walrelay string
	wal      string // file for all that was seen of the WAL; empty for none
	patience time.Duration
}

func main() { os.Exit(run(os.Args[1:], os.Stdout, os.Stderr)) }

// run is main with an exit code.
func run(args []string, stdout, stderr io.Writer) int {
	o, err := parse(args, stderr)
	switch {
	case errors.Is(err, flag.ErrHelp):
		return 0
	case err != nil:
		fmt.Fprintln(stderr, err)
		return 2
	}
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM, syscall.SIGHUP)
	defer stop()
	context.AfterFunc(ctx, stop) // a second Ctrl-C does not wait for the cleanup
	r, err := measure(ctx, o, stderr)
	switch {
	case err != nil && ctx.Err() != nil:
		fmt.Fprintln(stderr, "runway: stopped before it was over")
		return 1
	case err != nil:
		fmt.Fprintln(stderr, "runway:", err)
		return 1
	}
	if err := r.write(stdout); err != nil {
		fmt.Fprintln(stderr, "runway:", err)
		return 1
	}
	if !r.good() {
		return 1
	}
	return 0
}

// parse reads the command line. Its error says what is allowed.
func parse(args []string, stderr io.Writer) (options, error) {
	o := options{load: loads["rows"], patience: time.Minute}
	flags := flag.NewFlagSet("runway", flag.ContinueOnError)
	flags.SetOutput(io.Discard) // errors are printed once, by run
	flags.Func("load", "what is written: rows of the outbox (the default), or pages, updates all over a large\ntable, of which PostgreSQL writes full pages after each checkpoint", func(name string) error {
		l, ok := loads[name]
		if !ok {
			return errors.New("it must be rows or pages")
		}
		o.load = l
		return nil
	})
	flags.IntVar(&o.rate, "rate", 1000, "kB that are written a second, 10 to 100000; WAL is more than that")
	flags.IntVar(&o.budget, "budget", 256, "max_slot_wal_keep_size in MB, 32 to 100000")
	flags.IntVar(&o.before, "before", 60, "how many seconds are written before Redis stops, 0 to 3600")
	flags.IntVar(&o.every, "every", 5, "seconds between two looks, 1 to 600")
	flags.IntVar(&o.round, "checkpoints", 300, "seconds from one checkpoint to the next, 30 to 3600; full pages are known\nafter one round, and the budget has to last for some")
	flags.StringVar(&o.walrelay, "walrelay", "", "run this walrelay `binary` instead of building one")
	flags.StringVar(&o.wal, "wal", "", "write to this `file` where the WAL was at each second")
	err := flags.Parse(args)
	within := func(name string, n, least, most int) {
		if err == nil && (n < least || n > most) {
			err = fmt.Errorf("-%s is %d; it must be from %d to %d", name, n, least, most)
		}
	}
	switch {
	case errors.Is(err, flag.ErrHelp):
		fmt.Fprintln(stderr, "Measures how well the runway is foretold, on throwaway servers. Flags:")
		flags.SetOutput(stderr)
		flags.PrintDefaults()
		return o, err
	case err != nil:
		return o, fmt.Errorf("%w (see -help)", err)
	case flags.NArg() > 0:
		return o, fmt.Errorf("%q is not a flag; runway takes flags only (see -help)", flags.Arg(0))
	}
	within("rate", o.rate, 10, 100000)
	within("budget", o.budget, 32, 100000)
	within("before", o.before, 0, 3600)
	within("every", o.every, 1, 600)
	within("checkpoints", o.round, 30, 3600)
	return o, err
}
