package main

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
)

// gap is what makes slot and checkpoint disagree.
type gap struct {
	settings map[string]string
	running  bool // it happens while the relay streams
	make     func(w *world)
	reason   string
}

// redisDo runs a command past the proxy.
func (w *world) redisDo(args ...any) {
	w.t.Helper()
	if err := w.rdb().Do(w.t.Context(), args...).Err(); err != nil {
		w.t.Fatalf("%v: %v", args, err)
	}
}

// checkpoint is the name of the only checkpoint.
func (w *world) checkpoint() string {
	w.t.Helper()
	keys, err := w.rdb().Keys(w.t.Context(), "walrelay:*").Result()
	if err != nil || len(keys) != 1 {
		w.t.Fatalf("the checkpoints are %q, %v", keys, err)
	}
	return keys[0]
}

// restore puts PostgreSQL's data back to what it was before during.
func (w *world) restore(during func()) {
	w.t.Helper()
	backup := filepath.Join(w.t.TempDir(), "data")
	copyOver := func(from, to string) {
		w.t.Helper()
		if out, err := exec.Command("cp", "-a", from, to).CombinedOutput(); err != nil {
			w.t.Fatalf("%v: %s", err, out)
		}
	}
	w.pg.Stop("fast")
	copyOver(w.pg.DataDir(), backup)
	w.pg.Start()
	during()
	w.pg.Stop("fast")
	if err := os.RemoveAll(w.pg.DataDir()); err != nil {
		w.t.Fatal(err)
	}
	copyOver(backup, w.pg.DataDir())
	w.pg.Start()
}

// published has a relay publish rows that are then lost with the database.
func (w *world) published() {
	w.t.Helper()
	before := w.length()
	p := w.startRelay()
	p.streams()
	w.insert("lost with the database", 5)
	w.hasEntries(before + 5)
	w.allMarked()
	w.confirmedPast()
	p.stop()
}

func gaps() map[string]gap {
	return map[string]gap{
		"the slot was dropped": {
			make:   func(w *world) { w.exec(`SELECT pg_drop_replication_slot('walrelay')`) },
			reason: "the slot is gone",
		},
		"the slot was made anew": {
			make: func(w *world) {
				w.exec(`SELECT pg_drop_replication_slot('walrelay')`)
				w.exec(`SELECT pg_create_logical_replication_slot('walrelay', 'pgoutput')`)
			},
			reason: "the slot was moved or created anew",
		},
		"the slot was advanced": {
			make:   func(w *world) { w.exec(`SELECT pg_replication_slot_advance('walrelay', pg_current_wal_lsn())`) },
			reason: "the slot was moved or created anew",
		},
		"the slot lost its WAL": {
			settings: map[string]string{"max_slot_wal_keep_size": "1MB", "min_wal_size": "32MB", "max_wal_size": "32MB"},
			make: func(w *world) {
				for range 5 {
					w.query(`pg_switch_wal()`)
					w.exec(`CREATE TABLE IF NOT EXISTS busy (filler text); INSERT INTO busy VALUES ('x')`)
				}
				w.eventually("the slot is lost", func() error {
					w.exec(`CHECKPOINT`)
					if status := w.query(`SELECT wal_status FROM pg_replication_slots WHERE slot_name = 'walrelay'`); status != "lost" {
						return errors.New(status)
					}
					return nil
				})
			},
			reason: `the slot "walrelay" is lost`,
		},
		"Redis was emptied": {
			make:   func(w *world) { w.redisDo("FLUSHALL") },
			reason: "Redis has no checkpoint for it",
		},
		"the checkpoint was deleted under the relay": {
			running: true,
			make:    func(w *world) { w.redisDo("DEL", w.checkpoint()) },
			reason:  "Redis has no checkpoint for it",
		},
		"the stream was deleted under an idle relay": {
			running: true,
			make:    func(w *world) { w.redisDo("DEL", "jobs") },
			reason:  `the stream "jobs" is gone`,
		},
		"the stream was made anew": {
			make: func(w *world) {
				w.redisDo("DEL", "jobs")
				w.redisDo("XADD", "jobs", "1-1", "outbox_id", "somebody else's")
			},
			reason: `the stream "jobs" ends at 1-1`,
		},
		"a standby was promoted": {
			make: func(w *world) {
				w.pg.Stop("fast")
				// In a directory of the server's own account.
				signal := filepath.Join(w.pg.DataDir(), "standby.signal")
				if out, err := exec.Command("cp", "-p", filepath.Join(w.pg.DataDir(), "PG_VERSION"), signal).CombinedOutput(); err != nil {
					w.t.Fatalf("%v: %s", err, out)
				}
				w.pg.Start()
				if w.query(`SELECT pg_promote()`) != "true" {
					w.t.Fatal("it is not promoted")
				}
			},
			reason: "the server is on timeline 2",
		},
		"a backup was restored": {
			make:   func(w *world) { w.restore(w.published) },
			reason: "the database lost its end or was restored",
		},
		"a backup was restored, and written to": {
			make: func(w *world) {
				w.restore(w.published)
				w.insert("down", 5)
				w.exec(`CREATE TABLE busy (filler text); INSERT INTO busy SELECT repeat('x', 1000) FROM generate_series(1, 3000)`)
			},
			reason: "another history",
		},
	}
}

// What may have lost rows stops the line: critical, with the reason and what to
// do about it; nothing is appended, marked or confirmed. What is to be done then
// works: the rows that were not published come, each once.
func TestGapStopsTheLine(t *testing.T) {
	for name, gap := range gaps() {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			w := newWorld(t, worldOptions{settings: gap.settings})
			p := w.startRelay()
			p.streams()
			w.insert("before", 5)
			w.verify(0)
			w.allMarked()
			w.confirmedPast()
			if !gap.running {
				p.stop()
				w.insert("down", 3)
				gap.make(w)
				p = w.startRelay()
			} else {
				gap.make(w)
			}
			stopped := func() {
				t.Helper()
				p.becomes("critical, with the reason and the fix", func(code int, doc healthDocument) bool {
					return code == 503 && doc.reason(gap.reason, "walrelay teardown") != ""
				})
			}
			stopped()
			w.insert("behind the gap", 2)
			state := func() string {
				entries := fmt.Sprint(w.onStream("outbox_id"))
				return entries + w.query(`SELECT ' on the stream, ' || count(published_at) || ' marked, confirmed ' ||
					coalesce((SELECT confirmed_flush_lsn::text FROM pg_replication_slots WHERE slot_name = 'walrelay'), 'nothing') FROM outbox`)
			}
			before := state()
			p.startsOver()
			stopped()
			if now := state(); now != before {
				t.Errorf("behind the gap there were %s, and are %s", before, now)
			}

			p = w.tearDown(p)
			p.streams()
			w.insert("after", 2)
			w.allMarked()
			w.eventually("the last row is on the stream", func() error {
				if kinds := w.onStream("kind"); !slices.Contains(kinds, "after") {
					return fmt.Errorf("%v", kinds)
				}
				return nil
			})
			w.each("down", "behind the gap", "after")
			w.confirmedPast()
		})
	}
}

// each expects every row of these kinds on the stream once, and none twice.
func (w *world) each(kinds ...string) {
	w.t.Helper()
	ids, of := w.onStream("outbox_id"), w.onStream("kind")
	seen := map[string]int{}
	for i := range ids {
		row := of[i] + " " + ids[i]
		if seen[row]++; seen[row] == 2 {
			w.t.Errorf("the row %s is on the stream twice", row)
		}
	}
	for _, kind := range kinds {
		rows := strings.Fields(w.query(`SELECT string_agg(id::text, ' ') FROM outbox WHERE kind = '` + kind + `'`))
		for _, id := range rows {
			if seen[kind+" "+id] != 1 {
				w.t.Errorf("the row %s (%s) is on the stream %d times", id, kind, seen[kind+" "+id])
			}
		}
	}
}
