package audit

import (
	"context"
	"fmt"
	"io"
	"log/slog"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/stagedoor/walrelay/cdc"
	"github.com/stagedoor/walrelay/internal/match"
)

// base is when the rows of a listed table were written, in milliseconds.
const base = 1_800_000_000_000

// listed are both sides as lists, at rest: every clock shows the same time.
type listed struct {
	rows    []Row // as the snapshot sees them
	now     []Row // nil: the same
	entries []cdc.Entry
	late    int // how many of the last entries came after the snapshot
	dead    []cdc.Entry
	state   cdc.StreamState // but for what the entries tell

	whole     time.Time
	deletes   bool
	unindexed bool
	behind    bool // the relay has not covered the rows
	since     time.Time
	asked     [][]string
	loads     int
}

func (*listed) Fields() match.Fields {
	return match.Fields{{Name: "kind"}, {Name: "outbox_id", ID: true}, {Name: "payload", JSON: true}}
}
func (l *listed) Marks() (bool, bool)                           { return true, l.deletes }
func (l *listed) Open(context.Context, time.Time) (Rows, error) { return l, nil }
func (*listed) LSN() cdc.LSN                                    { return 1000 }
func (*listed) Taken() time.Time                                { return time.UnixMilli(base + 3_600_000).UTC() }
func (l *listed) Clock(context.Context) (time.Time, error)      { return l.Taken(), nil }
func (l *listed) Count(context.Context) (int64, time.Time, error) {
	return int64(len(l.rows)), l.whole, nil
}
func (l *listed) IndexedID() bool { return !l.unindexed }
func (*listed) Close()            {}

func (l *listed) Each(_ context.Context, fn func(Row) error) error {
	for _, r := range l.rows {
		if err := fn(r); err != nil {
			return err
		}
	}
	return nil
}

func (l *listed) Again(_ context.Context, ids []string, fn func(Row) error) error {
	l.asked = append(l.asked, ids)
	now := l.now
	if now == nil {
		now = l.rows
	}
	for _, r := range now {
		for _, id := range ids {
			if r.Event.ID != id {
				continue
			}
			if err := fn(r); err != nil {
				return err
			}
		}
	}
	return nil
}

func (l *listed) Load(context.Context, string) (*cdc.Checkpoint, map[string]cdc.StreamState, error) {
	entries := l.entries
	if l.loads == 0 {
		entries = entries[:len(entries)-l.late]
	}
	l.loads++
	s := l.state
	s.Exists, s.Length = len(l.entries) > 0 || s.Added > 0, int64(len(entries))
	s.Added += s.Length
	s.LastID = "0-0"
	if s.Added > 0 {
		s.LastID = strconv.Itoa(base) + "-0" // also where nothing is left
	}
	if len(entries) > 0 {
		s.FirstID, s.LastID = entries[0].ID, entries[len(entries)-1].ID
	}
	cp := &cdc.Checkpoint{Phase: cdc.PhaseStreaming, Covered: 1000}
	if l.behind {
		cp.Covered = 999
	}
	return cp, map[string]cdc.StreamState{"jobs": s}, nil
}

func (l *listed) Entries(_ context.Context, stream, first, last string, fn func(cdc.Entry) error) error {
	entries := l.entries
	if stream == "jobs:dead" {
		entries = l.dead
	}
	for _, e := range entries {
		if first != "-" && after(first, e.ID) || last != "+" && after(e.ID, last) {
			continue
		}
		if err := fn(e); err != nil {
			return err
		}
	}
	return nil
}

// audit runs one.
func (l *listed) audit(t *testing.T) *Report {
	t.Helper()
	if l.whole.IsZero() {
		l.whole = time.UnixMilli(base + 500)
	}
	r, err := Run(t.Context(), Config{
		Table: l, Sink: l, Name: "outbox", Stream: "jobs", Dead: "jobs:dead", Key: "checkpoint",
		Since: l.since, Wait: 0, Show: 3, Log: slog.New(slog.NewTextHandler(io.Discard, nil)),
	})
	if err != nil {
		t.Fatal(err)
	}
	return r
}

// summary is what the report says, without zeros.
func summary(r *Report) string {
	var parts []string
	say := func(name string, f Findings) {
		if f.Count == 0 {
			return
		}
		var ids []string
		for _, one := range f.List {
			id := one.ID
			if len(one.Entries) > 0 {
				id += "(" + strings.Join(one.Entries, ",") + ")"
			}
			ids = append(ids, id)
		}
		parts = append(parts, fmt.Sprintf("%s %d: %s", name, f.Count, strings.Join(ids, " ")))
	}
	say("missing", r.Missing.Findings)
	if r.Missing.Deletable > 0 {
		parts = append(parts, fmt.Sprint("deletable ", r.Missing.Deletable))
	}
	say("duplicated", r.Duplicated)
	say("foreign", r.Foreign)
	say("changed", r.Changed)
	say("waiting", r.Waiting)
	say("trimmed", r.Trimmed)
	say("dead", r.Dead)
	if r.NoID > 0 {
		parts = append(parts, fmt.Sprint("no id ", r.NoID))
	}
	if r.Gone > 0 {
		parts = append(parts, fmt.Sprint("gone ", r.Gone))
	}
	if r.OtherEntries > 0 {
		parts = append(parts, fmt.Sprint("other ", r.OtherEntries))
	}
	if r.Clean {
		parts = append(parts, "clean")
	}
	return strings.Join(parts, "; ")
}

// row is one that was written so many milliseconds after base.
func row(ms int64, id string, marked bool) Row {
	return Row{
		Event: cdc.Event{ID: id, Fields: []cdc.Field{
			{Name: "kind", Value: "sold"}, {Name: "outbox_id", Value: id}, {Name: "payload", Value: `{"n": 1.0}`},
		}},
		Marked: marked, Created: time.UnixMilli(base + ms).UTC(),
	}
}

// entry is one that was appended so many milliseconds after base.
func entry(ms int64, id string, pairs ...string) cdc.Entry {
	e := cdc.Entry{ID: strconv.FormatInt(base+ms, 10) + "-0", Values: map[string]string{
		"kind": "sold", "outbox_id": id, "payload": `{"n":1}`,
	}}
	for i := 0; i < len(pairs); i += 2 {
		e.Values[pairs[i]] = pairs[i+1]
	}
	return e
}
