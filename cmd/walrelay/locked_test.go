package main

import (
	"bytes"
	"fmt"
	"strings"
	"sync"
	"testing"
)

// An application keeps a published row locked. Other rows are published and
// marked, also over a restart; WAL from that row on is kept, and the report
// names the session. When it lets go everything is marked and confirmed.
func TestRowIsLockedForLong(t *testing.T) {
	t.Parallel()
	w := newWorld(t, worldOptions{})
	p := w.startRelay()
	p.streams()
	w.insert("before", 2)
	w.confirmedPast()

	// Locked before the relay has a chance to mark it.
	w.toRedis.Cut()
	w.insert("first", 2)
	w.exec(`INSERT INTO outbox (kind, payload) VALUES ('locked', '{}')`)
	locked := w.query(`pg_current_wal_flush_lsn()`) // the row's commit lies before
	w.insert("last", 2)
	application := w.open(w.dsn, `SELECT FROM outbox WHERE kind = 'locked' FOR UPDATE`)
	w.toRedis.Restore()

	p.saysInHealth("warn", "pid "+application.pid+" ", strings.TrimSuffix(application.terminate(), ";"))
	p.says("pid " + application.pid + " ")
	w.insert("meanwhile", 2)
	w.verify(0)
	othersMarked := func() {
		t.Helper()
		w.eventually("all other rows are marked", func() error {
			if left := w.query(`SELECT string_agg(kind, ' ') FROM outbox WHERE published_at IS NULL`); left != "locked" {
				return fmt.Errorf("left are %q", left)
			}
			return nil
		})
	}
	othersMarked()
	w.staysUnconfirmed(locked)

	p.stop() // does not wait for it
	p = w.startRelay()
	p.saysInHealth("warn", "pid "+application.pid+" ")
	w.insert("after the restart", 2)
	w.verify(0)
	othersMarked()
	w.staysUnconfirmed(locked)

	application.commit(t)
	w.allMarked()
	w.confirmedPast()
	healthy := func(_ int, doc healthDocument) bool { return doc.Status == "ok" && len(doc.Reasons) == 0 }
	p.becomes("ok", healthy)

	// The table as a whole, as by CREATE INDEX.
	w.toRedis.Cut()
	w.insert("behind the lock", 2)
	application = w.open(w.dsn, `LOCK TABLE outbox IN SHARE MODE`)
	w.toRedis.Restore()
	p.becomes("warn, with the cause", func(_ int, doc healthDocument) bool {
		return doc.Status == "warn" && doc.reason("the table", "pid "+application.pid+" ") != "" && strings.Contains(doc.Cause, strings.TrimSuffix(application.terminate(), ";"))
	})
	w.verify(0)
	application.commit(t)
	w.allMarked()
	p.becomes("ok", healthy)
}

// A row is locked in the middle of a first start, whose slot begins only when
// all rows that were there are marked. The report names the session, and the
// relay goes on when it lets go.
func TestRowIsLockedInBackfill(t *testing.T) {
	t.Parallel()
	w := newWorld(t, worldOptions{})
	w.insert("before", 5)

	// Locked after the snapshot was made, which would wait for the transaction,
	// and before the row is on the stream.
	appending, locked := make(chan struct{}), make(chan struct{})
	arrived, letGo := sync.OnceFunc(func() { close(appending) }), sync.OnceFunc(func() { close(locked) })
	defer letGo()
	w.toRedis.OnRequest(func(piece []byte) bool {
		if bytes.Contains(piece, []byte("outbox_id")) {
			arrived()
			<-locked
		}
		return false
	})
	p := w.startRelay()
	<-appending
	application := w.open(w.dsn, `SELECT FROM outbox ORDER BY id LIMIT 1 FOR UPDATE`)
	letGo()
	p.saysInHealth("warn", "pid "+application.pid+" ", strings.TrimSuffix(application.terminate(), ";"))
	w.hasEntries(5)
	if p.streaming() {
		t.Error("the relay streams, and a row is not marked")
	}
	w.insert("meanwhile", 2)
	application.commit(t)
	p.streams()
	w.verify(5)
	w.allMarked()
	w.confirmedPast()
	p.becomes("ok", func(_ int, doc healthDocument) bool { return doc.Status == "ok" && len(doc.Reasons) == 0 })
}

// The relay may no longer mark rows. It goes on, also with confirming, and
// reports what to grant; then the marks are made up for.
func TestUpdateIsRevoked(t *testing.T) {
	t.Parallel()
	w := newWorld(t, worldOptions{})
	w.exec(`CREATE PUBLICATION walrelay FOR TABLE outbox WITH (publish = 'insert', publish_via_partition_root = true);
		CREATE ROLE relay LOGIN REPLICATION;
		GRANT SELECT, UPDATE (published_at) ON outbox TO relay`)
	p := w.startRelay("--postgres", strings.Replace(w.relayDSN(), "postgres@", "relay@", 1))
	p.streams()
	w.insert("before", 3)
	w.allMarked()
	w.confirmedPast()
	pid := w.walsender()

	w.exec(`REVOKE UPDATE (published_at) ON outbox FROM relay`)
	w.insert("unmarked", 3)
	p.becomes("critical, with the grant", func(code int, doc healthDocument) bool {
		return code == 503 && doc.reason(`GRANT UPDATE ("published_at") ON "public"."outbox" TO relay`) != ""
	})
	w.insert("unmarked", 3)
	w.verify(0)
	w.confirmedPast()
	if n := w.query(`SELECT count(*) FROM outbox WHERE published_at IS NULL`); n != "6" {
		t.Errorf("%s rows are unmarked, want 6", n)
	}

	w.exec(`GRANT UPDATE ("published_at") ON "public"."outbox" TO "relay"`) // as told
	w.allMarked()
	p.becomes("ok", func(_ int, doc healthDocument) bool { return doc.Status == "ok" && len(doc.Reasons) == 0 })
	w.insert("after", 3)
	w.verify(0)
	w.allMarked()
	w.confirmedPast()
	if now := w.walsender(); now != pid {
		t.Errorf("PostgreSQL's process %s streams, and before it was %s", now, pid)
	}
}
