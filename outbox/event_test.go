package outbox

import (
	"errors"
	"log/slog"
	"runtime"
	"strings"
	"testing"

	"github.com/stagedoor/walrelay/cdc"
	"github.com/stagedoor/walrelay/internal/fault"
)

// rowOf makes an insert of name, value pairs; a value nil is NULL.
func rowOf(table cdc.Table, pairs ...any) *cdc.Insert {
	in := &cdc.Insert{Relation: &cdc.Relation{OID: 1, Table: table}}
	for i := 0; i < len(pairs); i += 2 {
		in.Relation.Columns = append(in.Relation.Columns, cdc.Column{Name: pairs[i].(string)})
		v := cdc.Value{Null: true}
		if text, ok := pairs[i+1].(string); ok {
			v = cdc.Value{Text: []byte(text)}
		}
		in.Values = append(in.Values, v)
	}
	return in
}

// flat prints an event's fields.
func flat(ev cdc.Event) string {
	s := ""
	for _, f := range ev.Fields {
		s += f.Name + "=" + string(f.Value) + ";"
	}
	return s
}

func newTable(m Mapping) *Table {
	return New(Config{Table: public, Mapping: m}, slog.New(slog.DiscardHandler))
}

func TestEventFindsColumnsByName(t *testing.T) {
	table := newTable(DefaultMapping())
	for _, test := range []struct {
		in   *cdc.Insert
		want string // the fields, "" for no entry
	}{
		{rowOf(public, "id", "7", "kind", "k", "payload", "{}", "published_at", nil), "kind=k;outbox_id=7;payload={};"},
		// Another relation, columns in another order, one more and one less.
		{rowOf(public, "payload", "", "new", "x", "id", "8", "kind", "k"), "kind=k;outbox_id=8;payload=;"},
		{rowOf(public, "id", "9", "kind", nil, "payload", "null", "published_at", nil), "outbox_id=9;payload=null;"},
		{rowOf(public, "id", "9", "kind", nil, "payload", nil), "outbox_id=9;"},
		{rowOf(public, "id", "7", "kind", "k", "payload", "{}", "published_at", "2026-01-01 00:00:00+00"), ""},
		{rowOf(cdc.Table{Schema: "app", Name: "outbox"}, "id", "7", "kind", "k", "payload", "{}"), ""},
		{rowOf(cdc.Table{Schema: "public", Name: "orders"}, "number", "7"), ""},
	} {
		ev, ok, err := table.Event(test.in)
		if err != nil || ok != (test.want != "") || flat(ev) != test.want {
			t.Errorf("%v: %q, %v, %v, want %q", test.in.Values, flat(ev), ok, err, test.want)
		}
	}
}

func TestEventKeepsItsBytes(t *testing.T) {
	table := newTable(DefaultMapping())
	in := rowOf(public, "id", "7", "kind", "k", "payload", "abc")
	in.Position = cdc.Position{LSN: 5, Ordinal: 2}
	in.Commit = cdc.Commit{LSN: 5, XID: 9}
	ev, _, err := table.Event(in)
	if err != nil {
		t.Fatal(err)
	}
	next, _, err := table.Event(in)
	if err != nil {
		t.Fatal(err)
	}
	for _, v := range in.Values {
		clear(v.Text) // as the next Decode does
	}
	if got := flat(ev); ev.ID != "7" || got != "kind=k;outbox_id=7;payload=abc;" {
		t.Errorf("id %q, fields %q", ev.ID, got)
	}
	if ev.Position != in.Position || ev.Commit != in.Commit {
		t.Errorf("event at %v of %v, want %v of %v", ev.Position, ev.Commit, in.Position, in.Commit)
	}
	if ev.Bytes < 5 {
		t.Errorf("%d bytes, with %d in the fields alone", ev.Bytes, 5)
	}
	// A row's fields cannot grow into those of the next one.
	_ = append(ev.Fields, cdc.Field{Name: "more"})
	if got := flat(next); got != "kind=k;outbox_id=7;payload=abc;" {
		t.Errorf("the next row has the fields %q after an append to those of this one", got)
	}
	if got := flat(ev); got != "kind=k;outbox_id=7;payload=abc;" {
		t.Errorf("fields %q", got)
	}
}

func TestRowsShareAllocations(t *testing.T) {
	table := newTable(DefaultMapping())
	in := rowOf(public, "id", "7000", "kind", "k", "payload", "abc", "created_at", "now", "published_at", nil)
	n := testing.AllocsPerRun(100, func() {
		if _, ok, err := table.Event(in); !ok || err != nil {
			t.Fatal(ok, err)
		}
	})
	if n > 0 {
		t.Errorf("%v allocations a row, want one for many", n)
	}
}

// Memory is shared by small rows alone: a large one that is over leaves nothing
// behind, whatever else came beside it and is still in use.
func TestLargeRowsAreNotHeldOnTo(t *testing.T) {
	table := newTable(DefaultMapping())
	small := rowOf(public, "id", "7", "kind", "k", "payload", "{}")
	large := rowOf(public, "id", "8", "kind", "k", "payload", strings.Repeat("x", 1<<20))
	large.Relation = small.Relation
	before := heapInUse()
	var kept []cdc.Event
	for range 50 {
		for _, in := range []*cdc.Insert{small, large} {
			ev, _, err := table.Event(in)
			if err != nil {
				t.Fatal(err)
			}
			if in == small {
				kept = append(kept, ev)
			}
		}
	}
	if grown := heapInUse() - before; grown > 1<<20 {
		t.Errorf("%d bytes are in use after 50 rows of a mebibyte that nothing needs any more", grown)
	}
	runtime.KeepAlive(kept)
	runtime.KeepAlive(table)
}

// heapInUse is in bytes.
func heapInUse() int64 {
	runtime.GC()
	runtime.GC() // what the first one finds a finalizer of, or in a pool
	var stats runtime.MemStats
	runtime.ReadMemStats(&stats)
	return int64(stats.HeapAlloc)
}

func TestEventStopsAtWhatCannotBePublished(t *testing.T) {
	m := DefaultMapping()
	m.Fields = []FieldColumn{{"type", "Kind"}}
	for _, test := range []struct {
		mapping Mapping
		in      *cdc.Insert
		column  string // that is missing
		similar string
		target  error
		known   int // fields
	}{
		{DefaultMapping(), rowOf(public, "id", nil, "kind", "k", "payload", "{}"), "", "", ErrNullID, 2},
		{DefaultMapping(), rowOf(public, "kind", "k", "payload", "{}"), "id", "", nil, 0},
		{DefaultMapping(), rowOf(public, "id", "1", "payload", "{}"), "kind", "", nil, 2},
		{m, rowOf(public, "id", "1", "kind", "k"), "Kind", "kind", nil, 0},
	} {
		table := newTable(test.mapping)
		// The same again, since the second time nothing may be cached.
		for range 2 {
			ev, ok, err := table.Event(test.in)
			if test.column != "id" {
				if err != nil || !ok || len(ev.Fields) != test.known {
					t.Fatalf("%v: %v, %v, %v", test.in.Values, flat(ev), ok, err)
				}
				err = ev.Unfit
			} else if ok {
				t.Fatalf("%v: %v", test.in.Values, flat(ev))
			}
			if fault.As(err) == nil || fault.As(err).Fix == "" {
				t.Errorf("%v says no fix", err)
			}
			if test.target != nil {
				if !errors.Is(err, test.target) {
					t.Errorf("error %v, want %v", err, test.target)
				}
				continue
			}
			var missing *MissingColumnError
			if !errors.As(err, &missing) || missing.Table != public || missing.Column != test.column || missing.Similar != test.similar {
				t.Errorf("error %v, want column %s missing", err, test.column)
			}
		}
	}
}

// TestIDNeedsNoOtherColumn: rows of before a column was renamed come again, and
// those of them that have their entry are only marked.
func TestIDNeedsNoOtherColumn(t *testing.T) {
	table := newTable(DefaultMapping())
	if id, ok, err := table.ID(rowOf(public, "id", "7", "sort", "k")); id != "7" || !ok || err != nil {
		t.Errorf("%q, %t, %v", id, ok, err)
	}
	if _, ok, err := table.ID(rowOf(public, "id", "7", "published_at", "2026-01-01")); ok || err != nil {
		t.Errorf("a row that is marked already: %t, %v", ok, err)
	}
	if _, ok, err := table.ID(rowOf(public, "id", nil)); ok || err != nil {
		t.Errorf("a row without an id: %t, %v", ok, err)
	}
	in := rowOf(public, "id", nil)
	in.Position = cdc.Position{LSN: 0x16B3748, Ordinal: 2}
	if ev, _, err := table.Event(in); err != nil || !ev.NoID || ev.ID != "0/16B3748/2" {
		t.Errorf("a row without an id is named %q, %v", ev.ID, err)
	}
	var missing *MissingColumnError
	if _, ok, err := table.ID(rowOf(public, "kind", "k")); ok || !errors.As(err, &missing) || missing.Column != "id" {
		t.Errorf("a table without the id: %t, %v", ok, err)
	}
}
