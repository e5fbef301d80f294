package main

import (
	"bytes"
	"errors"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"
)

// The replication connection is dead and does not end: what either side sends
// is swallowed. All others work. The relay notices, connects again when
// PostgreSQL has noticed, too, and continues where it was.
func TestReplicationConnectionFreezes(t *testing.T) {
	t.Parallel()
	w := newWorld(t, worldOptions{settings: map[string]string{"wal_sender_timeout": "10s"}})
	p := w.startRelay()
	p.streams()
	w.insert("before", 3)
	w.verify(0)
	pid := w.walsender()

	thaw := w.freezeReplication()
	defer thaw()
	w.insert("while it is frozen", 3)
	p.says("has not answered on the replication connection")
	w.eventually("the relay streams again", func() error {
		if strings.Count(p.log.String(), "msg=streaming") < 2 {
			return errors.New("not yet")
		}
		return nil
	})
	w.insert("after", 3)
	w.verify(0)
	if w.walsender() == pid {
		t.Error("the frozen connection is used")
	}
	thaw()
	w.insert("last", 3)
	w.verify(0)
	w.allMarked()
	w.confirmedPast()
	p.becomes("ok", func(_ int, doc healthDocument) bool { return doc.Status == "ok" && len(doc.Reasons) == 0 })
}

// freezeReplication freezes the connection that streams, in both directions,
// and returns what lets go of it.
func (w *world) freezeReplication() (thaw func()) {
	w.t.Helper()
	// Only this connection has messages of these kinds. It is the first to
	// have one, and from then on it is stuck in here.
	end := make(chan struct{})
	var replies, requests atomic.Bool
	stuck := func(frozen *atomic.Bool, piece []byte, messages ...string) bool {
		for _, m := range messages {
			if bytes.HasPrefix(piece, []byte(m)) && !frozen.Swap(true) {
				<-end
			}
		}
		return false
	}
	w.toPG.OnReply(func(piece []byte) bool { return stuck(&replies, piece, "d\x00\x00\x00\x16k") })
	w.toPG.OnRequest(func(piece []byte) bool { return stuck(&requests, piece, "d\x00\x00\x00\x26r") })
	w.eventually("the connection is frozen", func() error {
		if !replies.Load() || !requests.Load() {
			return errors.New("not yet")
		}
		return nil
	})
	return sync.OnceFunc(func() {
		w.toPG.OnReply(nil)
		w.toPG.OnRequest(nil)
		close(end)
	})
}

// A server freezes, or the network to it swallows everything: connections stay
// open and nothing moves. The health document turns red and says which side it
// is; afterwards the relay continues where it was.
func TestServerFreezes(t *testing.T) {
	t.Parallel()
	for _, tt := range []struct {
		name           string
		freeze, thaw   func(*world)
		says           string
		outlivesTheAct bool // no new connection is needed
	}{
		{"PostgreSQL", func(w *world) { w.pg.Freeze() }, func(w *world) { w.pg.Thaw() }, "PostgreSQL has not answered", false},
		{"the network to PostgreSQL", func(w *world) { w.toPG.Stall() }, func(w *world) { w.toPG.Resume() }, "PostgreSQL has not answered", false},
		{"Redis", func(w *world) { w.redis.Freeze() }, func(w *world) { w.redis.Thaw() }, "Redis has been away", true},
		{"the network to Redis", func(w *world) { w.toRedis.Stall() }, func(w *world) { w.toRedis.Resume() }, "Redis has been away", true},
	} {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			w := newWorld(t, worldOptions{})
			p := w.startRelay("--age-critical", "15s")
			p.streams()
			w.insert("before", 3)
			w.verify(0)
			rows := w.startLoad(w.dsn, 1, 20*time.Millisecond, `INSERT INTO outbox (kind, payload) VALUES ('load', '{}')`)
			rows.goesOn(20)
			pid := w.walsender()

			tt.freeze(w)
			p.saysInHealth("warn", tt.says)
			p.becomes("critical", func(code int, doc healthDocument) bool { return code == 503 && doc.reason(tt.says) != "" })
			if !tt.outlivesTheAct {
				p.says("has not answered on the replication connection")
			}
			tt.thaw(w)
			rows.goesOn(20)
			p.becomes("streaming and ok", func(_ int, doc healthDocument) bool { return doc.Role == "streaming" && doc.Status == "ok" })
			rows.end()
			w.verify(0)
			w.allMarked()
			w.confirmedPast()
			if now := w.walsender(); (now == pid) != tt.outlivesTheAct {
				t.Errorf("PostgreSQL's process %s streams, and before it was %s", now, pid)
			}
		})
	}
}
