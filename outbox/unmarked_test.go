package outbox

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/jackc/pgx/v5"

	"github.com/stagedoor/walrelay/cdc"
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
			ids, end, err := table.OldestUnmarked(d.ctx(), d.conn, 4, nil)
			if got := strings.Join(ids, " "); got != test.oldest || err != nil {
				t.Errorf("unmarked %q, %v, want %q", got, err, test.oldest)
			}
			now, err := cdc.ParseLSN(d.text("SELECT pg_current_wal_insert_lsn()"))
			if err != nil || end > now || (end == 0) != (test.mark == MarkNone) {
				t.Errorf("the WAL ended at %s, now at %s, %v", end, now, err)
			}
			if on := d.text("SHOW enable_seqscan"); on != "on" {
				t.Errorf("the session keeps enable_seqscan = %s", on)
			}
			if strings.HasPrefix(test.sql, "ALTER TABLE outbox DROP published_at") {
				d.exec("DELETE FROM outbox WHERE id = 3")
			} else {
				d.exec("UPDATE outbox SET published_at = now() WHERE id = 3")
			}
			d.exec("DELETE FROM outbox WHERE id = 5")
			still, err := table.StillUnmarked(d.ctx(), d.conn, []string{"2", "3", "5", "7", "99"})
			slices.Sort(still)
			if got := strings.Join(still, " "); got != test.then || err != nil {
				t.Errorf("still unmarked %q, %v, want %q", got, err, test.then)
			}
			if still, err := table.StillUnmarked(d.ctx(), d.conn, nil); len(still) > 0 || err != nil {
				t.Errorf("of nothing %q, %v are unmarked", still, err)
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
		ids, end, err := table.OldestUnmarked(d.ctx(), d.conn, n, nil)
		if err != nil {
			t.Error(err)
		}
		for _, id := range ids {
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
// is read neither for them nor for the sort.
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
			for _, fill := range []string{
				"", "INSERT INTO outbox (id, kind, payload, published_at) SELECT n, 'k', '{}', now() FROM generate_series(1, 3000) n",
				"ANALYZE outbox", "UPDATE outbox SET published_at = NULL WHERE id < 1000", "ANALYZE outbox",
			} {
				d.exec(fill)
				results, err := d.conn.PgConn().Exec(d.ctx(), noScan+"EXPLAIN "+table.oldestUnmarkedSQL(table.checked.Load(), 100, []string{"1", "2"})).ReadAll()
				if err != nil {
					t.Fatal(err)
				}
				var plan []string
				for _, row := range results[len(results)-1].Rows {
					plan = append(plan, string(row[0]))
				}
				text := strings.Join(plan, "\n")
				if strings.Contains(text, "Seq Scan") || strings.Contains(text, "Sort\n") || !strings.Contains(text, "id_idx") {
					t.Errorf("the plan is\n%s", text)
				}
			}
		})
	}
}
