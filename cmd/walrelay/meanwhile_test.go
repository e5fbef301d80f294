package main

import (
	"strings"
	"testing"
)

// polled has a polling relay publish the rows that this condition chooses, as
// Python spells JSON, and mark those of even ids.
func (w *world) polled(where string) {
	w.t.Helper()
	conn := w.connect()
	defer conn.Close(w.t.Context())
	rows, err := conn.Query(w.t.Context(), `
		SELECT id::text, kind, regexp_replace(payload::text, 'ü', '\\u00fc', 'g') FROM outbox
		WHERE published_at IS NULL AND `+where+` ORDER BY id`)
	if err != nil {
		w.t.Fatal(err)
	}
	defer rows.Close()
	for rows.Next() {
		var id, kind, payload string
		if err := rows.Scan(&id, &kind, &payload); err != nil {
			w.t.Fatal(err)
		}
		w.redisDo("XADD", "jobs", "*", "kind", kind, "outbox_id", id, "payload", strings.ReplaceAll(payload, ": ", ":"))
	}
	if rows.Err() != nil {
		w.t.Fatal(rows.Err())
	}
	w.exec(`UPDATE outbox SET published_at = now() WHERE published_at IS NULL AND id % 2 = 0 AND ` + where)
}

// A poller worked while no relay did, and the slot has its rows too: those that
// it appended are marked and not sent again, also after a crash, when later
// entries of ours are behind them; the others arrive.
func TestPollerWorkedBetweenTwoRuns(t *testing.T) {
	t.Parallel()
	w := newWorld(t, worldOptions{})
	p := w.startRelay()
	p.streams()
	w.insert("before", 3)
	w.verify(0)
	p.stop()

	w.exec(`INSERT INTO outbox (kind, payload) SELECT 'left by the poller', jsonb_build_object('n', i) FROM generate_series(1, 10) i`)
	w.exec(`INSERT INTO outbox (kind, payload) SELECT 'polled', jsonb_build_object('name', 'Müller', 'n', i) FROM generate_series(1, 600) i`)
	w.redisDo("XADD", "jobs", "*", "task", "somebody else's")
	w.polled(`kind = 'polled'`)

	// The rows that the poller left come first in the log: their append moves
	// the checkpoint's last entry behind all that the poller has appended.
	p = w.startRelayEnv([]string{execEnv + "=crash", crashEnv + "=appended:1"})
	if err := p.killedItself(); err != nil {
		t.Fatal(err)
	}
	p = w.startRelay()
	p.streams()
	w.insert("after", 3)
	w.allMarked()
	w.each("before", "left by the poller", "polled", "after")
	w.confirmedPast()
	if strings.Contains(p.log.String(), "rows may be missing") {
		t.Error("what the poller did is taken for a gap")
	}
	p.stop()

	// Once what is covered has passed all of that, it is not read again.
	p = w.startRelay()
	p.streams()
	w.exec(`SELECT pg_switch_wal(); CREATE TABLE busy (filler text)`)
	w.confirmedPast()
	p.stop()
	p = w.startRelay()
	p.streams()
	if strings.Contains(p.log.String(), "another program has appended") {
		t.Error("the poller's entries are read again")
	}
	w.insert("in the end", 1)
	w.allMarked()
	w.each("before", "left by the poller", "polled", "after", "in the end")
}
