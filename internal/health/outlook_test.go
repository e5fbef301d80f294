package health

import (
	"fmt"
	"math"
	"testing"
	"time"

	"github.com/stagedoor/walrelay/cdc"
)

// load is a server that is written to for some time, a sample every five seconds.
type load struct {
	machine Machine
	in      Input
	slot    Slot
	keep    int64
	marks   float64 // bytes per second, while the slot is confirmed
	rest    float64 // bytes per second
	pages   float64 // per second right after a checkpoint; a third as many each minute later
	page    float64 // bytes
	sofar   time.Duration

	slowness float64   // the part of what is written that stays unconfirmed
	before   []cdc.LSN // what was confirmed at each sample
}

func newLoad() *load {
	in := healthy()
	in.Thresholds = Thresholds{RunwayCritical: time.Hour}
	in.Timeline, in.WALEnd, in.FullPages, in.CheckpointEvery = 1, 1<<40, ptr(int64(7)), 5*time.Minute
	l := &load{in: in, slot: *in.Slot, keep: 1 << 40}
	l.slot.ConfirmedFlush, l.slot.Restart = in.WALEnd, in.WALEnd
	return l
}

// grow is how much is written in the next while, and how many full pages.
func (l *load) grow(d time.Duration) (bytes, pages float64) {
	for range int(d.Seconds()) {
		minutes := math.Mod(l.sofar.Minutes(), l.in.CheckpointEvery.Minutes())
		n := l.pages * math.Pow(3, -minutes)
		pages += n
		bytes += n*l.page + l.rest
		if l.in.RedisAwaySince.IsZero() {
			bytes += l.marks
		}
		l.sofar += time.Second
	}
	return bytes, pages
}

// run lets time go on and returns the last document.
func (l *load) run(d time.Duration) (doc Document) {
	for range d / (5 * time.Second) {
		bytes, pages := l.grow(5 * time.Second)
		l.in.Now = l.in.Now.Add(5 * time.Second)
		l.in.SampledAt = l.in.Now
		l.in.WALEnd += cdc.LSN(bytes)
		if l.in.FullPages != nil {
			l.in.FullPages = ptr(*l.in.FullPages + int64(pages))
		}
		if l.in.RedisAwaySince.IsZero() {
			l.slot.ConfirmedFlush += cdc.LSN(bytes * (1 - l.slowness))
			l.before = append(l.before, l.slot.ConfirmedFlush)
			if n := len(l.before); l.sofar%(15*time.Second) == 0 && n > 2 {
				l.slot.Restart = l.before[n-3] // it follows late
			}
		}
		s := l.slot
		s.SafeWALSize = ptr(l.keep - int64(l.in.WALEnd-s.Restart))
		l.in.Slot = &s
		doc = l.machine.Step(l.in)
	}
	return doc
}

// left is how long the budget really lasts from now on.
func (l *load) left() time.Duration {
	after := *l
	left := float64(*l.in.Slot.SafeWALSize)
	for left > 0 {
		bytes, _ := after.grow(time.Second)
		left -= bytes
	}
	return after.sofar - l.sofar
}

// Full pages come in bursts, one after each checkpoint, and rows are marked no
// more while Redis is away. The runway is right wherever between two checkpoints
// that begins.
func TestRunwayIsNotFooledByFullPages(t *testing.T) {
	for _, tt := range []struct {
		name    string
		page    float64
		budgets []int64
	}{{"whole", 8000, []int64{150e6, 250e6, 400e6, 2e9}}, {"compressed", 1500, []int64{90e6, 200e6, 2e9}}} {
		for _, budget := range tt.budgets {
			t.Run(fmt.Sprintf("%s, %d MB", tt.name, budget/1e6), func(t *testing.T) {
				for before := 10 * time.Minute; before < 15*time.Minute; before += 35 * time.Second {
					l := newLoad()
					l.marks, l.rest, l.pages, l.page = 100e3, 100e3, 300, tt.page
					l.run(before)
					// From less than a round to many.
					l.keep = int64(l.in.WALEnd-l.slot.Restart) + budget
					l.in.RedisAwaySince = l.in.Now
					for _, after := range []time.Duration{15 * time.Second, 45 * time.Second, time.Minute} {
						doc := l.run(after)
						if doc.Runway == nil {
							t.Fatalf("%v in and %v after there is no runway", before, after)
						}
						left := l.left().Seconds()
						if off := *doc.Runway/left - 1; math.Abs(off) > 0.3 && math.Abs(*doc.Runway-left) > 15 {
							t.Errorf("%v in and %v after, the runway is %.0f s, and really %v: off by %+.0f %%", before, after, *doc.Runway, l.left(), 100*off)
						}
					}
				}
			})
		}
	}
}

// The relay keeps up, and is late by as many seconds whatever is written: more is
// kept in a burst, which is no growth.
func TestBurstsAreNoGrowth(t *testing.T) {
	l := newLoad()
	l.marks, l.rest, l.pages, l.page, l.keep = 10e3, 100e3, 300, 8000, 1e9
	for range 25 * time.Minute / (5 * time.Second) {
		if doc := l.run(5 * time.Second); doc.Runway != nil || doc.Status != StatusOK {
			t.Fatalf("after %v the runway is %.0f s", l.sofar, *doc.Runway)
		}
	}
}

// Before PostgreSQL 14 full pages are not told apart. What is written now counts.
func TestRunwayWithoutFullPages(t *testing.T) {
	l := newLoad()
	l.in.FullPages = nil
	l.marks, l.rest, l.keep = 300e3, 100e3, 1e9
	l.run(3 * time.Minute)
	l.in.RedisAwaySince = l.in.Now
	if doc := l.run(20 * time.Second); doc.Runway == nil || math.Abs(*doc.Runway/l.left().Seconds()-1) > 0.1 {
		t.Errorf("the runway is %v, and really %v", doc.Runway, l.left())
	}
}

// What was foretold while Redis was away is void when it is back: the status is
// ok with the next sample, long before PostgreSQL moves restart_lsn on.
func TestRunwayIsVoidWhenRedisIsBack(t *testing.T) {
	l := newLoad()
	l.rest, l.keep = 1e6, 1e9
	l.run(35 * time.Second)
	l.in.RedisAwaySince = l.in.Now
	if doc := l.run(75 * time.Second); doc.Runway == nil || doc.Status != StatusCritical {
		t.Fatalf("while Redis is away: %+v", doc)
	}
	l.in.RedisAwaySince = time.Time{}
	stands := l.slot.Restart
	if doc := l.run(5 * time.Second); l.slot.Restart != stands || doc.Runway != nil || doc.Status != StatusOK {
		t.Errorf("after Redis is back: restart_lsn moved %v, runway %v, %s %q", l.slot.Restart != stands, doc.Runway, doc.Status, doc.Reasons)
	}
}

// A moment's absence changes nothing about a slot that falls behind.
func TestRunwayOutlastsABlip(t *testing.T) {
	l := newLoad()
	l.rest, l.keep, l.slowness = 1e6, 1e9, 0.5
	for range 8 {
		before := l.run(55 * time.Second)
		l.in.RedisAwaySince = l.in.Now
		during := l.run(5 * time.Second)
		l.in.RedisAwaySince = time.Time{}
		after := l.run(5 * time.Second)
		if l.sofar < 2*time.Minute {
			continue // it is not known yet
		}
		if before.Runway == nil || during.Runway == nil || after.Runway == nil {
			t.Errorf("before, while and after Redis is away for a moment: %v, %v, %v", before.Runway, during.Runway, after.Runway)
		}
	}
}
