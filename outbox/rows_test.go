package outbox

import (
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/stagedoor/walrelay/cdc"
	"github.com/stagedoor/walrelay/internal/fault"
)

// rowIDs reads rows and prints their ids, sorted.
func rowIDs(d *db, table *Table, ids ...string) string {
	d.t.Helper()
	events, err := table.Rows(d.ctx(), ids)
	if err != nil {
		d.t.Fatal(err)
	}
	var got []string
	for _, ev := range events {
		got = append(got, ev.ID)
	}
	slices.Sort(got)
	return strings.Join(got, " ")
}

// TestRowsByID: what no row can have is simply not there, and a cast that makes
// another value of it finds nothing.
func TestRowsByID(t *testing.T) {
	shared := newDB(t)
	for _, test := range []struct {
		name, sql string // the table's ids
		ids       []string
		want      string
	}{
		{
			name: "numbers",
			ids:  []string{"1", "abc", "2", "2", "", "NULL", "77", "-1", "99999999999999999999", " 3", "003", "1.0", "4\x00", "\xff"},
			want: "1 2",
		},
		{
			name: "no numbers at all",
			ids:  []string{"a", "b", "c"},
		},
		{
			name: "nothing is asked for",
		},
		{
			name: "uuids",
			sql:  `ALTER TABLE outbox ALTER id DROP IDENTITY; ALTER TABLE outbox ALTER id TYPE uuid USING lpad(id::text, 32, 'a')::uuid`,
			ids:  []string{"1", "aaaaaaaa-aaaa-aaaa-aaaa-aaaaaaaaaaa1", "AAAAAAAA-aaaa-aaaa-aaaa-aaaaaaaaaaa2", "aaaaaaaa-aaaa-aaaa-aaaa-aaaaaaaaaaaa"},
			want: "aaaaaaaa-aaaa-aaaa-aaaa-aaaaaaaaaaa1",
		},
		{
			name: "short texts",
			sql:  `ALTER TABLE outbox ALTER id DROP IDENTITY; ALTER TABLE outbox ALTER id TYPE varchar(3) USING 'id' || id`,
			ids:  []string{"id1", "id22", `{"`, `\`, "id3"},
			want: "id1 id3",
		},
		{
			name: "a domain",
			sql: `CREATE DOMAIN small AS integer NOT NULL CHECK (VALUE < 10);
				ALTER TABLE outbox ALTER id DROP IDENTITY; ALTER TABLE outbox ALTER id TYPE small`,
			ids:  []string{"1", "11", "x", "2"},
			want: "1 2",
		},
		{
			name: "ids that several have",
			sql:  `ALTER TABLE outbox DROP CONSTRAINT outbox_pkey; UPDATE outbox SET id = 1 WHERE id < 3`,
			ids:  []string{"1", "2", "3"},
			want: "1 1 3",
		},
	} {
		t.Run(test.name, func(t *testing.T) {
			d := shared.anew(t)
			d.fillOutbox(4)
			if test.sql != "" {
				d.exec(test.sql)
			}
			if got := rowIDs(d, d.checked(Config{}), test.ids...); got != test.want {
				t.Errorf("rows %q, want %q", got, test.want)
			}
		})
	}
}

// TestRowsAreWhatABackfillMakesOfThem, whether they are marked or not, and
// however many are asked for.
func TestRowsAreWhatABackfillMakesOfThem(t *testing.T) {
	d := newOutbox(t)
	const n = 2*rowsChunk + 100
	d.exec(fmt.Sprintf(`INSERT INTO outbox (id, kind, payload, published_at)
		SELECT n, 'k' || n, jsonb_build_object('é', n), CASE WHEN n %% 2 = 0 THEN now() END FROM generate_series(1, %d) n`, n))
	table := d.checked(Config{Mapping: Mapping{
		ID: "id", Kind: "kind", Payload: "payload", CreatedAt: "created_at", PublishedAt: "published_at",
		Fields: []FieldColumn{{"p", "payload"}, {"id", "id"}, {"at", "published_at"}, {"k", "kind"}},
	}})
	want := map[string]string{}
	var ids []string
	for _, c := range candidates(d, table, cdc.Since{Time: time.Now().Add(-time.Hour)}, 0) {
		want[c.ev.ID] = flat(c.ev)
		ids = append(ids, c.ev.ID)
		if len(ids)%3 == 0 {
			ids = append(ids, "not a number")
		}
	}
	got, err := table.Rows(d.ctx(), ids)
	if err != nil || len(want) != n || len(got) != n {
		t.Fatalf("%d rows of %d candidates, %v; want %d", len(got), len(want), err, n)
	}
	for _, ev := range got {
		if flat(ev) != want[ev.ID] {
			t.Errorf("row %s, want %s", flat(ev), want[ev.ID])
		}
		delete(want, ev.ID)
	}
}

// TestRowsThatAPolicyHides are not taken for rows that are not there.
func TestRowsThatAPolicyHides(t *testing.T) {
	d := newOutbox(t)
	d.fillOutbox(2)
	role := d.role("GRANT USAGE ON SCHEMA public TO %s", "GRANT SELECT, UPDATE (published_at) ON outbox TO %s")
	table := d.checked(Config{Conn: d.config(role)})
	if got := rowIDs(d, table, "1", "2"); got != "1 2" {
		t.Errorf("rows %q", got)
	}
	conn := d.connectAs(role)
	d.exec("ALTER TABLE outbox ENABLE ROW LEVEL SECURITY")
	if _, err := table.Rows(d.ctx(), []string{"1", "x"}); fault.As(err) == nil {
		t.Errorf("error %v, want one for an operator", err)
	}
	if _, err := table.LookNow(d.ctx(), conn, 100, nil); fault.As(err) == nil {
		t.Errorf("error %v, want one for an operator", err)
	}
}

func TestKeepsRows(t *testing.T) {
	d := newOutbox(t)
	for mode, want := range map[MarkMode]bool{MarkAuto: true, MarkPublishedAt: true, MarkDelete: false, MarkNone: true} {
		if got := d.checked(Config{Mark: mode}).KeepsRows(); got != want {
			t.Errorf("%s: %v", mode, got)
		}
	}
}
