package main

import "testing"

// The stream is deleted while a heal waits for its slot, so that the heal writes
// nothing that would notice: it is done again, and what cannot be known is said.
func TestStreamDeletedDuringBackfill(t *testing.T) {
	t.Parallel()
	w := newWorld(t, worldOptions{})
	p := w.startRelay()
	p.streams()
	w.insert("before", 3)
	w.allMarked()
	w.confirmedPast()
	p.stop()

	w.exec(`UPDATE outbox SET published_at = published_at - interval '1 hour'`) // no candidates
	w.exec(`SELECT pg_drop_replication_slot('walrelay')`)
	writer := w.open(w.dsn, `CREATE TABLE other (id int)`)
	p = w.startRelay()
	p.says("rows may be missing; healing")
	p.says("the slot is not created yet")
	w.redisDo("DEL", "jobs")
	writer.commit(t)

	p.becomes("well, but for the doubt", func(code int, doc healthDocument) bool {
		return code == 200 && doc.Role == "streaming" && doc.reason("walrelay heal --since") != ""
	})
	w.insert("after", 2)
	w.allMarked()
	w.each("after")
}
