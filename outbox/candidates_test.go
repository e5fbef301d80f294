package outbox

import (
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/stagedoor/walrelay/cdc"
	"github.com/stagedoor/walrelay/internal/pg"
	"github.com/stagedoor/walrelay/internal/testservers"
	"github.com/stagedoor/walrelay/migrations"
)

type candidate struct {
	ev     cdc.Event
	marked bool
}

// snapshot exports one from a session that keeps it open.
func (d *db) snapshot() string {
	d.t.Helper()
	conn := d.connect()
	d.on(conn, "BEGIN ISOLATION LEVEL REPEATABLE READ")
	var name string
	if err := conn.QueryRow(d.ctx(), "SELECT pg_export_snapshot()").Scan(&name); err != nil {
		d.t.Fatal(err)
	}
	return name
}

// openCandidates opens the candidates of this moment.
func openCandidates(d *db, table *Table, since cdc.Since, margin time.Duration) *Candidates {
	d.t.Helper()
	c, err := table.Candidates(d.ctx(), d.snapshot(), since, margin)
	if err != nil {
		d.t.Fatal(err)
	}
	d.t.Cleanup(c.Close)
	return c
}

// candidates reads the candidates of this moment.
func candidates(d *db, table *Table, since cdc.Since, margin time.Duration) []candidate {
	d.t.Helper()
	return all(d, openCandidates(d, table, since, margin))
}

func all(d *db, c *Candidates) []candidate {
	d.t.Helper()
	var got []candidate
	err := c.Each(d.ctx(), func(c cdc.Candidate) error {
		got = append(got, candidate{c.Event, c.Marked})
		return nil
	})
	if err != nil {
		d.t.Fatal(err)
	}
	return got
}

// ids prints candidates, a marked one with a star.
func ids(got []candidate) string {
	var s []string
	for _, c := range got {
		if c.marked {
			c.ev.ID += "*"
		}
		s = append(s, c.ev.ID)
	}
	return strings.Join(s, " ")
}

var noon = time.Date(2026, 7, 1, 12, 0, 0, 0, time.UTC)

func TestWhichRowsAreCandidates(t *testing.T) {
	shared := newDB(t)
	noCreated := DefaultMapping()
	noCreated.CreatedAt = ""
	const rows = `INSERT INTO outbox (id, kind, payload, created_at, published_at) VALUES
		(1, 'k', '1', '2026-06-01 12:00+00', NULL),
		(2, 'k', '2', '2026-07-01 10:59+00', NULL),
		(3, 'k', '3', '2026-07-01 11:01+00', NULL),
		(4, 'k', '4', '2026-06-01 12:00+00', '2026-07-01 11:59:49+00'),
		(5, 'k', '5', '2026-06-01 12:00+00', '2026-07-01 11:59:50+00'),
		(6, 'k', '6', '2026-07-01 12:30+00', '2026-07-01 12:31+00'),
		(7, 'k', '7', '2026-07-01 12:30+00', '2026-07-01 11:30+00')`
	for _, test := range []struct {
		name    string
		mark    MarkMode
		mapping Mapping
		sql     string
		since   cdc.Since
		want    string // in the order of creation time and id
		oldest  time.Time
	}{
		{
			name: "marks", since: cdc.Since{Time: noon},
			want: "1 5* 2 3 6*", oldest: noon.AddDate(0, -1, 0),
		},
		{
			name: "marks, at the first start", since: cdc.Since{Time: noon, First: true},
			want: "1 2 3 6*", oldest: noon.AddDate(0, -1, 0),
		},
		{name: "marks, since no time", want: "1 4* 5* 2 3 6* 7*", oldest: noon.AddDate(0, -1, 0)},
		{
			name: "marks, no creation time", mapping: noCreated, since: cdc.Since{Time: noon},
			want: "1 2 3 5* 6*",
		},
		{
			name: "marks, some creation times are not known", since: cdc.Since{Time: noon},
			sql:  "ALTER TABLE outbox ALTER created_at DROP NOT NULL; UPDATE outbox SET created_at = NULL WHERE id = 2",
			want: "1 5* 3 6* 2",
		},
		{
			name: "marks, infinite creation times", since: cdc.Since{Time: noon},
			sql:  "UPDATE outbox SET created_at = '-infinity' WHERE id = 3",
			want: "3 1 5* 2 6*",
		},
		{name: "no rows", sql: "TRUNCATE outbox", since: cdc.Since{Time: noon}},
		{
			name: "times without a zone have a wide margin",
			sql: `ALTER TABLE outbox ALTER created_at TYPE timestamp USING created_at AT TIME ZONE 'UTC',
				ALTER published_at TYPE timestamp USING published_at AT TIME ZONE 'UTC';
				UPDATE outbox SET published_at = '2026-06-30 20:59' WHERE id = 6;
				UPDATE outbox SET published_at = '2026-06-30 20:59:50' WHERE id = 7`,
			since: cdc.Since{Time: noon},
			want:  "1 4* 5* 2 3 7*", oldest: noon.AddDate(0, -1, 0).Add(-15 * time.Hour),
		},
		{
			name: "none", mark: MarkNone, since: cdc.Since{Time: noon},
			want: "3 6*", oldest: noon.Add(-59 * time.Minute),
		},
		{
			name: "none, unknown creation times", mark: MarkNone, since: cdc.Since{Time: noon},
			sql:  "ALTER TABLE outbox ALTER created_at DROP NOT NULL; UPDATE outbox SET created_at = NULL WHERE id = 1",
			want: "3 6* 1",
		},
		{
			name: "none, at the first start", mark: MarkNone, since: cdc.Since{Time: noon, First: true},
			want: "1 2 3 6*", oldest: noon.AddDate(0, -1, 0),
		},
		{
			name: "none, no creation time", mark: MarkNone, mapping: noCreated, since: cdc.Since{Time: noon},
			want: "1 2 3 5* 6*",
		},
		{
			name: "none, no column for marks", mark: MarkNone, sql: "ALTER TABLE outbox DROP published_at",
			since: cdc.Since{Time: noon}, want: "3 6 7", oldest: noon.Add(-59 * time.Minute),
		},
		{
			name: "delete", mark: MarkDelete, sql: "ALTER TABLE outbox DROP published_at",
			since: cdc.Since{Time: noon}, want: "1 4 5 2 3 6 7", oldest: noon.AddDate(0, -1, 0),
		},
		{
			name: "delete where somebody else marks", mark: MarkDelete,
			since: cdc.Since{Time: noon}, want: "1 5* 2 3 6*", oldest: noon.AddDate(0, -1, 0),
		},
	} {
		t.Run(test.name, func(t *testing.T) {
			d := shared.anew(t)
			d.exec(rows)
			if test.sql != "" {
				d.exec(test.sql)
			}
			c := openCandidates(d, d.checked(Config{Mapping: test.mapping, Mark: test.mark}), test.since, time.Hour)
			n, oldest, err := c.Count(d.ctx())
			if err != nil {
				t.Fatal(err)
			}
			if want := len(strings.Fields(test.want)); n != int64(want) {
				t.Errorf("%d candidates, want %d", n, want)
			}
			if !oldest.Equal(test.oldest) || oldest.IsZero() != test.oldest.IsZero() {
				t.Errorf("oldest of %v, want %v", oldest, test.oldest)
			}
			if got := ids(all(d, c)); got != test.want {
				t.Errorf("candidates %q, want %q", got, test.want)
			}
		})
	}
}

// TestCandidatesAreThoseOfTheSnapshot: what commits afterwards comes from the
// slot.
func TestCandidatesAreThoseOfTheSnapshot(t *testing.T) {
	d := newOutbox(t)
	insert := func(id int) { d.exec(fmt.Sprintf("INSERT INTO outbox (id, kind, payload) VALUES (%d, 'k', '{}')", id)) }
	insert(1)
	insert(2)
	name := d.snapshot()
	insert(3)
	d.exec("UPDATE outbox SET published_at = now(), kind = 'other' WHERE id = 1; DELETE FROM outbox WHERE id = 2")
	c, err := d.checked(Config{}).Candidates(d.ctx(), name, cdc.Since{Time: time.Now()}, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	got := all(d, c)
	if ids(got) != "1 2" || flat(got[0].ev) != "kind=k;outbox_id=1;payload={};" {
		t.Errorf("candidates %q, the first %q", ids(got), flat(got[0].ev))
	}
	if n, _, err := c.Count(d.ctx()); n != 2 || err != nil {
		t.Errorf("%d candidates, %v", n, err)
	}
	// It is a view of the past, and only a view.
	if err := c.exec(d.ctx(), "INSERT INTO outbox (kind, payload) VALUES ('k', '{}')"); pg.Code(err) != "25006" {
		t.Errorf("error %v, want a read-only transaction", err)
	}
}

func TestCandidatesOfASnapshotThatIsGone(t *testing.T) {
	d := newOutbox(t)
	for _, name := range []string{"00000009-00000009-1", "'; DROP TABLE outbox; --"} {
		c, err := d.checked(Config{}).Candidates(d.ctx(), name, cdc.Since{}, 0)
		if err == nil {
			c.Close()
			t.Errorf("there are candidates in the snapshot %q", name)
		}
	}
}

// TestEachIsTheSameEveryTime, across chunks, and after fn stopped it.
func TestEachIsTheSameEveryTime(t *testing.T) {
	d := newOutbox(t)
	// No unique id, and all times the same: only the place of a row is left.
	d.exec(`ALTER TABLE outbox DROP CONSTRAINT outbox_pkey;
		INSERT INTO outbox (id, kind, payload) SELECT n / 7, n::text, '{}' FROM generate_series(1, 350) n ORDER BY n % 13`)
	c := openCandidates(d, d.checked(Config{}), cdc.Since{Time: time.Now()}, 0)
	want := all(d, c)
	var kinds []string
	for _, c := range want {
		kinds = append(kinds, string(c.ev.Fields[0].Value))
	}
	if in := d.text("SELECT kind FROM outbox ORDER BY id, ctid"); strings.Join(kinds, " ") != in {
		t.Fatalf("candidates\n%s\nwant\n%s", kinds, in)
	}
	stop := errors.New("enough")
	for _, after := range []int{1, 100, 150, 350} {
		n := 0
		err := c.Each(d.ctx(), func(c cdc.Candidate) error {
			if flat(c.Event) != flat(want[n].ev) {
				t.Fatalf("candidate %d is %s, want %s", n, flat(c.Event), flat(want[n].ev))
			}
			if n++; n == after {
				return stop
			}
			return nil
		})
		if n != after || !errors.Is(err, stop) {
			t.Errorf("%d candidates, %v, want it to stop after %d", n, err, after)
		}
	}
}

// TestEventsOfEachCanBeKept: the next row, or chunk, does not write over them.
func TestEventsOfEachCanBeKept(t *testing.T) {
	d := newOutbox(t)
	d.exec("INSERT INTO outbox (kind, payload) SELECT 'k' || n, to_jsonb(n) FROM generate_series(1, 250) n")
	for i, c := range candidates(d, d.checked(Config{}), cdc.Since{Time: time.Now()}, 0) {
		if want := fmt.Sprintf("kind=k%d;outbox_id=%[1]d;payload=%[1]d;", i+1); flat(c.ev) != want {
			t.Fatalf("candidate %s, want %s", flat(c.ev), want)
		}
	}
}

func TestCandidateWithoutID(t *testing.T) {
	d := newOutbox(t)
	d.exec(`ALTER TABLE outbox DROP CONSTRAINT outbox_pkey, ALTER id DROP IDENTITY; ALTER TABLE outbox ALTER id DROP NOT NULL;
		INSERT INTO outbox (id, kind, payload) VALUES (1, 'k', '{}'), (NULL, 'k', '{}'), (NULL, 'l', '{}')`)
	oid := d.text("SELECT 'outbox'::regclass::oid::text")
	var names []string
	for _, c := range candidates(d, d.checked(Config{}), cdc.Since{Time: time.Now()}, 0) {
		if c.ev.NoID != errors.Is(c.ev.Unfit, ErrNullID) {
			t.Errorf("%s: without an id %v, unfit %v", c.ev.ID, c.ev.NoID, c.ev.Unfit)
		}
		names = append(names, c.ev.ID)
	}
	if want := []string{"1", "ctid/" + oid + "/0,2", "ctid/" + oid + "/0,3"}; !slices.Equal(names, want) {
		t.Errorf("they are named %q, want %q", names, want)
	}
}

// TestCandidatesInCommitOrder: where the server knows when transactions
// committed, that is the order, whatever ids and creation times say.
func TestCandidatesInCommitOrder(t *testing.T) {
	for _, on := range []bool{false, true} {
		t.Run(fmt.Sprintf("track_commit_timestamp=%v", on), func(t *testing.T) {
			dsn := server.NewDatabase(t)
			if on {
				own := testservers.StartPostgres(t, testservers.PostgresOptions{
					Settings: map[string]string{"track_commit_timestamp": "on"},
				})
				dsn = own.NewDatabase(t)
			}
			d := newDBOn(t, dsn)
			d.exec(`CREATE TABLE outbox (id bigint, kind text, payload jsonb, created_at timestamptz, published_at timestamptz, PRIMARY KEY (id, kind))
				PARTITION BY LIST (kind);
				CREATE TABLE a PARTITION OF outbox FOR VALUES IN ('a'); CREATE TABLE b PARTITION OF outbox FOR VALUES IN ('b')`)
			insert := func(id int, kind string, created int) string {
				return fmt.Sprintf("INSERT INTO outbox VALUES (%d, '%s', '{}', timestamptz '2026-07-01 12:00+00' + %d * interval '1 s')", id, kind, created)
			}
			other := d.connect()
			d.on(other, "BEGIN;"+insert(1, "a", 1))
			d.exec(insert(6, "b", 6))
			d.exec("BEGIN;" + insert(5, "a", 5) + ";SAVEPOINT s;" + insert(4, "b", 4) + ";RELEASE s;" + insert(3, "a", 3) + ";COMMIT")
			d.on(other, insert(2, "b", 2)+";COMMIT")
			d.exec(insert(7, "a", 0))
			c := openCandidates(d, d.checked(Config{}), cdc.Since{Time: noon}, 0)
			want := "7 1 2 3 4 5 6"
			if on {
				want = "6 3 4 5 1 2 7"
			}
			if got := ids(all(d, c)); got != want {
				t.Errorf("candidates %q, want %q", got, want)
			}
			// Frozen rows keep their order; rows of the bootstrap come first.
			d.exec("VACUUM (FREEZE) outbox")
			if got := ids(candidates(d, d.checked(Config{}), cdc.Since{Time: noon}, 0)); got != want {
				t.Errorf("candidates %q after a freeze, want %q", got, want)
			}
		})
	}
}

// TestCommitOrderOfRowsThatAreTooOld: the server forgets when old transactions
// committed. Their rows come first.
func TestCommitOrderOfRowsThatAreTooOld(t *testing.T) {
	own := testservers.StartPostgres(t, testservers.PostgresOptions{})
	d := newDBOn(t, own.NewDatabase(t))
	d.exec(migrations.Table(public))
	d.exec("INSERT INTO outbox (id, kind, payload) VALUES (9, 'k', '{}')")
	d.exec("ALTER SYSTEM SET track_commit_timestamp = on")
	hangUp(d.conn)
	own.Restart("fast")
	d.conn = d.connect()
	d.exec("INSERT INTO outbox (id, kind, payload, created_at) VALUES (8, 'k', '{}', '2020-01-01')")
	d.exec("INSERT INTO outbox (id, kind, payload, created_at) VALUES (7, 'k', '{}', '2019-01-01')")
	got := ids(candidates(d, d.checked(Config{}), cdc.Since{Time: time.Now()}, 0))
	if got != "9 8 7" {
		t.Errorf("candidates %q, want the one of an unknown time first", got)
	}
}

func TestCandidatesOfOddNames(t *testing.T) {
	d := newDB(t)
	name := cdc.Table{Schema: `Sche"ma.x`, Name: `Out {table} 'box'`}
	m := Mapping{
		ID: `I D"`, CreatedAt: "{id}", PublishedAt: "$1", Kind: "{published}", Payload: "Pay'load",
		Fields: []FieldColumn{{"one", "{published}"}, {"two", "Pay'load"}, {"three", `I D"`}},
	}
	d.exec(`CREATE SCHEMA "Sche""ma.x"; CREATE TABLE ` + name.String() + ` ("I D""" bigint PRIMARY KEY, "{published}" text, "Pay'load" text, "{id}" timestamptz DEFAULT now(), "$1" timestamptz);
		INSERT INTO ` + name.String() + ` VALUES (1, 'a', 'b')`)
	table := d.checked(Config{Table: name, Mapping: m})
	f := newFeed(d, name)
	d.exec("INSERT INTO " + name.String() + " VALUES (2, 'a', 'b')")
	ev, ok, err := table.Event(f.inserts(1)[0])
	if err != nil || !ok || flat(ev) != "one=a;two=b;three=2;" {
		t.Errorf("event %q, %v, %v", flat(ev), ok, err)
	}
	c := openCandidates(d, table, cdc.Since{Time: time.Now()}, time.Hour)
	if got := all(d, c); ids(got) != "1 2" || flat(got[0].ev) != "one=a;two=b;three=1;" {
		t.Errorf("candidates %q, the first %q", ids(got), flat(got[0].ev))
	}
	if n, oldest, err := c.Count(d.ctx()); n != 2 || oldest.IsZero() || err != nil {
		t.Errorf("%d candidates, oldest %v, %v", n, oldest, err)
	}
	if seen, err := table.LookNow(d.ctx(), d.conn, 100, []string{"1"}); !seen.Found || err != nil {
		t.Errorf("oldest found %v, %v", seen.Found, err)
	}
	if got := mark(d, table, 1, 2); !slices.Equal(got, done2) {
		t.Errorf("states %v", got)
	}
	if text, _, err := table.Locker(d.ctx(), "1"); text != "" || err != nil {
		t.Errorf("locked by %q, %v", text, err)
	}
	if left := d.text(`SELECT "I D""" FROM ` + name.String() + ` WHERE "$1" IS NULL`); left != "" {
		t.Errorf("%s not marked", left)
	}
}
