package main

import (
	"errors"
	"fmt"
	"strings"
	"syscall"
	"testing"
	"time"
)

// shutdownOver is what the relay says when a stop took too long.
const shutdownOver = "the shutdown time-out is over"

// stopsInTime ends the relay with SIGTERM and expects that it finished what was
// in flight.
func (p *relayProcess) stopsInTime() {
	p.t.Helper()
	p.stop()
	if strings.Contains(p.log.String(), shutdownOver) {
		p.t.Errorf("the relay did not finish within its shutdown time-out:\n%s", tail(p.log.String(), 20))
	}
}

// ends waits until the relay has ended with exit code 0.
func (p *relayProcess) ends() {
	p.t.Helper()
	select {
	case <-p.done:
	case <-time.After(patience):
		p.t.Fatal("the relay does not stop")
	}
	if p.err != nil {
		p.t.Fatalf("the relay stopped with %v", p.err)
	}
}

// length is how many entries the stream has.
func (w *world) length() int {
	w.t.Helper()
	n, err := w.redis.Client(w.t).XLen(w.t.Context(), "jobs").Result()
	if err != nil {
		w.t.Fatal(err)
	}
	return int(n)
}

// SIGTERM in the middle of a large transaction: the relay stops with what is in
// flight, and the next one continues inside of the transaction.
func TestStopInTheMiddleOfATransaction(t *testing.T) {
	t.Parallel()
	const rows = 60_000
	w := newWorld(t, worldOptions{settings: decodingMemory})
	p := w.startRelay()
	p.streams()
	w.insert("before", 2)
	w.exec(fmt.Sprintf(`INSERT INTO outbox (kind, payload) SELECT 'large', jsonb_build_object('i', i) FROM generate_series(1, %d) i`, rows))
	w.insert("after", 2)
	for stop := range 2 {
		at := w.length()
		w.eventually("more of the transaction is on the stream", func() error {
			if w.length() < at+1000 {
				return errors.New("not yet")
			}
			return nil
		})
		p.stopsInTime()
		n := w.length()
		if n >= rows {
			t.Fatalf("the transaction was through at stop %d: make it larger", stop)
		}
		// What was published is marked before the end.
		if marked := w.query(`SELECT count(*) FROM outbox WHERE published_at IS NOT NULL`); marked != fmt.Sprint(n) {
			t.Errorf("%s rows are marked, %d published", marked, n)
		}
		p = w.startRelay()
		p.streams()
	}
	w.insert("last", 2)
	w.verify(0)
	w.allMarked()
	w.confirmedPast()
}

// SIGTERM while Redis does not answer: the relay waits for it as long as it may
// and leaves the rest to the next start.
func TestStopWhileRedisIsAway(t *testing.T) {
	t.Parallel()
	for name, away := range map[string]struct{ begin, end func(*world) }{
		"down":   {func(w *world) { w.toRedis.Cut() }, func(w *world) { w.toRedis.Restore() }},
		"frozen": {func(w *world) { w.redis.Freeze() }, func(w *world) { w.redis.Thaw() }},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			w := newWorld(t, worldOptions{})
			p := w.startRelay("--shutdown-timeout", "2s")
			p.streams()
			w.insert("before", 3)
			w.verify(0)
			away.begin(w)
			w.insert("while Redis is away", 3)
			p.says("Redis fails")
			p.stop()
			p.says(shutdownOver)
			away.end(w)
			w.startRelay().streams()
			w.insert("after", 3)
			w.verify(0)
			w.allMarked()
			w.confirmedPast()
		})
	}
}

// SIGTERM while Redis comes back in time: all is finished.
func TestStopWaitsForRedis(t *testing.T) {
	t.Parallel()
	w := newWorld(t, worldOptions{})
	p := w.startRelay("--shutdown-timeout", "1h")
	p.streams()
	w.toRedis.Cut()
	w.insert("in flight", 3)
	p.says("Redis fails")
	p.becomes("one with rows that wait", func(_ int, doc healthDocument) bool { return doc.Age != nil && *doc.Age > 0 })
	_ = p.cmd.Process.Signal(syscall.SIGTERM)
	p.says("msg=stopping")
	w.toRedis.Restore()
	p.ends()
	if n := w.length(); n == 0 {
		t.Error("nothing that was in flight is on the stream")
	}
	w.startRelay().streams() // for what it had not received yet
	w.verify(0)
	w.allMarked()
}

// SIGTERM in a backfill that waits for the confirm delay, or appends: the relay
// ends at once, and the next one does it again without doubling anything.
func TestStopInABackfill(t *testing.T) {
	t.Parallel()
	const rows = 3000
	w := newWorld(t, worldOptions{})
	w.exec(fmt.Sprintf(`INSERT INTO outbox (kind, payload) SELECT 'old', jsonb_build_object('i', i) FROM generate_series(1, %d) i`, rows))
	for _, enough := range []int{1, rows} {
		p := w.startRelay("--confirm-delay", "1h")
		w.hasEntries(enough)
		p.stopsInTime()
		if p.streaming() {
			t.Fatal("the backfill was over")
		}
	}
	if slots := w.query(`SELECT string_agg(slot_name, ' ') FROM pg_replication_slots`); slots != "oracle" {
		t.Errorf("there are the slots %q", slots)
	}
	w.startRelay().streams()
	w.insert("after", 2)
	w.verify(rows)
	w.allMarked()
	w.confirmedPast()
}

// SIGTERM while the creation of the slot waits for an old transaction.
func TestStopWhileTheSlotIsCreated(t *testing.T) {
	t.Parallel()
	w := newWorld(t, worldOptions{})
	w.insert("before", 2)
	old := w.open(w.pg.NewDatabase(t), `SELECT txid_current()`)
	p := w.startRelay()
	p.saysInHealth("warn", "PID "+old.pid, old.terminate())
	p.stopsInTime()
	w.eventually("nothing of it is left on the server", func() error {
		if left := w.query(`SELECT count(*) FROM pg_stat_activity WHERE application_name = 'walrelay'`); left != "0" {
			return fmt.Errorf("%s connections", left)
		}
		if slots := w.query(`SELECT string_agg(slot_name, ' ') FROM pg_replication_slots`); slots != "oracle" {
			return fmt.Errorf("the slots %q", slots)
		}
		return nil
	})
	old.commit(t)
	w.startRelay().streams()
	w.insert("after", 2)
	w.verify(2)
	w.allMarked()
	w.confirmedPast()
}
