package relay

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"time"

	"github.com/stagedoor/walrelay/cdc"
)

const (
	// progressEvery is how often a long backfill says how far it has come.
	progressEvery = 5 * time.Second
	// markAgain is the pause before a backfill tries locked rows again.
	markAgain = time.Second
)

// backfilling publishes what is in the table and not on the stream, and makes
// the slot that continues exactly where that view of the table ended.
//
// Invariant: a slot whose checkpoint says streaming exists only after all of
// the snapshot's rows are on the stream and marked. So a crash anywhere, also
// between two of these steps, leads to doing all of it again, with the same
// since, and the tail of the stream then tells what was appended.
type backfilling struct {
	*Relay
	session Session
	writer  *writer
	since   cdc.Since

	// pending are rows that are on the stream and wait for their mark, which
	// comes when a write succeeded that was sent later than their append by the
	// confirm delay: for a backfill the mark is the confirm.
	pending     []pendingMark
	pendingSize int
	lastAppend  time.Time
	lastWrite   time.Time

	rows  []candidate // gathered for the next append
	bytes int

	skips map[string]bool // rows that are to be skipped if they cannot be published
	dead  *deadTail

	total, seen, appended, found int64
	lastDeleted                  time.Time
	trimmed, uncertain           int64 // whose entry may be one of those that were deleted: marked, and not
	reported                     time.Time
}

// candidate is a row that is to be appended.
type candidate struct {
	ev     cdc.Event
	marked bool
}

type pendingMark struct {
	cdc.Mark
	at time.Time // on the stream since
}

func (r *Relay) backfill(ctx context.Context, session Session) error {
	ok, err := session.TryLock(ctx)
	if err != nil {
		return err
	}
	if !ok {
		return fmt.Errorf("%w: it holds the lock of the slot's name and backfills", errStandBy)
	}
	r.step(StepBackfillLocked)

	// Only now nobody else can be in the middle of the same.
	state, err := r.judge(ctx, session)
	if err != nil {
		return err
	}
	switch state.Verdict {
	case cdc.Backfill:
		err = r.healer.mayRetry(state.checkpoint)
	case cdc.Gap:
		err = r.healer.mayHeal(state.Judgement, r.cfg.ManualHeal)
	default:
		err = errAgain
	}
	if err != nil {
		return err
	}
	r.status.role(RoleBackfill)
	b := &backfilling{Relay: r, session: session, reported: time.Now()}
	if b.since, err = r.backfillSince(ctx, session, state); err != nil {
		return err
	}
	if state.Verdict == cdc.Gap {
		r.status.healing(state.Reason)
		r.log.Warn("rows may be missing; healing: publishing again what the stream lacks", "kind", state.Kind, "reason", state.Reason, "since", b.since.Time)
	} else {
		r.status.healing(r.healer.trouble())
		r.log.Info("backfilling", "reason", state.Reason)
	}
	if lostWithDatabase(state, session.Server()) {
		if err := r.reportLost(ctx, state); err != nil {
			return err
		}
	}
	if err := b.begin(ctx, state); err != nil {
		return err
	}
	snapshot, err := b.createSlot(ctx)
	if err != nil {
		return err
	}
	if err := b.publish(ctx, snapshot); err != nil {
		return err
	}
	return b.finish(ctx, snapshot)
}

// backfillSince is what the backfill goes by: of the one that was not
// finished, be it in the checkpoint or, where Redis forgot that, in our memory;
// of the checkpoint beside a gap; or of what the slot still has.
func (r *Relay) backfillSince(ctx context.Context, session Session, state state) (cdc.Since, error) {
	switch cp := state.checkpoint; {
	case cp != nil && (cp.Since != nil || cp.Phase == cdc.PhaseStreaming):
		since := cdc.SinceOf(cp)
		if state.Kind == cdc.StreamMissing || state.Kind == cdc.StreamBehind {
			// Redis lost more than it has forgotten: also what the slot still has,
			// which goes with it.
			first, err := r.unknownSince(ctx, session, state.slot)
			if err != nil {
				return first, err
			}
			if first.Time.Before(since.Time) {
				since.Time = first.Time
			}
		}
		r.since = &since
	case r.since != nil:
	default:
		since, err := r.unknownSince(ctx, session, state.slot)
		if err != nil {
			return since, err
		}
		r.since = &since
	}
	return *r.since, nil
}

// unknownSince is what a backfill goes by that has no checkpoint. Over a slot
// that is intact it is when the first row was committed that the slot has: what
// was committed before was published, and Redis had it for the confirm delay.
func (r *Relay) unknownSince(ctx context.Context, session Session, slot *cdc.Slot) (cdc.Since, error) {
	now, err := session.Clock(ctx)
	if err != nil {
		return cdc.Since{}, err
	}
	since := cdc.Since{Time: now, First: slot == nil}
	if slot == nil || slot.WALStatus == "lost" {
		return since, nil
	}
	settled := keepBeating(r.beat)
	first, ok, err := session.FirstCommit(ctx)
	settled()
	switch {
	case errors.Is(err, ErrNotDelivered):
		r.log.Warn("the slot does not say what it still has; only rows that are not marked are published", "error", err)
	case err != nil:
		return since, err
	case ok:
		since.Time = first
	}
	return since, nil
}

// begin replaces the checkpoint, so that whoever backfilled before can append
// no more, and drops the slot, which does not belong to what follows.
func (b *backfilling) begin(ctx context.Context, state state) error {
	b.writer = b.newWriter(b.session.Server(), state.checkpoint)
	if state.checkpoint != nil {
		b.skips = state.checkpoint.Skips
	}
	next := b.checkpoint(cdc.PhaseBackfill, state.streams)
	next.Token = rand.Text()
	next.Blocked = b.writer.current.Blocked // until it is met again, or not
	next.Doubt = doubt(state, b.since)
	if state.checkpoint != nil {
		next.Generation = state.checkpoint.Generation
	}
	next.Generation++
	if err := b.write(ctx, next, nil); err != nil {
		return err
	}
	b.healer.began(state.Judgement, next.Token)
	if state.Verdict == cdc.Gap {
		b.status.healed(state.Kind)
	}
	b.status.doubt(next.Doubt)
	b.step(StepBackfillBegun)
	if state.slot != nil {
		return b.session.Drop(ctx)
	}
	return nil
}

// checkpoint is the common part of those that a backfill writes.
func (b *backfilling) checkpoint(phase cdc.Phase, streams map[string]cdc.StreamState) cdc.Checkpoint {
	server := b.session.Server()
	return cdc.Checkpoint{
		Timeline: server.Timeline,
		History:  server.History.Recent(),
		Standby:  server.Standby,
		Phase:    phase,
		Since:    &b.since,
		LastIDs:  lastIDs(streams),
	}
}

// lastIDs are the last ids as found; empty for a stream that is not there.
func lastIDs(streams map[string]cdc.StreamState) map[string]string {
	ids := make(map[string]string, len(streams))
	for name, s := range streams {
		ids[name] = ""
		if s.Exists {
			ids[name] = s.LastID
		}
	}
	return ids
}

func (b *backfilling) createSlot(ctx context.Context) (cdc.Snapshot, error) {
	beat, done := b.loop("slot creation")
	defer done()
	snapshot, err := b.session.CreateTemporary(ctx, func(text string) {
		beat()
		b.beat()
		b.status.waiting(text)
		b.warn("the slot", "the slot is not created yet", "reason", text)
	})
	if err != nil {
		return snapshot, err
	}
	b.status.waiting("")
	b.recovered("the slot")
	b.step(StepBackfillSlot)
	return snapshot, nil
}

// publish appends the candidates that the stream lacks and waits until all are
// marked.
func (b *backfilling) publish(ctx context.Context, snapshot cdc.Snapshot) error {
	rows, err := b.cfg.Table.Candidates(ctx, snapshot, b.since)
	if err != nil {
		return err
	}
	defer rows.Close()
	var oldest time.Time
	settled := keepBeating(b.beat)
	b.total, oldest, err = rows.Count(ctx)
	settled()
	if err != nil {
		return err
	}
	if b.total == 0 {
		return nil
	}
	b.log.Info("backfilling rows", "rows", b.total)
	tail, err := b.openTail(ctx, oldest)
	if err != nil {
		return err
	}
	if b.dead, err = b.openDeadTail(ctx, oldest); err != nil {
		return err
	}
	for more := true; more; {
		settled := keepBeating(b.beat)
		more, err = tail.load(ctx)
		settled()
		if err != nil {
			return err
		}
		row := 0
		settled = keepBeating(b.beat)
		err = rows.Each(ctx, func(c cdc.Candidate) error {
			settled()
			on := tail.has(row, c.Event) || b.dead.has(c.Event)
			row++
			if more {
				return b.progress(ctx)
			}
			return b.row(ctx, c, on, tail.mayBeDeleted(c.Created))
		})
		settled()
		if err != nil {
			return err
		}
	}
	if b.lastDeleted = tail.deletedAt; b.lastDeleted.IsZero() {
		b.lastDeleted = time.Now()
	}
	if err := b.flush(ctx); err != nil {
		return err
	}
	for len(b.pending) > 0 || time.Since(b.lastAppend) < b.cfg.ConfirmDelay {
		if err := b.settle(ctx); err != nil {
			return err
		}
	}
	b.log.Info("backfilled", "rows", b.seen, "appended", b.appended, "found_on_stream", b.found)
	if b.trimmed > 0 || b.uncertain > 0 {
		b.log.Warn("entries of that time were deleted from the stream, so it does not tell all of what was on it",
			"marked_rows_not_appended", b.trimmed, "unmarked_rows_appended", b.uncertain)
	}
	if b.trimmed > 0 && b.writer.current.Doubt == nil {
		// Consumers have deleted what they were done with, or Redis lost it: of a
		// row that is as old as an entry that was deleted, nobody can tell.
		b.writer.current.Doubt = &cdc.Doubt{
			Reason: fmt.Sprintf("%d rows are marked as published and not on the stream, which entries were deleted from", b.trimmed),
			Before: b.lastDeleted,
		}
		b.status.doubt(b.writer.current.Doubt)
	}
	return nil
}

// row decides about one candidate.
func (b *backfilling) row(ctx context.Context, c cdc.Candidate, on, deleted bool) error {
	ev, marked := c.Event, c.Marked
	b.seen++
	switch {
	case on && marked:
		return b.progress(ctx)
	case on:
		b.found++
		b.pend(time.Now(), ev)
		return b.progress(ctx)
	case marked && deleted:
		// It was published, and its entry may be among those that somebody
		// deleted since.
		b.trimmed++
		return b.progress(ctx)
	}
	ev, err := b.admit(ev, fits(ev, b.cfg.ValueBytes), b.skips)
	if err != nil {
		return b.stopAt(ctx, err)
	}
	if deleted {
		b.uncertain++
	}
	b.rows = append(b.rows, candidate{ev, marked})
	b.bytes += ev.Bytes
	if len(b.rows) >= b.cfg.BatchRows || b.bytes >= b.cfg.BatchBytes {
		if err := b.flush(ctx); err != nil {
			return err
		}
	}
	return b.progress(ctx)
}

// flush appends what was gathered.
func (b *backfilling) flush(ctx context.Context) error {
	rows := b.rows
	b.rows, b.bytes = nil, 0
	return b.append(ctx, rows)
}

// append puts rows on the stream; where Redis does not take them, their halves,
// down to the row that it is about.
func (b *backfilling) append(ctx context.Context, rows []candidate) error {
	if len(rows) == 0 {
		return nil
	}
	events := make([]cdc.Event, len(rows))
	for i, row := range rows {
		events[i] = row.ev
	}
	next := b.writer.current
	next.Blocked = nil
	err := b.write(ctx, next, events)
	var refused *refusedError
	switch {
	case errors.As(err, &refused) && len(rows) > 1:
		n := len(rows) / 2
		if err := b.append(ctx, rows[:n]); err != nil {
			return err
		}
		return b.append(ctx, rows[n:])
	case errors.As(err, &refused):
		if rows[0].ev, err = b.admit(rows[0].ev, refused, b.skips); err != nil {
			return b.stopAt(ctx, err)
		}
		return b.append(ctx, rows)
	case err != nil:
		return err
	}
	b.step(StepBackfillAppended)
	b.count(events)
	b.appended += int64(len(rows))
	b.lastAppend = b.lastWrite
	for _, row := range rows {
		if !row.marked {
			b.pend(b.lastWrite, row.ev)
		}
	}
	return b.markDue(ctx)
}

// stopAt ends the backfill at a row that cannot be published, for that reason.
// What came before it is published and marked first.
func (b *backfilling) stopAt(ctx context.Context, why error) error {
	if err := b.flush(ctx); err != nil {
		return err
	}
	var row *RowError
	if !errors.As(why, &row) {
		return why
	}
	next := b.writer.current
	next.Blocked = &row.Row
	if err := b.write(ctx, next, nil); err != nil {
		return err
	}
	// Rows that somebody has locked are left to the next try, which also looks
	// for what the operator wants.
	for end := b.lastWrite.Add(b.cfg.ConfirmDelay + stampEvery); len(b.pending) > 0 && b.lastWrite.Before(end); {
		if err := b.settle(ctx); err != nil {
			return err
		}
	}
	return why
}

func (b *backfilling) pend(at time.Time, ev cdc.Event) {
	if !b.cfg.Table.Marks() || ev.NoID {
		return
	}
	m := cdc.Mark{ID: ev.ID}
	b.pending = append(b.pending, pendingMark{m, at})
	b.pendingSize += markBytes(m) + 24
}

// write replaces the checkpoint and appends. Each success proves, like a stamp,
// that Redis has not gone back since the last.
func (b *backfilling) write(ctx context.Context, next cdc.Checkpoint, events []cdc.Event) error {
	if err := b.writer.write(ctx, next, events); err != nil {
		return err
	}
	b.lastWrite = time.Now()
	return nil
}

// progress keeps the loop alive between appends: a stamp once a second, marks
// as they become due, a line now and then, and a pause while too much is
// pending.
func (b *backfilling) progress(ctx context.Context) error {
	if time.Since(b.lastWrite) >= stampEvery {
		if err := b.stamp(ctx); err != nil {
			return err
		}
	}
	for b.pendingSize > b.cfg.MarkQueueBytes {
		if err := b.settle(ctx); err != nil {
			return err
		}
	}
	return nil
}

// settle waits a moment, stamps and marks what is due.
func (b *backfilling) settle(ctx context.Context) error {
	if !sleep(ctx, min(stampEvery, max(b.cfg.ConfirmDelay, 10*time.Millisecond))) {
		return context.Cause(ctx)
	}
	return b.stamp(ctx)
}

func (b *backfilling) stamp(ctx context.Context) error {
	b.beat()
	if err := b.write(ctx, b.writer.current, nil); err != nil {
		return err
	}
	if time.Since(b.reported) >= progressEvery {
		b.reported = time.Now()
		b.status.progress(fmt.Sprintf("%d of %d rows read, %d appended, %d found on the stream, %d to be marked", b.seen, b.total, b.appended, b.found, len(b.pending)))
		b.log.Info("backfilling rows", "rows", b.total, "read", b.seen, "appended", b.appended, "found_on_stream", b.found, "to_mark", len(b.pending))
	}
	return b.markDue(ctx)
}

// markDue marks the rows that are on the stream for as long as the confirm
// delay before the last write was sent.
func (b *backfilling) markDue(ctx context.Context) error {
	due := 0
	for due < len(b.pending) && b.writer.sent.Sub(b.pending[due].at) >= b.cfg.ConfirmDelay {
		due++
	}
	var again []pendingMark
	for due > 0 {
		n := min(due, markBatch)
		rows := make([]cdc.Mark, n)
		for i := range rows {
			rows[i] = b.pending[i].Mark
		}
		settled := keepBeating(b.beat)
		states, err := b.cfg.Table.Mark(ctx, rows)
		settled()
		if errors.Is(err, ErrMarkRefused) {
			b.status.marksFailed(err, true)
			b.complain("marking", err)
			states = make([]cdc.MarkState, n) // left unmarked: confirming does not wait for it either
		} else if err != nil {
			return fmt.Errorf("marking rows: %w", err)
		} else {
			b.status.marked.Add(uint64(countMarked(states)))
			if b.status.marksWork() {
				b.recovered("marking")
			}
		}
		for i, state := range states {
			if state == cdc.Marked {
				b.pendingSize -= markBytes(rows[i]) + 24
				continue
			}
			p := b.pending[i]
			p.at = b.writer.sent.Add(markAgain - b.cfg.ConfirmDelay)
			again = append(again, p)
		}
		b.pending = b.pending[n:]
		due -= n
		b.step(StepBackfillMarked)
	}
	if len(again) > 0 {
		b.reportLocker(ctx, again[0].ID, "the backfill waits for it")
		b.pending = append(again, b.pending...)
	} else {
		b.status.rowLocked("")
	}
	return nil
}

// finish lets the slot begin where the snapshot ended.
func (b *backfilling) finish(ctx context.Context, snapshot cdc.Snapshot) error {
	// A slot that somebody made meanwhile is in the way; what keeps a cluster's
	// slots makes one whenever it is gone. Where it stays, it shows: it is confirmed
	// before the consistent point, or beyond what the checkpoint covers.
	if err := b.session.Drop(ctx); err != nil {
		return err
	}
	held, streams, err := b.cfg.Sink.Load(ctx, b.writer.key)
	if err != nil {
		return err
	}
	if held != nil {
		// With the streams as found, what was deleted since the last write would
		// be forgotten.
		if lost, ok := cdc.LostStream(held, streams); ok {
			return fmt.Errorf("backfilling again: %s", lost.Reason)
		}
	}
	now, err := b.session.Clock(ctx)
	if err != nil {
		return err
	}
	// No position: the first streamed commit can start exactly at the consistent
	// point.
	next := b.checkpoint(cdc.PhaseStreaming, streams)
	next.Covered, next.CoveredTime, next.Consistent = snapshot.Consistent, now, snapshot.Consistent
	begun := b.writer.current
	next.Token, next.Doubt, next.Generation = begun.Token, begun.Doubt, begun.Generation
	if err := b.write(ctx, next, nil); err != nil {
		return err
	}
	b.step(StepBackfillFinished)
	if err := b.session.Keep(ctx, snapshot); err != nil {
		if errors.Is(err, ErrOutlived) {
			b.healer.outlived(err)
		}
		return err
	}
	b.step(StepBackfillKept)
	b.healer.healed()
	b.log.Info("the slot is made", "consistent", snapshot.Consistent)
	return errAgain
}
