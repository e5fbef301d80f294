package shop

import (
	"slices"
	"time"
)

// Spread sums up a set of latencies.
type Spread struct {
	N             int
	P50, P99, Max time.Duration
}

// Measure sorts latencies and sums them up. A percentile is the least of them
// that at least that many in a hundred do not exceed.
func Measure(latencies []time.Duration) Spread {
	s := Spread{N: len(latencies)}
	if s.N == 0 {
		return s
	}
	slices.Sort(latencies)
	rank := func(percent int) time.Duration { return latencies[(s.N*percent+99)/100-1] }
	s.P50, s.P99, s.Max = rank(50), rank(99), latencies[s.N-1]
	return s
}

// Latencies returns how long the rows took from their commit to their arrival,
// of those that under lets through. The times are of two clocks of one machine.
func Latencies(rows []Row, entries []Entry, under func(committed, arrived time.Time) bool) []time.Duration {
	committed := make(map[string]time.Time, len(rows))
	for _, r := range rows {
		committed[r.OutboxID] = r.Committed
	}
	var out []time.Duration
	for _, e := range entries {
		at, ok := committed[e.OutboxID]
		if !ok || e.Arrived.IsZero() || !under(at, e.Arrived) {
			continue
		}
		delete(committed, e.OutboxID) // a duplicate is not an arrival
		out = append(out, e.Arrived.Sub(at))
	}
	return out
}
