package health

import (
	"math"
	"time"

	"github.com/stagedoor/walrelay/cdc"
)

const (
	// stillFor is how long a slot's restart_lsn may stand still in the best of
	// health: PostgreSQL moves it on every fifteen seconds or so.
	stillFor = 30 * time.Second
	// stillKnown is the same where it is known that nothing is confirmed. It is
	// not zero, since Redis is away for a moment now and then.
	stillKnown = 10 * time.Second
	// releases is the part of what is written that must be released for the WAL
	// that is kept to count as not growing.
	releases = 0.9
	// leapSlack is how much writing the depths of two troughs differ by in the
	// best of health: a leap is late, and seen late by a sample.
	leapSlack = 20 * time.Second
	// endless is a runway that nobody needs to know of.
	endless = 365 * 24 * time.Hour
)

// growth is how fast the WAL grows that is kept from a position on, in bytes
// per second.
//
// The position moves on by leaps, so that what is kept goes up and down like the
// teeth of a saw in the best of health. What counts is the way from one trough
// to another; or, where the position stands still for longer than it usually
// does, the rate of writing. Where less is kept than before, nothing grows.
func (h *history) growth(position func(point) cdc.LSN, held bool) (bytesPerSecond float64, known bool) {
	written, known := h.written()
	points := h.forward(position)
	if !known || len(points) == 0 {
		return 0, false
	}
	var leaps []point // the samples that saw the position moved on
	var longest time.Duration
	for i := 1; i < len(points); i++ {
		if position(points[i]) == position(points[i-1]) {
			continue
		}
		if n := len(leaps); n > 0 {
			longest = max(longest, points[i].at.Sub(leaps[n-1].at))
		}
		leaps = append(leaps, points[i])
	}
	stillSince := points[0].at
	if n := len(leaps); n > 0 {
		stillSince = leaps[n-1].at
	}
	still := points[len(points)-1].at.Sub(stillSince)
	kept := func(p point) float64 { return float64(p.end) - float64(position(p)) }
	switch {
	case held && still >= stillKnown, still >= max(stillFor, 2*longest):
		return written, true
	case len(leaps) > 0 && kept(points[len(points)-1]) <= kept(points[0]):
		return 0, true
	case len(leaps) < 2:
		return 0, false
	}
	first, last := leaps[0], leaps[len(leaps)-1]
	took := last.at.Sub(first.at)
	if took < rateLeast {
		return 0, false
	}
	more := kept(last) - kept(first)
	if more <= max((1-releases)*took.Seconds(), leapSlack.Seconds())*written {
		return 0, true
	}
	return more / took.Seconds(), true
}

// budget is WAL that may still be written before something ends.
type budget struct {
	left     int64
	position func(point) cdc.LSN // from which on WAL counts
	what     string              // for whom it ends
}

// runway is when the first of the budgets ends.
type runway struct {
	known  bool
	ends   bool
	after  time.Duration
	budget budget
}

// later is what is left of it after a while without another sample, of which
// there is nothing to be said when it is long. What has not been seen to end has
// not ended.
func (r runway) later(d time.Duration) runway {
	if r.ends && r.after > 0 {
		r.after = max(r.after-min(max(d, 0), rateGap), min(r.after, time.Second))
	}
	return r
}

// runway forecasts. held says that it is known why nothing is confirmed. Where
// one budget is not known, another may be.
func (h *history) runway(budgets []budget, held bool) runway {
	var soonest runway
	for _, b := range budgets {
		next := runway{budget: b}
		if b.left <= 0 {
			next.known, next.ends = true, true
		} else if grows, known := h.growth(b.position, held); known {
			next.known = true
			if s := float64(b.left) / grows; grows > 0 && !math.IsInf(s, 0) && s < endless.Seconds() {
				next.ends, next.after = true, seconds(s)
			}
		}
		if !next.known {
			continue
		}
		if !soonest.known || next.ends && (!soonest.ends || next.after < soonest.after) {
			soonest = next
		}
	}
	return soonest
}
