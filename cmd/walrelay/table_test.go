package main

import (
	"fmt"
	"slices"
	"strings"
	"testing"
)

// sameOrder waits until the stream has the committed rows, and compares their
// ids: each once, in commit order. It is for tables whose columns have other
// names than the oracle knows.
func (w *world) sameOrder() {
	w.t.Helper()
	var want []string
	for _, row := range w.committed() {
		want = append(want, row.OutboxID)
	}
	w.hasEntries(len(want))
	if got := w.onStream("outbox_id"); !slices.Equal(got, want) {
		w.t.Errorf("on the stream are %v, committed were %v", got, want)
	}
}

// The outbox is altered under a writer. The relay streams on, over the same
// connection, and a table that PostgreSQL writes anew makes no entries.
func TestTableIsAlteredUnderAWriter(t *testing.T) {
	t.Parallel()
	w := newWorld(t, worldOptions{})
	w.exec(`ALTER TABLE outbox ALTER COLUMN id TYPE integer`)
	p := w.startRelay()
	p.streams()
	load := w.startLoad(w.dsn, 2, 0, `INSERT INTO outbox (kind, payload) VALUES ('load', '{"a": [1, 2.50, "\u00e9"]}')`)
	load.goesOn(20)
	for _, change := range []string{
		`ALTER TABLE outbox ADD COLUMN extra text DEFAULT 'the same for all'`,
		`ALTER TABLE outbox ADD COLUMN token uuid DEFAULT gen_random_uuid()`, // each row is written anew
		`INSERT INTO outbox (kind, payload, extra) VALUES ('extra', '{}', 'of its own')`,
		`ALTER TABLE outbox RENAME COLUMN extra TO other`,
		`INSERT INTO outbox (kind, payload, other) VALUES ('other', '{}', NULL)`,
		`ALTER TABLE outbox RENAME COLUMN other TO extra`,
		`ALTER TABLE outbox DROP COLUMN extra`,
		`ALTER TABLE outbox ALTER COLUMN kind TYPE varchar(100)`,
		`ALTER TABLE outbox ALTER COLUMN payload TYPE json`,
		`INSERT INTO outbox (kind, payload) VALUES ('json', '{"as":   "typed", "a": 1, "a": 2}')`,
		`ALTER TABLE outbox ALTER COLUMN payload TYPE text`,
		`INSERT INTO outbox (kind, payload) VALUES ('text', 'no JSON')`,
		`ALTER TABLE outbox ALTER COLUMN payload TYPE jsonb USING to_jsonb(payload)`,
		`ALTER TABLE outbox ALTER COLUMN id TYPE bigint`,
		`SELECT setval('outbox_id_seq', 9007199254740992)`, // which marking must get along with
		`BEGIN; ALTER TABLE outbox RENAME COLUMN kind TO sort; ALTER TABLE outbox RENAME COLUMN sort TO kind; COMMIT`,
		`ALTER TABLE outbox DROP CONSTRAINT outbox_pkey; ALTER TABLE outbox ADD PRIMARY KEY (id)`,
		`VACUUM FULL outbox`,
	} {
		w.exec(change)
		load.goesOn(10)
	}
	load.end()
	w.verify(0)
	w.allMarked()
	w.confirmedPast()
	if n := strings.Count(p.log.String(), "msg=streaming "); n != 1 {
		t.Errorf("the relay streamed %d times", n)
	}
	p.becomes("ok", func(_ int, doc healthDocument) bool { return doc.Status == "ok" && len(doc.Reasons) == 0 })
}

// A column that entries are made of goes away. The line stops by its name, with
// everything before it on the stream and marked, and goes on when it is repaired
// as the report says.
func TestColumnOfAnEntryGoesAway(t *testing.T) {
	for name, tt := range map[string]struct {
		away, insert string
		repair       func(w *world, p *relayProcess) (*relayProcess, bool)
	}{
		"renamed, and the mapping follows": {
			`ALTER TABLE outbox RENAME COLUMN kind TO sort`,
			`INSERT INTO outbox (sort, payload) VALUES ('away', '{}')`,
			func(w *world, p *relayProcess) (*relayProcess, bool) {
				p.stop()
				return w.startRelay("--column-kind", "sort"), true
			},
		},
		"renamed and renamed back": {
			`ALTER TABLE outbox RENAME COLUMN kind TO sort`,
			`INSERT INTO outbox (sort, payload) VALUES ('away', '{}')`,
			func(w *world, p *relayProcess) (*relayProcess, bool) {
				w.exec(`ALTER TABLE outbox RENAME COLUMN sort TO kind`)
				return w.tearDown(p), false
			},
		},
		"dropped and added again": {
			`ALTER TABLE outbox DROP COLUMN kind`,
			`INSERT INTO outbox (payload) VALUES ('{}')`,
			func(w *world, p *relayProcess) (*relayProcess, bool) {
				w.exec(`ALTER TABLE outbox ADD COLUMN kind text NOT NULL DEFAULT 'unknown'`)
				return w.tearDown(p), false
			},
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			w := newWorld(t, worldOptions{})
			p := w.startRelay()
			p.streams()
			w.insert("before", 2)
			w.confirmedPast()
			w.exec(`BEGIN; INSERT INTO outbox (kind, payload) VALUES ('in one transaction', '1'), ('in one transaction', '2'); ` + tt.away + `; ` + tt.insert + `; COMMIT`)
			w.exec(tt.insert)
			p.saysInHealth("critical", `no column "kind"`, "--column-kind")
			w.hasEntries(4)
			w.eventually("what was published is marked", func() error {
				if marked := w.query(`SELECT count(*) FROM outbox WHERE published_at IS NOT NULL`); marked != "4" {
					return fmt.Errorf("%s rows are", marked)
				}
				return nil
			})
			if n := w.length(); n != 4 {
				t.Errorf("%d entries, want the 4 from before", n)
			}
			p, inOrder := tt.repair(w, p)
			p.streams()
			w.exec(strings.Replace(`INSERT INTO outbox (kind, payload) VALUES ('last', '{}')`, "kind", w.query(
				`SELECT attname FROM pg_attribute WHERE attrelid = 'outbox'::regclass AND attname IN ('kind', 'sort')`), 1))
			w.hasEntries(7)
			if inOrder {
				w.sameOrder()
			}
			if ids := w.onStream("outbox_id"); len(ids) != 7 || !slices.Equal(slices.Compact(slices.Sorted(slices.Values(ids))), []string{"1", "2", "3", "4", "5", "6", "7"}) {
				t.Errorf("on the stream are the rows %v, want each once", ids)
			}
			w.allMarked()
			w.confirmedPast()
			p.becomes("ok", func(_ int, doc healthDocument) bool { return doc.Status == "ok" })
		})
	}
}

// tearDown stops the relay, does what the report of a gap says, and starts
// another one.
func (w *world) tearDown(p *relayProcess, flags ...string) *relayProcess {
	w.t.Helper()
	p.stop()
	code, _, stderr := walrelay(nil, append([]string{"teardown", "--yes", "--postgres", w.dsn, "--redis", w.redis.URL()}, flags...)...)
	if code != 0 {
		w.t.Fatalf("teardown ended with %d: %s", code, stderr)
	}
	return w.startRelay(flags...)
}

// The column of the marks goes away. Publishing goes on, at critical, and the
// marks are made up for when it is back.
func TestColumnOfTheMarksGoesAway(t *testing.T) {
	t.Parallel()
	w := newWorld(t, worldOptions{})
	p := w.startRelay()
	p.streams()
	w.insert("before", 3)
	w.verify(0)
	w.allMarked()
	w.exec(`ALTER TABLE outbox RENAME COLUMN published_at TO sent_at`)
	w.insert("away", 3)
	w.verify(0)
	p.saysInHealth("critical", "cannot be marked", `"published_at"`, "--column-published-at")
	w.confirmedPast()
	if n := w.query(`SELECT count(*) FROM outbox WHERE sent_at IS NULL`); n != "3" {
		t.Errorf("%s rows are unmarked", n)
	}
	w.exec(`ALTER TABLE outbox RENAME COLUMN sent_at TO published_at`)
	w.allMarked()
	w.insert("after", 3)
	w.verify(0)
	w.allMarked()
	w.confirmedPast()
	p.becomes("ok", func(_ int, doc healthDocument) bool { return doc.Status == "ok" })
}
