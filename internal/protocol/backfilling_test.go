package protocol

import (
	"github.com/stagedoor/walrelay/cdc"
)

// backfilling is a backfill: relay/backfill.go.
type backfilling struct {
	since      cdc.Since
	drop       bool // there is a slot that does not belong to what follows
	consistent cdc.LSN
	rows       []candidate // of the snapshot; then those that the stream lacks
	pending    []pending
	lastAppend int8
	lastWrite  int8
	sent       int8 // the last write
}

type candidate struct {
	row, id int8
	marked  bool
}

type pending struct{ id, at int8 }

// backfill is relay.backfill under the lock, up to the write of
// backfilling.begin.
func (w *world) backfill(i int) {
	r := &w.relay[i]
	if r.cut {
		w.end(i, 0)
		return
	}
	j, streams, err := w.judge(i)
	if err != nil {
		w.end(i, pauseOf(err))
		return
	}
	if j.Verdict != cdc.Backfill && j.Verdict != cdc.Gap {
		w.end(i, 0)
		return
	}
	r.judgement = j
	r.b = backfilling{since: w.sinceOf(i), drop: r.slot != nil, lastAppend: never}
	w.newWriter(i, r.cp)
	next := w.backfillCheckpoint(i, cdc.PhaseBackfill)
	next.Doubt = doubt(j, r.cp, streams, r.b.since)
	if r.cp != nil {
		next.Generation = r.cp.Generation
	}
	next.Generation++
	r.pc = pcBegin
	w.send(i, next, nil)
}

func (w *world) backfillCheckpoint(i int, phase cdc.Phase) cdc.Checkpoint {
	since := w.relay[i].b.since
	return cdc.Checkpoint{
		Timeline: w.pg.timeline, History: w.pg.history.Recent(), Phase: phase,
		Since: &since, LastIDs: w.redis.lastID(),
	}
}

// doubt is relay.doubt.
func doubt(j cdc.Judgement, cp *cdc.Checkpoint, streams map[string]cdc.StreamState, since cdc.Since) *cdc.Doubt {
	var before *cdc.Doubt
	if cp != nil {
		before = cp.Doubt
		if lost, ok := cdc.LostStream(cp, streams); ok {
			return &cdc.Doubt{Reason: lost.Reason, Before: since.Time}
		}
	}
	if cp == nil && (j.Kind == cdc.NoCheckpoint || !since.First) {
		return &cdc.Doubt{Reason: j.Reason, Before: since.Time}
	}
	if before != nil && since.Time.Before(before.Before) {
		return nil
	}
	return before
}

// sinceOf is relay.backfillSince.
func (w *world) sinceOf(i int) cdc.Since {
	r := &w.relay[i]
	switch cp := r.cp; {
	case cp != nil && (cp.Since != nil || cp.Phase == cdc.PhaseStreaming) && w.bug != bugSinceNow:
		since := cdc.SinceOf(cp)
		if kind := r.judgement.Kind; kind == cdc.StreamMissing || kind == cdc.StreamBehind {
			if first := w.unknownSince(r); first.Time.Before(since.Time) {
				since.Time = first.Time
			}
		}
		r.since = &since
	case r.since != nil && w.bug != bugSinceNow && w.bug != bugSinceForgotten:
	default:
		since := w.unknownSince(r)
		r.since = &since
	}
	return *r.since
}

// unknownSince is relay.unknownSince.
func (w *world) unknownSince(r *relay) cdc.Since {
	since := cdc.Since{Time: clock(w.now), First: r.slot == nil}
	if r.slot != nil && r.slot.WALStatus != "lost" {
		for k := range w.pg.wal {
			if rec := &w.pg.wal[k]; !rec.mark && !rec.noise && !rec.hidden && lsnOf(k) >= r.slot.ConfirmedFlush {
				since.Time = clock(rec.at)
				break
			}
		}
	}
	return since
}

// backfillWrote goes on after a write.
func (w *world) backfillWrote(i int, q *request) {
	r := &w.relay[i]
	b := &r.b
	b.lastWrite, b.sent = w.now, r.sent
	switch r.pc {
	case pcBegin:
		w.began(i)
		r.pc = pcCreate
	case pcAppend: // backfilling.flush
		b.lastAppend = w.now
		for _, c := range b.rows {
			if !c.marked {
				b.pending = with(b.pending, pending{c.id, w.now})
			}
		}
		b.rows = nil
		r.pc = pcSettle
		w.markDue(i)
	case pcSettle: // backfilling.stamp
		w.markDue(i)
	case pcFinish:
		r.pc = pcKeep
	}
}

// began is healer.began.
func (w *world) began(i int) {
	r := &w.relay[i]
	r.found = ""
	if r.judgement.Verdict != cdc.Gap {
		return
	}
	w.heals++
	r.heals = with(r.heals, r.judgement.Kind)
}

// create is the end of backfilling.begin, backfilling.createSlot and the read
// of the candidates: a slot and a snapshot of one moment.
func (w *world) create(i int) {
	r := &w.relay[i]
	b := &r.b
	if r.cut || b.drop && w.pg.slot.holder != 0 {
		w.end(i, 0)
		return
	}
	if b.drop {
		w.pg.slot = slot{}
	}
	b.consistent = w.pg.end()
	t := w.pg.table()
	b.rows = nil
	for _, row := range t.all() {
		lately := row.marked && !clock(row.markedAt).Before(b.since.Time) && w.bug != bugOnlyUnmarked
		if !row.marked || lately {
			b.rows = append(b.rows, candidate{row.row, row.id, row.marked})
		}
	}
	if w.trace != nil {
		w.say("relay %d has a temporary slot at %s; candidates: %s", i, lsnText(b.consistent), candidatesText(b.rows))
	}
	r.pc = pcTail
	if len(b.rows) == 0 {
		r.pc = pcSettle
	}
}

// readTail compares the candidates with the stream: tail and backfilling.row.
func (w *world) readTail(i int) {
	r := &w.relay[i]
	b := &r.b
	if r.cut {
		w.end(i, 0)
		return
	}
	var missing []candidate
	for _, c := range b.rows {
		on := false
		for _, e := range w.redis.entries {
			on = on || e.row == c.row
		}
		switch {
		case w.bug == bugNoTail || !on:
			missing = append(missing, c)
		case !c.marked:
			b.pending = with(b.pending, pending{c.id, w.now})
		}
	}
	b.rows = missing
	r.pc = pcAppend
	if len(missing) == 0 {
		r.pc = pcSettle
	}
	if w.trace != nil {
		w.say("relay %d reads the stream; it lacks %s", i, candidatesText(missing))
	}
}

// appendRows is the write of backfilling.flush.
func (w *world) appendRows(i int) {
	r := &w.relay[i]
	var rows []int8
	for _, c := range r.b.rows {
		rows = append(rows, c.row)
	}
	w.send(i, *r.current, rows)
}

// settled reports whether backfilling.publish is over.
func (w *world) settled(i int) bool {
	b := &w.relay[i].b
	return len(b.pending) == 0 && w.now-b.lastAppend >= w.delay || w.bug == bugKeepEarly
}

// settle is the write of backfilling.settle.
func (w *world) settle(i int) { w.send(i, *w.relay[i].current, nil) }

// markDue is backfilling.markDue.
func (w *world) markDue(i int) {
	b := &w.relay[i].b
	var again, later []pending
	for k, p := range b.pending {
		if b.sent-p.at < w.delay && w.bug != bugMarkEarly {
			later = b.pending[k:]
			break
		}
		state := w.pg.setMark(p.id, w.now)
		if w.trace != nil {
			w.say("relay %d marks the row with id %d: %s", i, p.id, markText(state))
		}
		if state != cdc.Marked {
			p.at = b.sent + 1 - w.delay
			again = append(again, p)
		}
	}
	b.pending = append(again, later...)
}

// finish is backfilling.finish up to the write.
func (w *world) finish(i int) {
	r := &w.relay[i]
	if r.cut || w.pg.slot.holder != 0 {
		w.end(i, 0)
		return
	}
	w.pg.slot = slot{}
	if cp, streams := w.redis.load(); cp != nil && w.bug != bugStreamGone {
		if lost, ok := cdc.LostStream(cp, streams); ok {
			w.say("relay %d backfills again: %s", i, lost.Reason)
			w.end(i, 0)
			return
		}
	}
	next := w.backfillCheckpoint(i, cdc.PhaseStreaming)
	next.Covered, next.CoveredTime = r.b.consistent, clock(w.now)
	if w.bug != bugOlderSlot {
		next.Consistent = r.b.consistent
	}
	next.Doubt, next.Generation = r.current.Doubt, r.current.Generation
	if w.bug == bugKeepPosition && r.cp != nil {
		next.Last, next.LastCommit = r.cp.Last, r.cp.LastCommit
	}
	r.pc = pcFinish
	w.send(i, next, nil)
}

// keep is Session.Keep and the end of backfilling.finish.
func (w *world) keep(i int) {
	r := &w.relay[i]
	if r.cut || w.pg.slot.exists {
		w.end(i, 0)
		return
	}
	w.pg.slot = slot{exists: true, start: r.b.consistent, confirmed: r.b.consistent}
	if w.trace != nil {
		w.say("relay %d makes the slot permanent at %s", i, lsnText(r.b.consistent))
	}
	w.end(i, 0)
}
