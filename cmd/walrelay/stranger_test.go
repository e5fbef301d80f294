package main

import (
	"bytes"
	"sync"
	"testing"
)

// Somebody makes the slot while a first start is under way: a deployment's
// script, or a relay whose connections died one after the other. It begins
// before the snapshot ends, so that following it would publish rows again.
func TestSlotAppearsDuringBackfill(t *testing.T) {
	t.Parallel()
	w := newWorld(t, worldOptions{})
	w.insert("before", 3)

	// The relay has seen that there is no slot, and is about to say that it backfills.
	arrived, release := make(chan struct{}), make(chan struct{})
	begins, goOn := sync.OnceFunc(func() { close(arrived) }), sync.OnceFunc(func() { close(release) })
	defer goOn()
	w.toRedis.OnRequest(func(piece []byte) bool {
		if bytes.Contains(piece, []byte("backfill")) {
			begins()
			<-release
		}
		return false
	})
	p := w.startRelay()
	<-arrived
	w.exec(`SELECT pg_create_logical_replication_slot('walrelay', 'pgoutput')`)
	w.insert("between the two", 3)
	goOn()
	p.streams()
	w.insert("after", 3)
	w.verify(6)
	w.allMarked()
	w.confirmedPast()
}
