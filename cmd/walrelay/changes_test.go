package main

import "testing"

// Only new rows are entries: as they were inserted, also where the transaction
// changes or deletes them again. Everything else that happens to rows is none,
// and stops nothing, whether the relay is there or not.
func TestOnlyInsertsAreEntries(t *testing.T) {
	t.Parallel()
	w := newWorld(t, worldOptions{})
	w.exec(`ALTER TABLE outbox REPLICA IDENTITY FULL`)
	p := w.startRelay()
	p.streams()
	entries := 0
	do := func(inserts int, sql string) {
		t.Helper()
		w.exec(sql)
		entries += inserts
	}
	everything := func(when string) {
		t.Helper()
		row := `INSERT INTO outbox (kind, payload) VALUES ('` + when + `', '{"as": "inserted"}')`
		do(1, row)
		do(0, `UPDATE outbox SET payload = '"changed"', kind = 'changed' WHERE id = (SELECT max(id) FROM outbox)`)
		do(0, `UPDATE outbox SET published_at = now()`)
		do(0, `UPDATE outbox SET id = id + 1000000 WHERE id = (SELECT max(id) FROM outbox)`)
		do(0, `UPDATE outbox SET id = id - 1000000 WHERE id > 1000000`)
		do(0, `DELETE FROM outbox WHERE id = (SELECT min(id) FROM outbox)`)
		do(1, `BEGIN; `+row+`; UPDATE outbox SET kind = 'ghost', payload = '"ghost"' WHERE id = (SELECT last_value FROM outbox_id_seq); COMMIT`)
		do(1, `BEGIN; `+row+`; DELETE FROM outbox WHERE id = (SELECT last_value FROM outbox_id_seq); COMMIT`)
		do(1, `BEGIN; `+row+`; UPDATE outbox SET published_at = now() WHERE id = (SELECT last_value FROM outbox_id_seq); COMMIT`)
		// A new row, and one that is there.
		do(1, `INSERT INTO outbox (id, kind, payload) VALUES (nextval('outbox_id_seq'), 'new', '1') ON CONFLICT (id) DO UPDATE SET kind = 'ghost'`)
		do(0, `INSERT INTO outbox (id, kind, payload) SELECT max(id), 'ghost', '2' FROM outbox ON CONFLICT (id) DO UPDATE SET payload = '"upserted"'`)
		do(0, `INSERT INTO outbox (id, kind, payload) SELECT max(id), 'ghost', '2' FROM outbox ON CONFLICT DO NOTHING`)
		do(2, `INSERT INTO outbox (id, kind, payload) SELECT nextval('outbox_id_seq'), 'new', '3'::jsonb UNION ALL SELECT max(id), 'ghost', '4' FROM outbox UNION ALL SELECT nextval('outbox_id_seq'), 'new', '5'
			ON CONFLICT (id) DO UPDATE SET kind = 'upserted'`)
		do(1, row)
		do(0, `BEGIN; `+row+`; TRUNCATE outbox; ROLLBACK`)
		do(1, `BEGIN; `+row+`; TRUNCATE outbox; COMMIT`)
		do(1, row)
		do(0, `TRUNCATE outbox RESTART IDENTITY CASCADE; SELECT setval('outbox_id_seq', `+w.query(`SELECT last_value FROM outbox_id_seq`)+`)`)
		do(1, row)
		do(0, `DELETE FROM outbox`)
		do(1, row)
	}
	everything("live")
	w.verify(0)
	w.confirmedPast()
	everything("live, all at once")
	p.stop()
	everything("while no relay is there")
	p = w.startRelay()
	p.streams()
	w.verify(0)
	if n := w.length(); n != entries {
		t.Errorf("%d entries, want %d", n, entries)
	}
	w.allMarked()
	w.confirmedPast()
	p.becomes("ok", func(_ int, doc healthDocument) bool { return doc.Status == "ok" && len(doc.Reasons) == 0 })
}
