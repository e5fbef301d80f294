package relay

import (
	"context"
	"fmt"
	"io"
	"log/slog"
	"slices"
	"testing"
	"time"

	"github.com/stagedoor/walrelay/cdc"
	"github.com/stagedoor/walrelay/internal/match"
)

// listed is a stream as a list, with ids that grow with its length.
type listed struct {
	Sink
	state   cdc.StreamState
	clock   time.Time
	entries []cdc.Entry
	asked   int
}

// Load implements Sink.
func (l *listed) Load(context.Context, string) (*cdc.Checkpoint, map[string]cdc.StreamState, error) {
	return nil, map[string]cdc.StreamState{"jobs": l.state}, nil
}

// Clock implements Sink.
func (l *listed) Clock(context.Context) (time.Time, error) { return l.clock, nil }

// Entries implements Sink.
func (l *listed) Entries(_ context.Context, _, first, last string, fn func(cdc.Entry) error) error {
	l.asked++
	from := 0
	if first != "-" {
		from = slices.IndexFunc(l.entries, func(e cdc.Entry) bool { return e.ID >= first })
	}
	for _, e := range l.entries[max(0, from):] {
		if e.ID > last {
			break
		}
		if err := fn(e); err != nil {
			return err
		}
	}
	return nil
}

// clocked is a session that only knows the time.
type clocked struct {
	Session
	now time.Time
}

// Clock implements Session.
func (c clocked) Clock(context.Context) (time.Time, error) { return c.now, nil }

// described is a table that only knows its fields.
type described struct{ Table }

// Fields implements Table.
func (described) Fields() match.Fields {
	return match.Fields{{Name: "kind"}, {Name: "outbox_id", ID: true}, {Name: "payload", JSON: true}}
}

// entry is one with this id and these names and values.
func entry(id string, pairs ...string) cdc.Entry {
	e := cdc.Entry{ID: id, Values: map[string]string{}}
	for i := 0; i < len(pairs); i += 2 {
		e.Values[pairs[i]] = pairs[i+1]
	}
	return e
}

// outboxRow is a row with these fields, in the table's order.
func outboxRow(pairs ...string) cdc.Event {
	var ev cdc.Event
	for i := 0; i < len(pairs); i += 2 {
		ev.Fields = append(ev.Fields, cdc.Field{Name: pairs[i], Value: pairs[i+1]})
	}
	return ev
}

func newTail(limit int, entries ...cdc.Entry) *tail {
	return &tail{
		sink: &listed{entries: entries}, stream: "jobs", fields: described{}.Fields(), limit: limit,
		first: "-", last: "9", masks: map[uint64]struct{}{},
	}
}

// A row is on the stream if an entry has its id and the same values in all of
// our fields that it has, whoever wrote it.
func TestRowIsRecognisedOnTheStream(t *testing.T) {
	plain := outboxRow("kind", "sold", "outbox_id", "7", "payload", `{"name": "é", "price": 1.50}`)
	for name, tt := range map[string]struct {
		entry cdc.Entry
		row   cdc.Event
		want  bool
	}{
		"the same": {
			entry("1", "kind", "sold", "outbox_id", "7", "payload", `{"name": "é", "price": 1.50}`), plain, true,
		},
		"JSON in another spelling": {
			entry("1", "kind", "sold", "outbox_id", "7", "payload", `{"price":1.5,"name":"\u00e9"}`), plain, true,
		},
		"with fields of somebody else's": {
			entry("1", "kind", "sold", "outbox_id", "7", "payload", `{"name":"é","price":15e-1}`, "trace", "abc"), plain, true,
		},
		"with fewer fields": {
			entry("1", "outbox_id", "7", "payload", `{"name":"é","price":1.5}`), plain, true,
		},
		"with its id alone": {
			entry("1", "outbox_id", "7"), plain, true,
		},
		"another kind under the same id": {
			entry("1", "kind", "refunded", "outbox_id", "7", "payload", `{"name": "é", "price": 1.50}`), plain, false,
		},
		"another payload under the same id": {
			entry("1", "kind", "sold", "outbox_id", "7", "payload", `{"name": "é", "price": 1.51}`), plain, false,
		},
		"the same values under another id": {
			entry("1", "kind", "sold", "outbox_id", "8", "payload", `{"name": "é", "price": 1.50}`), plain, false,
		},
		"no id": {
			entry("1", "kind", "sold", "payload", `{"name": "é", "price": 1.50}`), plain, false,
		},
		"a field that is NULL in the row": {
			entry("1", "kind", "sold", "outbox_id", "7", "payload", `{}`), outboxRow("outbox_id", "7", "payload", `{}`), false,
		},
		"a field that is NULL in both": {
			entry("1", "outbox_id", "7", "payload", `{}`), outboxRow("outbox_id", "7", "payload", `{}`), true,
		},
		"an empty field for NULL": {
			entry("1", "kind", "", "outbox_id", "7", "payload", `{}`), outboxRow("outbox_id", "7", "payload", `{}`), false,
		},
		"a text in a field that is not compared as JSON": {
			entry("1", "kind", "1.0", "outbox_id", "7"), outboxRow("kind", "1.00", "outbox_id", "7"), false,
		},
		"values that run into each other": {
			entry("1", "kind", "a", "outbox_id", "b7"), outboxRow("kind", "ab", "outbox_id", "7"), false,
		},
		"fields that run into each other": {
			entry("1", "outbox_id", "sold", "payload", "null"), outboxRow("kind", "sold", "outbox_id", "null"), false,
		},
		"what is not JSON, in the same spelling": {
			entry("1", "outbox_id", "7", "payload", `{broken`), outboxRow("outbox_id", "7", "payload", `{broken`), true,
		},
		"what is not JSON, in another spelling": {
			entry("1", "outbox_id", "7", "payload", `{ broken`), outboxRow("outbox_id", "7", "payload", `{broken`), false,
		},
	} {
		t.Run(name, func(t *testing.T) {
			tail := newTail(100, entry("0", "kind", "any", "outbox_id", "other"), tt.entry)
			if more, err := tail.load(t.Context()); err != nil || more {
				t.Fatal(more, err)
			}
			if got := tail.has(0, tt.row); got != tt.want {
				t.Errorf("the entry %v and the row %s: on the stream is %v, want %v", tt.entry.Values, tt.row.Fields, got, tt.want)
			}
		})
	}
}

// A tail that does not fit into memory is read in pieces, each entry once. What
// an earlier piece showed of a row is still known with a later one.
func TestTailIsReadInPieces(t *testing.T) {
	var entries []cdc.Entry
	for i := range 10 {
		entries = append(entries, entry(fmt.Sprint(i), "outbox_id", fmt.Sprint(i), "payload", "{}"))
	}
	// Ids up to 8 are in bounds. The rows are some of many.
	const apart = 32
	tail := newTail(3, entries...)
	tail.last = "8"
	pieces := 0
	for more := true; more; pieces++ {
		var err error
		if more, err = tail.load(t.Context()); err != nil {
			t.Fatal(err)
		}
		if len(tail.entries) > 3 {
			t.Fatalf("%d entries are in memory", len(tail.entries))
		}
		for i := range 10 {
			tail.has(apart*i, outboxRow("outbox_id", fmt.Sprint(i), "payload", "{}"))
		}
	}
	if pieces != 3 {
		t.Errorf("%d pieces, want 3", pieces)
	}
	for i := range 10 {
		if got := tail.has(apart*i, outboxRow("outbox_id", fmt.Sprint(i), "payload", "{}")); got != (i <= 8) {
			t.Errorf("row %d: on the stream is %v", i, got)
		}
	}
	if tail.has(1, outboxRow("outbox_id", "1", "payload", "{}")) {
		t.Error("an entry of an earlier piece is still in memory")
	}
}

// openFor opens the tail of a stream for rows of which the oldest is from a
// given time, both clocks at the same time.
func openFor(t *testing.T, l *listed, since, oldest time.Time) *tail {
	t.Helper()
	b := &backfilling{
		Relay:   New(Config{Table: described{}, Sink: l, Stream: "jobs", Log: slog.New(slog.NewTextHandler(io.Discard, nil))}),
		session: clocked{now: time.UnixMilli(1_800_000_000_000)},
		writer:  &writer{key: "checkpoint"},
		since:   cdc.Since{Time: since},
	}
	tail, err := b.openTail(t.Context(), oldest)
	if err != nil {
		t.Fatal(err)
	}
	if tail.limit != tailEntries {
		t.Errorf("keeps %d entries in memory, want %d", tail.limit, tailEntries)
	}
	return tail
}

// The tail goes back to the oldest row in question, by Redis' clock, and to the
// whole stream where its ids are no times, or a row's time is not known.
func TestTailGoesBackFarEnough(t *testing.T) {
	at := func(ms int64) time.Time { return time.UnixMilli(ms) }
	const now = 1_800_000_000_000
	margin := tailMargin.Milliseconds()
	for name, tt := range map[string]struct {
		lastID        string
		ahead         time.Duration // of Redis' clock
		since, oldest time.Time
		want          string
	}{
		"to the oldest row":        {fmt.Sprint(now, "-5"), 0, at(now - 1000), at(now - 60_000), fmt.Sprint(now-60_000-margin, "-0")},
		"to since if it is older":  {fmt.Sprint(now, "-5"), 0, at(now - 90_000), at(now - 60_000), fmt.Sprint(now-90_000-margin, "-0")},
		"Redis' clock is ahead":    {fmt.Sprint(now, "-5"), time.Hour, at(now), at(now - 60_000), fmt.Sprint(now+3_600_000-60_000-margin, "-0")},
		"Redis' clock is behind":   {fmt.Sprint(now, "-5"), -time.Hour, at(now), at(now - 60_000), fmt.Sprint(now-3_600_000-60_000-margin, "-0")},
		"a row's time is unknown":  {fmt.Sprint(now, "-5"), 0, at(now - 1000), time.Time{}, "-"},
		"ids are a counter":        {"17-0", 0, at(now - 1000), at(now - 60_000), "-"},
		"rows from before all ids": {fmt.Sprint(now, "-5"), 0, at(now), at(-5_000_000), "0-0"},
	} {
		t.Run(name, func(t *testing.T) {
			l := &listed{clock: at(now).Add(tt.ahead), state: cdc.StreamState{Exists: true, LastID: tt.lastID, Length: 1, Added: 1, FirstID: tt.lastID}}
			tail := openFor(t, l, tt.since, tt.oldest)
			if tail.first != tt.want || tail.last != tt.lastID {
				t.Errorf("reads from %s to %s, want from %s to %s", tail.first, tail.last, tt.want, tt.lastID)
			}
			if tail.deletedTo != "" {
				t.Error("says that entries were deleted")
			}
		})
	}
}

func TestNoStreamHasNoTail(t *testing.T) {
	for name, state := range map[string]cdc.StreamState{
		"none":  {},
		"empty": {Exists: true, LastID: "0-0"},
	} {
		l := &listed{state: state}
		tail := openFor(t, l, time.UnixMilli(1_700_000_000_000), time.UnixMilli(1_700_000_000_000))
		if more, err := tail.load(t.Context()); err != nil || more || l.asked > 0 {
			t.Errorf("%s: more %v, %v, asked %d times", name, more, err, l.asked)
		}
		if tail.has(0, outboxRow("outbox_id", "1")) || tail.deletedTo != "" {
			t.Errorf("%s: has a row, or lost some", name)
		}
	}
}

// Entries that were deleted from the part of the stream in question are no
// proof that a row was never sent.
func TestDeletedEntriesAreNoticed(t *testing.T) {
	const now = 1_800_000_000_000
	id := func(ago int64) string { return fmt.Sprint(now-ago, "-0") }
	for name, tt := range map[string]struct {
		state cdc.StreamState
		want  bool
	}{
		"none":                                {cdc.StreamState{FirstID: id(1000), Length: 2, Added: 2, MaxDeletedID: "0-0"}, false},
		"one in the part that counts":         {cdc.StreamState{FirstID: id(1000), Length: 2, Added: 3, MaxDeletedID: id(500)}, true},
		"one from long ago":                   {cdc.StreamState{FirstID: id(900_000), Length: 2, Added: 3, MaxDeletedID: id(990_000)}, false},
		"trimmed into the part that counts":   {cdc.StreamState{FirstID: id(1000), Length: 2, Added: 3, MaxDeletedID: "0-0"}, true},
		"trimmed before the part that counts": {cdc.StreamState{FirstID: id(900_000), Length: 2, Added: 3, MaxDeletedID: "0-0"}, false},
		"all of them":                         {cdc.StreamState{Length: 0, Added: 3, MaxDeletedID: "0-0"}, true},
	} {
		t.Run(name, func(t *testing.T) {
			tt.state.Exists, tt.state.LastID = true, id(0)
			l := &listed{state: tt.state, clock: time.UnixMilli(now)}
			if got := openFor(t, l, time.UnixMilli(now), time.UnixMilli(now-60_000)).deletedTo != ""; got != tt.want {
				t.Errorf("says %v, want %v", got, tt.want)
			}
		})
	}
}
