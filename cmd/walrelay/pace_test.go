package main

import (
	"testing"

	"github.com/stagedoor/walrelay/cdc"
	"github.com/stagedoor/walrelay/slot"
)

// A counter never goes back, and takes no leap for WAL that nobody wrote: an LSN
// does both where it is another server's.
func TestPaceCountsOneServersWAL(t *testing.T) {
	t.Parallel()
	var p pace
	for _, step := range []struct {
		what              string
		timeline          uint32
		end, confirmed    cdc.LSN // confirmed is 0 where there is no slot
		written, confirms uint64
	}{
		{"the first look tells of nothing before it", 1, 1000, 900, 0, 0},
		{"both move on", 1, 1500, 1200, 500, 300},
		{"nothing moves", 1, 1500, 1200, 500, 300},
		{"the slot is gone", 1, 1600, 0, 600, 300},
		{"and is made anew", 1, 1700, 1650, 700, 300},
		{"it is moved back", 1, 1800, 1000, 800, 300},
		{"a failover", 2, 5000, 4000, 800, 300},
		{"the new server goes on", 2, 5100, 4500, 900, 800},
		{"a backup is restored", 2, 100, 50, 900, 800},
		{"and goes on", 2, 150, 70, 950, 820},
	} {
		s := slot.Sample{Timeline: step.timeline, WALEnd: step.end}
		if step.confirmed != 0 {
			s.Slot = &slot.SlotLag{ConfirmedFlush: step.confirmed}
		}
		p.take(s)
		if p.written != step.written || p.confirmed != step.confirms {
			t.Errorf("%s: %d written and %d confirmed, want %d and %d", step.what, p.written, p.confirmed, step.written, step.confirms)
		}
	}
}
