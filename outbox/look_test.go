package outbox

import (
	"context"
	"fmt"
	"log/slog"
	"slices"
	"strings"
	"testing"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"

	"github.com/stagedoor/walrelay/cdc"
	"github.com/stagedoor/walrelay/internal/fault"
	"github.com/stagedoor/walrelay/internal/pg"
)

// connectAs opens a session of another user.
func (d *db) connectAs(user string) *pgx.Conn {
	d.t.Helper()
	conn, err := pg.Connect(d.ctx(), d.config(user))
	if err != nil {
		d.t.Fatal(err)
	}
	d.t.Cleanup(func() { hangUp(conn) })
	return conn
}

// look asks as the monitor does: in one statement, in which the end of the WAL
// may be read before the rows are.
func (d *db) look(table *Table, limit int, except, again []string) (Looked, cdc.LSN) {
	d.t.Helper()
	sql, args, err := table.Look(1, limit, except, again)
	if err != nil {
		d.t.Fatal(err)
	}
	if sql == "" {
		return Looked{}, 0
	}
	var at, text string
	args = append([]any{pgx.QueryExecModeCacheStatement}, args...)
	if err := d.conn.QueryRow(d.ctx(), "SELECT pg_current_wal_insert_lsn()::text, ("+sql+")", args...).Scan(&at, &text); err != nil {
		d.t.Fatal(err)
	}
	end, err := cdc.ParseLSN(at)
	if err != nil {
		d.t.Fatal(err)
	}
	seen, err := table.Saw(text)
	if err != nil {
		d.t.Fatal(err)
	}
	return seen, end
}

func TestWhichRowsAreUnmarked(t *testing.T) {
	shared := newDB(t)
	const rows = `INSERT INTO outbox (id, kind, payload, published_at) SELECT n, 'k', '{}', CASE WHEN n % 2 = 0 THEN now() END
		FROM generate_series(1, 12) n ORDER BY -n`
	for _, test := range []struct {
		name         string
		mark         MarkMode
		sql          string
		oldest, then string // and after 3 was marked and 5 deleted, of 2, 3, 5, 7 and 99
	}{
		{name: "marks", oldest: "1 3 5 7", then: "7"},
		{name: "delete", mark: MarkDelete, sql: "ALTER TABLE outbox DROP published_at", oldest: "1 2 3 4", then: "2 7"},
		{name: "delete where somebody else marks", mark: MarkDelete, oldest: "1 3 5 7", then: "7"},
		{name: "no marks", mark: MarkNone},
		{name: "no rows", sql: "TRUNCATE outbox"},
		{
			name: "rows without an id", oldest: "1 3 5 7", then: "7",
			sql: `ALTER TABLE outbox DROP CONSTRAINT outbox_pkey, ALTER id DROP IDENTITY; ALTER TABLE outbox ALTER id DROP NOT NULL;
				INSERT INTO outbox (id, kind, payload) VALUES (NULL, 'k', '{}')`,
		},
	} {
		t.Run(test.name, func(t *testing.T) {
			d := shared.anew(t)
			d.exec(rows)
			if test.sql != "" {
				d.exec(test.sql)
			}
			table := d.checked(Config{Mark: test.mark})
			seen, end := d.look(table, 4, nil, nil)
			if got := strings.Join(seen.Unmarked, " "); got != test.oldest || seen.Still != nil {
				t.Errorf("unmarked %q, still %q, want %q", got, seen.Still, test.oldest)
			}
			now, err := cdc.ParseLSN(d.text("SELECT pg_current_wal_insert_lsn()"))
			if err != nil || end > now || (end == 0) != (test.mark == MarkNone) {
				t.Errorf("the WAL ended at %s, now at %s, %v", end, now, err)
			}
			if strings.HasPrefix(test.sql, "ALTER TABLE outbox DROP published_at") {
				d.exec("DELETE FROM outbox WHERE id = 3")
			} else {
				d.exec("UPDATE outbox SET published_at = now() WHERE id = 3")
			}
			d.exec("DELETE FROM outbox WHERE id = 5")
			seen, _ = d.look(table, 4, nil, []string{"2", "3", "5", "7", "99"})
			slices.Sort(seen.Still)
			if got := strings.Join(seen.Still, " "); got != test.then {
				t.Errorf("still unmarked %q, want %q", got, test.then)
			}
		})
	}
}

// TestUnmarkedRowsLieBeforeTheEnd: every row that is seen was committed before
// the end that comes with it, also where commits do not wait for the disk.
func TestUnmarkedRowsLieBeforeTheEnd(t *testing.T) {
	d := newOutbox(t)
	f := newFeed(d, public)
	table := d.checked(Config{})
	const n = 500
	writer := d.connect()
	wrote := make(chan error, 1)
	ctx, cancel := context.WithCancel(d.ctx())
	go func() {
		_, err := writer.PgConn().Exec(ctx, "SET synchronous_commit = off").ReadAll()
		for i := 1; i <= n && err == nil; i++ {
			_, err = writer.PgConn().Exec(ctx, fmt.Sprintf("INSERT INTO outbox (id, kind, payload) VALUES (%d, 'k', '{}')", i)).ReadAll()
		}
		wrote <- err
	}()
	first := map[string]cdc.LSN{} // the end that came when a row was seen first
	for len(first) < n && !t.Failed() {
		seen, end := d.look(table, n, nil, nil)
		for _, id := range seen.Unmarked {
			if _, seen := first[id]; !seen {
				first[id] = end
			}
		}
	}
	cancel()
	if err := <-wrote; err != nil && !t.Failed() {
		t.Fatal(err)
	}
	for _, in := range f.inserts(len(first)) {
		id, _, err := table.ID(in)
		if err != nil {
			t.Fatal(err)
		}
		if end := first[id]; in.Commit.LSN >= end {
			t.Errorf("row %s was committed at %s and seen before %s", id, in.Commit.LSN, end)
		}
	}
}

// TestUnmarkedRowsAreFoundByTheIndex, which has them in order: the whole table
// is read neither for them nor for the sort. Also by a plan that was made while there
// were none, and whatever the ids are that are asked about.
func TestUnmarkedRowsAreFoundByTheIndex(t *testing.T) {
	shared := newDB(t)
	for name, sql := range map[string]string{
		"a table": "",
		"partitions": `DROP TABLE outbox; CREATE TABLE outbox (id bigint, kind text, payload jsonb, created_at timestamptz, published_at timestamptz, PRIMARY KEY (id, kind))
			PARTITION BY LIST (kind); CREATE INDEX ON outbox (id) WHERE published_at IS NULL;
			CREATE TABLE a PARTITION OF outbox FOR VALUES IN ('k'); CREATE TABLE b PARTITION OF outbox FOR VALUES IN ('l')`,
	} {
		t.Run(name, func(t *testing.T) {
			d := shared.anew(t)
			if sql != "" {
				d.exec(sql)
			}
			table := d.checked(Config{})
			look, _, err := table.Look(1, 100, nil, nil)
			if err != nil {
				t.Fatal(err)
			}
			if same, _, err := table.Look(1, 100, []string{"1", "2"}, []string{"7", "8"}); same != look || err != nil {
				t.Errorf("asks %q, and then %q, %v", look, same, err)
			}
			monitor := d.connect()
			d.on(monitor, "BEGIN; "+noScan+"; SET LOCAL plan_cache_mode = force_generic_plan; PREPARE kept AS "+look)
			for i, fill := range []string{
				"", "INSERT INTO outbox (id, kind, payload, published_at) SELECT n, 'k', '{}', now() FROM generate_series(1, 3000) n",
				"ANALYZE outbox", "UPDATE outbox SET published_at = NULL WHERE id < 1000", "ANALYZE outbox",
			} {
				d.exec(fill)
				anew := fmt.Sprint("anew", i)
				d.on(monitor, "PREPARE "+anew+" AS "+look)
				for _, statement := range []string{"kept", anew} {
					results, err := monitor.PgConn().Exec(d.ctx(), "EXPLAIN EXECUTE "+statement+"('{1,2}', '{7,8}')").ReadAll()
					if err != nil {
						t.Fatal(err)
					}
					var plan []string
					for _, row := range results[len(results)-1].Rows {
						plan = append(plan, string(row[0]))
					}
					text := strings.Join(plan, "\n")
					if strings.Contains(text, "Seq Scan") || strings.Contains(text, "Bitmap") || strings.Contains(text, "Sort  (") || !strings.Contains(text, "id_idx") {
						t.Errorf("after %q the plan %s is\n%s", fill, statement, text)
					}
				}
			}
		})
	}
}

// TestIDsOfALookAreTheLogs: a row is told by its id as the log has it, whatever
// the type, and whatever is in it.
func TestIDsOfALookAreTheLogs(t *testing.T) {
	shared := newDB(t)
	for typ, ids := range map[string][]string{
		"text":    {`a"b\c'd`, "{id} {table}", "NULL", "ü\n", ""},
		"char(3)": {"a  "}, "boolean": {"t"}, "numeric": {"1.10"}, "float8": {"0.1", "1e+300"}, "timestamptz": {"2025-03-01 03:00:00+00"},
		"uuid": {"a0eebc99-9c0b-4ef8-bb6d-6bb9bd380a11"},
	} {
		t.Run(typ, func(t *testing.T) {
			d := shared.anew(t)
			d.exec("ALTER TABLE outbox DROP CONSTRAINT outbox_pkey, ALTER id DROP IDENTITY; ALTER TABLE outbox ALTER id TYPE " + typ + " USING NULL::text::" + typ)
			table := d.checked(Config{Mark: MarkDelete})
			for _, id := range ids {
				d.exec("INSERT INTO outbox (id, kind, payload) VALUES (" + cdc.QuoteLiteral(id) + ", 'k', '{}')")
			}
			seen, _ := d.look(table, 10, []string{"1"}[:0], ids)
			for _, got := range [][]string{seen.Unmarked, seen.Still} {
				slices.Sort(got)
				slices.Sort(ids)
				if !slices.Equal(got, ids) {
					t.Errorf("saw %q, want %q", got, ids)
				}
			}
			if seen, _ := d.look(table, 10, ids, nil); len(seen.Unmarked) > 0 || seen.Found {
				t.Errorf("but for those it saw %+v", seen)
			}
		})
	}
}

// TestALookThatTakesTooLongIsRepaired by the index that is not there, or by what
// cleans up the one that is.
func TestALookThatTakesTooLongIsRepaired(t *testing.T) {
	t.Parallel()
	cut := &pgconn.PgError{Code: "57014"}
	for name, test := range map[string]struct {
		layout *layout
		want   string
	}{
		"not looked at yet":         {nil, "an index"},
		"no index":                  {&layout{marks: MarkPublishedAt, indexedID: true}, "an index"},
		"the index":                 {&layout{marks: MarkPublishedAt, unpublished: true}, `VACUUM "public"."outbox";`},
		"no index, and deletes":     {&layout{marks: MarkDelete}, "an index"},
		"the index, and it deletes": {&layout{marks: MarkDelete, indexedID: true}, `VACUUM "public"."outbox";`},
	} {
		table := New(Config{Table: cdc.Table{Schema: "public", Name: "outbox"}}, slog.New(slog.DiscardHandler))
		table.checked.Store(test.layout)
		if f := fault.As(table.Unseen(cut)); f == nil || !strings.HasPrefix(f.Fix, test.want) {
			t.Errorf("%s: %v", name, f)
		}
	}
}
