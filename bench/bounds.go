package main

import "fmt"

// bound is what has to hold for a measure.
type bound struct {
	measure string
	at      float64
	most    bool // a ceiling; else a floor
	memory  bool // in bytes; else a ratio
	got     spread
}

func (b bound) holds() bool {
	if b.most {
		return b.got.Median <= b.at
	}
	return b.got.Median >= b.at
}

// bounds are those whose measure was measured.
func (r *report) bounds() []bound {
	var all []bound
	add := func(b bound) {
		if b.got.N > 0 {
			all = append(all, b)
		}
	}
	floor := func(shape, measure, key, base string, at float64, of, to func(*drainRun) float64) {
		if d := r.drain(shape); d != nil {
			add(bound{measure: measure, at: at, got: d.against(key, base, of, to)})
		}
	}
	rate, steady, marks := (*drainRun).rate, (*drainRun).steady, (*drainRun).markRate
	floor("single", "drain, single-row transactions, of pg_recvlogical", keyRun, keyLimit, 0.95, rate, rate)
	floor("single", "– the same from the first row", keyRun, keyLimit, 0.95, steady, steady)
	floor("single", "drain, single-row transactions, with marks, until the last mark", keyMarks, keyLimit, 0.5, marks, rate)
	floor("single", "– the same until the last entry, from the first row", keyMarks, keyLimit, 0.5, steady, steady)
	floor("thousands", "drain, 1,000-row transactions, of pg_recvlogical", keyRun, keyLimit, 0.8, rate, rate)
	floor("thousands", "– the same from the first row", keyRun, keyLimit, 0.8, steady, steady)
	for _, shape := range []string{"single", "thousands"} {
		floor(shape, fmt.Sprintf("drain, %s, of the least code that works, from the first row", shape), keyRun, keyLeast, 3, steady, steady)
	}
	if l := r.Latency; l != nil {
		p50 := func(r *latencyRun) float64 { return r.P50 }
		p99 := func(r *latencyRun) float64 { return r.P99 }
		add(bound{measure: "latency at 500 tx/s, p50, of XADD by the writer", at: 1.2, most: true, got: l.against(keyRun, keyDirect, 500, p50)})
		add(bound{measure: "latency at 500 tx/s, p50, of poll", at: 0.02, most: true, got: l.against(keyRun, keyPoll, 500, p50)})
		for _, rate := range []int{500, 1000} {
			add(bound{measure: fmt.Sprintf("latency at %d tx/s, p99, of XADD by the writer", rate), at: 2, most: true, got: l.against(keyRun, keyDirect, rate, p99)})
		}
	}
	if peak := r.peak(); peak > 0 {
		add(bound{measure: "peak RSS, with payloads up to 1 KB", at: 64 << 20, most: true, memory: true, got: spreadOf([]float64{peak})})
	}
	return all
}

// peak is the most memory that a relay had with payloads up to 1 KB.
func (r *report) peak() (peak float64) {
	for _, d := range r.Drains {
		if d.Shape.Body > 1000 {
			continue
		}
		for _, run := range d.Runs {
			if run.Contender == keyRun || run.Contender == keyMarks {
				peak = max(peak, float64(run.Peak))
			}
		}
	}
	if r.Outage != nil {
		peak = max(peak, float64(r.Outage.PeakCarried))
	}
	return peak
}

func (r *report) boundsTable() table {
	t := table{title: "What has to hold"}
	t.line("", "bound", "measured", "")
	for _, b := range r.bounds() {
		sign := map[bool]string{true: "≤", false: "≥"}[b.most]
		verdict := map[bool]string{true: "holds", false: "**does not hold**"}[b.holds()]
		if !r.counts() {
			verdict = "no result"
		}
		if b.memory {
			t.line(b.measure, sign+" "+mebibytes(b.at), mebibytes(b.got.Most), verdict)
			continue
		}
		t.line(b.measure, fmt.Sprintf("%s %g×", sign, b.at), b.got.ratio(), verdict)
	}
	return t
}
