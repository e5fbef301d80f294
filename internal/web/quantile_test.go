package web

import (
	"math"
	"math/rand/v2"
	"slices"
	"testing"
	"time"
)

// Of what was counted between two moments, whatever was counted before, and
// although the histogram becomes coarser meanwhile.
func TestPercentilesAreThoseOfTheInterval(t *testing.T) {
	random := rand.New(rand.NewPCG(1, 2))
	timings := NewTimings()
	before := countsOf(timings.Latency())
	if q := before.since(before).quantile(0.5); !math.IsNaN(q) {
		t.Errorf("the median of nothing is %g", q)
	}
	for round, scale := range []float64{1e-3, 1e-6, 300, 1e-3} {
		var values []float64
		for range 2000 {
			v := scale * math.Exp(random.NormFloat64())
			values = append(values, v)
			timings.Published(time.Duration(v * float64(time.Second)))
		}
		slices.Sort(values)
		now := countsOf(timings.Latency())
		interval := now.since(before)
		before = now
		// A bucket is 2^(1/2^schema) wide.
		width := math.Exp2(math.Ldexp(1, -int(now.schema)))
		for _, q := range []float64{0.5, 0.99} {
			got, want := interval.quantile(q), values[int(q*float64(len(values)))]
			if off := got / want; off > width*1.05 || off < 1/width/1.05 {
				t.Errorf("round %d, schema %d: percentile %g is %g, want %g", round, now.schema, q, got, want)
			}
		}
	}
	if schema := before.schema; schema >= 3 {
		t.Errorf("the schema is %d: nothing became coarser", schema)
	}
	timings.Published(-time.Second)
	if q := countsOf(timings.Latency()).since(before).quantile(0.99); q != 0 {
		t.Errorf("the percentile of a latency below zero is %g", q)
	}
}
