package protocol

import (
	"github.com/stagedoor/walrelay/cdc"
)

// faultActions is what can go wrong next.
func (w *world) faultActions(out []action) []action {
	add := func(s step, a, b int8) {
		if w.may(s) {
			out = append(out, action{s, a, b})
		}
	}
	for i := range int8(w.settings.relays) {
		if w.first && i > 0 {
			break
		}
		r := &w.relay[i]
		waiting := r.request != nil && r.reply == nil
		if r.pc != pcDown {
			add(faultCrash, i, 0)
			if waiting && w.stray == nil {
				add(faultCrash, i, 1) // and what it sent arrives later
			}
		}
		if waiting && w.stray == nil {
			add(faultAstray, i, 0)
		}
		if r.pc == pcStream && !r.stopping {
			add(faultStop, i, 0)
		}
		if r.pc > pcIdle && !r.cut {
			add(faultCut, i, 0)
		}
	}
	if w.may(faultGoBack) {
		if w.dump == nil {
			out = append(out, action{step: stepDump})
		} else if w.dumpLost != never {
			add(faultGoBack, 0, 0)
		}
	}
	if w.redis.cp != nil || w.redis.stream {
		add(faultEmpty, 0, 0)
	}
	if w.redis.stream {
		add(faultDelete, 0, 0)
	}
	if s := w.pg.slot; s.exists && s.holder == 0 {
		add(faultDropSlot, 0, 0)
		if !s.lost {
			add(faultLost, 0, 0)
			if s.confirmed < w.pg.end() {
				add(faultAdvance, 0, 0)
			}
		}
	}
	if w.pg.slot.holder == 0 {
		add(faultRecreate, 0, 0)
	}
	if w.may(faultLock) {
		t := w.pg.table()
		for _, r := range t.all() {
			if !r.marked && w.pg.locked&(1<<r.id) == 0 {
				add(faultLock, r.id, 0)
			}
		}
	}
	add(faultRestart, 0, 0)
	known := cdc.LSN(0) // a server that follows the newest timeline has what it has
	if n := len(w.pg.history); n > 0 {
		known = w.pg.history[n-1].LSN
	}
	for n := range int8(len(w.pg.wal)) + 1 {
		if w.may(faultFailover) && lsnOf(int(n)) >= known {
			add(faultFailover, n, 0)
			if w.pg.slot.exists {
				add(faultFailover, n, 1)
			}
			if n < int8(len(w.pg.wal)) && w.pg.wal[n].slot.exists {
				add(faultFailover, n, 2)
			}
		}
		if n < int8(len(w.pg.wal)) {
			add(faultRestore, n, 0)
		}
	}
	if w.rowsLeft > 0 {
		add(faultHidden, 0, 0)
	}
	if w.redis.cp != nil && w.redis.cp.Phase == cdc.PhaseStreaming {
		add(faultRequest, 0, 0)
	}
	return out
}

// fault makes one happen.
func (w *world) fault(a action) {
	i := int(a.a)
	if a.step != stepDump {
		w.budget--
	}
	switch a.step {
	case faultCrash:
		w.say("FAULT: relay %d is killed", i)
		if a.b == 1 {
			w.say("      and its last write is still on its way")
			w.stray = w.relay[i].request
		}
		w.release(i)
		w.relay[i] = relay{inst: w.relay[i].inst}
	case faultStop:
		w.say("relay %d is to stop", i)
		w.relay[i].stopping = true
	case faultCut:
		w.say("FAULT: the server ends the session of relay %d", i)
		w.cut(i)
	case faultAstray:
		r := &w.relay[i]
		w.say("FAULT: relay %d hears nothing of its write", i)
		w.stray = r.request
		r.sent = w.now
		if r.ending {
			w.end(i, 0)
		}
	case stepDump:
		w.say("Redis writes its state to disk")
		d := w.redis
		w.dump, w.dumpLost = &d, never
	case faultGoBack:
		w.goBack()
	case faultEmpty:
		w.say("FAULT: Redis is emptied")
		w.redis = redis{}
		w.lossy, w.emptied = true, true
		w.mayHeal++
	case faultDelete:
		w.say("FAULT: the stream is deleted")
		w.redis.stream, w.redis.entries, w.redis.last = false, nil, 0
		w.lossy = true
		w.mayHeal++
		w.excuse()
		w.excuseBefore(w.redis.cp)
	case faultDropSlot:
		w.say("FAULT: the slot is dropped")
		w.pg.slot = slot{}
		w.mayHeal++
	case faultAdvance:
		w.say("FAULT: the slot is advanced to the end")
		w.pg.slot.confirmed = w.pg.end()
		w.mayHeal++
	case faultRecreate:
		w.say("FAULT: the slot is made anew by hand")
		w.pg.slot = slot{exists: true, start: w.pg.end(), confirmed: w.pg.end()}
		w.mayHeal++
	case faultLost:
		w.say("FAULT: the slot loses its WAL")
		w.pg.slot.lost = true
		w.mayHeal++
	case faultLock:
		w.say("the application locks the row with id %d", a.a)
		w.pg.locked |= 1 << a.a
	case faultRestart:
		if w.trace != nil {
			w.say("FAULT: PostgreSQL crashes, and has forgotten what was confirmed since %s", lsnText(w.pg.slot.start))
		}
		w.cutAll()
		w.pg.locked = 0
		w.pg.slot.confirmed = w.pg.slot.start
	case faultFailover:
		if a.b == 2 { // a copy that was not kept up to date
			w.pg.slot = w.pg.wal[i].slot
		}
		w.failover(i, a.b > 0)
		if a.b == 2 {
			w.say("      as it was then")
		}
	case faultRestore:
		if w.trace != nil {
			w.say("FAULT: the volume is restored as of %s", lsnText(lsnOf(i)))
		}
		w.cutAll()
		w.pg.locked = 0
		w.pg.slot = w.pg.wal[i].slot
		w.pg.wal = w.pg.wal[:i]
		w.mayHeal++
	case faultHidden:
		w.say("FAULT: the publication is away, and row %d is committed", w.nextRow)
		w.rowsLeft--
		w.insert(1, true)
		w.mayHeal++
	case faultRequest:
		w.say("an operator asks for a heal")
		w.ask()
	}
	if w.emptied && w.redis.cp == nil {
		w.excuse()
		w.both = w.both || !w.pg.slot.exists // then it is a first start
	}
}

func (w *world) cut(i int) {
	w.release(i)
	if w.relay[i].pc > pcIdle {
		w.relay[i].cut = true
	}
}

func (w *world) cutAll() {
	for i := range w.relay {
		w.cut(i)
	}
}

// excuse notes the rows whose entries nothing tells of any more: they are
// marked, and the slot does not have them.
func (w *world) excuse() {
	known := w.pg.slot.confirmed
	if h := w.pg.slot.holder; h != 0 && w.relay[h-1].pc == pcStream {
		known = max(known, w.toConfirm(&w.relay[h-1]))
	}
	t := w.pg.table()
	for _, r := range t.all() {
		if !w.redis.has(r.row) && (r.lsn < known || r.marked && (!w.pg.slot.exists || w.pg.slot.lost)) {
			w.excused |= 1 << r.row
		}
	}
}

// toConfirm is what a relay may confirm by what it was shown, or is on its way
// to be: Redis had it all then.
func (w *world) toConfirm(r *relay) cdc.LSN {
	if r.reply == nil || !r.reply.done || len(r.request.rows) > 0 {
		return r.s.confirmed
	}
	p := r.s.progress
	p.Stamp(p.Published(), clock(r.sent), clock(w.now), 0)
	return p.Confirmed()
}

// excuseBefore notes those that were marked before the time that the heal goes
// by, of which the relay says that it does not know.
func (w *world) excuseBefore(cp *cdc.Checkpoint) {
	if cp == nil {
		return
	}
	t := w.pg.table()
	for _, r := range t.all() {
		if r.marked && clock(r.markedAt).Before(cdc.SinceOf(cp).Time) {
			w.excused |= 1 << r.row
		}
	}
}

func (w *world) goBack() {
	within := w.now-w.dumpLost < w.delay
	if w.trace != nil {
		w.say("FAULT: Redis goes back to what is on its disk, by %s the confirm delay", map[bool]string{true: "less than", false: "more than"}[within])
	}
	before := w.redis.cp
	w.redis = *w.dump
	w.dump, w.dumpLost = nil, never
	w.lossy = true
	switch cp := w.redis.cp; {
	case !within:
		w.mayHeal++
		w.emptied = w.emptied || cp == nil
	case cp == nil || before != nil && before.Since != nil || cp.Covered < w.pg.slot.start:
		// The slot was made meanwhile, or is about to be.
		w.mayHeal++
	}
}

// failover promotes a standby that has the WAL up to a record.
func (w *world) failover(records int, withSlot bool) {
	fork := lsnOf(records)
	if w.trace != nil {
		w.say("FAULT: failover to a server that has the WAL up to %s, and %s the slot", lsnText(fork), map[bool]string{true: "has", false: "lacks"}[withSlot])
	}
	w.cutAll()
	w.pg.locked = 0
	w.pg.history = with(w.pg.history, cdc.Switch{Timeline: w.pg.timeline, LSN: fork})
	w.pg.timeline++
	w.pg.wal = w.pg.wal[:records]
	if !withSlot {
		w.pg.slot = slot{}
		w.mayHeal++
		return
	}
	s := &w.pg.slot
	if s.start > fork {
		w.mayHeal++ // it is not the slot that the last backfill made, but an older one
	}
	s.start, s.confirmed = min(s.start, fork), min(s.confirmed, fork)
	t := w.pg.table()
	for _, r := range t.all() {
		if !r.marked && r.lsn < s.confirmed {
			w.mayHeal++ // its mark is lost, so it looks as if it was missed
			break
		}
	}
}

// ask is what an operator's command does: it replaces the checkpoint by one
// that says backfill, under a version of its own.
func (w *world) ask() {
	w.nextInst++
	next := *w.redis.cp
	since := cdc.SinceOf(&next)
	next.Since, next.Phase, next.LastIDs = &since, cdc.PhaseBackfill, nil
	next.Version = cdc.Version{Instance: instances[w.nextInst], Counter: 1}
	w.arrive(&request{expected: w.redis.cp.Version, next: &next})
	w.requests++
}
