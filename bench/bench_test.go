package main

import (
	"encoding/xml"
	"errors"
	"io"
	"math"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/stagedoor/walrelay/bench/internal/progress"
	"github.com/stagedoor/walrelay/internal/relayprocess"
	"github.com/stagedoor/walrelay/internal/testservers"
)

func TestMain(m *testing.M) {
	if text := os.Getenv(contenderVariable); text != "" {
		os.Exit(contend(text, os.Stderr))
	}
	os.Exit(m.Run())
}

// A drain of three kinds of contenders: one that throws the log away, one without
// a database, and the relay with marks, on a server of its own. All there are take
// longer.
func TestDrainHasWhatItMeasured(t *testing.T) {
	t.Parallel()
	binary, err := relayprocess.Build(t.Context(), t.TempDir(), relayprocess.Flags()...)
	if err != nil {
		t.Fatal(err)
	}
	out, err := os.Create(filepath.Join(t.TempDir(), "progress"))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { out.Close() })
	b := &bench{
		options: options{
			pairs: 1, scale: 1, cut: patience, walrelay: binary,
			only: []string{keyLimit, keyPipeline, keyMarks},
		},
		progress: progress.New(out), report: &report{Scale: 1, Pairs: 1},
	}
	if os.Getenv("WALRELAY_TEST_LONG") != "" {
		b.only = contenderKeys()
	}
	s := shape{Name: "single", Rows: 300, Transaction: 2}
	d, err := b.measureDrain(t.Context(), s)
	if err != nil {
		t.Fatal(err)
	}
	if len(d.Runs) != len(b.only) || d.WAL < 300*100 {
		t.Fatalf("%d runs, %d bytes of log", len(d.Runs), d.WAL)
	}
	for _, r := range d.Runs {
		if r.Rows != 300 || r.Cut || r.Pair != 1 || r.Seconds < r.FirstSeconds || r.FirstSeconds <= 0 || r.Peak == 0 {
			t.Errorf("%+v", r)
		}
		if r.Contender == keyMarks && (r.Marked != 300 || r.MarkedSeconds <= 0) {
			t.Errorf("%+v", r)
		}
	}
	b.report.Drains = append(b.report.Drains, d)
	looksRight(t, b.report)
}

// A run that lost a row, doubled one, or changed their order is no result.
func TestStreamIsComparedWithTheRows(t *testing.T) {
	t.Parallel()
	redis := testservers.StartRedis(t, testservers.RedisOptions{})
	client := redis.Client(t)
	s := shape{Rows: 30}
	ids := func() []string {
		if err := pipeline(redis.Addr(), stream, s); err != nil {
			t.Fatal(err)
		}
		var ids []string
		for _, m := range client.XRange(t.Context(), stream, "-", "+").Val() {
			ids = append(ids, m.ID)
		}
		return ids
	}
	began := time.Now().Truncate(time.Millisecond)
	all := ids()
	e, err := check(redis.Addr(), stream, s, false)
	if err != nil || e.n != 30 || e.first.Before(began) || e.last.Before(e.first) || time.Now().Before(e.last) {
		t.Fatalf("%+v, %v", e, err)
	}
	for what, tt := range map[string]struct {
		gone  []string
		again bool
		cut   bool
		want  string // of the error; empty for none
	}{
		"the last is missing":               {gone: all[29:], want: "29 of 30"},
		"the last is missing of a cut run":  {gone: all[29:], cut: true},
		"one is missing":                    {gone: all[7:8], want: "is not row 8"},
		"one is missing of a cut run":       {gone: all[7:8], cut: true, want: "is not row 8"},
		"all are there twice":               {again: true, want: "more than the 30"},
		"all are there twice of a cut run":  {again: true, cut: true, want: "more than the 30"},
		"the first come behind the others":  {gone: all[:10], again: true, want: "is not row 1"},
		"nothing is there":                  {gone: all, want: "0 of 30"},
		"nothing is there, which was a cut": {gone: all, cut: true},
	} {
		if err := client.Del(t.Context(), stream).Err(); err != nil {
			t.Fatal(err)
		}
		now := ids()
		if tt.again {
			now = append(ids()[:0:0], now...)
		}
		for i, id := range all {
			for _, gone := range tt.gone {
				if id == gone {
					client.XDel(t.Context(), stream, now[i])
				}
			}
		}
		_, err := check(redis.Addr(), stream, s, tt.cut)
		if (tt.want == "") != (err == nil) || (err != nil && !strings.Contains(err.Error(), tt.want)) {
			t.Errorf("%s: %v, want %q", what, err, tt.want)
		}
	}
}

// A consumer that reads the writer's own entries.
func TestRowsFlowOnceEach(t *testing.T) {
	t.Parallel()
	redis := testservers.StartRedis(t, testservers.RedisOptions{})
	s := shape{Rows: 50}
	for _, tt := range []struct {
		next int // id of the first row that is expected
		rows int
		want string
	}{
		{1, 50, ""},
		{2, 50, "row 1, which was not written now"},
		{1, 49, "row 50, which was not written now"},
	} {
		if err := pipeline(redis.Addr(), stream, s); err != nil {
			t.Fatal(err)
		}
		conn, err := dialRedis(redis.Addr())
		if err != nil {
			t.Fatal(err)
		}
		f := &flow{carrier: &carrier{key: stream, next: tt.next}, rows: tt.rows, read: make([]time.Duration, tt.rows), began: time.Now()}
		err = f.consume(conn, "0-0")
		if (tt.want == "") != (err == nil) || (err != nil && !strings.Contains(err.Error(), tt.want)) {
			t.Errorf("%d rows from %d on: %v, want %q", tt.rows, tt.next, err, tt.want)
		}
		if id, err := lastID(conn, stream); tt.want == "" && (err != nil || id == "0-0") {
			t.Errorf("the last entry is %q, %v", id, err)
		}
		conn.Close()
		if err := redis.Client(t).Del(t.Context(), stream).Err(); err != nil {
			t.Fatal(err)
		}
	}
}

func TestMediansAndTheirSpread(t *testing.T) {
	s := spreadOf([]float64{3, math.Inf(1), 1, math.NaN(), 2})
	if s != (spread{Median: 2, Least: 1, Most: 3, N: 3}) {
		t.Errorf("%+v", s)
	}
	if got := spreadOf([]float64{4, 1}).Median; got != 2.5 {
		t.Errorf("the median of two is %v", got)
	}
	if got := (spread{Median: 1.006, Least: 0.95, Most: 12.34, N: 5}).ratio(); got != "1.01× (0.95–12.3)" {
		t.Errorf("%s", got)
	}
	if got := spreadOf(nil).ratio() + spreadOf(nil).plain(); got != "––" {
		t.Errorf("of nothing: %s", got)
	}
	values := make([]int, 1000)
	for i := range values {
		values[i] = i + 1
	}
	for share, want := range map[float64]int{0.5: 500, 0.99: 990, 0.999: 999, 1: 1000, 0: 1} {
		if got := percentile(values, share); got != want {
			t.Errorf("percentile %v is %d, want %d", share, got, want)
		}
	}
}

// Ratios are of runs of one pair, never across pairs.
func TestRatiosAreOfPairs(t *testing.T) {
	d := &drain{Shape: shape{Name: "single", Rows: 100, Transaction: 1}}
	add := func(pair int, key string, seconds float64) {
		d.Runs = append(d.Runs, &drainRun{Pair: pair, Contender: key, Rows: 100, Seconds: seconds, FirstSeconds: seconds / 2})
	}
	for pair, slow := range []float64{1, 10, 100} {
		add(pair+1, keyRun, 2*slow)
		add(pair+1, keyLimit, slow)
	}
	if got := d.against(keyRun, keyLimit, (*drainRun).rate, (*drainRun).rate); got != (spread{Median: 0.5, Least: 0.5, Most: 0.5, N: 3}) {
		t.Errorf("%+v", got)
	}
	r := &report{Drains: []*drain{d}}
	bounds := r.bounds()
	if len(bounds) != 2 || bounds[0].holds() || bounds[0].at != 0.95 {
		t.Errorf("bounds: %+v", bounds)
	}
}

// Parts that were measured apart become one report.
func TestReportsAreReadTogether(t *testing.T) {
	a := &report{Pairs: 5, Scale: 1, Drains: []*drain{{Shape: shape{Name: "single", Rows: 2, Transaction: 1}, Runs: []*drainRun{
		{Pair: 1, Contender: keyLimit, Rows: 2, Seconds: 2, FirstSeconds: 1},
		{Pair: 1, Contender: keyMarks, Rows: 2, Seconds: 2, FirstSeconds: 1, Marked: 2, MarkedSeconds: 3, Cut: true, Peak: 65 << 20},
	}}}}
	b := &report{Pairs: 6, Scale: 1, Outage: &outage{Rows: 5, WAL: 1 << 30, PeakCarried: 1 << 20, DrainSeconds: 1}, Latency: &latency{
		Seconds: 1,
		Runs:    []*latencyRun{{Pair: 1, Contender: keyRun, Rate: 500, Rows: 3, P50: 2, P99: 30}, {Pair: 1, Contender: keyDirect, Rate: 500, Rows: 3, P50: 1, P99: 10}},
		Pooled:  []*latencyRun{{Contender: keyRun, Rate: 500, Rows: 3, P50: 2, P99: 30}},
	}, Recovery: &recovery{
		Rows: 7, Old: 8, Backs: []*recoveryRun{{Pair: 1, Contender: keyRun, Seconds: 1}, {Pair: 1, Contender: keyPoll, Seconds: 4}},
		Starts: []*recoveryRun{{Pair: 1, Contender: keyMarks, Start: "first", Table: emptyTable, Seconds: 0.2}},
	}}
	var names []string
	for i, r := range []*report{a, b} {
		names = append(names, filepath.Join(t.TempDir(), string(rune('a'+i))))
		if err := writeFile(names[i], r.writeJSON); err != nil {
			t.Fatal(err)
		}
	}
	r, err := readReports(names)
	if err != nil {
		t.Fatal(err)
	}
	text := looksRight(t, r)
	for _, want := range []string{
		"2.00× (2.00–2.00) | **does not hold** |", "3.00× (3.00–3.00)", "65.0 MiB | **does not hold** |", "walrelay run (cut off)",
		"0.25× (0.25–0.25)", "| empty | 200 | 200–200 |", "7 rows",
	} {
		if !strings.Contains(text, want) {
			t.Errorf("%q is not in the tables:\n%s", want, text)
		}
	}
	b.Machine.Walrelay = "another"
	if err := writeFile(names[1], b.writeJSON); err != nil {
		t.Fatal(err)
	}
	if _, err := readReports(names); err == nil || !strings.Contains(err.Error(), "another walrelay") {
		t.Errorf("read two versions together: %v", err)
	}
}

// looksRight checks that a report can be drawn, and returns its tables.
func looksRight(t *testing.T, r *report) string {
	t.Helper()
	var tables, plot strings.Builder
	if err := errors.Join(r.writeMarkdown(&tables), r.writeSVG(&plot)); err != nil {
		t.Fatal(err)
	}
	width := 0
	for line := range strings.Lines(tables.String()) {
		cells := strings.Count(line, "|")
		if cells != width && width != 0 && cells != 0 {
			t.Errorf("a line with other columns: %s", line)
		}
		width = cells
		if strings.Contains(line, "NaN") || strings.Contains(line, "Inf") || strings.Contains(line, "%!") {
			t.Errorf("no number: %s", line)
		}
	}
	decoder := xml.NewDecoder(strings.NewReader(plot.String()))
	for {
		if _, err := decoder.Token(); err == io.EOF {
			break
		} else if err != nil {
			t.Fatalf("the plot: %v\n%s", err, plot.String())
		}
	}
	if strings.Contains(plot.String(), "NaN") || strings.Contains(plot.String(), "Inf") {
		t.Errorf("the plot: %s", plot.String())
	}
	return tables.String()
}

func TestUsage(t *testing.T) {
	for args, want := range map[string]string{
		"-pairs 0":              "from 1 to 100",
		"-scale 2":              "from 0.0001 to 1",
		"-scale NaN":            "from 0.0001 to 1",
		"-seconds 0":            "from 1 to 600",
		"-cut 1ms":              "1s or more",
		"-part drain,everthing": `no part "everthing"`,
		"-only run,fast":        `no contender "fast"`,
		"-only direct":          "of latency alone",
		"-rates 10,0":           "from 1 to 100000",
		"-fast":                 "-help",
		"now":                   "flags only",
	} {
		if _, err := parse(strings.Fields(args), io.Discard); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: says %v, want %q", args, err, want)
		}
	}
	l, err := parse(strings.Fields("-part latency -only run,direct -rates 5,7"), io.Discard)
	if err != nil || len(l.rates) != 2 || l.rates[1] != 7 || !(&bench{options: l}).wants(keyDirect) || (&bench{options: l}).wants(keyPoll) {
		t.Errorf("%+v, %v", l, err)
	}
	o, err := parse(strings.Fields("-part latency,drain -only run"), io.Discard)
	if err != nil || len(o.parts) != 1+len(shapes()) || len((&bench{options: o}).chosen()) != 1 {
		t.Errorf("%+v, %v", o, err)
	}
}

func TestShapesOfAnyScale(t *testing.T) {
	for _, s := range shapes() {
		if n := s.Rows * len(s.payload(1)); n > 1<<30 {
			t.Errorf("%s has %d bytes", s.Name, n)
		}
		small := s.scaled(0.0001)
		if small.Rows < 10 || small.Transaction < 1 || small.Transaction > small.Rows || small.title() == s.title() {
			t.Errorf("%s becomes %+v", s.Name, small)
		}
	}
}
