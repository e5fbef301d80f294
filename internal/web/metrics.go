package web

import (
	"runtime"
	"strconv"
	"strings"
	"time"
	"unicode/utf8"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/collectors"

	"github.com/stagedoor/walrelay/cdc"
	"github.com/stagedoor/walrelay/internal/health"
)

// Stats are a relay's totals since the process started.
type Stats struct {
	Published     uint64 // rows appended to a stream
	Dead          uint64 // rows appended to a dead stream instead
	Skipped       uint64 // rows received and found on the stream already
	AppendRetries uint64 // appends that failed and were made again
	StampRetries  uint64 // stamps that failed and were made again
	Reconnects    uint64 // tries over a replication connection that failed and were made again
	Marked        uint64 // rows marked in the table
	MarksWaiting  int    // rows published and not marked yet

	Heals       map[cdc.Kind]uint64 // backfills that put rows back, by what was wrong
	LostEntries uint64              // entries whose rows were lost with a database

	Purged uint64 // published rows deleted from the table, as --purge-after says

	WALWritten   uint64 // bytes, by all of the server, as the monitor saw
	WALConfirmed uint64 // bytes that the slot's confirmed_flush_lsn moved, likewise
}

// Build names the binary.
type Build struct {
	Version string
	Commit  string
}

// RegisterProcess adds what there is once in a process: the build, the Go
// runtime and the process itself.
func RegisterProcess(reg prometheus.Registerer, build Build) error {
	info := prometheus.NewGauge(prometheus.GaugeOpts{
		Name: "walrelay_build_info",
		Help: "Version, commit and Go version of this binary; always 1.",
		ConstLabels: prometheus.Labels{
			"version": build.Version, "commit": build.Commit, "go_version": runtime.Version(),
		},
	})
	info.Set(1)
	for _, c := range []prometheus.Collector{
		info,
		collectors.NewGoCollector(),
		collectors.NewProcessCollector(collectors.ProcessCollectorOpts{}),
	} {
		if err := reg.Register(c); err != nil {
			return err
		}
	}
	return nil
}

// Collector turns a relay's health and totals into metrics when it is scraped.
// Several relays in a process are told apart with
// prometheus.WrapRegistererWith.
type Collector struct {
	health   func() health.Document
	stats    func() Stats
	families []family
}

var _ prometheus.Collector = (*Collector)(nil)

// NewCollector reads from two functions, which must not wait.
func NewCollector(health func() health.Document, stats func() Stats) *Collector {
	c := &Collector{health: health, stats: stats}
	for _, group := range [][]family{levels(), rows(), connections(), slots(), streams()} {
		c.families = append(c.families, group...)
	}
	return c
}

// Describe implements prometheus.Collector.
func (c *Collector) Describe(descs chan<- *prometheus.Desc) {
	for _, f := range c.families {
		descs <- f.desc
	}
}

// Collect implements prometheus.Collector.
func (c *Collector) Collect(metrics chan<- prometheus.Metric) {
	s := snapshot{c.health(), c.stats()}
	for _, f := range c.families {
		f.read(s, func(v float64, labels ...string) {
			metrics <- prometheus.MustNewConstMetric(f.desc, f.kind, v, labels...)
		})
	}
}

// snapshot is what one scrape reads from.
type snapshot struct {
	health.Document
	stats Stats
}

// emit sends a value, with one value for each of the family's labels. A family
// whose value is not known sends none: a zero would be believed.
type emit func(value float64, labels ...string)

// family is one metric, with all values of its labels.
type family struct {
	desc *prometheus.Desc
	kind prometheus.ValueType
	read func(snapshot, emit)
}

func gauge(name, help string, read func(snapshot, emit), labels ...string) family {
	return family{prometheus.NewDesc("walrelay_"+name, help, labels, nil), prometheus.GaugeValue, read}
}

func counter(name, help string, read func(snapshot, emit), labels ...string) family {
	return family{prometheus.NewDesc("walrelay_"+name, help, labels, nil), prometheus.CounterValue, read}
}

// total is a counter of something that there is always a number of.
func total(name, help string, read func(Stats) uint64) family {
	return counter(name, help, func(s snapshot, send emit) { send(float64(read(s.stats))) })
}

// one sends 1 for what holds, of all that could, and 0 for the others.
func one[T ~string](send emit, all []T, holds ...T) {
	for _, v := range all {
		n := 0.0
		for _, h := range holds {
			if v == h {
				n = 1
			}
		}
		send(n, string(v))
	}
}

// known sends a number, if it is known.
func known[T int64 | float64](send emit, v *T, labels ...string) {
	if v != nil {
		send(float64(*v), labels...)
	}
}

// moment sends a time as seconds since 1970, if it is known.
func moment(send emit, t *time.Time) {
	if t != nil && !t.IsZero() {
		send(float64(t.UnixMilli()) / 1000)
	}
}

func oneIf(b bool) float64 {
	if b {
		return 1
	}
	return 0
}

// label is a name from elsewhere as the value of a label, which has to be UTF-8.
func label(name string) string {
	if utf8.ValidString(name) {
		return name
	}
	return strings.Trim(strconv.Quote(name), `"`)
}
