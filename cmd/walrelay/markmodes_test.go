package main

import (
	"errors"
	"fmt"
	"testing"

	"github.com/stagedoor/walrelay/relay"
)

// allDeleted waits until no row is left.
func (w *world) allDeleted() {
	w.t.Helper()
	w.eventually("all rows are deleted", func() error {
		if n := w.query(`SELECT count(*) FROM outbox`); n != "0" {
			return errors.New(n + " are left")
		}
		return nil
	})
}

// Published rows are deleted, and rows that are not published never are:
// over a backfill, restarts, and deaths between the append and the deletion.
func TestPublishedRowsAreDeleted(t *testing.T) {
	t.Parallel()
	w := newWorld(t, worldOptions{})
	const mode = "--mark=delete"
	rows := func(n int) string {
		return fmt.Sprintf(`INSERT INTO outbox (kind, payload) SELECT 'some', to_jsonb(i) FROM generate_series(1, %d) i`, n)
	}
	w.exec(rows(700))
	p := w.startRelayEnv([]string{execEnv + "=crash", crashEnv + "=" + string(relay.StepBackfillAppended) + ":2"}, mode)
	if err := p.killedItself(); err != nil {
		t.Fatal(err)
	}
	if n := w.query(`SELECT count(*) FROM outbox`); n != "700" {
		t.Errorf("%s rows are left, of 700 that nothing was confirmed of", n)
	}
	p = w.startRelay(mode)
	p.streams()
	w.allDeleted()
	w.exec(rows(5))
	w.verify(700)
	w.allDeleted()
	p.stop()

	for i, step := range []relay.Step{relay.StepAppended, relay.StepMark, relay.StepMarked} {
		w.exec(rows(5))
		p = w.startRelayEnv([]string{execEnv + "=crash", crashEnv + "=" + string(step) + ":1"}, mode)
		if err := p.killedItself(); err != nil {
			t.Fatal(err)
		}
		w.exec(rows(5))
		p = w.startRelay(mode)
		p.streams()
		w.exec(rows(5))
		w.verify(700)
		w.allDeleted()
		w.confirmedPast()
		if i == 0 {
			// A row that cannot be published yet is not deleted.
			w.toRedis.Cut()
			w.exec(rows(5))
			p.says("Redis fails")
			if n := w.query(`SELECT count(*) FROM outbox`); n != "5" {
				t.Errorf("%s rows are left, of 5 that wait", n)
			}
			p.becomes("one with an age", func(_ int, doc healthDocument) bool { return doc.Age != nil && *doc.Age > 0 })
			w.toRedis.Restore()
			w.verify(700)
			w.allDeleted()
		}
		p.becomes("ok", func(_ int, doc healthDocument) bool {
			return doc.Status == "ok" && len(doc.Reasons) == 0 && doc.Age != nil && *doc.Age == 0
		})
		p.stop()
	}
}

// Rows are left alone, and what tells that they are published is the checkpoint:
// over a backfill, restarts and deaths. The age of the oldest row is known only
// to a relay that streams.
func TestRowsAreLeftAlone(t *testing.T) {
	t.Parallel()
	w := newWorld(t, worldOptions{})
	const mode = "--mark=none"
	rows := func(n int) string {
		return fmt.Sprintf(`INSERT INTO outbox (kind, payload) SELECT 'some', to_jsonb(i) FROM generate_series(1, %d) i`, n)
	}
	w.exec(rows(700))
	for times := 1; times <= 2; times++ { // it dies with one batch on the stream, and with all
		p := w.startRelayEnv([]string{execEnv + "=crash", crashEnv + "=" + string(relay.StepBackfillAppended) + ":1"}, mode)
		if err := p.killedItself(); err != nil {
			t.Fatal(err)
		}
	}
	p := w.startRelay(mode)
	p.streams()
	w.exec(rows(5))
	w.verify(700)
	for _, step := range []relay.Step{relay.StepAppended, relay.StepStamp, relay.StepStamped} {
		p.stop()
		w.exec(rows(5))
		mortal := w.startRelayEnv([]string{execEnv + "=crash", crashEnv + "=" + string(step) + ":1"}, mode)
		if err := mortal.killedItself(); err != nil {
			t.Fatal(err)
		}
		w.exec(rows(5))
		p = w.startRelay(mode)
		p.streams()
		w.exec(rows(5))
		w.verify(700)
		w.confirmedPast()
	}
	if n := w.query(`SELECT count(*) FROM outbox WHERE published_at IS NOT NULL`); n != "0" {
		t.Errorf("%s rows are marked", n)
	}

	p.becomes("ok, with an age of 0", func(_ int, doc healthDocument) bool {
		return doc.Status == "ok" && doc.Age != nil && *doc.Age == 0
	})
	waits := w.startRelay(mode)
	waits.becomes("standby, without an age", func(_ int, doc healthDocument) bool {
		return doc.Role == "standby" && doc.Status == "ok" && doc.Slot != nil && doc.Age == nil
	})
	w.toRedis.Stall()
	w.exec(rows(1))
	p.becomes("one with the age of the row that waits", func(_ int, doc healthDocument) bool { return doc.Age != nil && *doc.Age > 0 })
	if _, doc, err := waits.health(); err != nil || doc.Age != nil {
		t.Errorf("the one that stands by knows an age: %v, %v", doc.Age, err)
	}
	w.toRedis.Resume()
	p.becomes("one with an age of 0", func(_ int, doc healthDocument) bool { return doc.Age != nil && *doc.Age == 0 })
	w.verify(700)

	// They are deleted once the slot confirms them, though nothing is written.
	code, out, errs := walrelay(nil, "purge", mode, "--older-than", "0s", "--postgres", w.dsn)
	if code != exitDone || out != fmt.Sprintf("deleted %d rows\n", len(w.committed())) {
		t.Errorf("purge: exit code %d, printed %s%s", code, out, errs)
	}
	w.exec(rows(5))
	w.verify(700)
}
