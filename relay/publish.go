package relay

import (
	"context"
	"errors"
	"slices"
	"time"

	"github.com/stagedoor/walrelay/cdc"
)

// batch is what one write appends, and what it leads to.
type batch struct {
	items []item

	events []cdc.Event // to append
	last   cdc.Event   // the last row that is on the stream once they are; zero for none but those below the position
	marks  []cdc.Mark  // on the stream once the events are
	end    cdc.LSN     // everything before it is then published; 0: unknown
	time   time.Time   // PostgreSQL's clock at end
	since  time.Time   // about when the oldest of the events was committed
	err    error       // why nothing can follow
}

// sort reads the items.
func (b *batch) sort(marks bool) {
	b.events, b.marks = b.events[:0], b.marks[:0]
	b.end, b.since, b.err, b.last = 0, time.Time{}, nil, cdc.Event{}
	for i := range b.items {
		it := &b.items[i]
		switch it.kind {
		case itemEnd:
			b.end, b.time = it.lsn, it.serverTime
			continue
		case itemFail:
			b.err = it.err
			return
		case itemRow:
			if len(b.events) == 0 {
				b.since = it.since
			}
			b.events = append(b.events, it.ev)
		}
		if !it.ev.Position.IsZero() {
			b.last = it.ev
		}
		if marks && !it.ev.NoID {
			b.marks = append(b.marks, markOf(it.ev))
		}
	}
}

// publish appends what the reader received, stamps once a second, and decides
// what is confirmed. It owns the checkpoint and the Progress, so an append and
// a stamp never compete for a version. While one batch is on its way to Redis
// the next one gathers in the queue: it is small when it is quiet, and large
// when it is busy.
func (s *streaming) publish(flight context.Context) error {
	beat, done := s.loop("publisher")
	defer done()
	s.writer.beat = beat
	progress := cdc.NewProgress(s.cfg.ConfirmDelay)
	stamp := time.NewTicker(stampEvery)
	defer stamp.Stop()
	var b batch
	for {
		ready := s.queue.ready
		if s.marks.full() {
			ready = nil // what is on the stream is marked first
		}
		select {
		case <-ready:
			if err := s.next(flight, progress, &b); err != nil {
				return err
			}
		case <-s.marks.space:
		case <-stamp.C:
			beat()
			if ready != nil {
				if err := s.next(flight, progress, &b); err != nil { // positions that were not announced
					return err
				}
			}
			if err := s.stamp(flight, progress); err != nil {
				return err
			}
			if s.proven.IsZero() && !s.heardAt.time().IsZero() {
				// Not before PostgreSQL has said something, and not as soon as it
				// has: a row that cannot be published comes every time, and needs
				// no quick retry.
				s.proven = time.Now()
				s.status.streams()
				s.recovered("streaming")
			}
		case <-s.stopping:
			if err := s.drain(flight, progress, &b); err != nil {
				return err
			}
			close(s.published)
			// One try: a stamp that fails now costs the next start some reading.
			once, end := context.WithCancel(flight)
			end()
			return s.finish(flight, once, progress)
		case <-flight.Done():
			return context.Cause(flight)
		}
	}
}

// next publishes what is in the queue, or a batch of it.
func (s *streaming) next(flight context.Context, progress *cdc.Progress, b *batch) error {
	b.items = s.queue.take(b.items, s.cfg.BatchRows, s.cfg.BatchBytes)
	if err := s.append(flight, progress, b); err != nil {
		return err
	}
	if b.err == nil {
		clear(b.items)
		clear(b.events)
		return nil
	}
	// What came before is marked and covered first.
	close(s.published)
	var row *RowError
	if errors.As(b.err, &row) {
		s.writer.current.Blocked = &row.Row
	}
	if err := s.finish(flight, flight, progress); err != nil {
		return err
	}
	return b.err
}

// drain publishes what was received before a stop, up to a row that cannot be.
func (s *streaming) drain(flight context.Context, progress *cdc.Progress, b *batch) error {
	for {
		b.items = s.queue.take(b.items, s.cfg.BatchRows, s.cfg.BatchBytes)
		if len(b.items) == 0 {
			return nil
		}
		if err := s.append(flight, progress, b); err != nil {
			return err
		}
		if b.err != nil {
			return nil // the next start meets it again
		}
	}
}

// append puts a batch on the stream and hands its rows to the marker.
func (s *streaming) append(flight context.Context, progress *cdc.Progress, b *batch) error {
	b.sort(s.cfg.Table.Marks())
	if len(b.events) > 0 {
		s.status.publishing(b.since)
		s.step(StepAppend)
		next := s.writer.current
		next.Last, next.LastCommit, next.Blocked = b.last.Position, b.last.Commit, nil
		err := s.writer.write(flight, next, b.events)
		var refused *refusedError
		if errors.As(err, &refused) {
			return s.appendApart(flight, progress, b, refused)
		}
		if err != nil {
			return err
		}
		s.step(StepAppended)
		s.count(b.events)
	}
	if len(b.events) == 0 && !b.last.Position.IsZero() {
		s.others = b.last // the next write moves the position over it
	}
	if len(b.marks) > 0 {
		s.marks.add(b.marks...) // before the position moves: confirming waits for them
	}
	if b.end > 0 {
		progress.Receive(b.end)
		progress.Publish(b.end)
		s.serverTime = b.time
	}
	return nil
}

// appendApart appends the halves of a batch that Redis does not take, down to
// the row that it is about.
func (s *streaming) appendApart(flight context.Context, progress *cdc.Progress, b *batch, refused error) error {
	if len(b.events) > 1 {
		n := len(b.items) / 2
		for _, items := range [][]item{b.items[:n], b.items[n:]} {
			half := &batch{items: items}
			if err := s.append(flight, progress, half); err != nil {
				return err
			}
			if half.err != nil {
				b.err = half.err
				return nil
			}
		}
		return nil
	}
	i := slices.IndexFunc(b.items, func(it item) bool { return it.kind == itemRow })
	ev, err := s.admit(b.items[i].ev, refused, s.skips)
	if err != nil {
		b.items[i] = item{kind: itemFail, err: err}
	} else {
		b.items[i].ev = ev
	}
	return s.append(flight, progress, b)
}

// stamp writes that everything published is covered, which also proves that
// Redis has not gone back since the last write, and moves what is confirmed.
func (s *streaming) stamp(patience context.Context, progress *cdc.Progress) error {
	covered := progress.Published()
	next := s.writer.current
	next.Since, next.Token = nil, "" // the slot is there
	if covered > next.Covered {
		next.Covered, next.CoveredTime = covered, s.serverTime
	}
	if next.Blocked != nil && covered > next.Blocked.Position.LSN {
		next.Blocked = nil // it came and needed no entry
	}
	if s.others.Position.Compare(next.Last) > 0 {
		next.Last, next.LastCommit = s.others.Position, s.others.Commit
	}
	if next.Foreign != nil && next.Covered >= next.Foreign.Until {
		next.Foreign = nil
	}
	s.step(StepStamp)
	if err := s.writer.write(patience, next, nil); err != nil {
		return err
	}
	s.step(StepStamped)
	progress.Stamp(covered, s.writer.sent, time.Now(), s.marks.limitLSN())
	s.confirmed.Store(uint64(progress.Confirmed()))
	return nil
}

// finish ends the publisher's part of a stop: the marker empties its queue, one
// more stamp covers what was published, tried for as long as patience lasts.
func (s *streaming) finish(flight, patience context.Context, progress *cdc.Progress) error {
	select {
	case <-s.marked:
	case <-flight.Done():
		return context.Cause(flight)
	}
	if err := s.stamp(patience, progress); err != nil {
		return err
	}
	close(s.stamped)
	return nil
}
