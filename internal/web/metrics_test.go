package web

import (
	"fmt"
	"os"
	"regexp"
	"runtime"
	"slices"
	"strings"
	"testing"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/testutil"
	"github.com/prometheus/common/expfmt"

	"github.com/stagedoor/walrelay/cdc"
	"github.com/stagedoor/walrelay/internal/health"
)

func ptr[T any](v T) *T { return &v }

// everything is a document from which every metric comes.
func everything() health.Document {
	return health.Document{
		Status: health.StatusWarn,
		Role:   health.RoleBackfill,
		Slot: &health.Slot{
			Name: "walrelay", Active: true, WALStatus: "extended",
			UnconfirmedBytes: ptr[int64](10), RetainedBytes: ptr[int64](20), SafeWALSize: ptr[int64](-30),
		},
		OldestAge: ptr(1.5),
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

func TestMetrics(t *testing.T) {
	stats := Stats{
		Published: 1, Dead: 12, SkippedOnStream: 2, Batches: 3, AppendRetries: 4, StampRetries: 5,
		Reconnects: 6, Marked: 7, MarksWaiting: 8,
		Heals: map[cdc.Kind]uint64{cdc.NoSlot: 9}, LostEntries: 10, Purged: 11,
	}
	heals := ""
	for _, kind := range slices.Sorted(slices.Values(cdc.Kinds)) {
		n := 0
		if kind == cdc.NoSlot {
			n = 9
		}
		heals += fmt.Sprintf("walrelay_heals_total{reason=%q} %d\n", kind, n)
	}
	const totals = `walrelay_published_total 1
walrelay_purged_rows_total 11
walrelay_retries_total{reason="append"} 4
walrelay_retries_total{reason="reconnect"} 6
walrelay_retries_total{reason="stamp"} 5
`
	for _, c := range []struct {
		name string
		doc  health.Document
		want string
	}{
		{"everything known", everything(), `walrelay_batches_total 3
walrelay_dead_rows_total 12
` + heals + `walrelay_health_status{status="critical"} 0
walrelay_health_status{status="ok"} 0
walrelay_health_status{status="warn"} 1
walrelay_lost_entries_total 10
walrelay_marked_total 7
walrelay_marks_waiting 8
walrelay_oldest_unpublished_age_seconds 1.5
` + totals + `walrelay_role{role="backfill"} 1
walrelay_role{role="polling"} 0
walrelay_role{role="standby"} 0
walrelay_role{role="starting"} 0
walrelay_role{role="streaming"} 0
walrelay_skipped_on_stream_total 2
walrelay_slot_active 1
walrelay_slot_retained_bytes 20
walrelay_slot_safe_wal_bytes -30
walrelay_slot_unconfirmed_bytes 10
walrelay_slot_wal_status{status="extended"} 1
walrelay_slot_wal_status{status="lost"} 0
walrelay_slot_wal_status{status="reserved"} 0
walrelay_slot_wal_status{status="unreserved"} 0
`},
		{"no slot, no age", health.Judge(health.Input{}), `walrelay_batches_total 3
walrelay_dead_rows_total 12
` + heals + `walrelay_health_status{status="critical"} 0
walrelay_health_status{status="ok"} 0
walrelay_health_status{status="warn"} 1
walrelay_lost_entries_total 10
walrelay_marked_total 7
walrelay_marks_waiting 8
` + totals + `walrelay_role{role="backfill"} 0
walrelay_role{role="polling"} 0
walrelay_role{role="standby"} 0
walrelay_role{role="starting"} 1
walrelay_role{role="streaming"} 0
walrelay_skipped_on_stream_total 2
`},
		{"a slot of which little is known", health.Document{Status: health.StatusCritical, Role: health.RoleStandby, Slot: &health.Slot{Name: "walrelay"}, OldestAge: ptr(0.0)}, `walrelay_batches_total 3
walrelay_dead_rows_total 12
` + heals + `walrelay_health_status{status="critical"} 1
walrelay_health_status{status="ok"} 0
walrelay_health_status{status="warn"} 0
walrelay_lost_entries_total 10
walrelay_marked_total 7
walrelay_marks_waiting 8
walrelay_oldest_unpublished_age_seconds 0
` + totals + `walrelay_role{role="backfill"} 0
walrelay_role{role="polling"} 0
walrelay_role{role="standby"} 1
walrelay_role{role="starting"} 0
walrelay_role{role="streaming"} 0
walrelay_skipped_on_stream_total 2
walrelay_slot_active 0
`},
	} {
		t.Run(c.name, func(t *testing.T) {
			if got := samples(t, collector(c.doc, stats)); got != c.want {
				t.Errorf("got\n%s\nwant\n%s", got, c.want)
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

// Every metric has its line in the package's documentation, with its type and
// its labels' values, and every line there is a metric.
func TestEveryMetricIsDocumented(t *testing.T) {
	doc, err := os.ReadFile("doc.go")
	if err != nil {
		t.Fatal(err)
	}
	documented := make(map[string]string)
	for _, m := range regexp.MustCompile(`(?m)^//\t(walrelay_\w+) +(\w+) +\S.*$`).FindAllStringSubmatch(string(doc), -1) {
		documented[m[1]] = m[2]
	}
	exported := ours(t, registry(t))
	for name, kind := range exported {
		if documented[name] != kind {
			t.Errorf("%s is a %s, documented as %q", name, kind, documented[name])
		}
	}
	for name := range documented {
		if exported[name] == "" {
			t.Errorf("%s is documented and not exported", name)
		}
	}
	if len(exported) < 15 {
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
		if want := []string{"0", "5"}[min(n, 1)]; !slices.Contains(strings.Split(got, "\n"), "walrelay_published_total "+want) {
			t.Errorf("published %d:\n%s", n, got)
		}
	}
}
