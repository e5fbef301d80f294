package health

import (
	"time"

	"github.com/stagedoor/walrelay/cdc"
)

const (
	// rateSpan is over how long rates are taken: long enough to even out what
	// comes in small bursts.
	rateSpan = 2 * time.Minute
	// rateLeast is how much of it must have been seen.
	rateLeast = 9 * time.Second
	// rateGap is how far two samples may be apart. What the server did in a
	// longer gap says nothing of now.
	rateGap = 30 * time.Second
	// roundUsual is how long a round of checkpoints takes where that is not known,
	// and roundMost how long a longer one is taken to be.
	roundUsual = 5 * time.Minute
	roundMost  = time.Hour
	// pointsMost bounds the memory, whatever the interval of the samples.
	pointsMost = 720
)

// point is where the WAL was at one sample. A position of zero is not known.
type point struct {
	at        time.Time
	timeline  uint32
	end       cdc.LSN // written
	confirmed cdc.LSN // of our slot
	restart   cdc.LSN // of our slot
	pinned    cdc.LSN // from which on WAL is kept, by whatever slot
	pages     cdc.LSN // one more than how many full pages were written; no position, and counted like one
}

// history is the samples of the last minutes, and at least of a round of
// checkpoints. It begins anew when they are not about one server that goes
// forward: after a failover, a restore, a gap.
type history struct {
	points []point
	round  time.Duration // from one checkpoint to the next
}

// add takes a sample. One that was taken before is ignored; anew says that what
// was known does not count any more.
func (h *history) add(p point) (added, anew bool) {
	if n := len(h.points); n > 0 {
		last := h.points[n-1]
		if !p.at.After(last.at) {
			return false, false
		}
		if p.end < last.end || p.timeline != last.timeline || p.at.Sub(last.at) > rateGap {
			h.points, anew = h.points[:0], true
		}
	}
	h.points = append(h.points, p)
	old, span := 0, h.rounds()
	for old < len(h.points)-1 && (p.at.Sub(h.points[old].at) > span || len(h.points)-old > pointsMost) {
		old++
	}
	h.points = append(h.points[:0], h.points[old:]...)
	return true, anew
}

// last is what of it is not older than this, before the newest sample.
func (h *history) last(span time.Duration) *history {
	from := len(h.points)
	for from > 0 && h.points[len(h.points)-1].at.Sub(h.points[from-1].at) <= span {
		from--
	}
	return &history{points: h.points[from:], round: h.round}
}

// since is what of it is not before a time.
func (h *history) since(t time.Time) *history {
	from := 0
	for from < len(h.points) && h.points[from].at.Before(t) {
		from++
	}
	return &history{points: h.points[from:], round: h.round}
}

// written is the rate at which WAL is written, in bytes per second.
func (h *history) written() (float64, bool) {
	return h.rate(func(p point) cdc.LSN { return p.end })
}

// confirmed is the rate at which the relay confirms, in bytes per second.
func (h *history) confirmed() (float64, bool) {
	return h.rate(func(p point) cdc.LSN { return p.confirmed })
}

// rates are those of a document.
func (h *history) rates() (r Rates) {
	known := func(f float64, ok bool) *float64 {
		if !ok {
			return nil
		}
		return &f
	}
	less := func(a, b *float64) *float64 {
		if a == nil || b == nil {
			return nil
		}
		return known(*a-*b, true)
	}
	r.Written, r.Confirmed = known(h.written()), known(h.confirmed())
	r.Unconfirmed = less(r.Written, r.Confirmed)
	r.Retained = less(r.Written, known(h.rate(func(p point) cdc.LSN { return p.restart })))
	return r
}

// rate is how fast a position moves, since it was last unknown or went back.
func (h *history) rate(position func(point) cdc.LSN) (bytesPerSecond float64, known bool) {
	return h.last(rateSpan).slope(position)
}

// slope is the same over all that is known.
func (h *history) slope(position func(point) cdc.LSN) (perSecond float64, known bool) {
	points := h.forward(position)
	if len(points) < 2 {
		return 0, false
	}
	first, last := points[0], points[len(points)-1]
	took := last.at.Sub(first.at)
	if took < rateLeast {
		return 0, false
	}
	return float64(position(last)-position(first)) / took.Seconds(), true
}

// forward is the newest points in which a position is known and never goes back.
func (h *history) forward(position func(point) cdc.LSN) []point {
	from := len(h.points)
	for from > 0 && position(h.points[from-1]) != 0 &&
		(from == len(h.points) || position(h.points[from-1]) <= position(h.points[from])) {
		from--
	}
	return h.points[from:]
}
