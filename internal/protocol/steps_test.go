package protocol

// step is a kind of thing that can happen next.
type step uint8

const (
	// The application and the clock.
	stepCommit step = iota
	stepBusy        // with other tables
	stepTick
	stepUnlock

	// A relay.
	stepStart
	stepStandBy
	stepReadSlot
	stepAct
	stepAttach
	stepBackfill
	stepCreate
	stepTail
	stepAppendRows
	stepSettle
	stepFinish
	stepKeep
	stepNotice
	stepReceive
	stepPublishOne
	stepPublish
	stepMark
	stepStamp
	stepReport
	stepLook
	stepExit

	// The network.
	stepArrive
	stepReply
	stepStray
	stepDump // Redis writes its dump

	// Faults.
	faultCrash
	faultStop
	faultCut      // the server ends a session, and the relay does not know yet
	faultAstray   // a write is given up, and may arrive later
	faultGoBack   // Redis restarts with its dump
	faultEmpty    // Redis is emptied
	faultDelete   // the stream is deleted
	faultDropSlot // by hand
	faultAdvance  // by hand, or by another reader
	faultRecreate // by hand
	faultLost     // max_slot_wal_keep_size
	faultLock     // the application locks a row
	faultRestart  // PostgreSQL crashes and forgets what was confirmed
	faultFailover // the standby may lack the end of the WAL, and the slot
	faultRestore  // the volume is restored to an earlier moment
	faultHidden   // a row is committed while the publication is away
	faultRequest  // an operator asks for a heal
)

// action is a step with what it is done to.
type action struct {
	step step
	a, b int8
}

// relayActions is what a relay can do next.
func (w *world) relayActions(i int, out []action) []action {
	r := &w.relay[i]
	add := func(s step) { out = append(out, action{step: s, a: int8(i)}) }
	if r.pc == pcDown {
		if i == 0 || w.relay[0].inst != 0 {
			add(stepStart)
		}
		return out
	}
	if r.request != nil {
		if r.reply == nil {
			add(stepArrive)
		} else {
			add(stepReply)
		}
		if r.ending {
			return out
		}
	}
	if r.pc == pcStream {
		return w.streamActions(i, out)
	}
	if r.request != nil {
		return out
	}
	switch r.pc {
	case pcIdle:
		if w.now >= r.rest && w.pg.slot.holder == 0 {
			add(stepReadSlot)
		}
		if w.now >= r.rest && w.pg.slot.holder != 0 && r.since != nil {
			add(stepStandBy)
		}
	case pcRead:
		add(stepAct)
	case pcAttach:
		add(stepAttach)
	case pcLocked:
		add(stepBackfill)
	case pcCreate:
		add(stepCreate)
	case pcTail:
		add(stepTail)
	case pcAppend:
		add(stepAppendRows)
	case pcSettle:
		if w.settled(i) {
			add(stepFinish)
		} else if r.b.lastWrite < w.now {
			add(stepSettle)
		}
	case pcKeep:
		add(stepKeep)
	}
	return out
}

func (w *world) streamActions(i int, out []action) []action {
	r := &w.relay[i]
	s := &r.s
	add := func(st step) { out = append(out, action{step: st, a: int8(i)}) }
	if r.cut {
		add(stepNotice)
	} else {
		if s.pos < w.pg.end() && len(s.queue) < queueItems && !r.stopping && !s.failed {
			add(stepReceive)
		}
		if s.confirmed != s.reported && s.confirmed != 0 {
			add(stepReport)
		}
	}
	if r.request == nil {
		if n := len(s.queue); n > 0 {
			add(stepPublish)
			if n > 1 && s.queue[0].kind == itemRow {
				add(stepPublishOne)
			}
		}
		switch {
		case r.stopping && s.final && (s.confirmed == s.reported || r.cut):
			add(stepExit)
		case r.stopping && !s.final && len(s.queue) == 0 && len(s.fresh) == 0:
			add(stepStamp)
		case !r.stopping && s.stampedAt < w.now:
			add(stepStamp)
		}
	}
	if w.canMark(s) {
		add(stepMark)
	}
	if w.witness && s.lookedAt < w.now && r.timeline == w.pg.timeline && w.bug != bugNoWitness {
		add(stepLook)
	}
	return out
}

// actions is all that can happen next.
func (w *world) actions(out []action) []action {
	add := func(s step, a, b int8) { out = append(out, action{s, a, b}) }
	for i := range w.settings.relays {
		out = w.relayActions(i, out)
	}
	if w.rowsLeft > 0 {
		add(stepCommit, 0, 0)
	}
	if w.busyLeft > 0 {
		add(stepBusy, 0, 0)
	}
	if w.now < w.last {
		add(stepTick, 0, 0)
	}
	if w.stray != nil {
		add(stepStray, 0, 0)
	}
	for id := range int8(maxRows) {
		if w.pg.locked&(1<<id) != 0 {
			add(stepUnlock, id, 0)
		}
	}
	if w.budget > 0 {
		out = w.faultActions(out)
	}
	return out
}

// take makes a step.
func (w *world) take(a action) {
	i := int(a.a)
	switch a.step {
	case stepCommit:
		rows := int8(1)
		if w.pair && w.rowsLeft == w.rows && w.rows >= 2 {
			rows = 2
		}
		w.rowsLeft -= rows
		if w.trace != nil {
			w.say("the application commits row %d…%d at %s", w.nextRow, w.nextRow+rows-1, lsnText(w.pg.end()))
		}
		w.insert(rows, false)
	case stepBusy:
		w.busyLeft--
		w.say("another table is written to")
		w.pg.write(record{noise: true})
	case stepTick:
		w.now++
	case stepUnlock:
		w.pg.locked &^= 1 << a.a
		w.say("the application lets go of the row with id %d", a.a)
	case stepStart:
		w.relay[i].start(w)
		w.say("relay %d starts", i)
	case stepStandBy:
		w.say("relay %d stands by, and forgets what its backfill went by", i)
		w.relay[i].overtaken()
	case stepReadSlot:
		w.readSlot(i)
	case stepAct:
		w.act(i)
	case stepAttach:
		w.attach(i)
	case stepBackfill:
		w.backfill(i)
	case stepCreate:
		w.create(i)
	case stepTail:
		w.readTail(i)
	case stepAppendRows:
		w.appendRows(i)
	case stepSettle:
		w.settle(i)
	case stepFinish:
		w.finish(i)
	case stepKeep:
		w.keep(i)
	case stepNotice:
		w.say("relay %d notices that its connection is gone", i)
		w.givesUp(i)
	case stepReceive:
		w.receive(i)
	case stepPublishOne:
		w.publish(i, 1)
	case stepPublish:
		w.publish(i, len(w.relay[i].s.queue))
	case stepMark:
		w.mark(i)
	case stepStamp:
		w.stamp(i)
	case stepReport:
		w.report(i)
	case stepLook:
		w.look(i)
	case stepExit:
		w.say("relay %d has stopped", i)
		w.end(i, 0)
	case stepArrive:
		w.relay[i].reply = w.arrive(w.relay[i].request)
		if w.trace != nil {
			w.say("Redis runs %s of relay %d: %s", requestText(w.relay[i].request), i, replyText(w.relay[i].reply))
		}
	case stepReply:
		w.replied(i)
	case stepStray:
		q := w.stray
		w.stray = nil
		rep := w.arrive(q)
		if w.trace != nil {
			w.say("Redis runs %s, which had gone astray: %s", requestText(q), replyText(rep))
		}
	default:
		w.fault(a)
	}
	for i := range w.settings.relays {
		w.noRows(i)
	}
	w.check()
}
