// Bench measures how fast walrelay is, and what it takes, beside what limits it
// and what one would use in its place: on throwaway servers on this machine, all
// in the same run. README.md says what each part measures, and how to read it.
//
// It exits 0 when it has measured, 1 when it could not or when a stream did not
// have exactly the rows that were written, and 2 if it was called wrongly.
package main

import (
	"context"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"os/signal"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"time"

	"github.com/stagedoor/walrelay/bench/internal/progress"
	"github.com/stagedoor/walrelay/internal/relayprocess"
)

// options is the command line.
type options struct {
	parts    []string
	only     []string // keys of contenders of drains and latency; none for all
	rates    []int    // of latency, in transactions a second
	pairs    int
	scale    float64
	cut      time.Duration
	seconds  int
	json     string
	svg      string
	from     []string
	walrelay string // a ready binary; empty builds one
}

// bench is a run of this program.
type bench struct {
	options
	progress *progress.Progress
	step     string // that is shown
	report   *report
}

func main() {
	if text := os.Getenv(contenderVariable); text != "" {
		os.Exit(contend(text, os.Stderr))
	}
	os.Exit(run(os.Args[1:], os.Stdout, os.Stderr))
}

// contend is main of a process that does a contender's work.
func contend(text string, stderr io.Writer) int {
	var w work
	err := json.Unmarshal([]byte(text), &w)
	switch {
	case err != nil:
	case w.Contender == keyPipeline:
		err = pipeline(w.RedisAddr, w.Stream, w.Shape)
	case w.Contender == keyLeast:
		err = least(context.Background(), w.Postgres, w.Slot, w.Publication, w.RedisURL, w.Stream)
	default:
		err = fmt.Errorf("no such contender: %q", w.Contender)
	}
	if err != nil {
		fmt.Fprintln(stderr, err)
		return 1
	}
	return 0
}

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
	b := &bench{options: o, progress: progress.New(stderr)}
	err = b.measure(ctx)
	b.progress.Erase()
	// Parts that were measured before an error are as good as ever.
	if b.report != nil && len(b.report.tables()) > 0 {
		err = errors.Join(err, b.report.writeMarkdown(stdout))
	}
	if err != nil {
		if ctx.Err() != nil {
			err = errors.New("stopped before it was over")
		}
		fmt.Fprintln(stderr, "bench:", err)
		return 1
	}
	return 0
}

// parse reads the command line. Its error says what is allowed.
func parse(args []string, stderr io.Writer) (options, error) {
	var o options
	var parts, only, from, rates string
	flags := flag.NewFlagSet("bench", flag.ContinueOnError)
	flags.SetOutput(io.Discard) // errors are printed once, by run
	flags.StringVar(&parts, "part", "all", "`parts` to measure, with commas: "+strings.Join(partNames(), ", ")+";\ndrain is all of the drains, all is everything")
	flags.StringVar(&only, "only", "", "`contenders` of drains and latency, with commas: "+strings.Join(allKeys(), ", "))
	flags.StringVar(&rates, "rates", "10,100,500,1000", "`transactions` a second of latency, with commas, each 1 to 100000")
	flags.IntVar(&o.pairs, "pairs", 5, "how often everything is measured, one after the other, 1 to 100;\nfewer than five are no result")
	flags.Float64Var(&o.scale, "scale", 1, "fraction of the rows and seconds, 0.0001 to 1")
	flags.DurationVar(&o.cut, "cut", 12*time.Second, "how long a slow contender may take; its rate is then that of what it had done")
	flags.IntVar(&o.seconds, "seconds", 4, "how long rows are written in each run of latency, 1 to 600")
	flags.StringVar(&o.json, "json", "", "write everything measured to this `file`, after each part")
	flags.StringVar(&o.svg, "svg", "", "write the plot to this `file`, after each part")
	flags.StringVar(&from, "from", "", "measure nothing: read what was measured from these JSON `files`, with commas")
	flags.StringVar(&o.walrelay, "walrelay", "", "measure this walrelay `binary` instead of building one")
	err := flags.Parse(args)
	switch {
	case errors.Is(err, flag.ErrHelp):
		fmt.Fprintln(stderr, "Measures how fast walrelay is, on throwaway servers. Flags:")
		flags.SetOutput(stderr)
		flags.PrintDefaults()
		return o, err
	case err != nil:
		return o, fmt.Errorf("%w (see -help)", err)
	case flags.NArg() > 0:
		return o, fmt.Errorf("%q is not a flag; bench takes flags only (see -help)", flags.Arg(0))
	case o.pairs < 1 || o.pairs > 100:
		return o, fmt.Errorf("-pairs is %d; it must be from 1 to 100", o.pairs)
	case !(o.scale >= 0.0001 && o.scale <= 1):
		return o, fmt.Errorf("-scale is %v; it must be from 0.0001 to 1", o.scale)
	case o.seconds < 1 || o.seconds > 600:
		return o, fmt.Errorf("-seconds is %d; it must be from 1 to 600", o.seconds)
	case o.cut < time.Second:
		return o, fmt.Errorf("-cut is %s; it must be 1s or more", o.cut)
	}
	if from != "" {
		o.from = strings.Split(from, ",")
	}
	if o.parts, err = chooseParts(parts); err != nil {
		return o, err
	}
	if only != "" {
		o.only = strings.Split(only, ",")
	}
	for rate := range strings.SplitSeq(rates, ",") {
		n, err := strconv.Atoi(rate)
		if err != nil || n < 1 || n > 100_000 {
			return o, fmt.Errorf("-rates: %q is not a number from 1 to 100000", rate)
		}
		o.rates = append(o.rates, n)
	}
	for _, key := range o.only {
		if !slices.Contains(allKeys(), key) {
			return o, fmt.Errorf("-only: there is no contender %q, but %s", key, strings.Join(allKeys(), ", "))
		}
	}
	drains := slices.ContainsFunc(o.parts, func(name string) bool { return strings.HasPrefix(name, drainPrefix) })
	if b := (&bench{options: o}); drains && len(b.chosen()) == 0 {
		return o, fmt.Errorf("-only: %s is a contender of latency alone", keyDirect)
	}
	return o, nil
}

// contenderKeys are the names of the contenders on the command line.
func contenderKeys() []string {
	var keys []string
	for _, c := range contenders() {
		keys = append(keys, c.key)
	}
	return keys
}

// allKeys has the one of latency alone, too.
func allKeys() []string { return append(contenderKeys(), keyDirect) }

// wants reports whether a contender is to be measured.
func (b *bench) wants(key string) bool { return len(b.only) == 0 || slices.Contains(b.only, key) }

// chosen are the contenders of the drains that are to be measured.
func (b *bench) chosen() []contender {
	return slices.DeleteFunc(contenders(), func(c contender) bool { return !b.wants(c.key) })
}

// part is what can be measured alone, within ten minutes.
type part struct {
	name    string
	measure func(context.Context, *bench) error
}

// drainPrefix begins the name of each part that is a drain.
const drainPrefix = "drain-"

// parts are all parts, in their order.
func allParts() []part {
	var all []part
	for _, s := range shapes() {
		all = append(all, part{drainPrefix + s.Name, func(ctx context.Context, b *bench) error {
			d, err := b.measureDrain(ctx, s.scaled(b.scale))
			if err == nil {
				b.report.Drains = append(b.report.Drains, d)
			}
			return err
		}})
	}
	return append(all,
		part{"latency", func(ctx context.Context, b *bench) error {
			l, err := b.measureLatency(ctx)
			if err == nil {
				b.report.Latency = l
			}
			return err
		}},
		part{"cost", func(ctx context.Context, b *bench) error { return b.measureCost(ctx) }},
		part{"recovery", func(ctx context.Context, b *bench) error {
			r, err := b.measureRecovery(ctx)
			if err == nil {
				b.report.Recovery = r
			}
			return err
		}},
	)
}

func partNames() []string {
	var names []string
	for _, p := range allParts() {
		names = append(names, p.name)
	}
	return names
}

// chooseParts reads a list of parts.
func chooseParts(list string) ([]string, error) {
	var chosen []string
	for name := range strings.SplitSeq(list, ",") {
		n := len(chosen)
		for _, p := range partNames() {
			if name == "all" || name == p || (name == "drain" && strings.HasPrefix(p, drainPrefix)) {
				chosen = append(chosen, p)
			}
		}
		if len(chosen) == n {
			return nil, fmt.Errorf("-part: there is no part %q, but all, drain, %s", name, strings.Join(partNames(), ", "))
		}
	}
	return chosen, nil
}

// measure measures the parts, and keeps what there is after each.
func (b *bench) measure(ctx context.Context) error {
	if len(b.from) > 0 {
		var err error
		if b.report, err = readReports(b.from); err != nil {
			return err
		}
		return b.keepReport()
	}
	if b.walrelay == "" {
		b.progress.Show("building walrelay", "the first time takes a while")
		dir, err := os.MkdirTemp("", "walrelay-bench-")
		if err != nil {
			return err
		}
		defer os.RemoveAll(dir)
		if b.walrelay, err = relayprocess.Build(ctx, dir); err != nil {
			return err
		}
	}
	r, err := newReport(b.options)
	if err != nil {
		return err
	}
	b.report = r
	if r.Machine.busy() {
		b.progress.Line(fmt.Sprintf("This machine is busy: its load average is %.2f. What is measured now is no result.", r.Machine.Load))
	}
	for _, p := range allParts() {
		if !slices.Contains(b.parts, p.name) {
			continue
		}
		began := time.Now()
		if err := p.measure(ctx, b); err != nil {
			return fmt.Errorf("%s: %w", p.name, err)
		}
		b.progress.Line(fmt.Sprintf("%s took %s", p.name, time.Since(began).Round(time.Second)))
		if err := b.keepReport(); err != nil {
			return err
		}
	}
	return nil
}

// keepReport writes the files that were asked for.
func (b *bench) keepReport() error {
	if b.json != "" {
		if err := writeFile(b.json, b.report.writeJSON); err != nil {
			return err
		}
	}
	if b.svg != "" {
		return writeFile(b.svg, b.report.writeSVG)
	}
	return nil
}

// writeFile writes a file as a whole, or leaves the one that is there.
func writeFile(name string, write func(io.Writer) error) error {
	file, err := os.Create(name + ".part")
	if err != nil {
		return err
	}
	if err := errors.Join(write(file), file.Close()); err != nil {
		return errors.Join(err, os.Remove(name+".part"))
	}
	return os.Rename(name+".part", name)
}
