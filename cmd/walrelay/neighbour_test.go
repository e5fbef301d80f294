package main

import (
	"context"
	"errors"
	"fmt"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
)

// setStandbyNames sets synchronous_standby_names and waits until PostgreSQL
// goes by it.
func (w *world) setStandbyNames(value string) {
	w.t.Helper()
	w.exec(`ALTER SYSTEM SET synchronous_standby_names = '` + value + `'`)
	w.exec(`SELECT pg_reload_conf()`)
	w.eventually("synchronous_standby_names is set", func() error {
		if now := w.query(`current_setting('synchronous_standby_names')`); now != value {
			return errors.New(now)
		}
		return nil
	})
}

// startStandby has a synchronous standby take the WAL, so that commits that
// wait for any standby need not wait for the relay.
func (w *world) startStandby() {
	w.t.Helper()
	cmd := exec.Command(filepath.Join(w.pg.BinDir(), "pg_receivewal"), "-d", w.dsn, "-D", w.t.TempDir(), "--synchronous", "--no-password")
	cmd.Stdout, cmd.Stderr = &lockedBuffer{}, &lockedBuffer{}
	if err := cmd.Start(); err != nil {
		w.t.Fatal(err)
	}
	w.t.Cleanup(func() {
		_ = cmd.Process.Kill()
		_ = cmd.Wait()
	})
	w.eventually("the standby takes the WAL", func() error {
		if w.query(`SELECT count(*) FROM pg_stat_replication WHERE application_name = 'pg_receivewal' AND state = 'streaming'`) != "1" {
			return fmt.Errorf("it does not: %s", cmd.Stderr)
		}
		return nil
	})
}

// Commits that wait for any standby would wait for the relay, which confirms
// late. It does not start, says how to repair it, and nobody who writes notices.
func TestSynchronousCommitsDoNotWaitForAStart(t *testing.T) {
	t.Parallel()
	w := newWorld(t, worldOptions{})
	w.startStandby()
	w.setStandbyNames("*")
	p := w.startRelay()
	p.says(`msg="streaming fails" error="synchronous_standby_names = '*' matches`)
	p.becomes("critical, with the fix", func(code int, doc healthDocument) bool {
		return code == 503 && doc.reason("synchronous_standby_names", "ALTER SYSTEM SET synchronous_standby_names = 'FIRST 1 (your_standby)'") != ""
	})
	w.insert("while it is refused", 20)
	if log := p.log.String(); strings.Contains(log, "backfilling") || strings.Contains(log, "msg=streaming") {
		t.Error("the relay was at work")
	}

	w.setStandbyNames("FIRST 1 (pg_receivewal)")
	p.streams()
	w.insert("after", 3)
	w.verify(20)
	w.allMarked()
	w.confirmedPast()
}

// The same setting is made while the relay streams: it leaves, and commits go
// on. When the setting is repaired it comes back.
func TestSynchronousCommitsDoNotWaitForAStream(t *testing.T) {
	t.Parallel()
	w := newWorld(t, worldOptions{})
	p := w.startRelay("--confirm-delay", "10m")
	p.streams()
	w.insert("before", 3)
	w.verify(0)
	w.startStandby()
	writes := w.startLoad(w.dsn, 2, 10*time.Millisecond, `INSERT INTO outbox (kind, payload) VALUES ('load', '{}')`)
	writes.goesOn(1)
	w.setStandbyNames("*")
	w.eventually("the relay leaves", func() error {
		if pid := w.walsender(); pid != "" {
			return errors.New("it streams from " + pid)
		}
		return nil
	})
	writes.goesOn(20)
	p.saysInHealth("critical", "synchronous_standby_names", "ALTER SYSTEM SET synchronous_standby_names = 'FIRST 1 (your_standby)'")
	writes.goesOn(20)
	if w.walsender() != "" {
		t.Error("the relay came back")
	}

	w.setStandbyNames("")
	p.becomes("streaming again", func(_ int, doc healthDocument) bool { return doc.Role == "streaming" && doc.Status == "ok" })
	writes.end()
	w.verify(0)
	w.allMarked()
}

// With synchronous replication a row comes over the slot before its commit is
// visible, and before the writer knows of it. It is published once, marked when
// it is visible, and its WAL is kept until then.
func TestRowThatIsNotVisibleYet(t *testing.T) {
	t.Parallel()
	w := newWorld(t, worldOptions{})
	p := w.startRelay()
	p.streams()
	w.insert("before", 2)
	w.allMarked()
	w.setStandbyNames("FIRST 1 (nobody)")

	committed := make(chan error, 1)
	conn := w.connect()
	defer conn.Close(context.Background())
	go func() {
		_, err := conn.Exec(context.Background(), `INSERT INTO outbox (kind, payload) VALUES ('waits', '{}')`)
		committed <- err
	}()
	w.hasEntries(3)
	invisible := w.query(`pg_current_wal_flush_lsn()`) // its commit lies before
	if n := w.query(`SELECT count(*) FROM outbox`); n != "2" {
		t.Errorf("%s rows are visible, want 2", n)
	}
	w.exec(`SET synchronous_commit = local; INSERT INTO outbox (kind, payload) VALUES ('waits for nobody', '{}')`)
	w.hasEntries(4)
	w.allMarked() // that are visible
	w.staysUnconfirmed(invisible)
	select {
	case err := <-committed:
		t.Fatalf("the commit came back with %v", err)
	default:
	}

	w.setStandbyNames("")
	if err := <-committed; err != nil {
		t.Fatal(err)
	}
	w.insert("after", 2)
	w.verify(0)
	w.allMarked()
	w.confirmedPast()
}

// hasEntries waits until the stream has so many entries.
func (w *world) hasEntries(n int) {
	w.t.Helper()
	w.eventually(fmt.Sprintf("%d entries", n), func() error {
		entries, err := w.entries()
		if err == nil && len(entries) < n {
			err = fmt.Errorf("%d entries", len(entries))
		}
		return err
	})
}

// staysUnconfirmed gives the relay the time to confirm, and expects that this
// LSN, which is the end of a commit or later, is not.
func (w *world) staysUnconfirmed(lsn string) {
	w.t.Helper()
	w.hearsFor(w.walsender(), 4)
	if w.query(`SELECT confirmed_flush_lsn < '`+lsn+`' FROM pg_replication_slots WHERE slot_name = 'walrelay'`) != "true" {
		w.t.Errorf("%s is confirmed", lsn)
	}
}

// opened is a transaction that stays open.
type opened struct {
	conn *pgx.Conn
	pid  string
}

// open begins a transaction, in which it runs the SQL.
func (w *world) open(dsn, sql string) opened {
	w.t.Helper()
	conn, err := pgx.Connect(context.Background(), dsn)
	if err != nil {
		w.t.Fatal(err)
	}
	w.t.Cleanup(func() { conn.Close(context.Background()) })
	if _, err := conn.Exec(context.Background(), `BEGIN; `+sql); err != nil {
		w.t.Fatal(err)
	}
	return opened{conn, fmt.Sprint(conn.PgConn().PID())}
}

// terminate is the SQL that an operator ends it with.
func (o opened) terminate() string { return "SELECT pg_terminate_backend(" + o.pid + ");" }

func (o opened) commit(t *testing.T) {
	t.Helper()
	if _, err := o.conn.Exec(context.Background(), `COMMIT`); err != nil {
		t.Fatal(err)
	}
}

// Transactions that have been open for long, in this database or another one,
// or prepared, hold WAL that the relay has confirmed long ago. The report names
// the one that holds most, with the command that ends it.
func TestOldTransactionsThatHoldWALAreNamed(t *testing.T) {
	t.Parallel()
	w := newWorld(t, worldOptions{})
	p := w.startRelay("--lag-warn", "32MiB")
	p.streams()
	w.insert("before", 2)
	w.confirmedPast()

	// From the oldest to the youngest.
	elsewhere := w.open(w.pg.NewDatabase(t), `CREATE TABLE orders (id int)`)
	w.exec(`BEGIN; INSERT INTO outbox (kind, payload) VALUES ('prepared', '{}'); PREPARE TRANSACTION 'it''s order 7'`)
	here := w.open(w.dsn, `INSERT INTO outbox (kind, payload) VALUES ('open for long', '{}')`)
	for range 6 {
		w.exec(`SELECT pg_logical_emit_message(false, 'filler', 'of a segment')`)
		w.exec(`SELECT pg_switch_wal()`)
	}
	w.insert("meanwhile", 2)
	w.confirmedPast()

	named := func(parts ...string) {
		t.Helper()
		p.becomes(fmt.Sprint("one that names ", parts), func(_ int, doc healthDocument) bool {
			return doc.Status == "warn" && doc.reason(append(parts, "held back by")...) != "" && doc.reason("are not confirmed") == ""
		})
		p.causes(append(parts, "WAL is held back by", `(user "postgres"`, "open since 20")...)
	}
	named("PID "+elsewhere.pid+" ", elsewhere.terminate())
	w.exec(strings.TrimSuffix(elsewhere.terminate(), ";")) // as told
	named(`"it's order 7"`, `COMMIT PREPARED 'it''s order 7'; or ROLLBACK PREPARED 'it''s order 7';`)
	w.exec(`COMMIT PREPARED 'it''s order 7'`)
	named("PID "+here.pid+" ", here.terminate())
	here.commit(t)
	w.eventually("WAL is let go", func() error {
		w.exec(`CHECKPOINT`)
		if kept := w.query(`SELECT pg_current_wal_lsn() - restart_lsn FROM pg_replication_slots WHERE slot_name = 'walrelay'`); len(kept) > len("16777216") {
			return fmt.Errorf("%s bytes are kept", kept)
		}
		return nil
	})
	p.becomes("silent about it", func(_ int, doc healthDocument) bool {
		return doc.Status == "ok" && doc.reason("WAL is held back by") == ""
	})
	w.verify(0)
	w.allMarked()
	w.confirmedPast()

	// What is left is the WAL that somebody else's slot keeps.
	p.causes("Another slot is what keeps WAL: ", `"oracle"`, "which nobody reads", "MiB", "pg_drop_replication_slot('oracle')")
	w.exec(`SELECT pg_drop_replication_slot('oracle')`) // as told
	p.becomes("ok, without a cause", func(_ int, doc healthDocument) bool { return doc.Status == "ok" && doc.Cause == "" })
}

// A first start waits for the transactions that are open, in any database. It
// says which, with the command, and goes on when the transaction is gone.
func TestOldTransactionsThatHoldUpTheSlotAreNamed(t *testing.T) {
	t.Parallel()
	t.Run("in another database", func(t *testing.T) {
		t.Parallel()
		w := newWorld(t, worldOptions{})
		elsewhere := w.open(w.pg.NewDatabase(t), `CREATE TABLE orders (id int)`)
		w.insert("before", 2)
		p := w.startRelay()
		p.saysInHealth("warn", "PID "+elsewhere.pid+" ", elsewhere.terminate())
		p.says("PID " + elsewhere.pid + " ")
		if p.streaming() {
			t.Error("the relay streams, and the transaction is open")
		}
		elsewhere.commit(t)
		p.streams()
		w.insert("after", 2)
		p.becomes("ok", func(_ int, doc healthDocument) bool { return doc.Status == "ok" && len(doc.Reasons) == 0 })
		w.verify(2)
		w.allMarked()
	})
	t.Run("prepared", func(t *testing.T) {
		t.Parallel()
		w := newWorld(t, worldOptions{})
		w.exec(`BEGIN; INSERT INTO outbox (kind, payload) VALUES ('prepared', '{}'); PREPARE TRANSACTION 'order 7'`)
		w.insert("before", 2)
		p := w.startRelay()
		p.saysInHealth("warn", `"order 7"`, `COMMIT PREPARED 'order 7'; or ROLLBACK PREPARED 'order 7';`)
		p.says(`order 7`)
		if p.streaming() {
			t.Error("the relay streams, and the transaction is open")
		}
		w.exec(`COMMIT PREPARED 'order 7'`)
		p.streams()
		w.insert("after", 2)
		p.becomes("ok", func(_ int, doc healthDocument) bool { return doc.Status == "ok" && len(doc.Reasons) == 0 })
		w.verify(3)
		w.allMarked()
	})
}

// streaming reports whether the relay has ever streamed.
func (p *relayProcess) streaming() bool { return strings.Contains(p.log.String(), "msg=streaming") }
