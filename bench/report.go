package main

import (
	"encoding/json"
	"fmt"
	"io"
	"os"
	"slices"
	"strings"
	"time"
)

// report is what was measured, and on what.
type report struct {
	Machine  machine   `json:"machine"`
	Began    time.Time `json:"began"`
	Pairs    int       `json:"pairs"`
	Scale    float64   `json:"scale"`
	Cut      float64   `json:"cut_seconds"`
	Drains   []*drain  `json:"drains,omitempty"`
	Latency  *latency  `json:"latency,omitempty"`
	Outage   *outage   `json:"outage,omitempty"`
	Recovery *recovery `json:"recovery,omitempty"`
}

func newReport(o options) (*report, error) {
	m, err := newMachine(o.walrelay)
	return &report{Machine: m, Began: time.Now().UTC().Truncate(time.Second), Pairs: o.pairs, Scale: o.scale, Cut: o.cut.Seconds()}, err
}

// readReports reads what several runs measured, each its own parts, into one
// report. They must have measured the same program on the same machine.
func readReports(names []string) (*report, error) {
	var all *report
	for _, name := range names {
		raw, err := os.ReadFile(name)
		if err != nil {
			return nil, err
		}
		r := &report{}
		if err := json.Unmarshal(raw, r); err != nil {
			return nil, fmt.Errorf("%s: %w", name, err)
		}
		if all == nil {
			all = r
			continue
		}
		if r.Machine.Walrelay != all.Machine.Walrelay || r.Machine.Processor != all.Machine.Processor || r.Scale != all.Scale {
			return nil, fmt.Errorf("%s is of another walrelay, machine or scale than %s", name, names[0])
		}
		all.Pairs = min(all.Pairs, r.Pairs)
		all.Machine.Load = max(all.Machine.Load, r.Machine.Load)
		for _, d := range r.Drains {
			if all.drain(d.Shape.Name) == nil {
				all.Drains = append(all.Drains, d)
			}
		}
		if r.Latency != nil {
			all.Latency = r.Latency
		}
		if r.Outage != nil {
			all.Outage = r.Outage
		}
		if r.Recovery != nil {
			all.Recovery = r.Recovery
		}
	}
	return all, nil
}

// drain is that of a shape, nil where it was not measured.
func (r *report) drain(name string) *drain {
	for _, d := range r.Drains {
		if d.Shape.Name == name {
			return d
		}
	}
	return nil
}

// ratios are those of two numbers of each pair, which were measured one shortly
// after the other. The second contender may be the first.
func ratios[R any](runs []R, pair func(R) int, is func(R) bool, beside func(R) bool, of, to func(R) float64) spread {
	var all []float64
	for _, r := range runs {
		if !is(r) {
			continue
		}
		for _, b := range runs {
			if beside(b) && pair(b) == pair(r) {
				all = append(all, of(r)/to(b))
			}
		}
	}
	return spreadOf(all)
}

// against compares two contenders of a drain.
func (d *drain) against(key, base string, of, to func(*drainRun) float64) spread {
	return ratios(d.Runs, func(r *drainRun) int { return r.Pair },
		func(r *drainRun) bool { return r.Contender == key }, func(r *drainRun) bool { return r.Contender == base }, of, to)
}

// each is a number of a contender's runs.
func (d *drain) each(key string, of func(*drainRun) float64) spread {
	var all []float64
	for _, r := range d.Runs {
		if r.Contender == key {
			all = append(all, of(r))
		}
	}
	return spreadOf(all)
}

// cut reports whether a contender was cut off.
func (d *drain) cut(key string) bool {
	return slices.ContainsFunc(d.Runs, func(r *drainRun) bool { return r.Contender == key && r.Cut })
}

// keys are the contenders that were measured, in their order.
func (d *drain) keys() []string {
	return slices.DeleteFunc(contenderKeys(), func(key string) bool { return d.each(key, (*drainRun).rate).N == 0 })
}

// rates are those that were measured, in their order.
func (l *latency) rates() []int {
	var all []int
	for _, r := range l.Pooled {
		if !slices.Contains(all, r.Rate) {
			all = append(all, r.Rate)
		}
	}
	return all
}

// against compares two contenders of the latency at a rate.
func (l *latency) against(key, base string, rate int, of func(*latencyRun) float64) spread {
	is := func(key string) func(*latencyRun) bool {
		return func(r *latencyRun) bool { return r.Contender == key && r.Rate == rate }
	}
	return ratios(l.Runs, func(r *latencyRun) int { return r.Pair }, is(key), is(base), of, of)
}

// writeJSON writes everything.
func (r *report) writeJSON(w io.Writer) error {
	encoder := json.NewEncoder(w)
	encoder.SetIndent("", "  ")
	return encoder.Encode(r)
}

// table is what is printed: a title, a line of names, and lines of numbers.
type table struct {
	title string
	lines [][]string
}

func (t *table) line(cells ...string) { t.lines = append(t.lines, cells) }

// tables are all that were measured.
func (r *report) tables() []table {
	var all []table
	if t := r.boundsTable(); len(t.lines) > 1 {
		all = append(all, t)
	}
	for _, d := range r.Drains {
		all = append(all, d.speed(), d.took())
	}
	if r.Latency != nil {
		all = append(all, r.Latency.table())
	}
	if r.Outage != nil {
		all = append(all, r.Outage.table())
	}
	if r.Recovery != nil {
		all = append(all, r.Recovery.backTable(), r.Recovery.startTable())
	}
	return all
}

// speed is how fast a backlog was drained.
func (d *drain) speed() table {
	t := table{title: fmt.Sprintf("Drain: %s, %s of log", d.Shape.title(), mebibytes(float64(d.WAL)))}
	t.line("", "rows/s from the start of the process", "of pg_recvlogical", "rows/s from the first row", "of pg_recvlogical", "first row after, ms")
	for _, key := range d.keys() {
		name := nameOf(key)
		if d.cut(key) {
			name += " (cut off)"
		}
		t.line(name,
			d.each(key, (*drainRun).rate).plain(), d.against(key, keyLimit, (*drainRun).rate, (*drainRun).rate).ratio(),
			d.each(key, (*drainRun).steady).plain(), d.against(key, keyLimit, (*drainRun).steady, (*drainRun).steady).ratio(),
			d.each(key, func(r *drainRun) float64 { return r.FirstSeconds * 1000 }).plain())
		if key == keyMarks {
			t.line("– until the last mark", d.each(key, (*drainRun).markRate).plain(), d.against(key, keyLimit, (*drainRun).markRate, (*drainRun).rate).ratio(), "", "", "")
		}
	}
	return t
}

// took is what draining a backlog took of the machine.
func (d *drain) took() table {
	t := table{title: "What it took, in CPU seconds per million rows: " + d.Shape.title()}
	t.line("", "its own process", "walsender", "the rest of PostgreSQL", "Redis", "peak RSS")
	for _, key := range d.keys() {
		per := func(of func(*drainRun) float64) string {
			return d.each(key, func(r *drainRun) float64 { return of(r) / float64(r.Rows) * 1e6 }).plain()
		}
		t.line(nameOf(key), per(func(r *drainRun) float64 { return r.Process }), per(func(r *drainRun) float64 { return r.Walsender }),
			per(func(r *drainRun) float64 { return r.Others }), per(func(r *drainRun) float64 { return r.Redis }),
			mebibytes(d.each(key, func(r *drainRun) float64 { return float64(r.Peak) }).Most))
	}
	return t
}

// table is of all pairs together, with the ratios of the pairs.
func (l *latency) table() table {
	t := table{title: fmt.Sprintf("Latency in ms, from the commit's return to the entry's arrival at a blocked XREAD; %d s a run", l.Seconds)}
	t.line("transactions/s", "", "rows", "achieved", "p50", "p99", "p99.9", "max", "p50 of XADD's", "p99 of XADD's", "p50 of poll's")
	ms := func(us float64) string { return digits(us / 1000) }
	for _, rate := range l.rates() {
		for _, c := range carriers() {
			for _, r := range l.Pooled {
				if r.Rate != rate || r.Contender != c.key {
					continue
				}
				t.line(grouped(int64(rate)), c.name, grouped(int64(r.Rows)), digits(l.achieved(c.key, rate)),
					ms(r.P50), ms(r.P99), ms(r.P999), ms(r.Max),
					l.against(c.key, keyDirect, rate, func(r *latencyRun) float64 { return r.P50 }).ratio(),
					l.against(c.key, keyDirect, rate, func(r *latencyRun) float64 { return r.P99 }).ratio(),
					l.against(c.key, keyPoll, rate, func(r *latencyRun) float64 { return r.P50 }).ratio())
			}
		}
	}
	return t
}

// achieved is the least rate that the writers had in any of the runs.
func (l *latency) achieved(key string, rate int) float64 {
	var all []float64
	for _, r := range l.Runs {
		if r.Contender == key && r.Rate == rate {
			all = append(all, r.Achieved)
		}
	}
	return spreadOf(all).Least
}

func (o *outage) table() table {
	t := table{title: fmt.Sprintf("Redis is stopped while %s of log pile up, in %s rows of 1 KB", mebibytes(float64(o.WAL)), grouped(int64(o.Rows)))}
	t.line("walrelay run", "")
	t.line("peak RSS before", mebibytes(float64(o.PeakIdle)))
	t.line("peak RSS while Redis is stopped", mebibytes(float64(o.PeakAway)))
	t.line("peak RSS when all rows are carried", mebibytes(float64(o.PeakCarried)))
	t.line("rows/s once Redis was back", digits(float64(o.Rows)/o.DrainSeconds))
	return t
}

// secondsOf are those of the runs that fit.
func secondsOf(runs []*recoveryRun, key, start, table string) spread {
	var all []float64
	for _, r := range runs {
		if r.Contender == key && r.Start == start && r.Table == table {
			all = append(all, r.Seconds)
		}
	}
	return spreadOf(all)
}

// toPoll compares with the poller of the same pair.
func toPoll(runs []*recoveryRun, key, start, table string) spread {
	seconds := func(r *recoveryRun) float64 { return r.Seconds }
	return ratios(runs, func(r *recoveryRun) int { return r.Pair },
		func(r *recoveryRun) bool { return r.Contender == key && r.Start == start && r.Table == table },
		func(r *recoveryRun) bool { return r.Contender == keyPoll && r.Table == table }, seconds, seconds)
}

func (r *recovery) backTable() table {
	t := table{title: fmt.Sprintf("Redis is back after %s rows: until the oldest unpublished row is younger than 100 ms", grouped(int64(r.Rows)))}
	t.line("", "seconds", "least–most", "of poll's")
	for _, key := range []string{keyRun, keyMarks, keyPoll} {
		s := secondsOf(r.Backs, key, "", "")
		t.line(nameOf(key), s.plain(), s.reach(), toPoll(r.Backs, key, "", "").ratio())
	}
	return t
}

func (r *recovery) startTable() table {
	t := table{title: "From the start of the process to its first row"}
	t.line("", "table", "ms", "least–most", "of poll's")
	names := map[string]string{emptyTable: "empty", fullTable: grouped(int64(r.Old)) + " old rows"}
	for _, c := range []struct{ name, key, start string }{
		{"walrelay run, the first start", keyMarks, "first"},
		{"walrelay run, later", keyMarks, "again"},
		{"walrelay poll", keyPoll, ""},
	} {
		for _, db := range []string{emptyTable, fullTable} {
			s := secondsOf(r.Starts, c.key, c.start, db)
			t.line(c.name, names[db], s.scaled(1000).plain(), s.scaled(1000).reach(), toPoll(r.Starts, c.key, c.start, db).ratio())
		}
	}
	return t
}

// about says what the numbers are.
func (r *report) about() string {
	text := r.Machine.String()
	text += fmt.Sprintf(" Medians of %d pairs; of ratios those of the pairs, with the least and the most.", r.Pairs)
	if !r.counts() {
		text += fmt.Sprintf(" **No result: %d pairs at %g of the size, beside a load of %.2f.**", r.Pairs, r.Scale, r.Machine.Load)
	}
	return text
}

// counts reports whether the numbers are a result.
func (r *report) counts() bool { return r.Scale == 1 && r.Pairs >= 5 && !r.Machine.busy() }

// writeMarkdown prints the tables.
func (r *report) writeMarkdown(w io.Writer) error {
	var b strings.Builder
	b.WriteString(r.about() + "\n")
	for _, t := range r.tables() {
		fmt.Fprintf(&b, "\n%s:\n\n", t.title)
		for i, line := range t.lines {
			fmt.Fprintf(&b, "| %s |\n", strings.Join(line, " | "))
			if i == 0 {
				fmt.Fprintf(&b, "|---%s|\n", strings.Repeat("|--:", len(line)-1))
			}
		}
	}
	_, err := io.WriteString(w, b.String())
	return err
}
