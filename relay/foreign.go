package relay

import (
	"cmp"
	"context"
	"fmt"

	"github.com/stagedoor/walrelay/cdc"
)

const (
	// foreignEntries is how many entries of our rows by others are kept in
	// memory while streaming, as hashes.
	foreignEntries = 200_000
	// foreignSlack is added to the end of the WAL: rows that others can see may
	// be committed in WAL that is not on the server's disk yet.
	foreignSlack = 1 << 20
)

// foreignEntries reads what others appended since the checkpoint's last entry,
// while no relay streamed: a poller may have worked meanwhile. Rows that match
// are marked and not appended. Nil is for none.
//
// Such an entry can be of a row that comes long after the next one that is
// appended, which moves the checkpoint's last entry beyond it. So the checkpoint
// keeps where to read from until what is covered, and with it the position, has
// passed all of those rows.
// Where no entry is of ours, its last entry moves to what was read, so that the
// next start need not read it again: then cp.LastIDs is set, and is to be written.
func (r *Relay) foreignEntries(ctx context.Context, session Session, cp *cdc.Checkpoint, streams map[string]cdc.StreamState) (*tail, error) {
	state := streams[r.cfg.Stream]
	if cp.Foreign != nil && cp.Covered >= cp.Foreign.Until {
		cp.Foreign = nil
	}
	after, known := cp.LastIDs[r.cfg.Stream]
	if !known {
		after = "0-0"
	}
	news := state.Exists && state.LastID != after // others have appended since our last entry
	if cp.Foreign == nil && !news {
		cp.LastIDs = nil
		return nil, nil
	}
	if cp.Foreign == nil {
		cp.Foreign = &cdc.Foreign{After: after, Added: cp.Added[r.cfg.Stream]}
	}
	if news { // of rows that were written until now
		end, err := session.WALEnd(ctx)
		if err != nil {
			return nil, err
		}
		cp.Foreign.Until = end + foreignSlack
	}
	t := r.newTail(foreignEntries)
	t.first, t.last = "("+cp.Foreign.After, state.LastID
	settled := keepBeating(r.beat)
	more, err := t.load(ctx)
	settled()
	if err != nil {
		return nil, err
	}
	if more {
		return nil, &GapError{Kind: cdc.ForeignEntries, Err: fmt.Errorf(
			"another program has appended more than %d entries of outbox rows to the stream %q since %s", foreignEntries, r.cfg.Stream, cp.Foreign.After)}
	}
	if err := r.foreignDeleted(ctx, session, t, cp.Foreign, state); err != nil {
		return nil, err
	}
	if len(t.entries) == 0 && t.deletedTo == "" {
		cp.Foreign, cp.LastIDs = nil, map[string]string{r.cfg.Stream: state.LastID}
		return nil, nil
	}
	cp.LastIDs = nil
	r.log.Info("another program has appended entries to the stream; rows that have one are not appended again",
		"stream", r.cfg.Stream, "entries of any", len(t.entries), "after", cp.Foreign.After)
	if t.deletedTo != "" {
		r.log.Warn("entries by another program were deleted or trimmed since; rows that are marked as published and may have been theirs are not appended again",
			"stream", r.cfg.Stream, "up to", t.deletedTo)
	}
	return t, nil
}

// foreignDeleted notes which of the entries that others appended are gone again,
// as far as Redis tells: fewer are there than were added.
func (r *Relay) foreignDeleted(ctx context.Context, session Session, t *tail, foreign *cdc.Foreign, state cdc.StreamState) error {
	if state.Added-foreign.Added <= t.seen {
		return nil
	}
	ours, err := session.Clock(ctx)
	if err != nil {
		return err
	}
	theirs, err := r.cfg.Sink.Clock(ctx)
	if err != nil {
		return err
	}
	t.deletedTo = cmp.Or(cdc.DeletedUpTo(state, foreign.After), state.LastID)
	if at, ok := idTime(t.deletedTo); ok {
		t.deletedAt = at.Add(deletedMargin - theirs.Sub(ours))
	}
	return nil
}

// published reports whether another program has published a row whose entry is
// not there: it was deleted, and the row is marked. A row that is younger than
// all that was deleted is marked since the stream had it, and lost it.
func (d *decoding) published(ev cdc.Event) (bool, error) {
	if d.foreign.deletedTo == "" || ev.NoID || !d.cfg.Table.Marks() {
		return false, nil
	}
	marked, created, err := d.cfg.Table.Published(d.ctx, ev.ID)
	return marked && d.foreign.mayBeDeleted(created), err
}

// foreignUntil is where the rows end that others may have appended.
func foreignUntil(cp *cdc.Checkpoint) cdc.LSN {
	if cp.Foreign == nil {
		return 0
	}
	return cp.Foreign.Until
}
