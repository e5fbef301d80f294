package health

import (
	"time"

	"github.com/stagedoor/walrelay/cdc"
)

const (
	// stillFor is how long a slot's restart_lsn may stand still in the best of
	// health: PostgreSQL moves it on every fifteen seconds or so.
	stillFor = 30 * time.Second
	// heldFor is how long nothing may be confirmed, for a known reason, before
	// that is how it goes on: Redis is away for a moment now and then.
	heldFor = 9 * time.Second
	// releases is the part of what is written that must be released for the WAL
	// that is kept to count as not growing.
	releases = 0.9
	// leapSlack is how much writing the depths of two troughs differ by in the
	// best of health: a leap is late, and seen late by a sample. What counts is
	// the fastest writing, since a burst may be over one trough alone.
	leapSlack = 20 * time.Second
	// shortFor is how long the runway has to be short for that to be critical, and
	// shortPart the part of what is left of it that is long enough, too.
	shortFor  = time.Minute
	shortPart = 10
	// endless is a runway that nobody needs to know of.
	endless = 365 * 24 * time.Hour
)

// hold is when nothing was confirmed, for a known reason.
type hold struct {
	since time.Time // the first sample at which that was so; zero where it is not now
	last  time.Time // the last one
	ended time.Time // the last one of the hold before, if that went on for heldFor
}

// step takes whether a sample is held, and reports that a hold ended with the
// one before.
func (h *hold) step(at time.Time, held bool) (ended bool) {
	switch {
	case held && h.since.IsZero():
		h.since = at
	case !held && !h.since.IsZero():
		if ended = h.last.Sub(h.since) >= heldFor; ended {
			h.ended = h.last
		}
		h.since = time.Time{}
	}
	if held {
		h.last = at
	}
	return ended
}

// growth is how the WAL grows that is kept from a position on. While nothing is confirmed all that is written is kept, and less is
// written than before, since no row is marked. What was seen meanwhile says
// nothing of how it goes on afterwards.
//
// Else the position moves on by leaps, so that what is kept goes up and down like the
// teeth of a saw in the best of health. What counts is the way from one trough
// to another; or, where the position stands still for longer than it usually
// does, the rate of writing. Where less is kept than before, nothing grows.
func (h *history) growth(position func(point) cdc.LSN, hold hold) (grows outlook, known bool) {
	if !hold.since.IsZero() {
		if h.points[len(h.points)-1].at.Sub(hold.since) < heldFor {
			return outlook{}, false
		}
		return h.outlook(hold.since)
	}
	points := h.last(rateSpan).since(hold.ended).forward(position)
	written, known := h.outlook(hold.ended)
	if !known || len(points) == 0 {
		return outlook{}, false
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
	case still >= max(stillFor, 2*longest):
		return written, true
	case len(leaps) > 0 && kept(points[len(points)-1]) <= kept(points[0]):
		return outlook{}, true
	case len(leaps) < 2:
		return outlook{}, false
	}
	first, last := leaps[0], leaps[len(leaps)-1]
	took := last.at.Sub(first.at)
	if took < rateLeast {
		return outlook{}, false
	}
	more := kept(last) - kept(first)
	if more <= max((1-releases)*took.Seconds()*written.rate(), leapSlack.Seconds()*fastest(points)) {
		return outlook{}, true
	}
	return outlook{rest: more / took.Seconds()}, true
}

// fastest is how fast WAL was written between two samples at most, in bytes per
// second.
func fastest(points []point) (most float64) {
	for i := 1; i < len(points); i++ {
		most = max(most, float64(points[i].end-points[i-1].end)/points[i].at.Sub(points[i-1].at).Seconds())
	}
	return most
}

// budget is WAL that may still be written before something ends.
type budget struct {
	left     int64
	position func(point) cdc.LSN // from which on WAL counts
	ours     bool                // that is our slot's
	what     string              // for whom it ends
}

// runway is when the first of the budgets ends.
type runway struct {
	known  bool
	ends   bool
	after  time.Duration
	budget budget
}

// patience is how long a runway that is so short has to be short for that to be
// critical.
func patience(after time.Duration) time.Duration { return min(shortFor, after/shortPart) }

// later is what is left of it after a while without another sample, of which
// there is nothing to be said when it is long. What has not been seen to end has
// not ended.
func (r runway) later(d time.Duration) runway {
	if r.ends && r.after > 0 {
		r.after = max(r.after-min(max(d, 0), rateGap), min(r.after, time.Second))
	}
	return r
}

// runway forecasts. Where one budget is not known, another may be.
func (h *history) runway(budgets []budget, ours hold) runway {
	var soonest runway
	for _, b := range budgets {
		next := runway{budget: b}
		hold := hold{}
		if b.ours {
			hold = ours
		}
		if b.left <= 0 {
			next.known, next.ends = true, true
		} else if grows, known := h.growth(b.position, hold); known {
			next.known = true
			if s := grows.lasts(float64(b.left)); s < endless.Seconds() {
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
