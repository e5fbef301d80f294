package outbox

import (
	"fmt"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/stagedoor/walrelay/cdc"
)

var done2 = []cdc.MarkState{cdc.Marked, cdc.Marked}

// mark marks rows that were visible once.
func mark(d *db, table *Table, ids ...int) []cdc.MarkState {
	d.t.Helper()
	var marks []cdc.Mark
	for _, id := range ids {
		marks = append(marks, cdc.Mark{ID: strconv.Itoa(id)})
	}
	states, err := table.Mark(d.ctx(), marks)
	if err != nil {
		d.t.Fatal(err)
	}
	return states
}

// fillOutbox inserts rows 1 to n.
func (d *db) fillOutbox(n int) {
	d.t.Helper()
	d.exec(fmt.Sprintf("INSERT INTO outbox (id, kind, payload) SELECT n, 'k', '{}' FROM generate_series(1, %d) n", n))
}

// unmarked lists the rows that are there and not marked.
const unmarked = "SELECT id FROM outbox WHERE published_at IS NULL ORDER BY id"

const (
	ok        = cdc.Marked
	locked    = cdc.MarkLocked
	invisible = cdc.MarkInvisible
)

func TestMarkMarksTheseRowsOnly(t *testing.T) {
	d := newOutbox(t)
	d.fillOutbox(5)
	d.exec("UPDATE outbox SET published_at = '2020-01-01' WHERE id = 3")
	table := d.checked(Config{})
	// In any order, some twice, one marked already, one that is not there.
	if got := mark(d, table, 4, 2, 2, 3, 99); !slices.Equal(got, make([]cdc.MarkState, 5)) {
		t.Errorf("states %v, want all marked", got)
	}
	if got := d.text(unmarked); got != "1 5" {
		t.Errorf("unmarked %q, want 1 and 5", got)
	}
	if got := d.text("SELECT id FROM outbox WHERE published_at > now() - interval '1 hour' ORDER BY id"); got != "2 4" {
		t.Errorf("marked now: %q, want 2 and 4", got)
	}
	if got := mark(d, table); len(got) != 0 {
		t.Errorf("states %v of nothing", got)
	}
}

func TestMarkManyRows(t *testing.T) {
	d := newOutbox(t)
	n := 2*markBatch + 500
	d.fillOutbox(n)
	table := d.checked(Config{})
	holder := d.connect()
	d.on(holder, fmt.Sprintf("BEGIN; SELECT FROM outbox WHERE id IN (7, %d) FOR UPDATE", markBatch+7))
	var ids []int
	for i := n; i > 0; i-- {
		ids = append(ids, i)
	}
	for i, state := range mark(d, table, ids...) {
		want := ok
		if ids[i] == 7 || ids[i] == markBatch+7 {
			want = locked
		}
		if state != want {
			t.Fatalf("row %d: %v, want %v", ids[i], state, want)
		}
	}
	if got, want := d.text(unmarked), fmt.Sprintf("7 %d", markBatch+7); got != want {
		t.Errorf("unmarked %q, want %q", got, want)
	}
}

// The work of a mark grows with the rows, not with their square, although
// PostgreSQL expects few of them to be unmarked: its statistics are of a moment
// when none was, or there are none yet.
func TestMarkLooksAtEachRowAFewTimes(t *testing.T) {
	const n, others = 2000, 100_000
	for name, fill := range map[string]string{
		"all others are marked": "INSERT INTO outbox (id, kind, payload, published_at) SELECT -i, 'k', '{}', now() FROM generate_series(1, %d) i; ANALYZE outbox",
		"no other is marked":    "INSERT INTO outbox (id, kind, payload) SELECT -i, 'k', '{}' FROM generate_series(1, %d) i",
	} {
		for _, mode := range []MarkMode{MarkPublishedAt, MarkDelete} {
			t.Run(fmt.Sprintf("%s, %s", name, mode), func(t *testing.T) {
				d := newOutbox(t)
				d.exec("ALTER TABLE outbox SET (autovacuum_enabled = off)")
				d.exec(fmt.Sprintf(fill, others))
				d.fillOutbox(n)
				table := d.checked(Config{Mark: mode})
				conn := d.connect()
				d.on(conn, markerSession)
				var marks []cdc.Mark
				for id := range n {
					marks = append(marks, cdc.Mark{ID: strconv.Itoa(id + 1)})
				}
				sql := "EXPLAIN (ANALYZE, TIMING OFF, COSTS OFF) " + table.markSQL(mode, "bigint", table.checked.Load().oid)
				steps := 0
				err := rows(d.ctx(), conn, sql, [][]byte{idArray(marks)}, func(row [][]byte) error {
					m := actual.FindStringSubmatch(string(row[0]))
					if m == nil {
						return nil
					}
					steps++
					each, _ := strconv.ParseFloat(m[1], 64)
					loops, _ := strconv.ParseFloat(m[2], 64)
					if each*loops > n+others {
						t.Errorf("%.0f rows are looked at: %s", each*loops, row[0])
					}
					return nil
				})
				if err != nil {
					t.Fatal(err)
				}
				if steps < 5 {
					t.Errorf("the plan has only %d steps", steps)
				}
			})
		}
	}
}

// actual is what a step of a plan did, each time and how often.
var actual = regexp.MustCompile(`actual rows=([0-9.]+) loops=(\d+)`)

func TestMarkByDeleting(t *testing.T) {
	d := newOutbox(t)
	d.fillOutbox(4)
	d.exec("UPDATE outbox SET published_at = now() WHERE id = 1")
	table := d.checked(Config{Mark: MarkDelete})
	holder := d.connect()
	d.on(holder, "BEGIN; SELECT FROM outbox WHERE id = 3 FOR KEY SHARE")
	if got := mark(d, table, 1, 2, 3, 99); !slices.Equal(got, []cdc.MarkState{ok, ok, locked, ok}) {
		t.Errorf("states %v", got)
	}
	if got := d.text("SELECT id FROM outbox ORDER BY id"); got != "3 4" {
		t.Errorf("left %q, want 3 and 4", got)
	}
}

func TestMarkNoneLeavesTheTableAlone(t *testing.T) {
	d := newOutbox(t)
	d.fillOutbox(2)
	if got := mark(d, d.checked(Config{Mark: MarkNone}), 1, 2); !slices.Equal(got, done2) {
		t.Errorf("states %v", got)
	}
	if got := d.text(unmarked); got != "1 2" {
		t.Errorf("unmarked %q", got)
	}
}

// TestMarkDoesNotWaitForLockedRows, whatever they are locked for; the rows next
// to them are marked.
func TestMarkDoesNotWaitForLockedRows(t *testing.T) {
	shared := newDB(t)
	for _, test := range []struct {
		lock string // of row 2
		want cdc.MarkState
	}{
		{"SELECT FROM outbox WHERE id = 2 FOR UPDATE", locked},
		{"SELECT FROM outbox WHERE id = 2 FOR NO KEY UPDATE", locked},
		{"SELECT FROM outbox WHERE id = 2 FOR SHARE", locked},
		{"UPDATE outbox SET kind = 'x' WHERE id = 2", locked},
		{"UPDATE outbox SET id = 22 WHERE id = 2", locked},
		{"DELETE FROM outbox WHERE id = 2", locked},
		// A foreign key's lock is no obstacle.
		{"INSERT INTO attempts VALUES (2)", ok},
		{"SELECT FROM outbox WHERE id = 2 FOR KEY SHARE", ok},
	} {
		t.Run(test.lock, func(t *testing.T) {
			d := shared.anew(t)
			d.exec("CREATE TABLE attempts (outbox_id bigint REFERENCES outbox)")
			d.fillOutbox(3)
			table := d.checked(Config{})
			holder := d.connect()
			d.on(holder, "BEGIN;"+test.lock)
			if got := mark(d, table, 1, 2, 3); !slices.Equal(got, []cdc.MarkState{ok, test.want, ok}) {
				t.Errorf("states %v, want %v for row 2", got, test.want)
			}
			d.on(holder, "ROLLBACK")
			if got := mark(d, table, 2); got[0] != ok {
				t.Errorf("state %v when the lock is gone", got)
			}
			if got := d.text(unmarked); got != "" {
				t.Errorf("unmarked %q", got)
			}
		})
	}
}

// TestMarkWhenTheHolderCommits: a row that was deleted or got another id is
// done, one that was only changed is marked.
func TestMarkWhenTheHolderCommits(t *testing.T) {
	d := newOutbox(t)
	d.fillOutbox(3)
	table := d.checked(Config{})
	holder := d.connect()
	d.on(holder, "BEGIN; DELETE FROM outbox WHERE id = 1; UPDATE outbox SET id = 22 WHERE id = 2; UPDATE outbox SET kind = 'x' WHERE id = 3")
	if got := mark(d, table, 1, 2, 3); !slices.Equal(got, []cdc.MarkState{locked, locked, locked}) {
		t.Errorf("states %v while they are locked", got)
	}
	d.on(holder, "COMMIT")
	if got := mark(d, table, 1, 2, 3); !slices.Equal(got, []cdc.MarkState{ok, ok, ok}) {
		t.Errorf("states %v afterwards", got)
	}
	if got := d.text(unmarked); got != "22" {
		t.Errorf("unmarked %q, want the row under its new id: nobody published that", got)
	}
}

// TestMarkOfAnOpenTransaction: whatever way a row became known, as long as its
// transaction is not over it is not taken for deleted.
func TestMarkOfAnOpenTransaction(t *testing.T) {
	shared := newDB(t)
	for _, how := range []struct {
		begin string
		end   []string
	}{
		{"", []string{"COMMIT"}},
		{"SAVEPOINT s; SELECT pg_current_xact_id();", []string{"COMMIT"}},
		{"", []string{"PREPARE TRANSACTION 'p'", "COMMIT PREPARED 'p'"}},
	} {
		t.Run(how.begin+strings.Join(how.end, ";"), func(t *testing.T) {
			d := shared.anew(t)
			table := d.checked(Config{})
			writer := d.connect()
			d.on(writer, "BEGIN; SELECT pg_current_xact_id();"+how.begin+"INSERT INTO outbox (id, kind, payload) VALUES (1, 'k', '{}')")
			var xid uint32
			if err := writer.QueryRow(d.ctx(), "SELECT pg_current_xact_id()::xid").Scan(&xid); err != nil {
				t.Fatal(err)
			}
			rows := []cdc.Mark{{ID: "1", XID: xid}, {ID: "2", XID: xid}, {ID: "3", XID: xid - 1}, {ID: "4", XID: xid + 100}}
			states, err := table.Mark(d.ctx(), rows)
			if want := []cdc.MarkState{invisible, invisible, ok, invisible}; err != nil || !slices.Equal(states, want) {
				t.Errorf("states %v, %v, want %v", states, err, want)
			}
			for _, sql := range how.end {
				d.on(writer, sql)
			}
			states, err = table.Mark(d.ctx(), rows[:2])
			if want := []cdc.MarkState{ok, ok}; err != nil || !slices.Equal(states, want) {
				t.Errorf("states %v, %v after the commit, want %v", states, err, want)
			}
			if got := d.text(unmarked); got != "" {
				t.Errorf("unmarked %q", got)
			}
		})
	}
}

// TestMarkOfAPreparedTransaction: prepared is not over.
func TestMarkOfAPreparedTransaction(t *testing.T) {
	d := newOutbox(t)
	table := d.checked(Config{})
	f := newFeed(d, public)
	d.exec("BEGIN; INSERT INTO outbox (id, kind, payload) VALUES (1, 'k', '{}')")
	xid, err := strconv.ParseUint(d.text("SELECT pg_current_xact_id()"), 10, 32)
	if err != nil {
		t.Fatal(err)
	}
	d.exec("PREPARE TRANSACTION 'twice'")
	rows := []cdc.Mark{{ID: "1", XID: uint32(xid)}}
	if got, err := table.Mark(d.ctx(), rows); err != nil || got[0] != invisible {
		t.Errorf("state %v, %v, want invisible", got, err)
	}
	d.exec("COMMIT PREPARED 'twice'")
	if got := f.inserts(1)[0].Commit.XID; got != uint32(xid) {
		t.Errorf("the log has the row of transaction %d, want %d", got, xid)
	}
	if got, err := table.Mark(d.ctx(), rows); err != nil || got[0] != ok || d.text(unmarked) != "" {
		t.Errorf("state %v, %v, unmarked %q", got, err, d.text(unmarked))
	}
}

func TestMarkOfPartitions(t *testing.T) {
	for _, test := range []struct{ name, key, partitions string }{
		{"by id", "RANGE (id)", "CREATE TABLE p1 PARTITION OF outbox FOR VALUES FROM (1) TO (3); CREATE TABLE p2 PARTITION OF outbox DEFAULT"},
		{"by mark", "LIST (published_at)", "CREATE TABLE p1 PARTITION OF outbox FOR VALUES IN (NULL); CREATE TABLE p2 PARTITION OF outbox DEFAULT"},
	} {
		t.Run(test.name, func(t *testing.T) {
			d := newDB(t)
			d.exec(`CREATE TABLE outbox (id bigint, kind text, payload jsonb, created_at timestamptz DEFAULT now(), published_at timestamptz)
				PARTITION BY ` + test.key + ";" + test.partitions + "; CREATE INDEX ON outbox (id)")
			f := newFeed(d, public)
			d.fillOutbox(4)
			table := d.checked(Config{})
			for i, in := range f.inserts(4) {
				ev, is, err := table.Event(in)
				if err != nil || !is || ev.ID != strconv.Itoa(i+1) {
					t.Errorf("event %s, %v, %v", ev.ID, is, err)
				}
			}
			holder := d.connect()
			d.on(holder, "BEGIN; SELECT FROM outbox WHERE id = 2 FOR UPDATE")
			if got := mark(d, table, 1, 2, 3); !slices.Equal(got, []cdc.MarkState{ok, locked, ok}) {
				t.Errorf("states %v", got)
			}
			if got := d.text(unmarked); got != "2 4" {
				t.Errorf("unmarked %q, want 2 and 4", got)
			}
			// Marking must not look like new rows, also where it moves them.
			d.exec("INSERT INTO outbox (id, kind, payload) VALUES (5, 'k', '{}')")
			for {
				ev, is, err := table.Event(f.inserts(1)[0])
				if err != nil {
					t.Fatal(err)
				}
				if is && ev.ID != "5" {
					t.Errorf("row %s arrived again", ev.ID)
				}
				if is {
					break
				}
			}
		})
	}
}

func TestMarkKeepsItsConnection(t *testing.T) {
	d := newOutbox(t)
	d.fillOutbox(3)
	table := d.checked(Config{})
	mark(d, table, 1)
	pid := table.marker.conn.PgConn().PID()
	mark(d, table, 2)
	if got := table.marker.conn.PgConn().PID(); got != pid {
		t.Errorf("marked on pid %d and on %d, want one connection", pid, got)
	}
	// When it is cut, the next mark fails and the one after it connects anew.
	d.exec(fmt.Sprintf("SELECT pg_terminate_backend(%d)", pid))
	d.wait(fmt.Sprintf("SELECT count(*) FROM pg_stat_activity WHERE pid = %d", pid), "0")
	if states, err := table.Mark(d.ctx(), []cdc.Mark{{ID: "3"}}); err == nil {
		t.Errorf("states %v on a connection that is gone", states)
	}
	if got := mark(d, table, 3); got[0] != ok {
		t.Errorf("state %v", got)
	}
	table.Close()
	d.wait("SELECT count(*) FROM pg_stat_activity WHERE application_name = 'walrelay' AND datname = current_database()", "1")
}

// TestMarkLearnsANewType: after an error the table is looked at anew.
func TestMarkLearnsANewType(t *testing.T) {
	d := newOutbox(t)
	d.fillOutbox(2)
	table := d.checked(Config{})
	mark(d, table, 1)
	d.exec("ALTER TABLE outbox ALTER id DROP IDENTITY; ALTER TABLE outbox ALTER id TYPE text")
	if _, err := table.Mark(d.ctx(), []cdc.Mark{{ID: "2"}}); err == nil {
		t.Error("an array of the old type was compared with text")
	}
	if got := mark(d, table, 2); got[0] != ok || d.text(unmarked) != "" {
		t.Errorf("state %v, unmarked %q", got, d.text(unmarked))
	}
}

// TestMarkWhileTheTableIsLocked: ALTER TABLE holds it for minutes.
func TestMarkWhileTheTableIsLocked(t *testing.T) {
	d := newOutbox(t)
	d.fillOutbox(2)
	table := d.checked(Config{})
	holder := d.connect()
	d.on(holder, "BEGIN; ALTER TABLE outbox ADD more text")
	begin := time.Now()
	if got := mark(d, table, 1, 2); !slices.Equal(got, []cdc.MarkState{locked, locked}) {
		t.Errorf("states %v, want both locked", got)
	}
	t.Logf("after %v", time.Since(begin))
	text, pid, err := table.Locker(d.ctx(), "1")
	wantLocker(t, text, pid, err, holder, `the table "public"."outbox"`)
	d.on(holder, "COMMIT")
	if got := mark(d, table, 1, 2); !slices.Equal(got, done2) {
		t.Errorf("states %v, want both marked", got)
	}
}
