package main

import (
	"errors"
	"fmt"
	"strings"
	"syscall"
	"testing"

	"github.com/stagedoor/walrelay/internal/testservers"
	"github.com/stagedoor/walrelay/relay"
)

// namedDSN is the relay's connection string with an application name.
func (w *world) namedDSN(name string) string { return w.relayDSN() + "&application_name=" + name }

// looks waits until the relay of this application name has looked at the slot
// so many times from now on, and calls each after each time.
func (w *world) looks(name string, times int, each func()) {
	w.t.Helper()
	last := ""
	for seen := 0; seen <= times; {
		w.eventually("the relay looks at the slot", func() error {
			now := w.query(`SELECT max(query_start) FROM pg_stat_activity
				WHERE application_name = '` + name + `' AND query LIKE '%FROM pg_replication_slots s LEFT JOIN pg_stat_replication %'`)
			if now == "" || now == last {
				return errors.New("not yet")
			}
			last = now
			return nil
		})
		seen++
		each()
	}
}

// A second relay waits for its turn: it says for which process, holds nothing
// that keeps vacuum or WAL back, does not connect again and again, and judges
// nothing. Its Redis, another one and empty, would be a reason to complain.
func TestSecondRelayStandsBy(t *testing.T) {
	t.Parallel()
	w := newWorld(t, worldOptions{})
	first := w.startRelay()
	first.streams()
	w.insert("before", 3)
	w.confirmedPast()
	pid := w.walsender()

	other := testservers.StartRedis(t, testservers.RedisOptions{})
	second := w.startRelay("--postgres", w.namedDSN("second"), "--redis", other.URL())
	second.says("standing by")
	second.becomes("standby, and says for whom", func(code int, doc healthDocument) bool {
		return code == 200 && doc.Role == "standby" && doc.Status == "ok" && doc.Slot != nil && doc.Slot.Active &&
			doc.reason("Stands by", "process "+pid) != ""
	})
	const who = `application_name = 'second'`
	pids := func() string {
		return w.query(`SELECT string_agg(pid::text, ' ' ORDER BY pid) FROM pg_stat_activity WHERE ` + who)
	}
	before := pids()
	w.looks("second", 4, func() {
		held := w.query(`SELECT string_agg(format('%s %s %s', pid, state, coalesce(backend_xmin, backend_xid)), ', ') FROM pg_stat_activity
			WHERE ` + who + ` AND state IS DISTINCT FROM 'active' AND (state <> 'idle' OR backend_xmin IS NOT NULL OR backend_xid IS NOT NULL)`)
		if held != "" {
			t.Errorf("its sessions hold transactions: %s", held)
		}
		if locks := w.query(`SELECT count(*) FROM pg_locks l JOIN pg_stat_activity a USING (pid) WHERE a.` + who + ` AND l.locktype = 'advisory'`); locks != "0" {
			t.Errorf("it holds %s locks", locks)
		}
		if slots := w.query(`SELECT string_agg(slot_name, ' ' ORDER BY slot_name) FROM pg_replication_slots`); slots != "oracle walrelay" {
			t.Errorf("there are the slots %s", slots)
		}
	})
	if after := pids(); after != before {
		t.Errorf("its sessions were %s and are %s: it does not just wait", before, after)
	}
	w.insert("meanwhile", 3)
	w.verify(0)
	w.confirmedPast()
	if n, err := other.Client(t).DBSize(t.Context()).Result(); err != nil || n != 0 {
		t.Errorf("it wrote %d keys to its Redis, %v", n, err)
	}
	if log := second.log.String(); strings.Contains(log, "verdict=") || strings.Contains(log, "fails") {
		t.Errorf("it judged while another one is active:\n%s", log)
	}
	first.stop()
	// Now it judges.
	second.says("Redis has no checkpoint")
}

// Relays take over from one another, whatever becomes of the one before. One
// that was frozen may bring an append to its end that it had begun: then either
// of the two goes on, and the other one stands by.
func TestStandbyTakesOver(t *testing.T) {
	t.Parallel()
	w := newWorld(t, worldOptions{settings: map[string]string{"wal_sender_timeout": "0"}})
	active := w.startRelay()
	active.streams()
	load := w.startLoad(w.dsn, 2, 0, `INSERT INTO outbox (kind, payload) VALUES ('load', '{}'), ('load', '{}')`)
	for _, end := range []func(next *relayProcess){
		func(*relayProcess) { active.stop() },
		func(*relayProcess) { active.kill() },
		func(next *relayProcess) {
			pid := w.walsender()
			_ = active.cmd.Process.Signal(syscall.SIGSTOP)
			load.goesOn(100)
			w.query(`pg_terminate_backend(` + pid + `)`)
			w.eventually("another one streams", func() error {
				if now := w.walsender(); now == "" || now == pid {
					return errors.New("none")
				}
				return nil
			})
			load.goesOn(100)
			_ = active.cmd.Process.Signal(syscall.SIGCONT)
			load.goesOn(100)
			w.whoWaits(active, next).stop()
		},
	} {
		next := w.startRelay()
		next.says("standing by")
		load.goesOn(100)
		end(next)
		if !isRunning(next) {
			next = active
		}
		next.streams()
		next.becomes("streaming", func(_ int, doc healthDocument) bool { return doc.Role == "streaming" && doc.Status == "ok" })
		load.goesOn(100)
		active = next
	}
	load.end()
	w.verify(0)
	w.allMarked()
	w.confirmedPast()
}

// whoWaits waits until one of two relays streams and the other one stands by, which
// it returns.
func (w *world) whoWaits(a, b *relayProcess) (waits *relayProcess) {
	w.t.Helper()
	w.eventually("one streams, the other one stands by", func() error {
		_, first, err := a.health()
		if err != nil {
			return err
		}
		_, second, err := b.health()
		if err != nil {
			return err
		}
		switch first.Role + " " + second.Role {
		case "streaming standby":
			waits = b
		case "standby streaming":
			waits = a
		default:
			return fmt.Errorf("they are %s and %s", first.Role, second.Role)
		}
		return nil
	})
	return waits
}

// Two relays start at once, with rows in the table and nothing else. The one
// that backfills dies in the middle of it, the other one takes over and dies at
// the same place, a third one brings it to its end. Nothing is lost or doubled.
func TestBackfillIsTakenOver(t *testing.T) {
	t.Parallel()
	for _, step := range []relay.Step{
		relay.StepBackfillBegun, relay.StepBackfillAppended, relay.StepBackfillMarked, relay.StepBackfillFinished,
	} {
		t.Run(string(step), func(t *testing.T) {
			t.Parallel()
			const rows = 2100 // more than are marked at once
			w := newWorld(t, worldOptions{})
			w.exec(fmt.Sprintf(`INSERT INTO outbox (kind, payload) SELECT 'old', jsonb_build_object('i', i) FROM generate_series(1, %d) i`, rows))
			var both [2]*relayProcess
			for i := range both {
				both[i] = w.startRelayEnv([]string{execEnv + "=crash", crashEnv + "=" + string(step) + ":1"})
			}
			for _, p := range both {
				if err := p.killedItself(); err != nil {
					t.Fatal(err)
				}
			}
			third := w.startRelay()
			third.streams()
			w.insert("after", 3)
			w.verify(rows)
			w.allMarked()
			w.confirmedPast()
			third.stop()
		})
	}
}
