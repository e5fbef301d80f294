package relay

import (
	"context"
	"errors"
	"strconv"
	"strings"
	"time"

	"github.com/stagedoor/walrelay/cdc"
	"github.com/stagedoor/walrelay/internal/match"
)

const (
	// tailMargin is by how much entries are looked at that are older than the
	// oldest row in question.
	tailMargin = 10 * time.Second
	// deletedMargin is how much younger than the last entry that was deleted a
	// row has to be, so that clocks that do not agree exactly do no harm.
	deletedMargin = time.Second
	// tailEntries is how many entries are kept in memory at a time, as hashes.
	tailEntries = 400_000
	// timeIDs is the smallest first half of an entry id that is a time, in
	// milliseconds since 1970: the year 2001. Smaller ones are somebody's
	// counter.
	timeIDs = 1_000_000_000_000
)

// tail knows which rows the end of a stream has; see package match for when an
// entry is the same as a row.
//
// The tail is read in pieces that fit into memory. What a piece shows is kept
// as one bit a row, by the row's number in the snapshot's order.
type tail struct {
	sink        Sink
	stream      string
	fields      match.Fields
	first, last string // ids still to be read; last is empty for nothing to read
	limit       int    // entries in memory at a time

	seen    int64 // entries read, of any kind
	entries map[match.Fingerprint]struct{}
	masks   map[uint64]struct{} // the sets of our fields that entries have; of 64 at most
	found   []uint64            // bits, by row

	// deletedTo is the highest id of the entries that may have been deleted, and
	// deletedAt when it was made, by PostgreSQL's clock. Empty for none.
	deletedTo string
	deletedAt time.Time
}

// newTail holds as many entries as given, and has nothing to read yet.
func (r *Relay) newTail(limit int) *tail {
	return &tail{
		sink: r.cfg.Sink, stream: r.cfg.Stream, fields: r.cfg.Table.Fields(), limit: limit,
		entries: map[match.Fingerprint]struct{}{}, masks: map[uint64]struct{}{},
	}
}

// openTail bounds the part of the stream to look at: from the oldest candidate,
// or since where that is earlier, to what is there now. A poller's entry is
// never older than its row.
func (b *backfilling) openTail(ctx context.Context, oldest time.Time) (*tail, error) {
	t := b.newTail(tailEntries)
	_, streams, err := b.cfg.Sink.Load(ctx, b.writer.key)
	if err != nil {
		return nil, err
	}
	s := streams[t.stream]
	if !s.Exists || s.LastID == "0-0" {
		return t, nil
	}
	t.first, t.last = "-", s.LastID
	ahead, err := b.redisAhead(ctx)
	if err != nil {
		return nil, err
	}
	if _, ok := idTime(s.LastID); ok {
		t.first = b.entriesSince(oldest, ahead)
	}
	t.deletedTo = cdc.DeletedUpTo(s, t.first)
	if at, ok := idTime(t.deletedTo); ok {
		t.deletedAt = at.Add(deletedMargin - ahead)
	}
	b.log.Info("reading the end of the stream", "stream", t.stream, "from", t.first, "to", t.last)
	return t, nil
}

// redisAhead is by how much Redis' clock, by which entries get their ids, is
// ahead of PostgreSQL's.
func (b *backfilling) redisAhead(ctx context.Context) (time.Duration, error) {
	ours, err := b.session.Clock(ctx)
	if err != nil {
		return 0, err
	}
	theirs, err := b.cfg.Sink.Clock(ctx)
	return theirs.Sub(ours), err
}

// entriesSince is the id of an entry that is older than the oldest candidate,
// and than since; "-" where that is not known.
func (b *backfilling) entriesSince(oldest time.Time, ahead time.Duration) string {
	if oldest.IsZero() {
		return "-"
	}
	from := oldest
	if b.since.Time.Before(from) {
		from = b.since.Time
	}
	return strconv.FormatInt(max(0, from.Add(ahead-tailMargin).UnixMilli()), 10) + "-0"
}

// mayBeDeleted reports whether the entry of a row that was created then may be
// one of those that were deleted: it was not if the row is younger than they.
func (t *tail) mayBeDeleted(created time.Time) bool {
	return t.deletedTo != "" && (t.deletedAt.IsZero() || created.IsZero() || !created.After(t.deletedAt))
}

// idTime is when an entry was made; false for an id that is somebody's counter.
func idTime(id string) (time.Time, bool) {
	ms, _, _ := strings.Cut(id, "-")
	n, err := strconv.ParseInt(ms, 10, 64)
	return time.UnixMilli(n), err == nil && n >= timeIDs
}

// errFull ends reading a piece of the tail.
var errFull = errors.New("as many entries as fit into memory")

// load reads the next piece and reports whether there are more after it.
func (t *tail) load(ctx context.Context) (more bool, err error) {
	t.entries = map[match.Fingerprint]struct{}{}
	if t.last == "" {
		return false, nil
	}
	err = t.sink.Entries(ctx, t.stream, t.first, t.last, func(e cdc.Entry) error {
		if len(t.entries) == t.limit {
			t.first = e.ID
			return errFull
		}
		t.seen++
		t.add(e)
		return ctx.Err()
	})
	if errors.Is(err, errFull) {
		return true, nil
	}
	return false, err
}

// add takes an entry that has our id field; others cannot be a row of ours.
func (t *tail) add(e cdc.Entry) {
	if v, ok := t.fields.OfEntry(e); ok {
		t.masks[v.Has] = struct{}{}
		t.entries[t.fields.Fingerprint(v, v.Has)] = struct{}{}
	}
}

// has reports whether the pieces read so far hold this row, which is the
// row-th of the snapshot.
func (t *tail) has(row int, ev cdc.Event) bool {
	word, bit := row/64, uint64(1)<<(row%64)
	if word < len(t.found) && t.found[word]&bit != 0 {
		return true
	}
	if len(t.entries) == 0 || !t.lookup(ev) {
		return false
	}
	for len(t.found) <= word {
		t.found = append(t.found, 0)
	}
	t.found[word] |= bit
	return true
}

func (t *tail) lookup(ev cdc.Event) bool {
	v, ok := t.fields.OfRow(ev)
	if !ok {
		return false
	}
	for mask := range t.masks {
		if mask&^v.Has != 0 {
			continue
		}
		if _, ok := t.entries[t.fields.Fingerprint(v, mask)]; ok {
			return true
		}
	}
	return false
}
