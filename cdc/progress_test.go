package cdc

import (
	"testing"
	"time"
)

// A script of what happens to a Progress with a delay of five seconds.
func TestProgress(t *testing.T) {
	start := time.Now()
	at := func(seconds float64) time.Time { return start.Add(time.Duration(seconds * float64(time.Second))) }
	type step struct {
		at       float64 // seconds: when a stamp is known to have succeeded
		receive  LSN     // 0: none
		publish  LSN
		unmarked LSN
		want     LSN     // confirmed, after a stamp; -1: no stamp
		took     float64 // seconds since it was sent
	}
	const none = ^LSN(0)
	for name, steps := range map[string][]step{
		"nothing received confirms nothing": {{0, 0, 0, 0, 0, 0}, {10, 0, 0, 0, 0, 0}},
		"a stamp is confirmed when it is five seconds old": {
			{0, 100, 100, 0, 0, 0}, {1, 0, 0, 0, 0, 0}, {4.9, 0, 0, 0, 0, 0}, {5, 0, 0, 0, 100, 0},
		},
		"what was received and not published is not confirmed": {
			{0, 100, 0, 0, 0, 0}, {20, 0, 0, 0, 0, 0}, {21, 0, 100, 0, 0, 0}, {26, 0, 0, 0, 100, 0},
		},
		"each stamp has its own age": {
			{0, 100, 100, 0, 0, 0}, {3, 200, 200, 0, 0, 0}, {5, 300, 300, 0, 100, 0}, {8, 0, 0, 0, 200, 0}, {9, 0, 0, 0, 200, 0}, {10, 0, 0, 0, 300, 0},
		},
		"no stamp, no confirm": {
			{0, 100, 100, 0, 0, 0}, {20, 200, 200, 0, none, 0}, {40, 0, 0, 0, 100, 0}, {44, 0, 0, 0, 100, 0}, {45, 0, 0, 0, 200, 0},
		},
		"a row that waits for its mark holds the confirm at its commit": {
			{0, 100, 100, 0, 0, 0}, {1, 200, 200, 100, 0, 0}, {5, 0, 0, 100, 100, 0}, {60, 300, 300, 100, 100, 0}, {61, 0, 0, 0, 200, 0}, {65, 0, 0, 0, 300, 0},
		},
		"a slow reply makes its stamp younger, and proves nothing of later than it was sent": {
			{3, 100, 100, 0, 0, 3}, {7.9, 0, 0, 0, 0, 0}, {12, 0, 0, 0, 0, 4.1}, {12, 0, 0, 0, 100, 4},
		},
		"positions that stay below never go back": {
			{0, 100, 100, 0, 0, 0}, {5, 0, 0, 0, 100, 0}, {6, 50, 50, 0, 100, 0}, {20, 0, 0, 0, 100, 0},
		},
	} {
		t.Run(name, func(t *testing.T) {
			p := NewProgress(5 * time.Second)
			for i, s := range steps {
				if s.receive != 0 {
					p.Receive(s.receive)
				}
				if s.publish != 0 {
					p.Publish(s.publish)
				}
				if s.want == none {
					continue
				}
				p.Stamp(p.Published(), at(s.at-s.took), at(s.at), s.unmarked)
				if got := p.Confirmed(); got != s.want {
					t.Fatalf("step %d: confirmed %d, want %d", i, got, s.want)
				}
			}
		})
	}
}

func TestProgressBrokenInvariantPanics(t *testing.T) {
	for name, f := range map[string]func(*Progress){
		"published beyond received": func(p *Progress) { p.Publish(101) },
		"covered beyond published":  func(p *Progress) { p.Stamp(101, time.Now(), time.Now(), 0) },
		"covered goes back": func(p *Progress) {
			p.Publish(100)
			p.Stamp(100, time.Now(), time.Now(), 0)
			p.Stamp(50, time.Now(), time.Now(), 0)
		},
	} {
		t.Run(name, func(t *testing.T) {
			defer func() {
				if recover() == nil {
					t.Error("no panic")
				}
			}()
			p := NewProgress(time.Second)
			p.Receive(100)
			f(p)
		})
	}
}
