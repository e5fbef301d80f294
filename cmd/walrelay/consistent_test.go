package main

import (
	"encoding/binary"
	"strconv"
	"testing"

	"github.com/stagedoor/walrelay/cdc"
	"github.com/stagedoor/walrelay/internal/shop"
	"github.com/stagedoor/walrelay/migrations"
)

// The first commit that a new slot delivers can have the very LSN of the slot's
// consistent point. It is published, like every other row of a relay that starts
// under load.
func TestFirstCommitIsAtTheConsistentPoint(t *testing.T) {
	t.Parallel()
	const tries, atLeast = 60, 2
	w := newWorld(t, worldOptions{})
	met := 0
	for try := 1; met == 0 || try <= atLeast; try++ {
		if try > tries {
			t.Fatalf("of %d first starts none met a commit at its consistent point", tries)
		}
		if w.firstStartUnderLoad() {
			met++
		}
		if t.Failed() {
			return
		}
	}
	t.Logf("%d starts met a commit at their consistent point", met)
}

// firstStartUnderLoad has a relay start for the first time in a fresh database
// while others write, compares all rows, and reports whether a transaction of the
// outbox committed exactly at the slot's consistent point.
func (w *world) firstStartUnderLoad() bool {
	w.t.Helper()
	if err := w.rdb().FlushAll(w.t.Context()).Err(); err != nil {
		w.t.Fatal(err)
	}
	fresh := *w
	fresh.dsn = w.pg.NewDatabase(w.t)
	fresh.exec(migrations.Table(cdc.Table{Schema: "public", Name: "outbox"}))
	fresh.exec(`CREATE PUBLICATION walrelay FOR TABLE outbox WITH (publish = 'insert', publish_via_partition_root = true)`)
	conn := fresh.connect()
	defer conn.Close(w.t.Context())
	fresh.exec(`SELECT pg_drop_replication_slot(slot_name) FROM pg_replication_slots`)
	if err := shop.CreateOracle(w.t.Context(), conn, "oracle"); err != nil {
		w.t.Fatal(err)
	}
	fresh.exec(`SELECT pg_create_logical_replication_slot('witness', 'pgoutput')`)

	// Sessions that have inserted and are about to commit, most of the time.
	load := fresh.startLoad(fresh.dsn, 8, 0, `BEGIN; INSERT INTO outbox (kind, payload) VALUES ('load', '{}'); SELECT pg_sleep(0.002); COMMIT`)
	load.goesOn(20)
	p := fresh.startRelay()
	p.streams()
	load.goesOn(20)
	load.end()
	backfilled, err := strconv.Atoi(field(p.log.String(), "msg=backfilled ", "rows"))
	if err != nil {
		w.t.Fatalf("how many rows were backfilled is not in the log: %v", err)
	}
	fresh.verify(backfilled)
	fresh.allMarked()
	p.stop()

	consistent, err := cdc.ParseLSN(field(p.log.String(), "the slot is made", "consistent"))
	if err != nil {
		w.t.Fatal(err)
	}
	rows, err := conn.Query(w.t.Context(), `SELECT data FROM pg_logical_slot_peek_binary_changes('witness', NULL, NULL,
		'proto_version', '1', 'publication_names', 'walrelay')`)
	if err != nil {
		w.t.Fatal(err)
	}
	defer rows.Close()
	met := false
	for rows.Next() {
		var message []byte
		if err := rows.Scan(&message); err != nil {
			w.t.Fatal(err)
		}
		// https://www.postgresql.org/docs/current/protocol-logicalrep-message-formats.html
		met = met || message[0] == 'B' && cdc.LSN(binary.BigEndian.Uint64(message[1:])) == consistent
	}
	if rows.Err() != nil {
		w.t.Fatal(rows.Err())
	}
	return met
}
