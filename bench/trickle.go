package main

import (
	"context"
	"sync"
	"time"

	"github.com/jackc/pgx/v5"
)

// trickle writes rows at a steady rate, and knows when each was committed.
type trickle struct {
	shape shape
	first int // id

	mu        sync.Mutex
	committed []time.Time
}

// start writes until the function that it returns is called, which may be more
// than once.
func (t *trickle) start(ctx context.Context, conn *pgx.Conn) (stop func() error) {
	ctx, cancel := context.WithCancel(ctx)
	var err error
	done := make(chan struct{})
	go func() {
		defer close(done)
		began := time.Now()
		for i := 0; ; i++ {
			if pause(ctx, time.Until(began.Add(time.Duration(i)*time.Second/trickleRate))) != nil {
				return
			}
			id := t.first + i
			// A row that was begun is finished.
			_, err = conn.Exec(context.WithoutCancel(ctx), "INSERT INTO outbox (id, kind, payload) VALUES ($1, $2, $3)", id, kind, t.shape.payload(id))
			if err != nil {
				return
			}
			t.mu.Lock()
			t.committed = append(t.committed, time.Now())
			t.mu.Unlock()
		}
	}()
	return func() error {
		cancel()
		<-done
		return err
	}
}

// last is the id of the last row that was committed.
func (t *trickle) last() int {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.first + len(t.committed) - 1
}

// young reports whether the rows behind one are all younger than that.
func (t *trickle) young(published int) bool {
	t.mu.Lock()
	defer t.mu.Unlock()
	oldest := published + 1 - t.first
	return oldest >= 0 && (oldest >= len(t.committed) || time.Since(t.committed[oldest]) < young)
}
