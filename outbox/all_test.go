package outbox

import (
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/stagedoor/walrelay/cdc"
)

// openAll takes a snapshot of the table.
func openAll(d *db, table *Table, since time.Time) *All {
	d.t.Helper()
	a, err := table.All(d.ctx(), since)
	if err != nil {
		d.t.Fatal(err)
	}
	d.t.Cleanup(a.Close)
	return a
}

// printed are the rows that a method gives, in the order of their ids: with a
// star where marked, and the creation time.
func printed(d *db, each func(fn func(Row) error) error) string {
	d.t.Helper()
	var got []string
	err := each(func(r Row) error {
		s := r.Event.ID
		if r.Marked {
			s += "*"
		}
		if !r.Created.IsZero() {
			s += "@" + r.Created.UTC().Format("15:04")
		}
		got = append(got, s)
		return nil
	})
	if err != nil {
		d.t.Fatal(err)
	}
	slices.Sort(got)
	return strings.Join(got, " ")
}

func (a *All) print(d *db) string {
	d.t.Helper()
	return printed(d, func(fn func(Row) error) error { return a.Each(d.ctx(), fn) })
}

func (a *All) printAgain(d *db, ids ...string) string {
	d.t.Helper()
	return printed(d, func(fn func(Row) error) error { return a.Again(d.ctx(), ids, fn) })
}

func TestAllRows(t *testing.T) {
	shared := newDB(t)
	noCreated, noPublished := DefaultMapping(), DefaultMapping()
	noCreated.CreatedAt, noPublished.PublishedAt = "", ""
	const rows = `INSERT INTO outbox (id, kind, payload, created_at, published_at) VALUES
		(1, 'k', '1', '2026-07-01 09:00+00', '2026-07-01 13:00+00'),
		(2, 'k', '2', '2026-07-01 12:00+00', NULL),
		(3, 'k', '3', '2026-07-01 12:30+00', '2026-07-01 12:31+00')`
	for _, test := range []struct {
		name    string
		mapping Mapping
		sql     string
		since   time.Time
		want    string
		whole   time.Time
	}{
		{name: "all", want: "1*@09:00 2@12:00 3*@12:30", whole: noon.Add(31 * time.Minute)},
		{name: "the newer ones", since: noon, want: "2@12:00 3*@12:30", whole: noon.Add(31 * time.Minute)},
		{name: "none so new", since: noon.Add(time.Hour), whole: noon.Add(31 * time.Minute)},
		{name: "no creation time", mapping: noCreated, since: noon, want: "1* 2 3*", whole: noon.Add(31 * time.Minute)},
		{name: "no marks", mapping: noPublished, want: "1@09:00 2@12:00 3@12:30", whole: noon.Add(-3 * time.Hour)},
		{name: "nothing is marked", sql: "UPDATE outbox SET published_at = NULL", want: "1@09:00 2@12:00 3@12:30"},
		{name: "no rows", sql: "TRUNCATE outbox"},
		{
			name: "times that are none", since: noon,
			sql:  "ALTER TABLE outbox ALTER created_at DROP NOT NULL; UPDATE outbox SET created_at = NULL WHERE id = 1; UPDATE outbox SET created_at = 'infinity' WHERE id = 2; UPDATE outbox SET published_at = '-infinity' WHERE id = 3",
			want: "1* 2 3*@12:30", whole: noon.Add(time.Hour),
		},
		{
			name: "times without a zone", since: noon,
			sql: `ALTER TABLE outbox ALTER created_at TYPE timestamp USING created_at AT TIME ZONE 'UTC',
				ALTER published_at TYPE timestamp USING published_at AT TIME ZONE 'UTC'`,
			want: "1*@18:00 2@21:00 3*@21:30", whole: noon.Add(15*time.Hour + 31*time.Minute),
		},
	} {
		t.Run(test.name, func(t *testing.T) {
			d := shared.anew(t)
			d.exec(rows)
			if test.sql != "" {
				d.exec(test.sql)
			}
			a := openAll(d, d.checked(Config{Mapping: test.mapping}), test.since)
			n, whole, err := a.Count(d.ctx())
			if err != nil {
				t.Fatal(err)
			}
			if want := len(strings.Fields(test.want)); n != int64(want) {
				t.Errorf("%d rows, want %d", n, want)
			}
			if !whole.Equal(test.whole) || whole.IsZero() != test.whole.IsZero() {
				t.Errorf("whole since %v, want %v", whole, test.whole)
			}
			if got := a.print(d); got != test.want {
				t.Errorf("rows %q, want %q", got, test.want)
			}
		})
	}
}

// The snapshot stays as it was, and its position is beyond its commits; again is
// as it is now.
func TestAllRowsAreThoseOfTheSnapshot(t *testing.T) {
	d := newOutbox(t)
	d.exec("INSERT INTO outbox (id, kind, payload) VALUES (1, 'k', '{}'), (2, 'k', '{}')")
	before := d.text("SELECT pg_current_wal_insert_lsn()")
	a := openAll(d, d.checked(Config{}), time.Time{})
	d.exec("INSERT INTO outbox (id, kind, payload) VALUES (3, 'k', '{}')")
	d.exec("UPDATE outbox SET published_at = now() WHERE id = 1; DELETE FROM outbox WHERE id = 2")
	after := d.text("SELECT pg_current_wal_insert_lsn()")
	at := d.text("SELECT to_char(created_at, '@HH24:MI') FROM outbox WHERE id = 1")
	at3 := d.text("SELECT to_char(created_at, '@HH24:MI') FROM outbox WHERE id = 3")
	if got, want := a.print(d), "1"+at+" 2"+at; got != want {
		t.Errorf("rows %q, want %q", got, want)
	}
	if got, want := a.printAgain(d, "1", "2", "3", "4"), "1*"+at+" 3"+at3; got != want {
		t.Errorf("again %q, want %q", got, want)
	}
	low, err := cdc.ParseLSN(before)
	if err != nil {
		t.Fatal(err)
	}
	high, err := cdc.ParseLSN(after)
	if err != nil {
		t.Fatal(err)
	}
	if a.LSN()+pageHeader < low || a.LSN() >= high {
		t.Errorf("the position is %s, want from %s to %s", a.LSN(), before, after)
	}
}

// An entry may say anything of its id.
func TestRowsAgainByIdsThatAreNone(t *testing.T) {
	d := newOutbox(t)
	d.exec("INSERT INTO outbox (id, kind, payload, created_at) VALUES (1, 'k', '{}', 'infinity'), (2, 'k', '{}', 'infinity')")
	a := openAll(d, d.checked(Config{}), time.Time{})
	if got := a.printAgain(d, "x", "1", "", `"`, "99999999999999999999", `a\b`, "{2}", "2", "NULL"); got != "1 2" {
		t.Errorf("found %q", got)
	}
	if got := a.printAgain(d); got != "" {
		t.Errorf("found %q for no ids", got)
	}
}

// More rows than are fetched at once all come, and as the log has them.
func TestAllOfManyRows(t *testing.T) {
	d := newOutbox(t)
	d.exec(fmt.Sprintf("INSERT INTO outbox (kind, payload) SELECT 'k', jsonb_build_object('n', i) FROM generate_series(1, %d) i", 2*allChunk+1))
	a := openAll(d, d.checked(Config{}), time.Time{})
	seen := map[string]bool{}
	err := a.Each(d.ctx(), func(r Row) error {
		seen[r.Event.ID] = true
		if len(r.Event.Fields) != 3 || string(r.Event.Fields[2].Value) != `{"n": `+r.Event.ID+`}` {
			return fmt.Errorf("row %s is %v", r.Event.ID, r.Event.Fields)
		}
		return nil
	})
	if err != nil || len(seen) != 2*allChunk+1 {
		t.Errorf("%d rows, %v", len(seen), err)
	}
}

// A row without an id is one of all rows.
func TestAllRowsWithoutAnID(t *testing.T) {
	d := newDB(t)
	d.exec("CREATE TABLE outbox (id int, kind text, payload text, created_at timestamptz, published_at timestamptz); INSERT INTO outbox VALUES (NULL, 'k', '{}'), (1, 'k', '{}')")
	without := 0
	err := openAll(d, d.checked(Config{}), time.Time{}).Each(d.ctx(), func(r Row) error {
		if r.Event.NoID {
			without++
		}
		return nil
	})
	if err != nil || without != 1 {
		t.Errorf("%d rows without an id, %v", without, err)
	}
}

// Nothing is ever written between the end of a page's last record and the next
// page's header, so a position behind the header would never be covered.
func TestPositionAtAPagesBeginning(t *testing.T) {
	for insert, want := range map[cdc.LSN]cdc.LSN{
		0x2000000: 0x2000000, 0x2000028: 0x2000000, 0x2002018: 0x2002000, 0x2002048: 0x2002048, 0x2001fff: 0x2001fff,
	} {
		if got := endOfRecord(insert, 8192); got != want {
			t.Errorf("%s: %s, want %s", insert, got, want)
		}
	}
}
