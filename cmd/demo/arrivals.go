package main

import (
	"sync"
	"time"

	"github.com/stagedoor/walrelay/internal/shop"
)

// arrivals is what a reader of the stream has seen, and when.
type arrivals struct {
	mu     sync.Mutex
	at     map[string]time.Time // by the entry's id
	rows   map[string]bool      // outbox ids
	latest shop.Entry
}

func newArrivals() *arrivals {
	return &arrivals{at: map[string]time.Time{}, rows: map[string]bool{}}
}

func (a *arrivals) add(e shop.Entry) {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.at[e.ID] = e.Arrived
	a.rows[e.OutboxID] = true
	a.latest = e
}

// entries is the number seen; rows that came twice count twice.
func (a *arrivals) entries() int {
	a.mu.Lock()
	defer a.mu.Unlock()
	return len(a.at)
}

// distinct is the number of rows seen.
func (a *arrivals) distinct() int {
	a.mu.Lock()
	defer a.mu.Unlock()
	return len(a.rows)
}

func (a *arrivals) last() shop.Entry {
	a.mu.Lock()
	defer a.mu.Unlock()
	return a.latest
}

// stamp tells entries when they arrived.
func (a *arrivals) stamp(entries []shop.Entry) {
	a.mu.Lock()
	defer a.mu.Unlock()
	for i := range entries {
		entries[i].Arrived = a.at[entries[i].ID]
	}
}
