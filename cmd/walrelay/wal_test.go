package main

import (
	"bytes"
	"context"
	"fmt"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stagedoor/walrelay/cdc"
)

// An idle outbox does not hold WAL while other tables, or another database of
// the cluster, are written to: the slot follows, a few segments are kept, and
// nothing is written anywhere to get there.
func TestIdleOutboxHoldsNoWAL(t *testing.T) {
	t.Parallel()
	for name, open := range map[string]func(*world) string{
		"beside a busy table":    func(w *world) string { return w.dsn },
		"beside a busy database": func(w *world) string { return w.pg.NewDatabase(w.t) },
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			// The oracle would hold WAL itself.
			w := newWorld(t, worldOptions{})
			w.exec(`SELECT pg_drop_replication_slot('oracle')`)
			busy := open(w)
			p := w.startRelay()
			p.streams()

			conn := w.connect()
			defer conn.Close(context.Background())
			w.execIn(busy, `CREATE TABLE busy (filler text)`)
			start := w.lag(conn)
			if start.pid == 0 {
				t.Fatal("nobody streams")
			}
			for range 3 {
				for range 3 {
					// The rest of a segment is written off, which is as
					// good as filling it.
					w.execIn(busy, `INSERT INTO busy SELECT repeat('z', 500) FROM generate_series(1, 2000)`)
					w.execIn(busy, `SELECT pg_switch_wal()`)
				}
				w.execIn(busy, `INSERT INTO busy VALUES ('the first of the next segment')`)
				w.confirmedPast()
			}
			if now := w.lag(conn); now.written-start.written < 8*segment {
				t.Fatalf("only %d bytes were written", now.written-start.written)
			}
			w.eventually("only a few segments are kept", func() error {
				// PostgreSQL lets go of WAL where it notes which
				// transactions are open, as it does every 15 seconds and
				// with a checkpoint.
				w.exec(`CHECKPOINT`)
				if kept := w.lag(conn).retained(); kept > 3*segment {
					return fmt.Errorf("%d bytes are kept", kept)
				}
				return nil
			})

			if w.walsender() != fmt.Sprint(start.pid) {
				t.Error("the relay had to connect again")
			}
			if w.query(`SELECT is_called FROM outbox_id_seq`) != "false" || w.query(`SELECT count(*) FROM outbox`) != "0" {
				t.Error("something was written to the outbox")
			}
			if entries, err := w.entries(); err != nil || len(entries) > 0 {
				t.Errorf("the stream has %v, %v", entries, err)
			}
			tables := w.query(`SELECT string_agg(relname, ' ' ORDER BY relname) FROM pg_class
				WHERE relkind IN ('r', 'p') AND relnamespace::regnamespace::text NOT IN ('pg_catalog', 'information_schema')`)
			if want := map[bool]string{true: "busy outbox", false: "outbox"}[busy == w.dsn]; tables != want {
				t.Errorf("the tables are %q, want %q: the relay needs none of its own", tables, want)
			}
		})
	}
}

// Beside a busy table PostgreSQL sends a keepalive within a fraction of a
// millisecond after each commit. Nothing that one of them reaches is confirmed
// before the confirm delay is over: at any moment, what is confirmed was
// written at least so long ago.
func TestNothingIsConfirmedBeforeTheDelay(t *testing.T) {
	t.Parallel()
	const delay = 3 * time.Second
	w := newWorld(t, worldOptions{})
	p := w.startRelay("--confirm-delay", delay.String())
	p.streams()
	w.exec(`CREATE TABLE busy (filler text)`)
	var keepalives atomic.Int64
	w.toPG.OnReply(func(piece []byte) bool {
		keepalives.Add(int64(bytes.Count(piece, keepaliveMessage)))
		return false
	})
	rows := w.startLoad(w.dsn, 1, time.Millisecond, `INSERT INTO outbox (kind, payload) VALUES ('single', '{}')`)
	busy := w.startLoad(w.dsn, 2, time.Millisecond, `INSERT INTO busy VALUES ('filler')`)

	type sample struct {
		before  time.Time
		written cdc.LSN // or less, at that time
	}
	var young []sample // those that are younger than the delay
	conn := w.connect()
	defer conn.Close(context.Background())
	var last cdc.LSN
	moved := -1 // the first one seen is where the slot was
	w.eventually("confirmed moves under load", func() error {
		before := time.Now()
		now := w.lag(conn)
		after := time.Now()
		for len(young) > 0 && after.Sub(young[0].before) >= delay {
			young = young[1:]
		}
		// What is beyond young[0].written was written later than that, so it
		// is younger than the delay.
		if len(young) > 0 && now.confirmed > young[0].written {
			t.Fatalf("%s is confirmed, which was not written yet (the WAL ended at %s) less than %s ago", now.confirmed, young[0].written, after.Sub(young[0].before))
		}
		young = append(young, sample{before, now.written})
		if now.confirmed != last {
			last = now.confirmed
			moved++
		}
		if moved < 4 {
			return fmt.Errorf("it moved %d times", moved)
		}
		return nil
	})
	if n := keepalives.Load(); n < 200 {
		t.Errorf("only %d keepalives came", n)
	}
	w.toPG.OnReply(nil)
	rows.goesOn(1)
	busy.goesOn(1)
	rows.end()
	busy.end()
	w.verify(0)
	w.allMarked()
	w.confirmedPast()
}

// keepaliveMessage is how a keepalive begins: CopyData, its length, and k.
var keepaliveMessage = []byte("d\x00\x00\x00\x16k")

// While rows come faster than Redis takes them, so that there is never a pause
// to read from PostgreSQL, confirmed keeps moving.
func TestConfirmedMovesUnderContinuousLoad(t *testing.T) {
	t.Parallel()
	const transactions, each = 200, 100
	w := newWorld(t, worldOptions{})
	p := w.startRelay()
	p.streams()
	p.stop()
	w.insertMany("backlog", transactions, each)
	end, err := cdc.ParseLSN(w.query(`pg_current_wal_insert_lsn()`))
	if err != nil {
		t.Fatal(err)
	}

	// A batch of 500 rows takes at least this long.
	w.toRedis.OnRequest(func([]byte) bool {
		time.Sleep(100 * time.Millisecond)
		return false
	})
	w.startRelay().streams()
	rows := w.startLoad(w.dsn, 1, 20*time.Millisecond, `INSERT INTO outbox (kind, payload) SELECT 'load', to_jsonb(i) FROM generate_series(1, 20) i`)
	conn := w.connect()
	defer conn.Close(context.Background())
	seen := map[cdc.LSN]bool{w.lag(conn).confirmed: true}
	w.eventually("confirmed passes the backlog", func() error {
		now := w.lag(conn).confirmed
		if now < end {
			seen[now] = true
			return fmt.Errorf("%s of %s", now, end)
		}
		return nil
	})
	if len(seen) < 3 {
		t.Errorf("confirmed stood still until the backlog was published: it was at %v", seen)
	}
	rows.goesOn(1)
	rows.end()
	w.toRedis.OnRequest(nil)
	w.verify(0)
	w.allMarked()
	w.confirmedPast()
}

// insertMany commits transactions of as many rows each.
func (w *world) insertMany(kind string, transactions, each int) {
	w.t.Helper()
	conn := w.connect()
	defer conn.Close(context.Background())
	for i := range transactions {
		_, err := conn.Exec(context.Background(), `INSERT INTO outbox (kind, payload) SELECT $1, jsonb_build_object('n', $2::int, 'i', i) FROM generate_series(1, $3) i`, kind, i, each)
		if err != nil {
			w.t.Fatal(err)
		}
	}
}

// execIn runs SQL in the database of this connection string.
func (w *world) execIn(dsn, sql string) {
	w.t.Helper()
	other := *w
	other.dsn = dsn
	other.exec(sql)
}
