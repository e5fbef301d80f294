package main

import (
	"bytes"
	"fmt"
	"io"
	"math"
	"text/tabwriter"
	"time"
)

// A runway may be off by a part of what was really left, and, when little is
// left, by what goes by between two looks of the relay at PostgreSQL.
const (
	mayBeOff = 0.20
	interval = 5 * time.Second
)

// report is what was measured.
type report struct {
	options
	postgres string
	began    time.Time // Redis stopped
	ended    time.Time // safe_wal_size was used up
	lost     time.Time // PostgreSQL had removed WAL
	looks    []looked
	late     int64 // milliseconds that a writer was late at most
}

// left is what was really left at a look, in seconds.
func (r *report) left(l looked) float64 { return r.ended.Sub(l.at).Seconds() }

// judged says that there was something to foretell.
func (r *report) judged(l looked) bool { return r.left(l) > 0 && l.runway != nil }

// off is by how much of it the runway was off.
func (r *report) off(l looked) float64 { return *l.runway/r.left(l) - 1 }

// wrong says that it was off by more than it may be.
func (r *report) wrong(l looked) bool {
	return math.Abs(*l.runway-r.left(l)) > max(mayBeOff*r.left(l), interval.Seconds())
}

// good says that runways were foretold, and none of them wrong.
func (r *report) good() bool {
	n := 0
	for _, l := range r.looks {
		if !r.judged(l) {
			continue
		}
		n++
		if r.wrong(l) {
			return false
		}
	}
	return n > 0
}

// words is a look, as it comes.
func (l looked) words() string {
	runway := "no runway yet"
	if l.runway != nil {
		runway = fmt.Sprintf("runway %.0f s", *l.runway)
	}
	return fmt.Sprintf("%s, safe_wal_size %s, %s, health %s", runway, mb(l.safe), l.wal.status, l.status)
}

func mb(n int64) string { return fmt.Sprintf("%.1f MB", float64(n)/1e6) }

// write prints the table and what is to be said of it.
func (r *report) write(out io.Writer) error {
	var text bytes.Buffer
	fmt.Fprintf(&text, "PostgreSQL %s, max_slot_wal_keep_size %d MB; %s, at %d kB/s.\n", r.postgres, r.budget, r.load.name, r.rate)
	fmt.Fprintf(&text, "Redis stopped after %d s of that. No write was later than %d ms.\n\n", r.before, r.late)
	table := tabwriter.NewWriter(&text, 0, 0, 2, ' ', tabwriter.AlignRight)
	fmt.Fprintln(table, "after\tforetold\tleft\toff\tsafe_wal_size\tretained\twal_status\thealth\t")
	said, worst, wrong := 0, 0.0, 0
	for _, l := range r.looks {
		foretold, left, off := "-", "-", "-"
		if l.runway != nil {
			foretold = fmt.Sprintf("%.0f s", *l.runway)
		}
		if r.left(l) > 0 {
			left = fmt.Sprintf("%.0f s", r.left(l))
		}
		if r.judged(l) {
			off = fmt.Sprintf("%+.0f %%", 100*r.off(l))
			said++
			if r.left(l) > interval.Seconds()/mayBeOff {
				worst = max(worst, math.Abs(r.off(l)))
			}
			if r.wrong(l) {
				wrong++
				off = "! " + off
			}
		}
		fmt.Fprintf(table, "%.0f s\t%s\t%s\t%s\t%s\t%s\t%s\t%s\t\n", l.at.Sub(r.began).Seconds(), foretold, left, off, mb(l.safe), mb(l.retained), l.wal.status, l.status)
	}
	if err := table.Flush(); err != nil {
		return err
	}
	fmt.Fprintf(&text, "\nThe budget was used up after %.0f s, and the slot lost, by a checkpoint that was asked for then, after %.0f s.\n", r.ended.Sub(r.began).Seconds(), r.lost.Sub(r.began).Seconds())
	fmt.Fprintf(&text, "%d runways were foretold. While more than %.0f s were left the worst was off by %.0f %%; %d were off by more than %.0f %% and %.0f s.\n",
		said, interval.Seconds()/mayBeOff, 100*worst, wrong, 100*mayBeOff, interval.Seconds())
	_, err := out.Write(text.Bytes())
	return err
}
