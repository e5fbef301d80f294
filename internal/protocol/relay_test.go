package protocol

import (
	"errors"
	"strconv"

	"github.com/stagedoor/walrelay/cdc"
)

// pc is where a relay is.
type pc uint8

const (
	pcDown   pc = iota
	pcIdle      // between two attempts
	pcRead      // the slot was read
	pcAttach    // slot and checkpoint agree
	pcStream    //
	pcLocked    // the lock is ours, and the slot was read under it
	pcBegin     // the checkpoint is being replaced
	pcCreate    // it says backfill
	pcTail      // temporary slot and snapshot exist
	pcAppend    // what the stream lacks is known
	pcSettle    // it lacks nothing; marks wait
	pcFinish    // the checkpoint is being made a streaming one
	pcKeep      // it is one
)

// The limits of package relay, in ticks where they are times.
const (
	healsInARow = 2
	healSettled = 6
	queueItems  = 3
)

// relay is one process. The comments name the functions of package relay that
// a step stands for.
type relay struct {
	pc       pc
	inst     int8
	counter  int16
	rest     int8 // no attempt before this tick
	stopping bool

	// Memory of the process.
	since *cdc.Since
	found cdc.Kind
	gen   uint64     // healer.generation
	heals []cdc.Kind // since it last streamed for long enough

	// Of the attempt.
	cut       bool // the server has ended the session, and the relay is to notice
	timeline  uint32
	slot      *cdc.Slot
	cp        *cdc.Checkpoint
	judgement cdc.Judgement
	ending    bool // only a write is waited for

	// writer
	held    cdc.Version
	current *cdc.Checkpoint
	request *request
	sent    int8 // the last try
	reply   *reply

	s streaming
	b backfilling

	// Of a planted bug.
	carried   cdc.Progress
	carriedTo cdc.LSN
	early     *cdc.Checkpoint
}

// start is relay.New.
func (r *relay) start(w *world) {
	w.nextInst++
	*r = relay{pc: pcIdle, inst: w.nextInst}
}

var instances = func() (names [100]string) {
	for i := range names {
		names[i] = "i" + strconv.Itoa(i)
	}
	return names
}()

// end is the end of an attempt: relay.judgeAndAct closes the session, and what
// was in flight is thrown away.
func (w *world) end(i int, rest int8) {
	r := &w.relay[i]
	w.release(i)
	if r.pc == pcStream && r.s.provenAt > 0 && w.now-r.s.provenAt >= healSettled {
		r.heals = nil // healer.streamed
	}
	r.pc, r.rest = pcIdle, w.now+rest
	r.carried, r.carriedTo = r.s.progress, r.s.confirmed
	r.cut, r.slot, r.cp, r.ending = false, nil, nil, false
	r.judgement = cdc.Judgement{}
	r.held, r.current, r.request, r.reply = cdc.Version{}, nil, nil, nil
	r.s, r.b, r.early = streaming{}, backfilling{}, nil
	r.sent, r.timeline = 0, 0
	if r.stopping {
		*r = relay{}
	}
}

// release frees what the server held for a session.
func (w *world) release(i int) {
	if w.pg.slot.holder == int8(1+i) {
		w.pg.slot.holder = 0
	}
	if w.lock == int8(1+i) {
		w.lock = 0
	}
}

// readSlot is the first half of relay.judge. Before it, relay.judgeAndAct waits
// until nobody holds the slot.
func (w *world) readSlot(i int) {
	r := &w.relay[i]
	r.pc, r.timeline = pcRead, w.pg.timeline
	if w.bug == bugCheckpointFirst {
		r.early = w.redis.cp
		w.say("relay %d reads the checkpoint first", i)
		return
	}
	r.slot = w.pg.readSlot()
	if w.trace != nil {
		w.say("relay %d reads the slot: %s", i, slotText(r.slot))
	}
}

// judge is the second half of relay.judge: it reads the checkpoint and judges.
func (w *world) judge(i int) (cdc.Judgement, map[string]cdc.StreamState, error) {
	r := &w.relay[i]
	cp, streams := w.redis.load()
	if w.bug == bugCheckpointFirst && r.pc == pcRead {
		cp = r.early
		r.slot = w.pg.readSlot()
	}
	server := w.pg.server()
	if w.bug == bugIgnoreFork && cp != nil {
		c := *cp
		c.Timeline, c.History = server.Timeline, server.History
		cp = &c
	}
	r.cp = cp
	j, err := cdc.Judge(server, r.slot, cp, streams)
	if cp != nil && cp.Generation != r.gen { // healer.stillOpen
		r.found = ""
	}
	if err == nil && r.found != "" && j.Verdict == cdc.Stream {
		j = cdc.Judgement{Verdict: cdc.Gap, Kind: r.found, Reason: "found while streaming"}
	}
	if w.trace != nil {
		w.say("relay %d reads the checkpoint: %s; judges: %s %s (%s)", i, checkpointText(cp), j.Verdict, j.Kind, j.Reason)
	}
	if now := w.pg.readSlot(); (j.Kind == cdc.NoSlot || j.Kind == cdc.OtherHistory) && w.bug != bugSlotOnce &&
		((now == nil) != (r.slot == nil) || now != nil && now.ConfirmedFlush != r.slot.ConfirmedFlush) {
		w.say("relay %d finds another slot: %s", i, slotText(now))
		return j, streams, errAgain
	}
	if j.Verdict == cdc.Gap && w.mayHeal == 0 {
		w.broken("no fault made a gap, and relay %d judges that there is one: %s", i, j.Reason)
	}
	return j, streams, err
}

var errAgain = errors.New("judging anew")

// pauseOf is how many ticks pass before the next attempt.
func pauseOf(err error) int8 {
	if errors.Is(err, errAgain) {
		return 0
	}
	return 1
}

// healed is how often a kind of gap was healed: healer.counts.
func (r *relay) healed(kind cdc.Kind) (n int) {
	for _, k := range r.heals {
		if k == kind {
			n++
		}
	}
	return n
}

// overtaken is relay.overtaken.
func (r *relay) overtaken() { r.since = nil }

// act is relay.judgeAndAct from the judgement on.
func (w *world) act(i int) {
	r := &w.relay[i]
	if r.cut {
		w.end(i, 0)
		return
	}
	j, _, err := w.judge(i)
	if err != nil {
		w.end(i, pauseOf(err))
		return
	}
	switch j.Verdict {
	case cdc.StandBy:
		r.overtaken()
		w.end(i, 0)
	case cdc.Stream: // relay.resumeStream
		r.since, r.gen = nil, r.cp.Generation
		cp := r.cp.On(w.pg.server())
		r.cp = &cp
		r.pc = pcAttach
	default: // relay.backfill
		if j.Verdict == cdc.Gap && r.healed(j.Kind) >= healsInARow {
			w.end(i, 1) // healer.mayHeal
			return
		}
		if w.lock != 0 {
			w.say("relay %d stands by: the lock is another's", i)
			w.end(i, 1)
			return
		}
		w.lock = int8(1 + i)
		r.slot = w.pg.readSlot()
		r.pc = pcLocked
		if w.trace != nil {
			w.say("relay %d has the lock and reads the slot: %s", i, slotText(r.slot))
		}
	}
}

// send is the beginning of writer.write.
func (w *world) send(i int, next cdc.Checkpoint, rows []int8) {
	r := &w.relay[i]
	r.counter++
	next.Format = cdc.CheckpointFormat
	next.Version = cdc.Version{Instance: instances[r.inst], Counter: uint64(r.counter)}
	if w.bug == bugVersionAgain && r.held.Instance == instances[r.inst] {
		next.Version.Counter = r.held.Counter + 1
	}
	r.request = &request{expected: r.held, next: &next, rows: rows}
	r.request.force = w.bug == bugStampWithoutCompare && r.pc == pcStream && len(rows) == 0 ||
		w.bug == bugAppendWithoutCompare && r.pc == pcStream && len(rows) > 0
	r.sent, r.reply = w.now, nil
	if w.bug != bugVersionAgain {
		w.unused(next.Version)
	}
	if w.trace != nil {
		w.say("relay %d sends %s, expecting %s", i, requestText(r.request), versionText(r.held))
	}
}

// unused checks that a version is a new one.
func (w *world) unused(v cdc.Version) {
	used := func(cp *cdc.Checkpoint) bool { return cp != nil && cp.Version == v }
	if used(w.redis.cp) || w.dump != nil && used(w.dump.cp) || w.stray != nil && used(w.stray.next) {
		w.broken("the version %s is used twice", versionText(v))
	}
	for i := range w.relay {
		if used(w.relay[i].current) {
			w.broken("the version %s is used twice", versionText(v))
		}
	}
}

// arrive is a request's arrival at Redis.
func (w *world) arrive(q *request) *reply {
	before := w.redis.cp
	rep := w.redis.run(q, &w.nextID)
	if w.redis.cp != before && w.dump != nil && w.dumpLost == never {
		w.dumpLost = w.now
	}
	return rep
}

// replied is the rest of writer.write.
func (w *world) replied(i int) {
	r := &w.relay[i]
	rep, q := r.reply, r.request
	r.reply = nil
	ok := rep.done
	conflict := cdc.Forgotten
	if !rep.done && !rep.missing {
		conflict = cdc.JudgeConflict(q.next.Version, rep.held)
		ok = conflict == cdc.OwnSuccess ||
			w.bug == bugOwnIsSuccess && rep.held != nil && rep.held.Version.Instance == q.next.Version.Instance
		if !ok && (conflict == cdc.TakenOver && w.bug == bugAdoptDuringBackfill && r.pc >= pcBegin ||
			conflict == cdc.Overtaken && w.bug == bugAdoptWhileStreaming && r.pc == pcStream) {
			// It goes on under the other's version.
			again := *q
			again.expected = rep.held.Version
			r.request = &again
			return
		}
	}
	r.request = nil
	if !ok {
		w.say("relay %d: refused: %s", i, conflict)
		w.end(i, 0)
		return
	}
	current := *q.next
	current.LastIDs = nil
	r.held, r.current = q.next.Version, &current
	w.say("relay %d: done", i)
	switch {
	case r.ending:
		w.end(i, 0)
	case r.pc == pcStream && len(q.rows) > 0:
		w.appended(i)
	case r.pc == pcStream:
		w.stamped(i)
	default:
		w.backfillWrote(i, q)
	}
}

// givesUp ends an attempt; where a write is on its way it is waited for.
func (w *world) givesUp(i int) {
	r := &w.relay[i]
	if r.request != nil {
		r.ending = true
		return
	}
	w.end(i, 0)
}

// newWriter is relay.newWriter.
func (w *world) newWriter(i int, cp *cdc.Checkpoint) {
	r := &w.relay[i]
	r.held, r.current = cdc.Version{}, nil
	if cp != nil {
		current := cp.On(w.pg.server())
		current.LastIDs = nil
		r.held, r.current = cp.Version, &current
	}
}
