package main

import (
	"context"
	"fmt"
	"strings"
	"testing"
	"time"
)

// While Redis is away the relay keeps its connection to PostgreSQL, also with
// all the rows in memory that it may hold, and says what is away: at first as a
// warning, then as critical. When Redis is back, all rows follow in order.
func TestRedisAwayUnderLoad(t *testing.T) {
	t.Parallel()
	// PostgreSQL hangs up on a relay that falls silent.
	w := newWorld(t, worldOptions{settings: map[string]string{"wal_sender_timeout": "6s"}})
	p := w.startRelay("--age-critical", "10s")
	p.streams()
	rows := w.startLoad(w.dsn, 2, 20*time.Millisecond, `INSERT INTO outbox (kind, payload) VALUES ('load', '{"n": 1}')`)
	w.confirmedPast()
	pid := w.walsender()

	w.toRedis.Cut()
	p.saysInHealth("warn", "Redis has been away")
	// More than the relay may hold: it stops to read.
	for range 10 {
		w.exec(`INSERT INTO outbox (kind, payload) SELECT 'large', to_jsonb(repeat('x', 1000) || i) FROM generate_series(1, 2000) i`)
	}
	w.redis.Kill()
	w.toRedis.Restore()
	p.becomes("critical", func(code int, doc healthDocument) bool {
		return code == 503 && doc.Status == "critical" && doc.reason("Redis has been away") != "" && doc.Role == "streaming"
	})
	if !w.hearsFor(pid, 8) {
		t.Error("PostgreSQL lost the relay while Redis was away")
	}
	rows.goesOn(1) // nobody who writes is held up

	w.redis.Start()
	p.becomes("ok again", func(_ int, doc healthDocument) bool { return doc.Status == "ok" })
	rows.end()
	w.verify(0)
	w.allMarked()
	w.confirmedPast()
	if now := w.walsender(); now != pid {
		t.Errorf("PostgreSQL's process %s streams, and before it was %s", now, pid)
	}
}

// While Redis is away and a budget for WAL runs out, health says why and when.
// Once it is back, health is ok, and the log has both.
func TestRunwayIsToldWhileRedisIsAway(t *testing.T) {
	t.Parallel()
	w := newWorld(t, worldOptions{settings: map[string]string{"max_slot_wal_keep_size": "256MB"}})
	p := w.startRelay("--age-warn", "1s", "--age-critical", "10m")
	p.streams()
	p.becomes("ready", func(_ int, doc healthDocument) bool { return doc.Ready && doc.Status == "ok" && doc.Cause == "" })
	w.startLoad(w.dsn, 1, 20*time.Millisecond, `SELECT pg_logical_emit_message(false, 'load', repeat('x', 50000))`)
	w.insert("before", 1)
	w.confirmedPast()

	w.toRedis.Cut()
	w.insert("during", 1)
	p.becomes("warn, and names Redis", func(code int, doc healthDocument) bool {
		return code == 200 && doc.Status == "warn" && strings.Contains(doc.Cause, "Redis has been unreachable since")
	})
	p.becomes("critical, with a runway", func(code int, doc healthDocument) bool {
		return code == 503 && doc.Status == "critical" && doc.Runway != nil && *doc.Runway > 0 &&
			doc.reason("At the present rate", "max_slot_wal_keep_size") != "" && strings.Contains(doc.Cause, "Redis")
	})
	p.says("msg=health status=critical")

	w.toRedis.Restore()
	p.becomes("ok again", func(_ int, doc healthDocument) bool {
		// The oracle's slot may have become another reason.
		return doc.Status == "ok" && doc.Runway == nil && !strings.Contains(doc.Cause, "Redis")
	})
	p.says("msg=health status=ok before=critical")
	w.verify(0)
}

// A first start without Redis is not worse than any other without Redis: it
// warns, and does not complain of what it will make itself.
func TestFirstStartWithoutRedis(t *testing.T) {
	t.Parallel()
	w := newWorld(t, worldOptions{})
	w.insert("before", 3)
	w.toRedis.Cut()
	p := w.startRelay()
	p.becomes("warn, when it has looked at the table", func(_ int, doc healthDocument) bool {
		return doc.Age != nil && doc.reason("Redis has been away") != ""
	})
	if code, doc, err := p.health(); err != nil || code != 200 || doc.Status != "warn" || doc.Role != "starting" || doc.Slot != nil {
		t.Errorf("health is %d %+v, %v", code, doc, err)
	}
	w.toRedis.Restore()
	p.streams()
	p.becomes("ok", func(_ int, doc healthDocument) bool { return doc.Status == "ok" })
	w.verify(3)
}

// Redis takes longer for one batch than PostgreSQL waits for a sign of life
// (wal_sender_timeout), and the connection stays up.
func TestBatchTakesLongerThanSenderTimeout(t *testing.T) {
	t.Parallel()
	for _, timeout := range []int{1, 5} {
		t.Run(fmt.Sprint(timeout, "s"), func(t *testing.T) {
			t.Parallel()
			w := newWorld(t, worldOptions{settings: map[string]string{"wal_sender_timeout": fmt.Sprint(timeout, "s")}})
			p := w.startRelay()
			p.streams()
			w.insert("before", 3)
			w.verify(0)
			// On a machine that is too busy a second may pass without the
			// relay getting a turn, so it has several tries.
			stayed := false
			for try := 0; !stayed && try < 4; try++ {
				w.eventually("the relay streams", func() error {
					if w.walsender() == "" {
						return fmt.Errorf("it does not")
					}
					return nil
				})
				pid := w.walsender()
				w.redis.Freeze()
				// More than the relay may hold, so that it does not even see
				// that PostgreSQL asks for a sign of life.
				w.exec(`INSERT INTO outbox (kind, payload) SELECT 'large', to_jsonb(repeat('x', 1000) || i) FROM generate_series(1, 10000) i`)
				stayed = w.hearsFor(pid, 2.5*float64(timeout))
				w.redis.Thaw()
				w.verify(0)
				stayed = stayed && w.walsender() == pid
			}
			if !stayed {
				t.Error("PostgreSQL hung up on the relay")
			}
			w.allMarked()
			w.confirmedPast()
		})
	}
}

// A fast shutdown of PostgreSQL waits until everybody who streams has confirmed
// or left. The relay confirms late, or not at all, and leaves at once.
func TestPostgresStopsAtOnce(t *testing.T) {
	t.Parallel()
	for _, tt := range []struct {
		name         string
		happen, undo func(*world)
	}{
		{"while entries are younger than the confirm delay", func(w *world) { w.verify(0) }, nil},
		{"while Redis is unreachable", func(w *world) { w.toRedis.Cut(); w.insert("during", 3) }, func(w *world) { w.toRedis.Restore() }},
		{"while Redis is frozen", func(w *world) { w.redis.Freeze(); w.insert("during", 3) }, func(w *world) { w.redis.Thaw() }},
		{
			"while rows wait for a locked one",
			func(w *world) {
				w.toRedis.Cut()
				w.insert("during", 3)
				conn := w.connect()
				w.t.Cleanup(func() { conn.Close(context.Background()) })
				if _, err := conn.Exec(context.Background(), `BEGIN; SELECT FROM outbox WHERE kind = 'during' FOR UPDATE`); err != nil {
					w.t.Fatal(err)
				}
				w.toRedis.Restore()
				w.verify(0)
			}, nil,
		},
	} {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			w := newWorld(t, worldOptions{})
			p := w.startRelay("--confirm-delay", "10m")
			p.streams()
			w.insert("before", 3)
			tt.happen(w)
			w.stopsFast()
			w.pg.Start()
			if tt.undo != nil {
				tt.undo(w)
			}
			w.insert("after", 3)
			w.verify(0)
			w.allMarked()
		})
	}
}

// stopsFast stops PostgreSQL as an operator does. It takes much less than the
// confirm delay of ten minutes.
func (w *world) stopsFast() {
	w.t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	if err := w.pg.TryStop(ctx, "fast"); err != nil {
		w.t.Fatal(err)
	}
}
