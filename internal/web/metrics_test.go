package web

import (
	"flag"
	"os"
	"regexp"
	"runtime"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/testutil"
	"github.com/prometheus/common/expfmt"

	"github.com/stagedoor/walrelay/cdc"
	"github.com/stagedoor/walrelay/internal/health"
)

var update = flag.Bool("update", false, "write the files in testdata anew")

func ptr[T any](v T) *T { return &v }

// everything is a document from which every metric comes.
func everything() health.Document {
	at := time.UnixMilli(1_700_000_000_250)
	return health.Document{
		Status: health.StatusWarn,
		Role:   health.RoleStreaming,
		Causes: []health.CauseKind{health.CauseRedis, health.CauseOtherSlot},
		Runway: ptr(90.5),
		Slot: &health.Slot{
			Name: "walrelay", Active: true, WALStatus: "extended",
			UnconfirmedBytes: ptr[int64](10), RetainedBytes: ptr[int64](20), SafeWALSize: ptr[int64](-30),
			InactiveSince: at, Spill: &health.Spill{Transactions: 31, Times: 32, Bytes: 33},
		},
		OldestAge:  ptr(1.5),
		Database:   health.Peer{SeenAt: &at},
		Redis:      health.Peer{SeenAt: &at, AwaySince: &at},
		Connection: &health.Connection{LastReceive: &at, LastStatus: &at},
		Witness:    &health.Witness{LookedAt: &at, Unmarked: 41},
		Other:      &health.Other{Name: "replica", RetainedBytes: 51},
		Stream: &health.Stream{
			Name: "jobs", Length: 61, GroupCount: ptr(4),
			Groups: []health.Group{
				{Name: "a", Consumers: 71, Pending: 72, Lag: ptr[int64](73)},
				{Name: "b \xff", Consumers: 81, Pending: 82},
				{Name: `b \xff`, Consumers: 91, Pending: 92},
			},
		},
	}
}

func collector(doc health.Document, stats Stats) *Collector {
	return NewCollector(func() health.Document { return doc }, func() Stats { return stats })
}

// samples are what a collector gives, one a line, without help and type.
func samples(t *testing.T, c prometheus.Collector) string {
	t.Helper()
	reg := prometheus.NewPedanticRegistry()
	if err := reg.Register(c); err != nil {
		t.Fatal(err)
	}
	families, err := reg.Gather()
	if err != nil {
		t.Fatal(err)
	}
	var text, out strings.Builder
	for _, f := range families {
		if _, err := expfmt.MetricFamilyToText(&text, f); err != nil {
			t.Fatal(err)
		}
	}
	for line := range strings.Lines(text.String()) {
		if !strings.HasPrefix(line, "#") {
			out.WriteString(line)
		}
	}
	return out.String()
}

// What is known is a metric, with all values of its labels, and what is not is
// none. The files in testdata hold the metrics of each document.
func TestMetrics(t *testing.T) {
	stats := Stats{
		Published: 1, Skipped: 2, Dead: 3, AppendRetries: 4, StampRetries: 5, Reconnects: 6, Marked: 7, MarksWaiting: 8,
		Heals: map[cdc.Kind]uint64{cdc.NoSlot: 9}, LostEntries: 10, Purged: 11, WALWritten: 12, WALConfirmed: 13,
	}
	at := time.Unix(1_700_000_000, 0)
	gone := health.Document{Status: health.StatusCritical, Role: health.RoleStarting, Database: health.Peer{SeenAt: &at, AwaySince: &at}}
	for name, c := range map[string]struct {
		doc   health.Document
		stats Stats
	}{
		"everything":  {everything(), stats},
		"nothing":     {health.Judge(health.Input{}), Stats{}},
		"slot-gone":   {gone, stats},
		"slot-little": {health.Document{Status: health.StatusOK, Ready: true, Role: health.RoleStandby, Slot: &health.Slot{}, Database: health.Peer{SeenAt: &at}, OldestAge: ptr(0.0)}, stats},
		"leftover":    {health.Document{Status: health.StatusWarn, Role: health.RolePolling, Leftover: everything().Slot, Database: health.Peer{SeenAt: &at}}, stats},
	} {
		t.Run(name, func(t *testing.T) {
			got, file := samples(t, collector(c.doc, c.stats)), "testdata/"+name+".metrics"
			if *update {
				if err := os.WriteFile(file, []byte(got), 0o644); err != nil {
					t.Fatal(err)
				}
			}
			want, err := os.ReadFile(file)
			if err != nil {
				t.Fatal(err)
			}
			if got != string(want) {
				t.Errorf("%s is another now; -update writes it anew:\n%s", file, got)
			}
		})
	}
}

// registry has all that a process exports.
func registry(t *testing.T) *prometheus.Registry {
	t.Helper()
	reg := prometheus.NewPedanticRegistry()
	if err := RegisterProcess(reg, Build{Version: "1.2.3", Commit: "abc"}); err != nil {
		t.Fatal(err)
	}
	for _, c := range []prometheus.Collector{collector(everything(), Stats{}), NewTimings()} {
		if err := reg.Register(c); err != nil {
			t.Fatal(err)
		}
	}
	return reg
}

// ours are the names and types of the metrics in a registry that are not of
// the Go runtime or the process.
func ours(t *testing.T, g prometheus.Gatherer) map[string]string {
	t.Helper()
	families, err := g.Gather()
	if err != nil {
		t.Fatal(err)
	}
	kinds := make(map[string]string)
	for _, f := range families {
		if strings.HasPrefix(f.GetName(), "walrelay_") {
			kinds[f.GetName()] = strings.ToLower(f.GetType().String())
		}
	}
	return kinds
}

func TestMetricsKeepPrometheusConventions(t *testing.T) {
	reg := registry(t)
	var names []string
	for name := range ours(t, reg) {
		names = append(names, name)
	}
	problems, err := testutil.GatherAndLint(reg, names...)
	if err != nil {
		t.Fatal(err)
	}
	for _, p := range problems {
		t.Errorf("%s: %s", p.Metric, p.Text)
	}
}

// Every metric has its line in README.md, with its type and its labels, and every
// line there is a metric.
func TestEveryMetricIsDocumented(t *testing.T) {
	readme, err := os.ReadFile("../../README.md")
	if err != nil {
		t.Fatal(err)
	}
	type documented struct{ kind, what string }
	table := make(map[string]documented)
	for _, m := range regexp.MustCompile("(?m)^\\| `(walrelay_\\w+)` \\| (\\w+) \\| [^|]+ \\| (.*) \\|$").FindAllStringSubmatch(string(readme), -1) {
		table[m[1]] = documented{m[2], m[3]}
	}
	families, err := registry(t).Gather()
	if err != nil {
		t.Fatal(err)
	}
	exported := make(map[string]bool)
	for _, f := range families {
		name := f.GetName()
		if !strings.HasPrefix(name, "walrelay_") {
			continue
		}
		exported[name] = true
		line := table[name]
		if kind := strings.ToLower(f.GetType().String()); line.kind != kind {
			t.Errorf("%s is a %s, documented as %q", name, kind, line.kind)
		}
		for _, m := range f.Metric {
			for _, l := range m.Label {
				// What comes from elsewhere is not listed. A group's other metrics
				// have the labels of its first.
				own := slices.Contains([]string{"status", "role", "cause", "reason"}, l.GetName())
				if own && !(strings.Contains(line.what, "`"+l.GetName()+"`") && strings.Contains(line.what, "`"+l.GetValue()+"`")) {
					t.Errorf("%s has %s=%q, which is not documented", name, l.GetName(), l.GetValue())
				}
			}
		}
	}
	for name := range table {
		if !exported[name] {
			t.Errorf("%s is documented and not exported", name)
		}
	}
	if len(exported) < 40 {
		t.Errorf("only %d metrics", len(exported))
	}
}

func TestProcessMetrics(t *testing.T) {
	reg := registry(t)
	want := `# HELP walrelay_build_info Version, commit and Go version of this binary; always 1.
# TYPE walrelay_build_info gauge
walrelay_build_info{commit="abc",go_version="` + runtime.Version() + `",version="1.2.3"} 1
`
	if err := testutil.GatherAndCompare(reg, strings.NewReader(want), "walrelay_build_info"); err != nil {
		t.Error(err)
	}
	for _, name := range []string{"go_goroutines", "process_resident_memory_bytes"} {
		if n, err := testutil.GatherAndCount(reg, name); n != 1 || err != nil {
			t.Errorf("%s is there %d times, error %v", name, n, err)
		}
	}
	if err := RegisterProcess(reg, Build{}); err == nil {
		t.Error("the process was registered twice")
	}
}

func TestSeveralRelaysInAProcess(t *testing.T) {
	reg := prometheus.NewPedanticRegistry()
	for _, name := range []string{"a", "b"} {
		labelled := prometheus.WrapRegistererWith(prometheus.Labels{"relay": name}, reg)
		if err := labelled.Register(collector(everything(), Stats{})); err != nil {
			t.Fatal(err)
		}
	}
	if n, err := testutil.GatherAndCount(reg, "walrelay_slot_active"); n != 2 || err != nil {
		t.Errorf("%d slots, error %v", n, err)
	}
}

// A metric is read when it is scraped, not when it is registered.
func TestMetricsAreReadWhenScraped(t *testing.T) {
	var stats Stats
	c := NewCollector(everything, func() Stats { return stats })
	for _, n := range []uint64{0, 5} {
		stats.Published = n
		got := samples(t, c)
		if want := []string{"0", "5"}[min(n, 1)]; !slices.Contains(strings.Split(got, "\n"), "walrelay_published_rows_total "+want) {
			t.Errorf("published %d:\n%s", n, got)
		}
	}
}
