package web

import (
	"encoding/json"
	"math"
	"time"

	"github.com/stagedoor/walrelay/internal/health"
)

const (
	// sampleEvery and hourSamples make the charts of an hour.
	sampleEvery = 5 * time.Second
	hourSamples = 720
)

// value is a number of a chart; NaN, which JSON has as null, is not known.
type value float64

var unknown = value(math.NaN())

// MarshalJSON implements json.Marshaler. A chart needs four digits.
func (v value) MarshalJSON() ([]byte, error) {
	if f := float64(v); math.IsNaN(f) || math.IsInf(f, 0) {
		return []byte("null"), nil
	}
	if math.Abs(float64(v)) >= 1000 {
		return json.Marshal(math.Round(float64(v)))
	}
	digits := 3 - math.Floor(math.Log10(max(math.Abs(float64(v)), 1e-9)))
	scale := math.Pow(10, digits)
	return json.Marshal(math.Round(float64(v)*scale) / scale)
}

// valueOf is a number that may be nil.
func valueOf[N int64 | float64](n *N) value {
	if n == nil {
		return unknown
	}
	return value(*n)
}

// sample is one point of the charts.
type sample struct {
	at          time.Time
	status      health.Status
	rows        value // per second, since the sample before
	median      value // seconds from commit to append, of the rows since the sample before
	slowest     value // the same of one row in a hundred: the 99th percentile
	unconfirmed value // bytes
	retained    value // bytes
	age         value // seconds, of the oldest unpublished row
}

// hour is the samples of the last hour, in memory that is bounded. It is for one
// goroutine.
type hour struct {
	ring [hourSamples]sample
	n    int // taken so far

	at        time.Time // of the last look
	published uint64
	latency   counts
}

// take looks at the totals, and returns the sample that is made of it and of the
// look before; the first look makes none.
func (h *hour) take(at time.Time, doc health.Document, latency counts) (sample, bool) {
	took := at.Sub(h.at).Seconds()
	first := h.at.IsZero()
	next := sample{at: at, status: doc.Status, unconfirmed: unknown, retained: unknown, age: valueOf(doc.OldestAge)}
	if !first {
		counted := latency.since(h.latency)
		next.rows = value(float64(doc.Published-h.published) / took)
		next.median, next.slowest = value(counted.quantile(0.5)), value(counted.quantile(0.99))
	}
	if doc.Slot != nil && doc.Database.AwaySince == nil { // else they are as last seen
		next.unconfirmed, next.retained = valueOf(doc.Slot.UnconfirmedBytes), valueOf(doc.Slot.RetainedBytes)
	}
	h.at, h.published, h.latency = at, doc.Published, latency
	if first || took <= 0 {
		return sample{}, false
	}
	h.ring[h.n%hourSamples] = next
	h.n++
	return next, true
}

// list returns them, the oldest first.
func (h *hour) list() []sample {
	list := make([]sample, 0, hourSamples)
	for i := max(0, h.n-hourSamples); i < h.n; i++ {
		list = append(list, h.ring[i%hourSamples])
	}
	return list
}

// columns are samples as a chart takes them.
type columns struct {
	At          []int64         `json:"at"` // Unix time in seconds
	Status      []health.Status `json:"status"`
	Rows        []value         `json:"rows"`
	Median      []value         `json:"p50"`
	Slowest     []value         `json:"p99"`
	Unconfirmed []value         `json:"unconfirmed"`
	Retained    []value         `json:"retained"`
	Age         []value         `json:"age"`
}

func columnsOf(list ...sample) columns {
	c := columns{
		At: []int64{}, Status: []health.Status{}, Rows: []value{}, Median: []value{}, Slowest: []value{},
		Unconfirmed: []value{}, Retained: []value{}, Age: []value{},
	}
	for _, s := range list {
		c.At = append(c.At, s.at.Unix())
		c.Status = append(c.Status, s.status)
		c.Rows = append(c.Rows, s.rows)
		c.Median = append(c.Median, s.median)
		c.Slowest = append(c.Slowest, s.slowest)
		c.Unconfirmed = append(c.Unconfirmed, s.unconfirmed)
		c.Retained = append(c.Retained, s.retained)
		c.Age = append(c.Age, s.age)
	}
	return c
}
