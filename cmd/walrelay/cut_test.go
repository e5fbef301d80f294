package main

import (
	"context"
	"errors"
	"testing"
)

// tightWAL has PostgreSQL give slots up after a few segments.
var tightWAL = map[string]string{"max_slot_wal_keep_size": "1MB", "min_wal_size": "32MB", "max_wal_size": "32MB"}

// writeWAL fills segments that no slot is to hold on to.
func (w *world) writeWAL() {
	w.t.Helper()
	w.exec(`CREATE TABLE IF NOT EXISTS busy (filler text)`)
	for range 5 {
		w.query(`pg_switch_wal()`)
		w.exec(`INSERT INTO busy VALUES ('x')`)
	}
	w.exec(`CHECKPOINT`)
}

// Redis is down for so long that PostgreSQL gives the slot up. When Redis is
// back every row is on the stream once, also those of before and of meanwhile.
func TestSlotIsCutWhileRedisIsDown(t *testing.T) {
	t.Parallel()
	w := newWorld(t, worldOptions{settings: tightWAL})
	// The oracle is a slot too, and would be given up with ours.
	w.exec(`SELECT pg_drop_replication_slot('oracle')`)
	p := w.startRelay()
	p.streams()
	w.insert("before", 5)
	w.allMarked()
	w.confirmedPast()
	w.redis.Stop()
	w.exec(`INSERT INTO outbox (kind, payload) SELECT 'down', to_jsonb(i) FROM generate_series(1, 3000) i`)
	w.eventually("the slot is lost", func() error {
		w.writeWAL()
		if status := w.query(`SELECT wal_status FROM pg_replication_slots WHERE slot_name = 'walrelay'`); status != "lost" {
			return errors.New(status)
		}
		return nil
	})
	w.insert("cut", 5)
	p.becomes("critical", func(code int, doc healthDocument) bool { return code == 503 })
	w.redis.Start()
	w.insert("back", 5)
	p.says("rows may be missing; healing")
	w.allMarked()
	w.each("before", "down", "cut", "back")
	w.confirmedPast()
	if got := p.metric(`walrelay_heals_total{reason="slot_lost"}`); got != "1" {
		t.Errorf("%s heals", got)
	}
	p.becomes("ok", func(_ int, doc healthDocument) bool { return doc.Status == "ok" })
}

// A backfill takes longer than PostgreSQL keeps WAL for it. That is reported,
// and not repeated for ever.
func TestBackfillOutlivesItsSlot(t *testing.T) {
	t.Parallel()
	w := newWorld(t, worldOptions{settings: tightWAL})
	w.exec(`SELECT pg_drop_replication_slot('oracle')`)
	w.insert("old", 3)
	p := w.startRelay("--confirm-delay", "10s")
	lost := func() {
		t.Helper()
		w.eventually("PostgreSQL gives the temporary slot up", func() error {
			if w.query(`SELECT count(*) FROM pg_replication_slots WHERE temporary AND wal_status <> 'lost'`) == "0" {
				return nil
			}
			w.writeWAL()
			return errors.New("not yet")
		})
	}
	begin := func() {
		t.Helper()
		w.eventually("there is a temporary slot", func() error {
			if w.query(`SELECT count(*) FROM pg_replication_slots WHERE temporary AND wal_status <> 'lost'`) == "0" {
				return errors.New("not yet")
			}
			return nil
		})
	}
	begin()
	// Only now: the slot's creation waits for transactions that are open.
	app := w.connect()
	defer app.Close(context.Background())
	tx, err := app.Begin(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	if _, err := tx.Exec(t.Context(), `SELECT FROM outbox WHERE id = 2 FOR UPDATE`); err != nil {
		t.Fatal(err)
	}
	p.says("the backfill waits for it")
	lost()
	if err := tx.Rollback(t.Context()); err != nil {
		t.Fatal(err)
	}
	p.says("the backfill took longer than PostgreSQL keeps WAL for it")
	w.each("old")

	// The next one has nothing to wait for, and ends.
	p.streams()
	w.insert("after", 3)
	w.allMarked()
	w.each("old", "after")
}
