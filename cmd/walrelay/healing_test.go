package main

import (
	"fmt"
	"strings"
	"testing"

	"github.com/stagedoor/walrelay/relay"
)

// The relay dies in each step of a heal, while rows are written. The next one
// does it again, with the same since: what was marked before the gap is not sent
// again, what Redis lacks is, each row once.
func TestRelayKilledWhileHealing(t *testing.T) {
	t.Parallel()
	for _, step := range []relay.Step{
		relay.StepBackfillLocked, relay.StepBackfillBegun, relay.StepBackfillSlot, relay.StepBackfillAppended,
		relay.StepBackfillMarked, relay.StepBackfillFinished, relay.StepBackfillKept,
	} {
		t.Run(string(step), func(t *testing.T) {
			t.Parallel()
			w := newWorld(t, worldOptions{volatile: true})
			p := w.startRelay()
			p.streams()
			w.insert("kept", 5)
			w.verify(0)
			if err := w.rdb().Save(t.Context()).Err(); err != nil {
				t.Fatal(err)
			}
			w.insert("lost", 700)
			w.verify(0)
			w.allMarked()
			w.confirmedPast()
			p.stop()
			w.redis.Kill()
			w.redis.Start()
			w.insert("down", 5)

			p = w.startRelayEnv([]string{execEnv + "=crash", crashEnv + "=" + string(step) + ":1"})
			w.insert("meanwhile", 5)
			if err := p.killedItself(); err != nil {
				t.Fatal(err)
			}
			w.insert("after", 5)
			p = w.startRelay()
			p.streams()
			w.insert("last", 5)
			w.verify(5 + 700 + 15)
			w.allMarked()
			w.confirmedPast()
		})
	}
}

// Redis forgets all of it in the middle of a first backfill, and right after the
// slot was made: nothing is lost, nothing twice.
func TestRedisForgetsWhileHealing(t *testing.T) {
	t.Parallel()
	for _, step := range []relay.Step{relay.StepBackfillSlot, relay.StepBackfillAppended, relay.StepBackfillKept} {
		t.Run(string(step), func(t *testing.T) {
			t.Parallel()
			w := newWorld(t, worldOptions{volatile: true})
			w.exec(`INSERT INTO outbox (kind, payload) SELECT 'old', to_jsonb(i) FROM generate_series(1, 700) i`)
			p := w.startRelayEnv([]string{execEnv + "=crash", crashEnv + "=" + string(step) + ":1"})
			if err := p.killedItself(); err != nil {
				t.Fatal(err)
			}
			w.redisDo("FLUSHALL")
			w.insert("after", 5)
			p = w.startRelay()
			p.streams()
			w.insert("last", 5)
			w.verify(705)
			w.allMarked()
			w.confirmedPast()
		})
	}
}

// Whoever keeps making the gap anew is not healed for ever: the relay says so
// and waits.
func TestGapThatComesAgainWaitsForAnOperator(t *testing.T) {
	t.Parallel()
	w := newWorld(t, worldOptions{})
	p := w.startRelay()
	p.streams()
	for heals := 1; heals <= 3; heals++ {
		round := fmt.Sprint("round ", heals)
		w.insert(round, 2)
		w.allMarked()
		w.each(round)
		w.redisDo("DEL", "jobs")
		if heals == 3 {
			break
		}
		w.eventually("the gap is healed", func() error {
			if n := strings.Count(p.log.String(), "the slot is made"); n < heals+1 {
				return fmt.Errorf("%d slots were made", n)
			}
			return nil
		})
		p.streamed(heals + 1)
	}
	p.becomes("critical, with the command", func(code int, doc healthDocument) bool {
		return code == 503 && doc.reason("healed 2 times in a row", "walrelay heal") != ""
	})
	if got := p.metric(`walrelay_heals_total{reason="stream_missing"}`); got != "2" {
		t.Errorf("%s heals", got)
	}
	w.heal()
	w.insert("after", 2)
	w.allMarked()
	w.each("after")
	w.confirmedPast()
}

// Everything that a heal does is within the privileges that the README lists.
func TestHealsWithLeastPrivileges(t *testing.T) {
	t.Parallel()
	w := newWorld(t, worldOptions{})
	w.exec(`CREATE ROLE relay LOGIN REPLICATION;
		GRANT USAGE ON SCHEMA public TO relay;
		GRANT SELECT, UPDATE (published_at) ON outbox TO relay;
		CREATE PUBLICATION walrelay FOR TABLE outbox WITH (publish = 'insert', publish_via_partition_root = true)`)
	p := w.startRelay("--postgres", strings.Replace(w.relayDSN(), "postgres@", "relay@", 1))
	p.streams()
	for i, gap := range []func(){
		func() { w.redisDo("FLUSHALL") },
		func() {
			w.exec(`SELECT pg_terminate_backend(active_pid), pg_sleep(0) FROM pg_replication_slots WHERE slot_name = 'walrelay'`)
		},
		func() { w.redisDo("DEL", "jobs") },
	} {
		kind := fmt.Sprint("before ", i)
		w.insert(kind, 3)
		w.allMarked()
		w.confirmedPast()
		gap()
		w.insert(fmt.Sprint("after ", i), 3)
		w.allMarked()
		w.each(fmt.Sprint("after ", i))
	}
	for _, kind := range []string{"no_checkpoint", "stream_missing"} {
		if got := p.metric(fmt.Sprintf("walrelay_heals_total{reason=%q}", kind)); got != "1" {
			t.Errorf("%s heals of the kind %s", got, kind)
		}
	}
	w.confirmedPast()
}
