package protocol

import (
	"slices"
	"strconv"
	"time"

	"github.com/stagedoor/walrelay/cdc"
)

// streaming is one streaming connection: relay/stream.go, publish.go, mark.go
// and marks.go.
type streaming struct {
	// The server's side.
	pos  cdc.LSN // what it has sent
	from cdc.LSN // transactions that commit before were confirmed

	received   cdc.LSN
	resume     cdc.Resume
	floor      cdc.LSN
	queue      []item
	kept       []cdc.Mark // decoding.held
	failed     bool
	progress   cdc.Progress
	confirmed  cdc.LSN
	reported   cdc.LSN
	serverTime int8
	fresh      []cdc.Mark
	stuck      []cdc.Mark
	stampedAt  int8 // the last stamp that was sent
	lookedAt   int8
	provenAt   int8 // the first stamp that succeeded
	witness    cdc.Witness
	final      bool // the last stamp of a stop was written

	batch batch // of the write that is on its way
}

type itemKind uint8

const (
	itemRow itemKind = iota
	itemSkip
	itemEnd
	itemFail
)

type item struct {
	kind   itemKind
	row    int8
	mark   cdc.Mark
	pos    cdc.Position
	commit cdc.Commit
	lsn    cdc.LSN
	time   int8
	gap    cdc.Kind
}

// batch is what follows from a write that succeeds.
type batch struct {
	marks []cdc.Mark
	end   cdc.LSN
	time  int8
	gap   cdc.Kind
}

func ids(id int8) string               { return strconv.Itoa(int(id)) }
func idOf(m cdc.Mark) int8             { return int8(m.ID[0] - '0') }
func with[T any](s []T, more ...T) []T { return append(slices.Clip(s), more...) }

// attach is relay.stream up to the three goroutines.
func (w *world) attach(i int) {
	r := &w.relay[i]
	if r.cut || !w.pg.slot.exists || w.pg.slot.lost {
		w.end(i, 0)
		return
	}
	if w.pg.slot.holder != 0 {
		w.say("relay %d stands by: the slot is in use", i)
		w.end(i, 0)
		return
	}
	if w.pg.slot.confirmed != r.slot.ConfirmedFlush && w.bug != bugStaleSlot {
		w.say("relay %d finds the slot moved since it was judged", i)
		w.end(i, 0)
		return
	}
	w.pg.slot.holder = int8(1 + i)
	w.newWriter(i, r.cp)
	cp := *r.cp
	if w.bug == bugUnmet {
		cp.LastCommit = cdc.Commit{}
	}
	if w.bug == bugNoResume {
		cp.Last, cp.LastCommit = cdc.Position{}, cdc.Commit{}
	}
	from := w.pg.slot.confirmed
	delay := time.Duration(w.delay) * time.Second
	if w.bug == bugNoDelay {
		delay = 0
	}
	r.s = streaming{
		pos: from, from: from,
		resume:    *cdc.NewResume(cp, r.slot.ConfirmedFlush),
		floor:     r.slot.ConfirmedFlush,
		progress:  *cdc.NewProgress(delay),
		stampedAt: w.now, lookedAt: w.now,
	}
	if w.bug == bugCarryProgress {
		r.s.progress, r.s.confirmed = r.carried, r.carriedTo
		if r.s.confirmed == 0 {
			r.s.progress = *cdc.NewProgress(delay)
		}
	}
	if w.reread {
		r.s.pos = lsnOf(0)
	}
	r.pc = pcStream
	if w.trace != nil {
		w.say("relay %d streams from %s", i, lsnText(from))
	}
	if from == w.pg.end() {
		w.keepalive(i, from) // the server answers the first status
	}
}

// receive is one message of the connection: decoding.frame. The server says how
// far it has come where it had nothing to send, and sends a transaction as one.
func (w *world) receive(i int) {
	s := &w.relay[i].s
	pos := s.pos
	for pos < w.pg.end() {
		r := &w.pg.wal[index(pos)]
		if !r.mark && !r.noise && !r.hidden && pos >= s.from {
			break
		}
		pos += recordBytes
		if pos <= s.from {
			break // it says so while it reads again what was confirmed
		}
	}
	if pos > s.pos {
		s.pos = pos
		if w.trace != nil {
			w.say("relay %d receives a keepalive: %s", i, lsnText(pos))
		}
		w.keepalive(i, pos)
		return
	}
	r := &w.pg.wal[index(pos)]
	commit := r.commit(pos)
	s.pos = pos + recordBytes
	if w.trace != nil {
		w.say("relay %d receives the transaction at %s with row %d…%d", i, lsnText(pos), r.row, r.row+r.rows-1)
	}
	if err := s.resume.Begin(commit); err != nil {
		w.history(i, err)
		return
	}
	if s.resume.Met() { // decoding.release
		for _, m := range s.kept {
			s.queue = with(s.queue, item{kind: itemSkip, mark: m})
		}
		s.kept = nil
	}
	for k := range r.rows { // decoding.insert
		at := cdc.Position{LSN: pos, Ordinal: uint64(k)}
		m := cdc.Mark{ID: ids(r.id + k), XID: commit.XID, LSN: pos}
		switch {
		case !s.resume.Appended(at):
			s.queue = with(s.queue, item{kind: itemRow, row: r.row + k, mark: m, pos: at, commit: commit})
		case s.resume.Met():
			s.queue = with(s.queue, item{kind: itemSkip, mark: m})
		default:
			s.kept = with(s.kept, m)
		}
	}
	w.endOf(i, s.pos)
}

func index(lsn cdc.LSN) int { return int(lsn)/recordBytes - 1 }

func (w *world) keepalive(i int, lsn cdc.LSN) {
	s := &w.relay[i].s
	if err := s.resume.Keepalive(lsn); err != nil {
		w.history(i, err)
		return
	}
	if w.bug == bugKeepalivePast && s.resume.Met() && lsn >= s.floor {
		s.progress.Receive(lsn)
		s.progress.Publish(lsn)
		s.received, s.serverTime = max(s.received, lsn), w.now
		return
	}
	w.endOf(i, lsn)
}

// endOf is decoding.end.
func (w *world) endOf(i int, lsn cdc.LSN) {
	s := &w.relay[i].s
	if !s.resume.Met() && w.bug != bugEndUnmet || lsn < s.floor && w.bug != bugNoFloor {
		return
	}
	s.received = max(s.received, lsn)
	if w.bug == bugConfirmReceived {
		s.confirmed = s.received
	}
	end := item{kind: itemEnd, lsn: s.received, time: w.now}
	if n := len(s.queue); n > 0 && s.queue[n-1].kind == itemEnd {
		s.queue = s.queue[:n-1]
	}
	s.queue = with(s.queue, end)
}

func (w *world) history(i int, err error) {
	s := &w.relay[i].s
	w.say("relay %d: %v", i, err)
	s.queue = with(s.queue, item{kind: itemFail, gap: cdc.OtherHistory})
	s.failed = true
}

// noRows takes off the queue what needs no write. It touches nothing that others
// see, so when that happens makes no difference.
func (w *world) noRows(i int) {
	r := &w.relay[i]
	for r.pc == pcStream && r.request == nil && len(r.s.queue) > 0 && r.s.queue[0].kind != itemRow {
		w.publish(i, 1)
	}
}

// publish takes items off the queue and sends what is to be appended: the
// queue's case of streaming.publish, and streaming.append up to the write.
func (w *world) publish(i, n int) {
	r := &w.relay[i]
	s := &r.s
	items := s.queue[:n]
	s.queue = s.queue[n:]
	var b batch
	var rows []int8
	var last item
	for _, it := range items {
		switch it.kind {
		case itemEnd:
			b.end, b.time = it.lsn, it.time
			continue
		case itemFail:
			b.gap = it.gap
			continue
		case itemRow:
			rows = append(rows, it.row)
			last = it
		}
		b.marks = append(b.marks, it.mark)
	}
	s.batch = b
	if len(rows) == 0 {
		w.appended(i)
		return
	}
	next := *r.current
	next.Last, next.LastCommit = last.pos, last.commit
	w.send(i, next, rows)
}

// appended is streaming.append after the write.
func (w *world) appended(i int) {
	r := &w.relay[i]
	s := &r.s
	b := s.batch
	s.batch = batch{}
	s.fresh = with(s.fresh, b.marks...)
	if b.end > 0 {
		s.progress.Receive(b.end)
		s.progress.Publish(b.end)
		s.serverTime = b.time
		if w.bug == bugConfirmPublished {
			s.confirmed = s.progress.Published()
		}
	}
	if b.gap != "" {
		r.found = b.gap
		w.end(i, 0)
	}
}

// stamp is the beginning of streaming.stamp.
func (w *world) stamp(i int) {
	r := &w.relay[i]
	s := &r.s
	s.stampedAt = w.now
	covered := s.progress.Published()
	next := *r.current
	next.Since = nil
	if covered > next.Covered {
		next.Covered, next.CoveredTime = covered, clock(s.serverTime)
	}
	w.send(i, next, nil)
}

// stamped is the rest of it.
func (w *world) stamped(i int) {
	r := &w.relay[i]
	s := &r.s
	unmarked := s.unmarked()
	if w.bug == bugConfirmUnmarked {
		unmarked = 0
	}
	sent := r.sent
	if w.bug == bugProofByReply {
		sent = w.now
	}
	s.progress.Stamp(s.progress.Published(), clock(sent), clock(w.now), unmarked)
	if c := s.progress.Confirmed(); w.bug != bugConfirmReceived && w.bug != bugConfirmPublished {
		if c != s.confirmed {
			if w.trace != nil {
				w.say("relay %d may confirm %s", i, lsnText(c))
			}
		}
		s.confirmed = c
	}
	if s.provenAt == 0 {
		s.provenAt = w.now
	}
	if r.stopping {
		s.final = true
	}
}

// unmarked is marks.limitLSN.
func (s *streaming) unmarked() cdc.LSN {
	var first cdc.LSN
	for _, rows := range [][]cdc.Mark{s.fresh, s.stuck} {
		if len(rows) > 0 && (first == 0 || rows[0].LSN < first) {
			first = rows[0].LSN
		}
	}
	return first
}

// mark is one turn of streaming.mark. What is stuck is tried again when it can
// be marked.
func (w *world) mark(i int) {
	s := &w.relay[i].s
	rows := s.fresh
	if len(rows) == 0 {
		rows = s.stuck
		s.stuck = nil
	}
	s.fresh = nil
	for _, m := range rows {
		state := w.pg.setMark(idOf(m), w.now)
		if w.trace != nil {
			w.say("relay %d marks the row with id %s: %s", i, m.ID, markText(state))
		}
		if state != cdc.Marked {
			s.stuck = with(s.stuck, m)
		}
	}
	slices.SortStableFunc(s.stuck, func(a, b cdc.Mark) int { return int(a.LSN) - int(b.LSN) })
}

// canMark reports whether there is something to mark.
func (w *world) canMark(s *streaming) bool {
	if len(s.fresh) > 0 {
		return true
	}
	for _, m := range s.stuck {
		if w.pg.locked&(1<<idOf(m)) == 0 {
			return true
		}
	}
	return false
}

// report is streaming.report. A server before August 2025 takes a position
// that goes back.
func (w *world) report(i int) {
	s := &w.relay[i].s
	s.reported = s.confirmed
	if !s.resume.Met() {
		w.broken("%s is confirmed of WAL that may be of another history", lsnText(s.confirmed))
	}
	w.pg.slot.confirmed = s.confirmed
	if w.trace != nil {
		w.say("relay %d confirms %s", i, lsnText(s.confirmed))
	}
}

// look is the observer's witness.
func (w *world) look(i int) {
	s := &w.relay[i].s
	s.lookedAt = w.now
	if due := s.witness.Due(s.confirmed); len(due) > 0 {
		t := w.pg.table()
		var still []string
		for _, r := range t.all() {
			if !r.marked && slices.Contains(due, ids(r.id)) {
				still = append(still, ids(r.id))
			}
		}
		missed := s.witness.Missed(still, func(id string) bool {
			is := func(m cdc.Mark) bool { return m.ID == id }
			return slices.ContainsFunc(s.fresh, is) || slices.ContainsFunc(s.stuck, is)
		})
		w.say("relay %d looks again at the unmarked rows %v: missed %v", i, due, missed)
		if len(missed) > 0 {
			w.relay[i].found = cdc.RowsMissed
			w.givesUp(i)
		}
		return
	}
	if s.witness.Pending(s.confirmed) {
		return
	}
	t := w.pg.table()
	var unmarked []string
	for _, r := range t.all() {
		if !r.marked {
			unmarked = append(unmarked, ids(r.id))
		}
	}
	end := w.pg.end()
	if w.bug == bugWitnessNoEnd {
		end = 0
	}
	s.witness.Look(unmarked, end)
	if w.trace != nil {
		w.say("relay %d looks at the unmarked rows %v before %s", i, unmarked, lsnText(end))
	}
}
