package outbox

import (
	"fmt"
	"strings"
	"testing"

	"github.com/jackc/pgx/v5"
)

// wantLocker compares what Locker says with the session that holds the lock.
func wantLocker(t *testing.T, text string, pid int, err error, holder *pgx.Conn, what string) {
	t.Helper()
	want := int(holder.PgConn().PID())
	if err != nil || pid != want {
		t.Errorf("pid %d, %v, want %d; %s", pid, err, want, text)
	}
	for _, part := range []string{
		what, fmt.Sprintf("pid %d of user postgres, idle in transaction, transaction open since 2", want),
		fmt.Sprintf("SELECT pg_terminate_backend(%d)", want),
	} {
		if !strings.Contains(text, part) {
			t.Errorf("%q does not say %q", text, part)
		}
	}
}

func TestLockerNamesTheSession(t *testing.T) {
	shared := newDB(t)
	for _, lock := range []string{
		"SELECT FROM outbox WHERE id = 1 FOR UPDATE",
		"SELECT FROM outbox WHERE id = 1 FOR SHARE",
		"UPDATE outbox SET kind = 'x' WHERE id = 1",
		"DELETE FROM outbox WHERE id = 1",
		"SAVEPOINT s; SELECT FROM outbox WHERE id = 1 FOR UPDATE",
		// The lock of a released savepoint is under a number that nobody holds.
		"SAVEPOINT s; SELECT FROM outbox WHERE id = 1 FOR UPDATE; RELEASE s",
		// Two locks of one session are a group of transactions.
		"SELECT FROM outbox WHERE id = 1 FOR KEY SHARE; SAVEPOINT s; UPDATE outbox SET kind = 'x' WHERE id = 1",
	} {
		t.Run(lock, func(t *testing.T) {
			d := shared.anew(t)
			d.fillOutbox(2)
			table := d.checked(Config{})
			holder := d.connect()
			d.on(holder, "BEGIN;"+lock)
			text, pid, err := table.Locker(d.ctx(), "1")
			wantLocker(t, text, pid, err, holder, `the row with id 1 of "public"."outbox"`)
			if text, pid, err := table.Locker(d.ctx(), "2"); text != "" || pid != 0 || err != nil {
				t.Errorf("row 2 is locked by %q, %d, %v", text, pid, err)
			}
			d.on(holder, "ROLLBACK")
			if text, pid, err := table.Locker(d.ctx(), "1"); text != "" || pid != 0 || err != nil {
				t.Errorf("after a rollback it is locked by %q, %d, %v", text, pid, err)
			}
		})
	}
}

// A lock of the whole table keeps its rows from being marked, some of them while
// the rows could be locked.
func TestLockerNamesWhoHasTheTable(t *testing.T) {
	d := newOutbox(t)
	d.fillOutbox(1)
	table := d.checked(Config{})
	holder := d.connect()
	for _, lock := range []string{"SHARE", "SHARE ROW EXCLUSIVE", "EXCLUSIVE"} {
		d.on(holder, "BEGIN; LOCK TABLE outbox IN "+lock+" MODE")
		text, pid, err := table.Locker(d.ctx(), "1")
		wantLocker(t, text, pid, err, holder, `the table "public"."outbox" is locked by`)
		d.on(holder, "ROLLBACK")
	}
	d.on(holder, "BEGIN; LOCK TABLE outbox IN SHARE UPDATE EXCLUSIVE MODE")
	if text, pid, err := table.Locker(d.ctx(), "1"); text != "" || pid != 0 || err != nil {
		t.Errorf("nobody keeps it from being marked, and it is locked by %q, %d, %v", text, pid, err)
	}
}

func TestLockerNamesSeveralSessions(t *testing.T) {
	d := newDB(t)
	d.exec(`CREATE TABLE outbox (id bigint, kind text, payload jsonb, created_at timestamptz DEFAULT now(), published_at timestamptz) PARTITION BY RANGE (id);
		CREATE TABLE part PARTITION OF outbox DEFAULT`)
	d.fillOutbox(2)
	table := d.checked(Config{})
	one, two, bystander := d.connect(), d.connect(), d.connect()
	d.on(bystander, "BEGIN; SELECT FROM outbox WHERE id = 2 FOR SHARE")
	for _, holder := range []*pgx.Conn{one, two} {
		d.on(holder, "BEGIN; SELECT FROM outbox WHERE id = 1 FOR SHARE")
	}
	text, pid, err := table.Locker(d.ctx(), "1")
	if err != nil || pid != 0 {
		t.Errorf("pid %d, %v, want none", pid, err)
	}
	for _, holder := range []*pgx.Conn{one, two} {
		if want := fmt.Sprintf("pg_terminate_backend(%d)", holder.PgConn().PID()); !strings.Contains(text, want) {
			t.Errorf("%q does not say %q", text, want)
		}
	}
	if pid := fmt.Sprint(bystander.PgConn().PID()); strings.Contains(text, pid) {
		t.Errorf("%q names pid %s, which holds another row", text, pid)
	}
}

func TestLockerNamesAPreparedTransaction(t *testing.T) {
	d := newOutbox(t)
	d.fillOutbox(1)
	table := d.checked(Config{})
	d.exec("BEGIN; SELECT FROM outbox WHERE id = 1 FOR UPDATE; PREPARE TRANSACTION 'it''s'")
	defer d.exec("ROLLBACK PREPARED 'it''s'")
	text, pid, err := table.Locker(d.ctx(), "1")
	if want := "prepared transaction 'it''s'; to end it: COMMIT PREPARED 'it''s' or ROLLBACK PREPARED 'it''s'"; err != nil || pid != 0 || !strings.Contains(text, want) {
		t.Errorf("%q, %d, %v, want it to say %q", text, pid, err, want)
	}
}

// TestLockerWithoutPrivileges names what an ordinary role may see of others.
func TestLockerWithoutPrivileges(t *testing.T) {
	d := newOutbox(t)
	d.fillOutbox(1)
	table := d.checked(Config{Conn: d.config(d.role("GRANT SELECT, UPDATE ON outbox TO %s"))})
	holder := d.connect()
	d.on(holder, "BEGIN; SELECT FROM outbox WHERE id = 1 FOR UPDATE")
	text, pid, err := table.Locker(d.ctx(), "1")
	want := int(holder.PgConn().PID())
	if err != nil || pid != want || !strings.Contains(text, fmt.Sprintf("locked by pid %d of user postgres; to end it", want)) {
		t.Errorf("%q, %d, %v, want pid %d", text, pid, err, want)
	}
}

// TestLockerOfADelete: a foreign key's lock is an obstacle to a delete.
func TestLockerOfADelete(t *testing.T) {
	d := newOutbox(t)
	d.fillOutbox(1)
	table := d.checked(Config{Mark: MarkDelete})
	holder := d.connect()
	d.on(holder, "BEGIN; SELECT FROM outbox WHERE id = 1 FOR KEY SHARE")
	text, pid, err := table.Locker(d.ctx(), "1")
	wantLocker(t, text, pid, err, holder, "the row with id 1")
	if text, _, err := d.checked(Config{}).Locker(d.ctx(), "1"); text != "" || err != nil {
		t.Errorf("for an update it is locked by %q, %v", text, err)
	}
}
