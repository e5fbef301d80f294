// Cost measures what a relay costs the primary: the writers alone, and the same
// writers with walrelay poll, poll --listen, run, and run --mark none, each on
// servers of its own that it starts and removes, while the table is idle and
// while it is written to.
//
// Where the numbers come from: pg_stat_database of the outbox's database,
// pg_stat_user_tables and pg_stat_user_indexes of the outbox, the sizes of the
// table and its indexes, pg_current_wal_insert_lsn(), and /proc for processor
// time. The measuring sessions are not in them. A window under load begins before
// the writers connect and ends when the last row is on the stream and marked, and
// writers and relay have left, so that everything they did is counted: PostgreSQL
// reports what a session does when it pleases, and the rest when the session ends.
//
// It exits 0 when it has measured, 1 when it could not or when the counters do not
// agree with what was written, and 2 if it was called wrongly.
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

	"github.com/stagedoor/walrelay/bench/internal/progress"
)

// options is the command line.
type options struct {
	rate     int // rows a second
	seconds  int // of writing
	idle     int // seconds
	settle   int // seconds
	json     bool
	markdown bool
	walrelay string // a ready binary; empty builds one
	modes    []mode
	patience time.Duration // with a step that depends on relay or servers
}

func main() { os.Exit(run(os.Args[1:], os.Stdout, os.Stderr)) }

// run is main with an exit code.
func run(args []string, stdout io.Writer, stderr *os.File) int {
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
	r, err := measure(ctx, o, progress.New(stderr))
	switch {
	case err != nil && ctx.Err() != nil:
		fmt.Fprintln(stderr, "cost: stopped before it was over")
		return 1
	case err != nil:
		fmt.Fprintln(stderr, "cost:", err)
		return 1
	}
	write := r.writeText
	switch {
	case o.json:
		write = r.writeJSON
	case o.markdown:
		write = r.writeMarkdown
	}
	if err := write(stdout); err != nil {
		fmt.Fprintln(stderr, "cost:", err)
		return 1
	}
	return 0
}

// parse reads the command line. Its error says what is allowed.
func parse(args []string, stderr io.Writer) (options, error) {
	o := options{modes: allModes(), patience: 30 * time.Second}
	flags := flag.NewFlagSet("cost", flag.ContinueOnError)
	flags.SetOutput(io.Discard) // errors are printed once, by run
	flags.IntVar(&o.rate, "rate", 1000, "rows a second, each a transaction, 1 to 100000")
	flags.IntVar(&o.seconds, "seconds", 30, "how long rows are written, 1 to 3600")
	flags.IntVar(&o.idle, "idle", 15, "how many seconds nothing is written, 1 to 3600")
	flags.IntVar(&o.settle, "settle", 11, "seconds between a relay's start and the first window, 0 to 3600;\na session that is idle reports what it did at its start up to ten seconds later")
	flags.BoolVar(&o.json, "json", false, "print JSON")
	flags.BoolVar(&o.markdown, "markdown", false, "print the tables of the README")
	flags.StringVar(&o.walrelay, "walrelay", "", "run this walrelay `binary` instead of building one")
	err := flags.Parse(args)
	within := func(name string, n, least, most int) {
		if err == nil && (n < least || n > most) {
			err = fmt.Errorf("-%s is %d; it must be from %d to %d", name, n, least, most)
		}
	}
	switch {
	case errors.Is(err, flag.ErrHelp):
		fmt.Fprintln(stderr, "Measures what a relay costs the primary, on throwaway servers. Flags:")
		flags.SetOutput(stderr)
		flags.PrintDefaults()
		return o, err
	case err != nil:
		return o, fmt.Errorf("%w (see -help)", err)
	case flags.NArg() > 0:
		return o, fmt.Errorf("%q is not a flag; cost takes flags only (see -help)", flags.Arg(0))
	case o.json && o.markdown:
		return o, errors.New("-json and -markdown exclude each other")
	}
	within("rate", o.rate, 1, 100000)
	within("seconds", o.seconds, 1, 3600)
	within("idle", o.idle, 1, 3600)
	within("settle", o.settle, 0, 3600)
	return o, err
}

// rows is how many rows are written under load, in every mode.
func (o options) rows() int { return o.rate * o.seconds }
