package relay

import (
	"context"
	"fmt"
	"strings"
	"sync"

	"github.com/stagedoor/walrelay/cdc"
)

// witness has the table check the stream, see [cdc.Witness]. Its methods may be
// called from any goroutine.
type witness struct {
	hangUp context.CancelCauseFunc // ends the connection that it belongs to

	mu      sync.Mutex
	look    cdc.Witness
	waiting map[string]bool // rows that waited for their mark before those that are due were looked at
}

// Witness is what the table's monitor tells a streaming connection of rows that
// are not marked. It is dropped with the connection.
type Witness struct{ s *streaming }

// Witness returns the witness of the current connection, or nil where there is
// nothing to testify: nothing is streamed, or rows are not marked.
func (r *Relay) Witness() *Witness {
	r.status.mu.Lock()
	s, refused := r.status.streaming, r.status.now.MarksRefused
	r.status.mu.Unlock()
	if s == nil || refused || !r.cfg.Table.Marks() {
		return nil
	}
	return &Witness{s}
}

// Timeline is that of the server that is streamed from.
func (w *Witness) Timeline() uint32 { return w.s.timeline }

// Due returns the rows that have to be looked at again, and else whether it is
// time for a new look.
func (w *Witness) Due() (again []string, look bool) {
	confirmed := cdc.LSN(w.s.confirmed.Load())
	w.s.witness.mu.Lock()
	defer w.s.witness.mu.Unlock()
	if again = w.s.witness.look.Due(confirmed); len(again) > 0 {
		// Before they are looked at: the other way round, one could be marked in
		// between, and seen in neither place.
		w.s.witness.waiting = w.s.marks.set()
	}
	return again, len(again) == 0 && !w.s.witness.look.Pending(confirmed)
}

// Looked takes the oldest rows that are not marked, and where WAL was inserted
// then, see [cdc.Witness.Look].
func (w *Witness) Looked(unmarked []string, end cdc.LSN) {
	w.s.witness.mu.Lock()
	defer w.s.witness.mu.Unlock()
	w.s.witness.look.Look(unmarked, end)
}

// LookedAgain takes those of the rows that were due that are still not marked.
// What was confirmed has passed them: those that do not wait for their mark were
// missed, and the connection ends, so that they are put back.
func (w *Witness) LookedAgain(unmarked []string) {
	w.s.witness.mu.Lock()
	missed := w.s.witness.look.Missed(unmarked, func(id string) bool { return w.s.witness.waiting[id] })
	w.s.witness.waiting = nil
	w.s.witness.mu.Unlock()
	if len(missed) == 0 {
		return
	}
	w.s.witness.hangUp(&GapError{Kind: cdc.RowsMissed, Err: fmt.Errorf(
		"%d rows are not marked as published, and the slot is confirmed beyond them, so it did not deliver them (ids %s): the publication was away, a partition was attached, or published_at was reset by hand",
		len(missed), strings.Join(missed[:min(len(missed), 10)], ", "))})
}

// Promoted tells on which timeline a server writes that is no standby. Where it
// was one and was promoted, the connection to it goes on, and what comes over it
// is of a timeline that the checkpoint does not know. So it ends, and the next
// one begins with that timeline.
func (r *Relay) Promoted(timeline uint32) {
	r.status.mu.Lock()
	s := r.status.streaming
	r.status.mu.Unlock()
	if s != nil && s.standby && timeline > s.timeline {
		s.witness.hangUp(errPromoted)
	}
}

// hangUpNow ends the current attempt, and no later one.
func (r *Relay) hangUpNow() context.CancelCauseFunc {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.cancel
}
