// Demo shows walrelay at work, on servers of its own that it starts and removes:
// a ticket shop writes orders and outbox rows, the relay carries the rows to a
// Redis stream, and two workers do the jobs. On the way one worker dies between
// its work and its XACK, and the relay is killed with SIGKILL. In the end
// PostgreSQL's own decoder is asked what was committed, and the stream has to be
// exactly that.
//
// It exits 0 if nothing was lost, doubled or out of order, 1 if something was or
// the demo could not run, and 2 if it was called wrongly.
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
	seconds  int
	rate     int
	keep     bool
	walrelay string        // a ready binary; empty builds one
	patience time.Duration // with a step that depends on the relay
}

func main() { os.Exit(run(os.Args[1:], os.Stdout, os.Stderr)) }

// run is main with an exit code.
func run(args []string, stdout *os.File, stderr io.Writer) int {
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
	screen := newScreen(stdout)
	exact, err := play(ctx, o, screen)
	switch {
	case err != nil && ctx.Err() != nil:
		fmt.Fprintln(stderr, "demo: stopped before it was over")
		return 1
	case err != nil:
		fmt.Fprintln(stderr, "demo:", err)
		return 1
	case !exact:
		return 1
	}
	return 0
}

// parse reads the command line. Its error says what is allowed.
func parse(args []string, stderr io.Writer) (options, error) {
	o := options{patience: 30 * time.Second}
	flags := flag.NewFlagSet("demo", flag.ContinueOnError)
	flags.SetOutput(io.Discard) // errors are printed once, by run
	flags.IntVar(&o.seconds, "seconds", 20, "how long the shop is open, 5 to 3600; the rest takes about ten more")
	flags.IntVar(&o.rate, "rate", 40, "orders a second at most, 1 to 1000")
	flags.BoolVar(&o.keep, "keep", false, "keep servers and relay up at the end, until Ctrl-C, and say how to look at them")
	flags.StringVar(&o.walrelay, "walrelay", "", "run this walrelay `binary` instead of building one")
	err := flags.Parse(args)
	switch {
	case errors.Is(err, flag.ErrHelp):
		fmt.Fprintln(stderr, "Shows walrelay at work on throwaway servers. Flags:")
		flags.SetOutput(stderr)
		flags.PrintDefaults()
		return o, err
	case err != nil:
		return o, fmt.Errorf("%w (see --help)", err)
	case flags.NArg() > 0:
		return o, fmt.Errorf("%q is not a flag; the demo takes flags only (see --help)", flags.Arg(0))
	case o.seconds < 5 || o.seconds > 3600:
		return o, fmt.Errorf("--seconds is %d; it must be from 5 to 3600", o.seconds)
	case o.rate < 1 || o.rate > 1000:
		return o, fmt.Errorf("--rate is %d; it must be from 1 to 1000", o.rate)
	}
	return o, nil
}

// open is how long the shop is open.
func (o options) open() time.Duration { return time.Duration(o.seconds) * time.Second }
