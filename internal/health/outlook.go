package health

import (
	"math"
	"time"

	"github.com/stagedoor/walrelay/cdc"
)

// fullPage is how many bytes come with a full page at most.
const fullPage = 8192

// outlook is how WAL is going to be written.
//
// After each checkpoint PostgreSQL writes a page as a whole when it is changed
// for the first time: much at once, and then ever less until the next one. So
// full pages come as they did in the last round of checkpoints. All else comes at
// the rate of the last minutes, since it changes with the load.
//
// https://www.postgresql.org/docs/current/wal-configuration.html
type outlook struct {
	rest  float64 // bytes per second, but for full pages
	page  float64 // bytes of a full page
	round []point // the last round, or some of them
}

// outlook goes by what was seen since a time.
func (h *history) outlook(since time.Time) (o outlook, known bool) {
	recent := h.last(rateSpan).since(since)
	all, known := recent.slope(func(p point) cdc.LSN { return p.end })
	if !known {
		return outlook{}, false
	}
	o.rest = all
	if now, known := recent.slope(pages); known { // else PostgreSQL does not tell
		last := h.last(h.rounds())
		o.round, o.page = last.forward(pages), last.pageBytes()
		o.rest = max(0, all-o.page*now)
	}
	return o, true
}

// rounds is as many whole rounds as rates are taken over, at least one.
func (h *history) rounds() time.Duration {
	if h.round <= 0 {
		return rateSpan
	}
	return h.round * max(1, (rateSpan+h.round-1)/h.round)
}

// whole is how long the round takes, in seconds, and how many bytes are written
// meanwhile.
func (o outlook) whole() (took, bytes float64) {
	if len(o.round) < 2 {
		return 1, o.rest
	}
	first, last := o.round[0], o.round[len(o.round)-1]
	return o.between(first, last)
}

func (o outlook) between(a, b point) (took, bytes float64) {
	took = b.at.Sub(a.at).Seconds()
	return took, o.rest*took + o.page*float64(b.pages-a.pages)
}

// rate is in bytes per second.
func (o outlook) rate() float64 {
	took, bytes := o.whole()
	return bytes / took
}

// lasts is how many seconds it takes until so many bytes are written: infinite
// where nothing is.
func (o outlook) lasts(left float64) (s float64) {
	took, bytes := o.whole()
	if bytes <= 0 {
		return math.Inf(1)
	}
	rounds := math.Floor(left / bytes)
	s, left = rounds*took, left-rounds*bytes
	for i := 1; i < len(o.round); i++ {
		took, bytes = o.between(o.round[i-1], o.round[i])
		if bytes >= left && bytes > 0 {
			return s + took*left/bytes
		}
		s, left = s+took, left-bytes
	}
	if len(o.round) < 2 {
		s += left / o.rest
	}
	return s
}

// pages is the count of full pages.
func pages(p point) cdc.LSN { return p.pages }

// pageBytes is how many bytes come with a full page: by how much more is written
// where more of them are. Some are compressed, or have a gap left out.
func (h *history) pageBytes() float64 {
	points := h.forward(pages)
	if len(points) < 2 {
		return 0
	}
	first, last := points[0], points[len(points)-1]
	took := last.at.Sub(first.at).Seconds()
	meanPages := float64(last.pages-first.pages) / took
	meanBytes := float64(last.end-first.end) / took
	var together, alone float64
	for i := 1; i < len(points); i++ {
		before, p := points[i-1], points[i]
		took := p.at.Sub(before.at).Seconds()
		morePages := float64(p.pages-before.pages) - meanPages*took
		moreBytes := float64(p.end-before.end) - meanBytes*took
		together += morePages * moreBytes
		alone += morePages * morePages
	}
	if alone == 0 {
		return fullPage
	}
	return min(max(0, together/alone), fullPage)
}
