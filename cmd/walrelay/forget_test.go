package main

import (
	"fmt"
	"strings"
	"testing"
)

// Redis comes back without what it had acknowledged in the last seconds: less
// than the confirm delay. The slot still has the rows, so they are appended
// again, and those that Redis still has are not.
func TestRedisThatLostItsLastSecondsIsRefilled(t *testing.T) {
	w := newWorld(t, worldOptions{volatile: true})
	p := w.startRelay("--confirm-delay", "10m")
	p.streams()
	w.insert("kept", 20)
	w.verify(0)
	if err := w.redis.Client(t).Save(t.Context()).Err(); err != nil {
		t.Fatal(err)
	}
	for round := range 3 {
		w.insert(fmt.Sprint("lost ", round), 20)
		w.verify(0)
		w.redis.Kill()
		w.insert("meanwhile", 5)
		w.redis.Start()
		w.verify(0)
	}
	if !strings.Contains(p.log.String(), "forgotten") {
		t.Error("the relay did not notice that Redis had gone back")
	}
	// While the outbox is idle only a stamp can notice.
	before, err := w.entries()
	if err != nil {
		t.Fatal(err)
	}
	w.redis.Kill()
	w.redis.Start()
	w.eventually("the stream is refilled", func() error {
		now, err := w.entries()
		if err != nil || len(now) < len(before) {
			return fmt.Errorf("%d of %d entries, %v", len(now), len(before), err)
		}
		return nil
	})
	w.verify(0)
	w.allMarked()
	p.stop()
}

// Redis comes back without what PostgreSQL was told it may forget. The table
// still has the rows: those that Redis lacks are appended again, in the order of
// the table, and no others.
func TestRedisThatLostMoreIsHealed(t *testing.T) {
	w := newWorld(t, worldOptions{volatile: true})
	p := w.startRelay()
	p.streams()
	w.insert("kept", 20)
	w.verify(0)
	if err := w.redis.Client(t).Save(t.Context()).Err(); err != nil {
		t.Fatal(err)
	}
	w.insert("lost", 20)
	w.verify(0)
	w.allMarked()
	w.confirmedPast()
	w.redis.Kill()
	w.redis.Start()
	p.says("Redis went back in time")
	w.insert("after", 5)
	w.verify(0)
	w.allMarked()
	w.confirmedPast()
	if got := p.metric(`walrelay_heals_total{reason="not_covered"}`); got != "1" {
		t.Errorf("%s heals", got)
	}
	p.stop()
}
