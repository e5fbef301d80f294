package relay

import (
	"context"
	"errors"
	"fmt"
	"sync/atomic"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/stagedoor/walrelay/cdc"
)

// Timing of a streaming connection.
const (
	stampEvery  = time.Second      // covered, and with it confirmed, moves this often
	statusEvery = time.Second      // at most; less where wal_sender_timeout is short
	peerTimeout = 20 * time.Second // a server that says nothing for so long is gone
)

// Reading a backlog, where a moment more is nothing to those who wait.
const (
	lateAfter   = 100 * time.Millisecond // the age of a row that is of a backlog
	linger      = 5 * time.Millisecond   // for how long what comes is gathered
	gatherBytes = 32 << 10               // and how much
	// apartFor is for how long messages are taken as they come where little was
	// gathered: PostgreSQL has no more, or sends no more until we read.
	apartFor = 100 * time.Millisecond
)

// streaming is one streaming connection and the three goroutines around it:
//
//	reader     owns the connection: receives, decodes, sends status
//	publisher  owns the checkpoint: appends batches, stamps, decides what is confirmed
//	marker     marks rows that are on the stream
//
// Rows go from the reader to the publisher over queue, from there to the marker
// over marks. Only the confirmed LSN comes back.
type streaming struct {
	*Relay
	conn          Stream
	senderTimeout time.Duration
	began         time.Time // when it was made
	heardAt       instant   // when its last message was read
	toldAt        instant   // when the last status was sent
	proven        time.Time // since when it works; the publisher's own
	timeline      uint32
	standby       bool // the server is one
	writer        *writer
	resume        *cdc.Resume
	floor         cdc.LSN   // what the slot was confirmed up to before
	foreign       *tail     // entries that others made of our rows; nil for none
	foreignUntil  cdc.LSN   // where their rows end; the reader's own, like foreign
	others        cdc.Event // the last row that another program appended; the publisher's own
	skips         map[string]bool
	queue         *queue
	unread        atomic.Bool // the reader receives nothing, whatever PostgreSQL sends
	marks         *marks
	witness       witness

	serverTime time.Time // PostgreSQL's clock at the last position published

	// confirmed is what the next status update reports.
	confirmed atomic.Uint64
	reported  cdc.LSN // what the last one did; the reader's own

	// stopping is closed when the relay is to stop: nothing more is received.
	// The publisher then appends what was, and closes published; the marker
	// empties marks and closes marked; the publisher stamps once more and
	// closes stamped; the reader sends the last status.
	stopping  <-chan struct{}
	published chan struct{}
	marked    chan struct{}
	stamped   chan struct{}
}

// stream follows the slot until the relay is to stop (nil), the connection
// ends, or something has to be judged anew. Cancelling ctx for another reason
// than a stop hangs up at once.
func (r *Relay) stream(ctx context.Context, session Session, slot *cdc.Slot, cp *cdc.Checkpoint, foreign *tail) error {
	conn, err := session.Start(ctx)
	if err != nil {
		return err
	}
	// From here on only we move the slot. Since it was judged, another relay may
	// have streamed and confirmed rows that the checkpoint as read is to meet, or
	// somebody may have moved it.
	now, err := session.Slot(ctx)
	switch {
	case err != nil:
		return err
	case now == nil || now.ConfirmedFlush != slot.ConfirmedFlush:
		return errAgain
	}

	s := &streaming{
		Relay:         r,
		conn:          conn,
		began:         time.Now(),
		senderTimeout: session.SenderTimeout(),
		timeline:      session.Server().Timeline,
		standby:       session.Server().Standby,
		writer:        r.newWriter(session.Server(), cp),
		resume:        cdc.NewResume(*cp, slot.ConfirmedFlush),
		floor:         slot.ConfirmedFlush,
		foreign:       foreign,
		foreignUntil:  foreignUntil(cp),
		skips:         cp.Skips,
		queue:         newQueue(r.cfg.QueueBytes),
		marks:         newMarks(r.cfg.MarkQueueBytes),
		stopping:      r.stop.Done(),
		published:     make(chan struct{}),
		marked:        make(chan struct{}),
		stamped:       make(chan struct{}),
	}
	s.witness.hangUp = r.hangUpNow()
	s.writer.current.LastIDs = cp.LastIDs // with the first write
	r.status.streamingFrom(s)
	defer r.status.streamingEnded()
	defer func() { r.left = left{pid: session.PID(), started: now.ActiveSince} }()

	// What is in flight outlives a stop, for as long as the shutdown may take.
	group, flight := errgroup.WithContext(r.kill)
	released := after(flight, conn.Interrupt)
	watched := after(ctx, func() {
		if r.stop.Err() != nil {
			conn.Interrupt()
		} else {
			conn.Close() // hung up: the reader's next call fails, and ends all of it
		}
	})
	r.streamsOver(conn)
	group.Go(func() error { return s.read(flight) })
	group.Go(func() error { return s.publish(flight) })
	group.Go(func() error { return s.mark(flight) })
	err = group.Wait()
	r.healer.streamed(s.worked())
	r.streamsOver(nil)
	released()
	watched()
	if err != nil {
		conn.Close()
	}
	// After a stop the session ends the stream in order: hung up on, the server
	// may not read the last status, and holds the slot for a moment more.
	if ctx.Err() != nil && r.stop.Err() == nil {
		return context.Cause(ctx) // hung up on purpose: that is the reason
	}
	return err
}

// worked is for how long the connection worked.
func (s *streaming) worked() time.Duration {
	if s.proven.IsZero() {
		return 0
	}
	return time.Since(s.proven)
}

// after calls fn when ctx is done. The function that it returns ends that, and
// waits for fn where it has begun.
func after(ctx context.Context, fn func()) (end func()) {
	done := make(chan struct{})
	stop := context.AfterFunc(ctx, func() {
		defer close(done)
		fn()
	})
	return func() {
		if !stop() {
			<-done
		}
	}
}

// read receives until the relay stops, the connection ends, or flight does.
func (s *streaming) read(flight context.Context) error {
	beat, done := s.loop("reader")
	defer done()

	interval := statusEvery
	if s.senderTimeout > 0 {
		interval = min(interval, s.senderTimeout/4)
	}
	dec := &decoding{streaming: s, ctx: flight, decoder: cdc.NewDecoder()}
	heard := time.Now()
	next := heard // the first status goes out at once
	failed := false
	var apart time.Time // until when nothing is gathered
	few := false        // little was gathered the last time
	for {
		if now := time.Now(); now.After(next) {
			beat()
			s.beat()
			if err := s.report(dec.received, true); err != nil {
				return err
			}
			next = now.Add(interval)
		}
		unread := failed || s.queue.full() || isClosed(s.stopping)
		s.unread.Store(unread)
		if unread {
			// Nothing is received, but the server hears from us.
			select {
			case <-s.queue.space:
			case <-time.After(time.Until(next)):
			case <-s.stamped:
				return s.report(dec.received, false) // the last one
			case <-flight.Done():
				return context.Cause(flight)
			}
			heard = time.Now()
			continue
		}
		if now := time.Now(); dec.late && now.After(apart) {
			n, err := s.conn.Gather(gatherBytes, earlier(next, now.Add(linger)))
			if err != nil {
				return err
			}
			switch {
			case n >= gatherBytes/4:
				few = false
			case !few: // what came meanwhile is still to be read
				few = true
			default:
				few, apart = false, now.Add(apartFor)
			}
		}
		dec.late = false
		frame, ok, err := s.conn.Receive(next)
		if err != nil {
			return err
		}
		if flight.Err() != nil {
			return context.Cause(flight)
		}
		if !ok {
			if silent := time.Since(heard); silent > peerTimeout && !isClosed(s.stopping) {
				return fmt.Errorf("PostgreSQL has not answered on the replication connection for %s", silent.Round(time.Second))
			}
			continue
		}
		heard = time.Now()
		s.heardAt.note(heard)
		dec.heard = heard
		// What has come together goes on together: bounded by what is read at once.
		for until := next; ok; frame, ok, err = s.conn.Receive(until) {
			if err := dec.frame(frame); err != nil {
				// Whatever came before it is published first.
				s.queue.push(item{kind: itemFail, err: err})
				failed = true
			}
			if frame.ReplyRequested {
				next = time.Time{}
			}
			if failed || !frame.More {
				break
			}
		}
		if err != nil {
			return err
		}
		s.queue.announce()
	}
}

// earlier is the earlier of two moments.
func earlier(a, b time.Time) time.Time {
	if a.Before(b) {
		return a
	}
	return b
}

// report sends a status update: how far this connection has come.
func (s *streaming) report(received cdc.LSN, askReply bool) error {
	confirmed := cdc.LSN(s.confirmed.Load())
	if confirmed != s.reported {
		s.step(StepConfirm)
	}
	if err := s.conn.Status(received, confirmed, askReply); err != nil {
		return fmt.Errorf("sending a status update: %w", err)
	}
	s.reported = confirmed
	s.toldAt.note(time.Now())
	return nil
}

// isClosed reports whether a channel that carries nothing is closed.
func isClosed(c <-chan struct{}) bool {
	select {
	case <-c:
		return true
	default:
		return false
	}
}

// decoding turns frames into items of the queue.
type decoding struct {
	*streaming
	ctx      context.Context // of the connection
	decoder  *cdc.Decoder
	heard    time.Time // when the frame came
	received cdc.LSN
	since    time.Time // about when the open transaction was committed, on our clock
	late     bool      // a row came that is of a backlog
	held     []cdc.Mark
	heldSize int
}

// frame takes one message off the connection.
func (d *decoding) frame(f cdc.Frame) error {
	if f.Keepalive {
		if d.decoder.InTransaction() {
			return nil // it says nothing about the rows of this transaction
		}
		if err := d.resume.Keepalive(f.WALEnd); err != nil {
			return otherHistory(err)
		}
		d.end(f.WALEnd, f.ServerTime)
		return nil
	}
	message, err := d.decoder.Decode(f.WAL)
	if err != nil {
		return err
	}
	switch m := message.(type) {
	case *cdc.Begin:
		d.since = d.heard.Add(-max(0, f.ServerTime.Sub(m.Commit.Time)))
		if err := d.resume.Begin(m.Commit); err != nil {
			return otherHistory(err)
		}
		if d.resume.Met() {
			return d.release()
		}
	case *cdc.Insert:
		return d.insert(m)
	case *cdc.CommitEnd:
		d.end(m.End, f.ServerTime)
	}
	return nil
}

// end notes that everything before lsn was received. Until the checkpoint's
// transaction is met nothing counts as published: rows are held unmarked, and
// if it is never met, this WAL must not be confirmed at all.
//
// A server reads WAL again from where its oldest transaction began, and says
// how far it has come. Confirmed, that would take the slot back: releases before
// August 2025 do so, and then deliver again what a backfill has published.
func (d *decoding) end(lsn cdc.LSN, serverTime time.Time) {
	if !d.resume.Met() || lsn < d.floor {
		return
	}
	d.received = max(d.received, lsn)
	d.queue.push(item{kind: itemEnd, lsn: d.received, serverTime: serverTime})
}

func (d *decoding) insert(in *cdc.Insert) error {
	var err error
	if d.resume.Appended(in.Position) {
		err = d.appended(in)
	} else {
		err = d.row(in)
	}
	if err == nil {
		return nil
	}
	var row *RowError
	if errors.As(err, &row) {
		return err
	}
	return fmt.Errorf("the row %d of transaction %d at %s cannot be published: %w", in.Position.Ordinal, in.Commit.XID, in.Commit.LSN, err)
}

// row passes on a row that the stream lacks.
func (d *decoding) row(in *cdc.Insert) error {
	ev, ok, err := d.cfg.Table.Event(in)
	if !ok || err != nil {
		return err
	}
	if d.foreign != nil && ev.Commit.LSN >= d.foreignUntil {
		d.foreign = nil // written after all that the others had seen
	}
	theirs := d.foreign != nil && d.foreign.lookup(ev)
	if d.foreign != nil && !theirs {
		if theirs, err = d.published(ev); err != nil {
			return err
		}
	}
	if theirs {
		// A poller was faster while no relay streamed. It has the row's position,
		// so that the checkpoint comes to know that the stream has it.
		d.status.skipped.Add(1)
		ev.Fields = nil
		d.queue.push(item{kind: itemSkip, ev: ev})
		return nil
	}
	if ev, err = d.admit(ev, fits(ev, d.cfg.ValueBytes), d.skips); err != nil {
		return err
	}
	d.queue.push(item{kind: itemRow, ev: ev, since: d.since})
	d.late = d.late || d.heard.Sub(d.since) > lateAfter
	return nil
}

// appended passes on a row that the stream has, or holds it until it is certain
// that the stream has it.
func (d *decoding) appended(in *cdc.Insert) error {
	id, ok, err := d.cfg.Table.ID(in)
	if !ok || err != nil {
		return err
	}
	d.status.skipped.Add(1)
	m := cdc.Mark{ID: id, XID: in.Commit.XID, LSN: in.Commit.LSN, Table: in.Relation.OID}
	if d.resume.Met() || d.known == d.resume.Expected() {
		d.skip(m)
	} else {
		d.hold(m)
	}
	return nil
}

// skip passes on a row that the stream has, to be marked.
func (d *decoding) skip(m cdc.Mark) {
	d.queue.push(item{kind: itemSkip, ev: cdc.Event{
		Commit: cdc.Commit{LSN: m.LSN, XID: m.XID}, Table: m.Table, ID: m.ID, Bytes: len(m.ID),
	}})
}

// hold keeps a row that the stream has until the checkpoint's transaction is
// met: before that, this may be the WAL of another history, whose rows are not
// on the stream at all. Holding is bounded: past the bound the rows are left,
// and the relay reads the same WAL once more when it knows whose it is.
func (d *decoding) hold(m cdc.Mark) {
	d.heldSize += markBytes(m)
	if d.heldSize > d.cfg.MarkQueueBytes/4 {
		d.held = nil
		return
	}
	d.held = append(d.held, m)
}

// release passes the held rows on: their transaction was met.
func (d *decoding) release() error {
	if d.heldSize > d.cfg.MarkQueueBytes/4 {
		d.known = d.resume.Expected()
		d.heldSize = 0
		return errReadAgain
	}
	for _, m := range d.held {
		d.skip(m)
	}
	d.held, d.heldSize = nil, 0
	return nil
}

// errReadAgain ends a connection whose WAL turned out to be the right one.
var errReadAgain = errors.New("reading the WAL since the slot's position once more, to mark its rows")
