package main

import (
	"context"
	"fmt"
	"sort"
	"strconv"
	"strings"
	"testing"
)

// decodingMemory has large transactions spill to disk in a test of its size.
var decodingMemory = map[string]string{"logical_decoding_work_mem": "64kB"}

// With concurrent writers the stream is what was committed, in commit order,
// each once, as PostgreSQL prints it.
func TestStreamEqualsCommittedRows(t *testing.T) {
	w := newWorld(t, worldOptions{settings: decodingMemory})
	w.startRelay().streams()
	ws := w.startWriters(6, 1)
	ws.wrote(15)
	ws.end()
	w.endPrepared()
	w.verify(0)
	w.allMarked()
	w.confirmedPast()
}

// Started while they write, with rows already there: every row, once; those
// from before the slot's consistent point first, in the backfill's order.
func TestRelayStartedWhileWriting(t *testing.T) {
	w := newWorld(t, worldOptions{settings: decodingMemory})
	ws := w.startWriters(6, 2, "delete published") // else what was there before could not be told afterwards
	ws.wrote(5)
	p := w.startRelay()
	p.streams()
	ws.wrote(15)
	ws.end()
	w.endPrepared()

	consistent := field(p.log.String(), "the slot is made", "consistent")
	before, err := strconv.Atoi(w.query(`SELECT count(*) FROM pg_logical_slot_peek_changes('oracle', '` + consistent + `', NULL, 'skip-empty-xacts', 'on')
		WHERE data LIKE 'table public.outbox: INSERT:%'`))
	if err != nil {
		t.Fatal(err)
	}
	if before < 50 {
		t.Fatalf("only %d rows were there before", before)
	}
	w.verifyBackfill(before)
	w.allMarked()
	w.confirmedPast()
}

// verifyBackfill is verify with the backfill's order: by creation time and id.
// Rows that were changed before the snapshot have their later values.
func (w *world) verifyBackfill(before int) {
	w.t.Helper()
	want := w.committed()
	alive := map[string]string{} // payload by id
	conn := w.connect()
	defer conn.Close(context.Background())
	rows, err := conn.Query(context.Background(), `SELECT o.id::text, o.payload::text FROM outbox o ORDER BY o.created_at, o.id`)
	if err != nil {
		w.t.Fatal(err)
	}
	var order []string
	for rows.Next() {
		var id, payload string
		if err := rows.Scan(&id, &payload); err != nil {
			w.t.Fatal(err)
		}
		alive[id] = payload
		order = append(order, id)
	}
	if rows.Err() != nil {
		w.t.Fatal(rows.Err())
	}
	first := map[string]bool{}
	kept := want[:0:0]
	n := 0
	for i, r := range want {
		payload, ok := alive[r.OutboxID]
		if i < before {
			if !ok {
				continue // inserted and deleted in one transaction
			}
			r.Payload = payload
			first[r.OutboxID] = true
			n++
		}
		kept = append(kept, r)
	}
	var sorted []string
	for _, id := range order {
		if first[id] {
			sorted = append(sorted, id)
		}
	}
	rank := map[string]int{}
	for i, id := range sorted {
		rank[id] = i
	}
	sort.SliceStable(kept[:n], func(i, j int) bool { return rank[kept[i].OutboxID] < rank[kept[j].OutboxID] })
	got, err := w.entries()
	if err != nil {
		w.t.Fatal(err)
	}
	w.eventually("all entries", func() error {
		if got, err = w.entries(); err != nil || len(got) < len(kept) {
			return fmt.Errorf("%d of %d, %v", len(got), len(kept), err)
		}
		return nil
	})
	if err := compare(kept, got, 0); err != nil {
		w.t.Error(err)
	}
}

// field is the value of a key in the log line with this message.
func field(log, message, key string) string {
	for line := range strings.Lines(log) {
		if strings.Contains(line, message) {
			if _, rest, ok := strings.Cut(line, " "+key+"="); ok {
				value, _, _ := strings.Cut(strings.TrimSpace(rest), " ")
				return value
			}
		}
	}
	return ""
}
