package cdc

import (
	"fmt"
	"time"
)

// Progress is how far one replication connection has come:
//
//	received >= published >= covered >= confirmed
//
// It belongs to that connection and is thrown away with it: what was flushed
// on an old connection says nothing about the server that answers now, and a
// server that is told of a flush beyond its own WAL skips rows.
//
// All four are ends of commits or keepalive positions that came over this
// connection, or zero.
type Progress struct {
	delay time.Duration

	received  LSN
	published LSN
	covered   LSN
	confirmed LSN

	// stamps are the covered positions that may be confirmed one day, oldest
	// first. Invariant: covered grows, and at does not shrink.
	stamps []stamp
}

type stamp struct {
	covered LSN
	at      time.Time
}

// NewProgress starts at zero. The delay is how old a stamp has to be before it
// is confirmed; it covers what a Redis that lost its last seconds has lost.
func NewProgress(delay time.Duration) *Progress {
	return &Progress{delay: delay}
}

// Receive notes that everything up to lsn has come over this connection.
func (p *Progress) Receive(lsn LSN) { p.received = max(p.received, lsn) }

// Publish notes that everything up to lsn is on the stream or needs no entry.
func (p *Progress) Publish(lsn LSN) {
	if lsn > p.received {
		panic(fmt.Sprintf("published %s is beyond received %s", lsn, p.received))
	}
	p.published = max(p.published, lsn)
}

// Published is what a stamp sent now may cover.
func (p *Progress) Published() LSN { return p.published }

// Confirmed is what a status update may report as flushed and applied: zero
// until something of this connection was stamped and is old enough.
func (p *Progress) Confirmed() LSN { return p.confirmed }

// Stamp notes that Redis holds a checkpoint with this covered position, as of
// now, and moves the confirmed position: the success proves that Redis has not
// gone back since the stamps before it. Rows from the commit at unmarked on
// still wait for their mark; zero when none does.
func (p *Progress) Stamp(covered LSN, now time.Time, unmarked LSN) {
	if covered > p.published {
		panic(fmt.Sprintf("covered %s is beyond published %s", covered, p.published))
	}
	if covered < p.covered {
		panic(fmt.Sprintf("covered goes back from %s to %s", p.covered, covered))
	}
	if covered > p.covered {
		p.covered = covered
		p.stamps = append(p.stamps, stamp{covered, now})
	}
	ready := 0
	for _, s := range p.stamps {
		if now.Sub(s.at) < p.delay || (unmarked != 0 && s.covered > unmarked) {
			break
		}
		p.confirmed = s.covered
		ready++
	}
	p.stamps = p.stamps[ready:]
}
