package main

import (
	"context"
	"encoding/json"
	"fmt"
	"testing"
	"time"

	"github.com/stagedoor/walrelay/cdc"
)

// Stopped while rows keep coming, the relay has said how far it has come, and
// has let the slot go, when it ends: the next one neither waits for the slot nor
// reads again what was confirmed.
func TestStopSendsTheLastStatus(t *testing.T) {
	t.Parallel()
	w := newWorld(t, worldOptions{})
	w.startRelay().streams()
	w.relays[0].stop()
	rows := w.startLoad(w.dsn, 2, time.Millisecond, `INSERT INTO outbox (kind, payload) VALUES ('more', '{}')`)
	client := w.redis.Client(t)
	key := client.Keys(context.Background(), "walrelay:*").Val()[0]
	for round := range 8 {
		p := w.startRelay("--confirm-delay", "0s")
		p.streams()
		p.becomes("ok with rows published", func(_ int, doc healthDocument) bool { return doc.Status == "ok" && doc.Published > 200 })
		p.stop()
		active := w.query(`SELECT active FROM pg_replication_slots WHERE slot_name = 'walrelay'`)
		confirmed := w.query(`SELECT confirmed_flush_lsn FROM pg_replication_slots WHERE slot_name = 'walrelay'`)
		covered := checkpointOf(t, client.HGet(context.Background(), key, "checkpoint").Val()).Covered
		if got := fmt.Sprint(active, " ", confirmed); got != fmt.Sprint("false ", covered) {
			t.Fatalf("after stop %d the slot is %s (active, confirmed); the last stamp covered %s", round, got, covered)
		}
	}
	rows.end()
	w.startRelay().streams()
	w.verify(0)
	w.allMarked()
}

func checkpointOf(t *testing.T, document string) (cp cdc.Checkpoint) {
	t.Helper()
	if err := json.Unmarshal([]byte(document), &cp); err != nil {
		t.Fatal(err)
	}
	return cp
}
