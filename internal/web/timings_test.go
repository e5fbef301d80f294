package web

import (
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	dto "github.com/prometheus/client_model/go"
)

// below is how many observations a histogram has up to a bound.
func below(t *testing.T, h *dto.Histogram, bound float64) uint64 {
	t.Helper()
	for _, b := range h.Bucket {
		if b.GetUpperBound() == bound {
			return b.GetCumulativeCount()
		}
	}
	t.Fatalf("no bucket ends at %v", bound)
	return 0
}

// What came between two moments is the difference of their buckets.
func TestLatenciesBetweenTwoMoments(t *testing.T) {
	timings := NewTimings()
	timings.Published(3 * time.Millisecond)
	before := timings.Latency()
	timings.Published(-time.Hour) // a clock that is ahead
	timings.Published(40 * time.Millisecond)
	timings.Published(2 * time.Hour)
	after := timings.Latency()
	for bound, want := range map[float64]uint64{0.00025: 1, 0.025: 1, 0.05: 2, 3600: 2} {
		if n := below(t, after, bound) - below(t, before, bound); n != want {
			t.Errorf("%d latencies up to %v s, want %d", n, bound, want)
		}
	}
	if n := after.GetSampleCount() - before.GetSampleCount(); n != 3 {
		t.Errorf("%d latencies, want 3", n)
	}
	if sum := after.GetSampleSum() - before.GetSampleSum(); sum < 7200 || sum > 7201 {
		t.Errorf("a sum of %v s", sum)
	}
}

// The relay notes every row that it appends.
func TestTimingsAllocateNothing(t *testing.T) {
	timings := NewTimings()
	note := func() {
		timings.Appended(100, 10000)
		timings.Published(3 * time.Millisecond)
	}
	note()
	if n := testing.AllocsPerRun(100, note); n > 0 {
		t.Errorf("%v allocations", n)
	}
}

// Native buckets come beside the classic ones, and stay few whatever comes.
func TestTimingsHaveNativeBuckets(t *testing.T) {
	timings := NewTimings()
	for d := time.Microsecond; d < 240*time.Hour; d += d/20 + 1 {
		timings.Published(d)
	}
	h := timings.Latency()
	n := 0
	for _, span := range h.PositiveSpan {
		n += int(span.GetLength())
	}
	if n < 50 || n > nativeBuckets {
		t.Errorf("%d native buckets", n)
	}
	reg := prometheus.NewPedanticRegistry()
	if err := reg.Register(timings); err != nil {
		t.Fatal(err)
	}
	families, err := reg.Gather()
	if err != nil || len(families) != 3 {
		t.Fatalf("%d histograms, error %v", len(families), err)
	}
	for _, f := range families {
		h := f.Metric[0].Histogram
		if h.Schema == nil || len(h.Bucket) < 8 {
			t.Errorf("%s: schema %v, %d classic buckets", f.GetName(), h.Schema, len(h.Bucket))
		}
	}
}
