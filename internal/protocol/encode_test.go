package protocol

import (
	"encoding/binary"
	"hash/maphash"
	"reflect"

	"github.com/stagedoor/walrelay/cdc"
)

// encoder writes down a world so that two that can go on in the same ways are
// the same bytes: of a version it only matters which others it equals, and who
// made it.
type encoder struct {
	buf       []byte
	versions  []cdc.Version
	instances []string
	exact     bool
}

var hashSeed = maphash.MakeSeed()

func (e *encoder) world(w *world) uint64 {
	e.buf, e.versions, e.instances = e.buf[:0], e.versions[:0], e.instances[:0]
	e.exact = w.bug == bugVersionAgain
	e.ints(w.now, w.lock, w.dumpLost, w.rowsLeft, w.busyLeft, w.budget, w.nextRow, w.nextID, w.nextSeq, w.mayHeal, w.heals, int8(w.excused), int8(w.pg.timeline), int8(w.pg.locked), w.requests)
	e.bools(w.lossy, w.stray != nil, w.dump != nil, w.both, w.emptied)
	e.history(w.pg.history)
	e.ints(int8(len(w.pg.wal)))
	for i := range w.pg.wal {
		r := &w.pg.wal[i]
		e.bools(r.mark, r.hidden, r.noise)
		e.ints(r.row, r.rows, r.id, r.seq, r.at, int8(r.xid))
		if w.may(faultRestore) {
			e.slot(&r.slot)
		}
	}
	e.slot(&w.pg.slot)
	e.redis(&w.redis)
	if w.dump != nil {
		e.redis(w.dump)
	}
	if w.stray != nil {
		e.request(w.stray)
	}
	for i := range w.settings.relays {
		e.relay(&w.relay[i], w.bug)
	}
	return maphash.Bytes(hashSeed, e.buf)
}

func (e *encoder) ints(values ...int8) {
	for _, v := range values {
		e.buf = append(e.buf, byte(v))
	}
}

func (e *encoder) bools(values ...bool) {
	b := byte(0)
	for i, v := range values {
		if v {
			b |= 1 << i
		}
	}
	e.buf = append(e.buf, b)
}

func (e *encoder) lsns(values ...cdc.LSN) {
	for _, v := range values {
		e.buf = binary.LittleEndian.AppendUint16(e.buf, uint16(v))
	}
}

func (e *encoder) text(s string) { e.buf = append(append(e.buf, s...), 0) }

func (e *encoder) instance(name string) {
	for i, n := range e.instances {
		if n == name {
			e.buf = append(e.buf, byte(i))
			return
		}
	}
	e.buf = append(e.buf, byte(len(e.instances)))
	e.instances = append(e.instances, name)
}

func (e *encoder) version(v cdc.Version) {
	if v == (cdc.Version{}) {
		e.buf = append(e.buf, 255)
		return
	}
	if e.exact {
		e.text(v.String())
		return
	}
	for i, n := range e.versions {
		if n == v {
			e.buf = append(e.buf, byte(i))
			return
		}
	}
	e.buf = append(e.buf, byte(len(e.versions)))
	e.versions = append(e.versions, v)
	e.instance(v.Instance)
}

func (e *encoder) history(h cdc.History) {
	e.ints(int8(len(h)))
	for _, s := range h {
		e.ints(int8(s.Timeline))
		e.lsns(s.LSN)
	}
}

func (e *encoder) slot(s *slot) {
	e.bools(s.exists, s.lost)
	e.ints(s.holder)
	e.lsns(s.start, s.confirmed)
}

func (e *encoder) since(s *cdc.Since) {
	if s == nil {
		e.buf = append(e.buf, 255)
		return
	}
	e.bools(s.First)
	e.ints(int8(tickOf(s)))
}

func (e *encoder) checkpoint(cp *cdc.Checkpoint) {
	if cp == nil {
		e.buf = append(e.buf, 255)
		return
	}
	e.version(cp.Version)
	e.ints(int8(cp.Timeline), int8(cp.Phase[0]), int8(cp.Last.Ordinal), int8(cp.LastCommit.XID), int8(cdc.Micros(cp.LastCommit.Time)), int8(cdc.Micros(cp.CoveredTime)/1e6))
	e.lsns(cp.Last.LSN, cp.LastCommit.LSN, cp.Covered, cp.Consistent)
	e.history(cp.History)
	e.since(cp.Since)
	e.bools(cp.Doubt != nil)
	if cp.Doubt != nil {
		e.ints(int8(cdc.Micros(cp.Doubt.Before) / 1e6))
	}
	e.text(cp.LastIDs[jobs])
	e.ints(int8(cp.Generation))
}

func (e *encoder) redis(r *redis) {
	e.bools(r.stream)
	e.ints(r.last, int8(len(r.entries)))
	for _, n := range r.entries {
		e.ints(n.id, n.row)
	}
	e.checkpoint(r.cp)
}

func (e *encoder) request(q *request) {
	e.version(q.expected)
	e.checkpoint(q.next)
	e.ints(q.rows...)
	e.bools(q.force)
}

func (e *encoder) marks(marks []cdc.Mark) {
	e.ints(int8(len(marks)))
	for _, m := range marks {
		e.text(m.ID)
		e.lsns(m.LSN)
	}
}

func (e *encoder) relay(r *relay, bug bug) {
	e.ints(int8(r.pc), r.rest, int8(len(r.heals)))
	e.text(string(r.found))
	if r.found != "" {
		e.ints(int8(r.gen))
	}
	for _, kind := range r.heals {
		e.text(string(kind))
	}
	if len(r.heals) > 0 {
		e.ints(r.s.provenAt)
	}
	e.since(r.since)
	if r.pc == pcDown {
		e.bools(r.inst != 0)
		return
	}
	e.instance(instances[r.inst])
	e.bools(r.stopping, r.cut, r.ending, r.slot != nil, r.request != nil, r.reply != nil)
	if bug == bugCarryProgress {
		e.pure(reflect.ValueOf(r.carried))
		e.lsns(r.carriedTo)
	}
	if e.exact {
		e.ints(int8(r.counter))
	}
	if r.pc == pcIdle {
		return
	}
	e.ints(int8(r.timeline))
	if r.slot != nil {
		e.bools(r.slot.WALStatus == "lost")
		e.lsns(r.slot.ConfirmedFlush)
	}
	e.text(string(r.judgement.Kind))
	e.ints(int8(r.judgement.Verdict))
	e.checkpoint(r.early)
	if r.pc == pcAttach {
		e.checkpoint(r.cp)
		return
	}
	e.version(r.held)
	e.checkpoint(r.current)
	if r.request != nil {
		e.request(r.request)
		e.ints(r.sent)
	}
	if r.reply != nil {
		e.bools(r.reply.done, r.reply.missing)
		e.checkpoint(r.reply.held)
	}
	switch {
	case r.pc == pcStream:
		e.streaming(&r.s)
	case r.pc > pcStream:
		e.backfilling(&r.b, bug)
	}
	if bug == bugKeepPosition {
		e.checkpoint(r.cp)
	}
}

func (e *encoder) streaming(s *streaming) {
	e.lsns(s.pos, s.from, s.received, s.floor, s.confirmed, s.reported, s.batch.end)
	e.ints(s.serverTime, s.stampedAt, s.lookedAt, s.batch.time, int8(len(s.queue)))
	e.bools(s.failed, s.final)
	for _, it := range s.queue {
		e.ints(int8(it.kind), it.row, it.time)
		e.lsns(it.lsn, it.pos.LSN)
		e.text(it.mark.ID)
	}
	e.marks(s.kept)
	e.marks(s.fresh)
	e.marks(s.stuck)
	e.marks(s.batch.marks)
	e.text(string(s.batch.gap))
	e.pure(reflect.ValueOf(s.progress))
	e.pure(reflect.ValueOf(s.resume))
	e.pure(reflect.ValueOf(s.witness))
}

func (e *encoder) backfilling(b *backfilling, bug bug) {
	e.since(&b.since)
	e.bools(b.drop)
	e.lsns(b.consistent)
	e.ints(b.lastAppend, b.lastWrite, b.sent, int8(len(b.rows)))
	for _, c := range b.rows {
		e.ints(c.row, c.id)
		e.bools(c.marked)
	}
	for _, p := range b.pending {
		e.ints(p.id, p.at)
	}
}

// pure writes down a value of package cdc, with what it keeps to itself.
func (e *encoder) pure(v reflect.Value) {
	switch v.Kind() {
	case reflect.Struct:
		for i := range v.NumField() {
			e.pure(v.Field(i))
		}
	case reflect.Slice:
		e.ints(int8(v.Len()))
		for i := range v.Len() {
			e.pure(v.Index(i))
		}
	case reflect.Uint64, reflect.Uint32:
		e.buf = binary.LittleEndian.AppendUint64(e.buf, v.Uint())
	case reflect.Int64:
		e.buf = binary.LittleEndian.AppendUint64(e.buf, uint64(v.Int()))
	case reflect.Bool:
		e.bools(v.Bool())
	case reflect.String:
		e.text(v.String())
	case reflect.Pointer: // a time's location
	default:
		panic("cannot write down a " + v.Type().String())
	}
}
