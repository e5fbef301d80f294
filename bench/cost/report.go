package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"runtime"
	"strings"
	"unicode/utf8"

	"github.com/stagedoor/walrelay/bench/internal/progress"
	"github.com/stagedoor/walrelay/internal/relayprocess"
	"github.com/stagedoor/walrelay/internal/testservers"
)

// report is what was measured, and on what.
type report struct {
	PostgreSQL string  `json:"postgresql"`
	Redis      string  `json:"redis"`
	Processors int     `json:"processors"`
	Load       float64 `json:"load_average"` // of the last minute before it began
	Autovacuum string  `json:"autovacuum"`
	Rate       int     `json:"rate"` // rows a second that were aimed at
	Modes      []*cost `json:"modes"`
}

// cost is a mode's. The differences are to the first mode.
type cost struct {
	Mode           string     `json:"mode"`
	WALLevel       string     `json:"wal_level"`
	Idle           window     `json:"idle"`
	IdleDifference counters   `json:"idle_difference"`
	Load           loadWindow `json:"load"`
	LoadDifference counters   `json:"load_difference"`
}

// measure measures one mode after the other.
func measure(ctx context.Context, o options, p *progress.Progress) (r *report, err error) {
	defer p.Erase()
	r = &report{Processors: runtime.NumCPU(), Rate: o.rate}
	if r.Load, err = loadAverage(); err != nil {
		return nil, err
	}
	if o.walrelay == "" {
		p.Show("building walrelay", "the first time takes a while")
		dir, err := os.MkdirTemp("", "walrelay-cost-")
		if err != nil {
			return nil, err
		}
		defer os.RemoveAll(dir)
		if o.walrelay, err = relayprocess.Build(ctx, dir); err != nil {
			return nil, err
		}
	}
	for _, m := range o.modes {
		c, err := r.measureMode(ctx, o, m, p)
		if err != nil {
			return nil, err
		}
		r.Modes = append(r.Modes, c)
		c.IdleDifference = c.Idle.Counters.minus(r.Modes[0].Idle.Counters)
		c.LoadDifference = c.Load.Counters.minus(r.Modes[0].Load.Counters)
	}
	return r, nil
}

// measureMode measures a mode on servers of its own.
func (r *report) measureMode(ctx context.Context, o options, m mode, p *progress.Progress) (c *cost, err error) {
	host := &testservers.Program{Log: p.Line}
	defer func() { err = errors.Join(err, host.Close()) }()
	s, err := newStage(ctx, o, m, host, p)
	if err != nil {
		return nil, err
	}
	if err := s.versions(ctx, r); err != nil {
		return nil, err
	}
	if err := s.open(ctx); err != nil {
		return nil, err
	}
	c = &cost{Mode: m.name, WALLevel: m.walLevel}
	if c.Idle, err = s.idleWindow(ctx); err != nil {
		return nil, err
	}
	c.Load, err = s.loadWindow(ctx)
	return c, err
}

// versions asks the servers what they are.
func (s *stage) versions(ctx context.Context, r *report) error {
	if err := s.admin.QueryRow(ctx, "SHOW server_version").Scan(&r.PostgreSQL); err != nil {
		return err
	}
	r.PostgreSQL, _, _ = strings.Cut(r.PostgreSQL, " ") // without the packager's
	if err := s.admin.QueryRow(ctx, "SHOW autovacuum").Scan(&r.Autovacuum); err != nil {
		return err
	}
	info, err := s.redis.Info(ctx, "server").Result()
	if err != nil {
		return err
	}
	for line := range strings.Lines(info) {
		if version, ok := strings.CutPrefix(line, "redis_version:"); ok {
			r.Redis = strings.TrimSpace(version)
		}
	}
	return nil
}

// loadAverage is the machine's, of the last minute.
func loadAverage() (load float64, err error) {
	raw, err := os.ReadFile("/proc/loadavg")
	if err == nil {
		_, err = fmt.Sscan(string(raw), &load)
	}
	return load, err
}

// writeJSON prints everything.
func (r *report) writeJSON(w io.Writer) error {
	encoder := json.NewEncoder(w)
	encoder.SetIndent("", "  ")
	return encoder.Encode(r)
}

// table is what is printed: a title, a line with the modes, and lines with a
// name and their numbers.
type table struct {
	title string
	lines [][]string
	zero  []string // quantities that are zero in all modes
}

// tables are idle and load.
func (r *report) tables() []table {
	first := r.Modes[0]
	idle := table{title: fmt.Sprintf("Idle, for %.0f s", first.Idle.Seconds), lines: r.head()}
	idle.add(r.Modes, func(c *cost) (counters, counters) { return c.Idle.Counters, c.IdleDifference })

	load := table{title: fmt.Sprintf("%s rows/s: %s rows, each in a transaction of its own", grouped(int64(r.Rate)), grouped(int64(first.Load.Rows))), lines: r.head()}
	load.each(r.Modes, "rows/s written", func(c *cost) string { return grouped(int64(c.Load.RowsPerSecond + 0.5)) })
	load.each(r.Modes, "rows on the stream", func(c *cost) string { return grouped(c.Load.Entries) })
	load.each(r.Modes, "seconds, with the last marks", func(c *cost) string { return fmt.Sprintf("%.1f", c.Load.Seconds) })
	load.add(r.Modes, func(c *cost) (counters, counters) { return c.Load.Counters, c.LoadDifference })
	return []table{idle, load}
}

func (r *report) head() [][]string {
	line := []string{""}
	for _, c := range r.Modes {
		line = append(line, c.Mode)
	}
	return [][]string{line}
}

// each adds a line of what stands for itself.
func (t *table) each(modes []*cost, name string, cell func(*cost) string) {
	line := []string{name}
	for _, c := range modes {
		line = append(line, cell(c))
	}
	t.lines = append(t.lines, line)
}

// add adds a line a quantity: of the first mode what it is, of the others what it
// is more.
func (t *table) add(modes []*cost, of func(*cost) (all, difference counters)) {
	for q := range quantities {
		name, _, u := q.described()
		zero := true
		line := []string{name}
		for i, c := range modes {
			all, difference := of(c)
			zero = zero && all[q] == 0
			if i == 0 {
				line = append(line, u.text(all[q]))
				continue
			}
			line = append(line, signed(difference[q], u))
		}
		if zero {
			t.zero = append(t.zero, name)
			continue
		}
		t.lines = append(t.lines, line)
	}
}

// signed is a difference as it is printed.
func signed(n int64, u unit) string {
	switch {
	case n < 0:
		return "−" + u.text(-n)
	case n == 0:
		return "0"
	}
	return "+" + u.text(n)
}

// text is a number as it is printed.
func (u unit) text(n int64) string {
	switch {
	case u == inMilliseconds:
		return fmt.Sprintf("%.2f s", float64(n)/1000)
	case u == inBytes && n >= 1e6:
		return fmt.Sprintf("%.1f MB", float64(n)/1e6)
	case u == inBytes && n >= 1e3:
		return fmt.Sprintf("%.1f kB", float64(n)/1e3)
	case u == inBytes:
		return fmt.Sprintf("%d B", n)
	}
	return grouped(n)
}

// grouped is a number of pieces with its thousands apart.
func grouped(n int64) string {
	if n < 0 {
		return "−" + grouped(-n)
	}
	if n < 1000 {
		return fmt.Sprint(n)
	}
	return fmt.Sprintf("%s,%03d", grouped(n/1000), n%1000)
}

// about says what the numbers are.
func (r *report) about() string {
	return fmt.Sprintf("PostgreSQL %s with autovacuum %s and Redis %s on one machine with walrelay and the writers: %d processors, load average %.2f before it began. "+
		"wal_level is logical for run, else replica, so run answers for what that costs. The first column is the writers alone; the others are what comes on top of it.",
		r.PostgreSQL, r.Autovacuum, r.Redis, r.Processors, r.Load)
}

// nothing says what no mode did.
func (t *table) nothing() string {
	if len(t.zero) == 0 {
		return ""
	}
	return "Zero everywhere: " + strings.Join(t.zero, ", ") + "."
}

// writeText prints the tables for a terminal.
func (r *report) writeText(w io.Writer) error {
	var b strings.Builder
	fmt.Fprintf(&b, "What a relay costs the primary\n\n%s\n", wrapped(r.about(), 88))
	for _, t := range r.tables() {
		fmt.Fprintf(&b, "\n%s\n\n", t.title)
		widths := make([]int, len(t.lines[0]))
		for _, line := range t.lines {
			for i, cell := range line {
				widths[i] = max(widths[i], utf8.RuneCountInString(cell))
			}
		}
		for _, line := range t.lines {
			fmt.Fprintf(&b, "  %-*s", widths[0], line[0])
			for i, cell := range line[1:] {
				fmt.Fprintf(&b, "  %*s", widths[i+1], cell)
			}
			b.WriteByte('\n')
		}
		if nothing := t.nothing(); nothing != "" {
			fmt.Fprintf(&b, "\n%s\n", wrapped(nothing, 88))
		}
	}
	_, err := io.WriteString(w, b.String())
	return err
}

// writeMarkdown prints the tables for the README.
func (r *report) writeMarkdown(w io.Writer) error {
	var b strings.Builder
	b.WriteString(wrapped(r.about(), 80) + "\n")
	for _, t := range r.tables() {
		fmt.Fprintf(&b, "\n%s:\n\n", t.title)
		for i, line := range t.lines {
			fmt.Fprintf(&b, "| %s |\n", strings.Join(line, " | "))
			if i == 0 {
				fmt.Fprintf(&b, "|---%s|\n", strings.Repeat("|--:", len(line)-1))
			}
		}
		if nothing := t.nothing(); nothing != "" {
			fmt.Fprintf(&b, "\n%s\n", wrapped(nothing, 80))
		}
	}
	_, err := io.WriteString(w, b.String())
	return err
}

// wrapped breaks lines between words.
func wrapped(text string, width int) string {
	var b strings.Builder
	column := 0
	for _, word := range strings.Fields(text) {
		n := utf8.RuneCountInString(word)
		switch {
		case column == 0:
		case column+1+n > width:
			b.WriteByte('\n')
			column = 0
		default:
			b.WriteByte(' ')
			column++
		}
		b.WriteString(word)
		column += n
	}
	return b.String()
}
