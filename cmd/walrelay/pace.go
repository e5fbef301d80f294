package main

import (
	"github.com/stagedoor/walrelay/cdc"
	"github.com/stagedoor/walrelay/slot"
)

// pace adds up how much WAL is written and confirmed. An LSN is no counter: on
// another server, or after a restore, it goes back.
type pace struct {
	last               slot.Sample
	written, confirmed uint64 // bytes
}

// take adds what has changed since the sample before.
func (p *pace) take(s slot.Sample) {
	before := p.last
	p.last = s
	if before.Timeline != s.Timeline || before.Recovery != s.Recovery || before.WALEnd > s.WALEnd {
		return
	}
	p.written += forward(before.WALEnd, s.WALEnd)
	if before.Slot != nil && s.Slot != nil {
		p.confirmed += forward(before.Slot.ConfirmedFlush, s.Slot.ConfirmedFlush)
	}
}

// forward is how far a position has moved on; 0 where one is not known.
func forward(from, to cdc.LSN) uint64 {
	if from == 0 || to < from {
		return 0
	}
	return uint64(to - from)
}
