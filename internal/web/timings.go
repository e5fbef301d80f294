package web

import (
	"time"

	"github.com/prometheus/client_golang/prometheus"
	dto "github.com/prometheus/client_model/go"
)

// Timings are the histograms of what is appended. They are what relay.Timings
// asks for. Each has classic buckets, and native ones for a Prometheus that
// scrapes those.
type Timings struct {
	latency, rows, bytes prometheus.Histogram
}

var _ prometheus.Collector = (*Timings)(nil)

// A native histogram grows by a tenth from bucket to bucket. It stays below this
// many buckets by making them coarser, and never forgets what it counted: a
// page that compares two moments goes by that.
const (
	nativeFactor  = 1.1
	nativeBuckets = 160
)

// latencyBuckets are in seconds. The thresholds of health are among them.
var latencyBuckets = []float64{
	0.00025, 0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5,
	1, 2.5, 5, 10, 30, 60, 120, 300, 600, 1800, 3600,
}

// NewTimings returns histograms that count nothing yet.
func NewTimings() *Timings {
	histogram := func(name, help string, buckets []float64) prometheus.Histogram {
		return prometheus.NewHistogram(prometheus.HistogramOpts{
			Name: "walrelay_" + name, Help: help, Buckets: buckets,
			NativeHistogramBucketFactor:    nativeFactor,
			NativeHistogramMaxBucketNumber: nativeBuckets,
		})
	}
	return &Timings{
		latency: histogram("publish_latency_seconds",
			"Time of a row from its commit to its append to the stream; of walrelay poll from its created_at. "+
				"The commit's time is of PostgreSQL's clock and the append's of this host's: "+
				"where they differ, all latencies are off by as much, and one below zero counts as zero. "+
				"Rows of a backfill do not count.",
			latencyBuckets),
		rows: histogram("batch_rows", "Rows in a batch that was appended to Redis in one step.",
			[]float64{1, 2, 5, 10, 20, 50, 100, 200, 500}),
		bytes: histogram("batch_bytes", "Memory that the rows of a batch hold, which is a little more than their values.",
			prometheus.ExponentialBuckets(256, 4, 10)),
	}
}

// Appended implements relay.Timings.
func (t *Timings) Appended(rows, bytes int) {
	t.rows.Observe(float64(rows))
	t.bytes.Observe(float64(bytes))
}

// Published implements relay.Timings.
func (t *Timings) Published(latency time.Duration) {
	t.latency.Observe(max(0, latency.Seconds())) // a sum must not fall
}

// Latency is the histogram of the latencies up to now: its buckets are
// cumulative, in seconds, without that of +Inf, which is SampleCount. What lies
// between two moments is the difference of theirs, bucket by bucket.
func (t *Timings) Latency() *dto.Histogram {
	var m dto.Metric
	if err := t.latency.Write(&m); err != nil {
		panic("web: a histogram that cannot be read: " + err.Error()) // it never says so
	}
	return m.Histogram
}

// Describe implements prometheus.Collector.
func (t *Timings) Describe(descs chan<- *prometheus.Desc) {
	for _, h := range []prometheus.Histogram{t.latency, t.rows, t.bytes} {
		h.Describe(descs)
	}
}

// Collect implements prometheus.Collector.
func (t *Timings) Collect(metrics chan<- prometheus.Metric) {
	for _, h := range []prometheus.Histogram{t.latency, t.rows, t.bytes} {
		h.Collect(metrics)
	}
}
