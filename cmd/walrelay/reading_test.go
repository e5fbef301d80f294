package main

import (
	"errors"
	"fmt"
	"strings"
	"testing"
)

// streamed waits until the relay has begun to stream so many times.
func (p *relayProcess) streamed(times int) {
	p.t.Helper()
	eventually(p.t, fmt.Sprintf("the relay has begun to stream %d times", times), func() error {
		if n := strings.Count(p.log.String(), "msg=streaming"); n < times {
			return fmt.Errorf("%d times", n)
		}
		return nil
	})
}

// onStream are the values of a field of the stream's entries, in order.
func (w *world) onStream(field string) []string {
	w.t.Helper()
	entries, err := w.entries()
	if err != nil {
		w.t.Fatal(err)
	}
	values := []string{}
	for _, e := range entries {
		value, ok := e.Values[field].(string)
		if !ok {
			value = "(none)"
		}
		values = append(values, value)
	}
	return values
}

// Savepoints are rolled back in transactions that PostgreSQL spools to disk:
// exactly the rows that survived arrive.
func TestRolledBackSavepointsOfLargeTransactions(t *testing.T) {
	t.Parallel()
	w := newWorld(t, worldOptions{settings: decodingMemory})
	p := w.startRelay()
	p.streams()
	rows := func(kind string, n int) string {
		return fmt.Sprintf(`INSERT INTO outbox (kind, payload) SELECT '%s', jsonb_build_object('i', i, 'filler', repeat('x', 100)) FROM generate_series(1, %d) i;`, kind, n)
	}
	w.exec(`BEGIN;` + rows("first", 2000) + `
		SAVEPOINT a;` + rows("ghost of a", 3000) + `
		ROLLBACK TO a;` + rows("second", 1000) + `
		SAVEPOINT b;` + rows("third", 500) + `
		SAVEPOINT c;` + rows("ghost of c", 2000) + `
		ROLLBACK TO c;` + rows("fourth", 500) + `
		RELEASE b;` + rows("fifth", 10) + `
		COMMIT;`)
	w.exec(`BEGIN;` + rows("ghost", 3000) + `
		SAVEPOINT a;` + rows("ghost", 2000) + `
		ROLLBACK TO a; ROLLBACK;`)
	w.exec(`BEGIN;
		SAVEPOINT a;` + rows("ghost", 3000) + `
		ROLLBACK TO a; COMMIT;`)
	w.insert("last", 1)
	w.verify(0)
	w.hasEntries(2000 + 1000 + 500 + 500 + 10 + 1)
	if w.query(`SELECT to_regclass('pg_stat_replication_slots') IS NOT NULL`) == "true" && // from PostgreSQL 14 on
		w.query(`SELECT spill_txns > 0 FROM pg_stat_replication_slots WHERE slot_name = 'walrelay'`) != "true" {
		t.Error("nothing was spooled to disk")
	}
	w.allMarked()
	w.confirmedPast()
}

// Rows that are written while no relay is there arrive when one starts, however
// far the server has come meanwhile.
func TestRowsWrittenWhileTheRelayIsDown(t *testing.T) {
	t.Parallel()
	w := newWorld(t, worldOptions{})
	p := w.startRelay()
	p.streams()
	w.insert("before", 3)
	w.confirmedPast()
	for _, end := range []struct {
		name string
		do   func()
	}{
		{"stopped", func() { p.stop() }},
		{"killed", func() { p.kill() }},
		{"killed, and PostgreSQL restarted", func() { p.kill(); w.pg.Restart("fast") }},
		{"killed, and PostgreSQL crashed", func() { p.kill(); w.pg.Restart("immediate") }},
	} {
		w.insert("before it is "+end.name, 2)
		end.do()
		w.insert("while it is "+end.name, 3)
		w.exec(`CREATE TABLE IF NOT EXISTS busy (filler text)`)
		w.exec(`INSERT INTO busy SELECT repeat('z', 500) FROM generate_series(1, 2000)`)
		w.query(`pg_switch_wal()`)
		w.exec(`CHECKPOINT`)
		w.insert("just before the start", 1)
		p = w.startRelay()
		p.streams()
		w.insert("after", 2)
		w.verify(0)
	}
	w.allMarked()
	w.confirmedPast()
}

// A prepared transaction arrives when it is committed, in the place of that
// commit, also where relays came and went meanwhile; one that is rolled back
// never does.
func TestPreparedTransactionsArriveWhenTheyCommit(t *testing.T) {
	t.Parallel()
	w := newWorld(t, worldOptions{settings: decodingMemory})
	p := w.startRelay()
	p.streams()
	prepare := func(gid string, n int) {
		t.Helper()
		w.exec(fmt.Sprintf(`BEGIN;
			INSERT INTO outbox (kind, payload) SELECT '%s', jsonb_build_object('i', i, 'filler', repeat('x', 100)) FROM generate_series(1, %d) i;
			PREPARE TRANSACTION '%s'`, gid, n, gid))
	}
	prepare("small", 2)
	prepare("large", 3000)
	prepare("ghost", 3000)
	w.insert("after they were prepared", 3)
	w.verify(0)
	w.confirmedPast() // what is prepared holds nothing back
	p.stop()
	w.insert("while the relay is down", 2)
	w.exec(`COMMIT PREPARED 'small'`)
	p = w.startRelay()
	p.streams()
	w.insert("between the commits", 2)
	w.verify(0)
	p.kill()
	w.pg.Restart("immediate")
	w.exec(`COMMIT PREPARED 'large'`)
	w.exec(`ROLLBACK PREPARED 'ghost'`)
	w.startRelay().streams()
	w.insert("last", 2)
	w.verify(0)
	w.hasEntries(2 + 3000 + 3 + 2 + 2 + 2)
	w.allMarked()
	w.confirmedPast()
}

// A row that cannot be published stops the line by name, after everything
// before it was published. The line goes on when it can be published.
func TestRowWithoutIDStopsTheLine(t *testing.T) {
	t.Parallel()
	w := newWorld(t, worldOptions{})
	w.exec(`CREATE TABLE orders (seq bigserial PRIMARY KEY, ref text UNIQUE, kind text, payload jsonb, created_at timestamptz DEFAULT now(), published_at timestamptz)`)
	p := w.startRelay("--table", "public.orders", "--column-id", "ref")
	p.streams()
	w.exec(`INSERT INTO orders (ref, kind) VALUES ('a', 'whole'), ('b', 'whole')`)
	w.exec(`INSERT INTO orders (ref, kind) VALUES ('c', 'cut'), ('d', 'cut'), (NULL, 'stop'), ('e', 'rest')`)
	w.exec(`INSERT INTO orders (ref, kind) VALUES ('f', 'rest')`)
	end := w.query(`pg_current_wal_insert_lsn()`)
	// With the table, what is wrong, and what to do about it.
	p.saysInHealth("critical", "row 2 of transaction", `"public"."orders"`, "the id is NULL", "--column-id", "SET NOT NULL")
	w.hasEntries(4)
	w.eventually("what was published is marked", func() error {
		if marked := w.query(`SELECT string_agg(ref, '' ORDER BY seq) FROM orders WHERE published_at IS NOT NULL`); marked != "abcd" {
			return errors.New(marked)
		}
		return nil
	})
	p.streamed(4) // it tries again, and nothing is doubled or left out
	p.stop()
	p = w.startRelay("--table", "public.orders", "--column-id", "ref")
	p.saysInHealth("critical", "the id is NULL")
	if got := strings.Join(w.onStream("outbox_id"), ""); got != "abcd" {
		t.Errorf("on the stream are %s, want abcd", got)
	}
	if w.query(`SELECT confirmed_flush_lsn < '`+end+`' FROM pg_replication_slots WHERE slot_name = 'walrelay'`) != "true" {
		t.Error("what is not published is confirmed")
	}
	p.stop()

	// Another column identifies a row. What comes with the row's own NULL is
	// absent.
	p = w.startRelay("--table", "public.orders", "--column-id", "seq", "--field", "seq=seq", "--field", "outbox_id=ref", "--field", "kind=kind")
	p.streams()
	w.hasEntries(7)
	w.exec(`INSERT INTO orders (ref, kind) VALUES ('g', 'last')`)
	w.hasEntries(8)
	if got := strings.Join(w.onStream("outbox_id"), ""); got != "abcd(none)efg" {
		t.Errorf("on the stream are %s, want abcd(none)efg", got)
	}
	w.confirmedPast()
	p.becomes("ok", func(_ int, doc healthDocument) bool { return doc.Status == "ok" })
}
