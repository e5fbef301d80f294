package health

import (
	"time"

	"github.com/stagedoor/walrelay/cdc"
)

// fullPage is how many bytes come with a full page at most.
const fullPage = 8192

// outlook is how fast WAL is going to be written, by what was seen since a time,
// in bytes per second.
//
// After each checkpoint PostgreSQL writes a page as a whole when it is changed
// for the first time: much at once, and then ever less until the next one. So
// these are counted over a whole round of checkpoints. All else is counted over
// the last minutes alone, since it changes with the load.
//
// https://www.postgresql.org/docs/current/wal-configuration.html
func (h *history) outlook(since time.Time) (bytesPerSecond float64, known bool) {
	recent := h.last(rateSpan).since(since)
	all, known := recent.slope(func(p point) cdc.LSN { return p.end })
	if !known {
		return 0, false
	}
	now, known := recent.slope(pages)
	if !known {
		return all, true // PostgreSQL does not tell
	}
	round := h.last(max(h.round, rateSpan))
	usually, _ := round.slope(pages)
	each := round.pageBytes()
	return max(0, all-each*now) + each*usually, true
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
