package cdc

import (
	"fmt"
	"slices"
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
// connection, or zero. It is a value: a copy goes its own way.
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

// Stamp notes that a stamp with this covered position, sent at one time, was
// known to have succeeded at a later one, and moves the confirmed position: the
// success proves that Redis had not gone back when it was done. That was at an
// unknown time in between. So this stamp is as old as its reply, but what it
// proves of those before it is only as of when it was sent: Redis can have gone
// back since, while the reply was on its way. Rows from the commit at unmarked
// on still wait for their mark; zero when none does.
func (p *Progress) Stamp(covered LSN, sent, replied time.Time, unmarked LSN) {
	if covered > p.published {
		panic(fmt.Sprintf("covered %s is beyond published %s", covered, p.published))
	}
	if covered < p.covered {
		panic(fmt.Sprintf("covered goes back from %s to %s", p.covered, covered))
	}
	if covered > p.covered {
		p.covered = covered
		p.stamps = append(slices.Clip(p.stamps), stamp{covered, replied})
	}
	ready := 0
	for _, s := range p.stamps {
		if (p.delay > 0 && sent.Sub(s.at) < p.delay) || (unmarked != 0 && s.covered > unmarked) {
			break
		}
		p.confirmed = s.covered
		ready++
	}
	p.stamps = p.stamps[ready:]
}
