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

	"github.com/redis/go-redis/v9"

	"github.com/stagedoor/walrelay/cdc"
	"github.com/stagedoor/walrelay/relay"
)

// gap is what makes slot and checkpoint disagree.
type gap struct {
	settings map[string]string
	running  bool // it happens while the relay streams
	make     func(w *world)
	kind     cdc.Kind
	reason   string
	doubt    bool // what Redis had lost is not known
	lost     bool // rows that were published are lost with the database
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
			make: func(w *world) { w.exec(`SELECT pg_drop_replication_slot('walrelay')`) },
			kind: cdc.NoSlot, reason: "the slot is gone",
		},
		"the slot was made anew": {
			make: func(w *world) {
				w.exec(`SELECT pg_drop_replication_slot('walrelay')`)
				w.exec(`SELECT pg_create_logical_replication_slot('walrelay', 'pgoutput')`)
			},
			kind: cdc.NotCovered, reason: "the slot was moved or created anew",
		},
		"the slot was advanced": {
			make: func(w *world) { w.exec(`SELECT pg_replication_slot_advance('walrelay', pg_current_wal_lsn())`) },
			kind: cdc.NotCovered, reason: "the slot was moved or created anew",
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
			kind: cdc.SlotLost, reason: "is lost: PostgreSQL removed WAL",
		},
		"Redis was emptied": {
			make: func(w *world) { w.redisDo("FLUSHALL") },
			kind: cdc.NoCheckpoint, doubt: true, reason: "Redis has no checkpoint for it",
		},
		"the checkpoint was deleted under the relay": {
			running: true,
			make:    func(w *world) { w.redisDo("DEL", w.checkpoint()) },
			kind:    cdc.NoCheckpoint, doubt: true, reason: "Redis has no checkpoint for it",
		},
		"the stream was deleted under an idle relay": {
			running: true,
			make:    func(w *world) { w.redisDo("DEL", "jobs") },
			kind:    cdc.StreamMissing, doubt: true, reason: "is gone, the checkpoint has its last entry",
		},
		"the stream was made anew under an idle relay": {
			running: true,
			make: func(w *world) {
				_, err := w.rdb().TxPipelined(w.t.Context(), func(p redis.Pipeliner) error {
					p.Del(w.t.Context(), "jobs")
					p.XAdd(w.t.Context(), &redis.XAddArgs{Stream: "jobs", Values: []string{"task", "somebody else's"}})
					return nil
				})
				if err != nil {
					w.t.Fatal(err)
				}
			},
			kind: cdc.StreamBehind, doubt: true, reason: "it was deleted and made anew",
		},
		"the stream has expired": {
			running: true,
			make:    func(w *world) { w.redisDo("PEXPIRE", "jobs", 1) },
			kind:    cdc.StreamMissing, doubt: true, reason: "is gone, the checkpoint has its last entry",
		},
		"the stream was made anew": {
			make: func(w *world) {
				w.redisDo("DEL", "jobs")
				w.redisDo("XADD", "jobs", "1-1", "outbox_id", "somebody else's")
			},
			kind: cdc.StreamBehind, doubt: true, reason: "ends at 1-1",
		},
		"a backup was restored": {
			make: func(w *world) { w.restore(w.published) },
			kind: cdc.BeyondWAL, lost: true, reason: "the database lost its end or was restored",
		},
		"a backup was restored, and written to": {
			make: func(w *world) {
				w.restore(w.published)
				w.insert("down", 5)
				w.exec(`CREATE TABLE busy (filler text); INSERT INTO busy SELECT repeat('x', 1000) FROM generate_series(1, 3000)`)
			},
			kind: cdc.OtherHistory, lost: true, reason: "another history",
		},
	}
}

// opened is a world in which a relay worked, and a gap was made.
func (g gap) opened(t *testing.T, flags ...string) (*world, *relayProcess) {
	t.Helper()
	w := newWorld(t, worldOptions{settings: g.settings})
	p := w.startRelay(flags...)
	p.streams()
	w.insert("before", 5)
	w.verify(0)
	w.allMarked()
	w.confirmedPast()
	if g.running {
		g.make(w)
		return w, p
	}
	p.stop()
	w.insert("down", 3)
	g.make(w)
	return w, w.startRelay(flags...)
}

// What may have lost rows is found and healed: every row that the database has
// is on the stream once, and the log says what was wrong. Entries that Redis has
// are not sent again.
func TestGapIsHealed(t *testing.T) {
	t.Parallel()
	for name, gap := range gaps() {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			w, p := gap.opened(t)
			p.says("rows may be missing; healing")
			p.says(gap.reason)
			w.insert("behind the gap", 2)
			p.becomes("well", func(code int, doc healthDocument) bool {
				return code == 200 && doc.Role == "streaming" && (doc.reason("walrelay heal --since") != "") == gap.doubt
			})
			w.insert("after", 2)
			w.allMarked()
			w.eventually("the last row is on the stream", func() error {
				if kinds := w.onStream("kind"); !slices.Contains(kinds, "after") {
					return fmt.Errorf("%v", kinds)
				}
				return nil
			})
			kinds := []string{"down", "behind the gap", "after"}
			if !gap.doubt {
				kinds = append(kinds, "before")
			}
			w.each(kinds...)
			w.confirmedPast()
			if got := p.metric(fmt.Sprintf("walrelay_heals_total{reason=%q}", gap.kind)); got != "1" {
				t.Errorf("%s heals of the kind %s", got, gap.kind)
			}
			if gap.lost {
				p.says("entries are on the stream whose rows were lost with the database")
				if got := p.metric("walrelay_lost_entries_total"); got != "5" {
					t.Errorf("%s entries are reported as lost with the database", got)
				}
			}

			// Another start finds nothing to repair.
			p.stop()
			p = w.startRelay()
			p.streams()
			w.insert("in the end", 1)
			w.allMarked()
			w.each(append(kinds, "in the end")...)
			if strings.Contains(p.log.String(), "rows may be missing") {
				t.Error("the gap is healed twice")
			}
		})
	}
}

// A database is restored that has all rows that are covered, and lacks the last that
// were appended. Rows that are written to it do not wait until its WAL has come as
// far again.
func TestRestoredDatabaseThatHasWhatIsCovered(t *testing.T) {
	t.Parallel()
	w := newWorld(t, worldOptions{})
	first := w.startRelay()
	first.streams()
	w.insert("before", 5)
	w.verify(0)
	w.allMarked()
	w.confirmedPast()
	first.stop()
	before := w.length()
	w.restore(func() {
		w.emit(1) // what is written to the restored one does not come as far
		w.insert("lost with the database", 5)
		mortal := w.startRelayEnv([]string{execEnv + "=crash", crashEnv + "=" + string(relay.StepAppended) + ":1"})
		if err := mortal.killedItself(); err != nil {
			t.Fatal(err)
		}
	})
	lost := w.length() - before
	if lost == 0 {
		t.Fatal("the relay has appended nothing")
	}

	p := w.startRelay()
	w.insert("after", 3)
	w.allMarked()
	w.each("before", "after")
	w.confirmedPast()
	p.says("the database lost its end or was restored")
	for metric, want := range map[string]string{
		fmt.Sprintf("walrelay_heals_total{reason=%q}", cdc.BeyondWAL): "1",
		"walrelay_lost_entries_total":                                 fmt.Sprint(lost),
	} {
		if got := p.metric(metric); got != want {
			t.Errorf("%s is %s, want %s", metric, got, want)
		}
	}
}

// With --heal=manual it waits for an operator: critical, with the reason and
// the command; nothing is appended, marked or confirmed until that is given. One
// gap that PostgreSQL shows, one that Redis does, and one that only the log does.
func TestGapWaitsForAnOperator(t *testing.T) {
	t.Parallel()
	for name, gap := range gaps() {
		if !slices.Contains([]cdc.Kind{cdc.NoSlot, cdc.StreamMissing, cdc.OtherHistory}, gap.kind) {
			continue
		}
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			w, p := gap.opened(t, "--heal", "manual")
			stopped := func() {
				t.Helper()
				p.becomes("critical, with the reason and the fix", func(code int, doc healthDocument) bool {
					return code == 503 && doc.reason(gap.reason, "walrelay heal") != ""
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

			if said := w.heal(); strings.Contains(said, "what it could not know") != gap.doubt {
				t.Errorf("heal says %q", said)
			}
			w.insert("after", 2)
			w.allMarked()
			w.each("down", "behind the gap", "after")
			w.confirmedPast()
		})
	}
}

// heal does what the report of a gap says.
func (w *world) heal() (said string) {
	w.t.Helper()
	code, said, stderr := walrelay(nil, "heal", "--postgres", w.dsn, "--redis", w.redis.URL())
	if code != 0 {
		w.t.Fatalf("heal ended with %d: %s", code, stderr)
	}
	return said
}

// startPromoted starts PostgreSQL on the next timeline.
func (w *world) startPromoted() {
	w.t.Helper()
	// In a directory of the server's own account.
	signal := filepath.Join(w.pg.DataDir(), "standby.signal")
	if out, err := exec.Command("cp", "-p", filepath.Join(w.pg.DataDir(), "PG_VERSION"), signal).CombinedOutput(); err != nil {
		w.t.Fatalf("%v: %s", err, out)
	}
	w.pg.Start()
	if w.query(`SELECT pg_promote()`) != "true" {
		w.t.Fatal("it is not promoted")
	}
}

// A database comes back as it was before a heal, and with it the slot of then, and
// no row came since: there is none that would have to be met. What the old slot
// delivers again is on the stream.
func TestRestoredFromBeforeAHeal(t *testing.T) {
	t.Parallel()
	for name, start := range map[string]func(*world){
		"a volume":                      func(w *world) { w.pg.Start() },
		"a recovery to a point in time": (*world).startPromoted,
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			w := newWorld(t, worldOptions{})
			p := w.startRelay()
			p.streams()
			w.insert("before", 5)
			w.allMarked()
			w.confirmedPast()
			data := w.pg.Snapshot()
			w.emit(1) // the slot that is made lies behind it
			w.heal()
			w.confirmedPast()

			w.toPG.Cut()
			w.pg.Kill()
			w.pg.Restore(data)
			start(w)
			w.emit(2) // as far as before, and farther
			w.insert("after", 3)
			w.toPG.Restore()
			p.says("the last backfill made it at")
			w.allMarked()
			w.each("before", "after")
			w.confirmedPast()
			if got := p.metric(fmt.Sprintf("walrelay_heals_total{reason=%q}", cdc.OtherHistory)); got != "1" {
				t.Errorf("%s heals", got)
			}
		})
	}
}

// A promotion is no gap where the slot is there: what was appended of the WAL
// that both servers share is skipped, and the rest comes.
func TestPromotionWithTheSlotIsNoGap(t *testing.T) {
	w, p := gap{make: func(w *world) {
		for range 2 {
			w.pg.Stop("fast")
			w.startPromoted()
			w.insert("between two promotions", 1)
		}
	}}.opened(t)
	p.streams()
	w.insert("after", 2)
	w.verify(0)
	w.allMarked()
	w.confirmedPast()
	if strings.Contains(p.log.String(), "rows may be missing") {
		t.Error("a promotion is healed")
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
