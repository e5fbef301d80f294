package main

import (
	"context"
	"fmt"
	"sync/atomic"
	"time"

	"github.com/jackc/pgx/v5"
	"golang.org/x/sync/errgroup"
)

// writers insert rows at a steady rate, each in a transaction of its own.
type writers struct {
	connect func(context.Context) (*pgx.Conn, error)
	rate    int // rows a second
	rows    int // in all

	next    atomic.Int64
	written atomic.Int64
}

// insert is the one statement that writers run.
const insert = `INSERT INTO outbox (kind, payload) VALUES ($1, $2)`

// payload is a row's. It depends on nothing but the row's number, so that each
// mode carries the same bytes.
func payload(i int64) string {
	return fmt.Sprintf(`{"order": %d, "customer": %d, "items": [{"sku": "T-%05d", "count": %d}], "total": "%d.%02d", "currency": "EUR", "note": "two seats beside each other, please"}`,
		100000+i, i%997, i%31337, 1+i%4, 20+i%180, i%100)
}

// run writes all rows and returns how long that took, from when the first was
// due. Rows that are late are written at once.
func (w *writers) run(ctx context.Context) (time.Duration, error) {
	// One writer manages as many commits a second as the disk syncs; together
	// they share syncs.
	count := min(20, 1+w.rate/50)
	conns := make([]*pgx.Conn, count)
	defer func() {
		for _, conn := range conns {
			if conn != nil {
				_ = conn.Close(context.WithoutCancel(ctx))
			}
		}
	}()
	for i := range conns {
		var err error
		if conns[i], err = w.connect(ctx); err != nil {
			return 0, err
		}
	}
	group, ctx := errgroup.WithContext(ctx)
	started := time.Now()
	for _, conn := range conns {
		group.Go(func() error { return w.write(ctx, conn, started) })
	}
	err := group.Wait()
	return time.Since(started), err
}

// write is one writer's work.
func (w *writers) write(ctx context.Context, conn *pgx.Conn, started time.Time) error {
	for {
		i := w.next.Add(1) - 1
		if i >= int64(w.rows) {
			return nil
		}
		due := started.Add(time.Duration(i) * time.Second / time.Duration(w.rate))
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-time.After(time.Until(due)):
		}
		if _, err := conn.Exec(ctx, insert, "order.placed", payload(i)); err != nil {
			return err
		}
		w.written.Add(1)
	}
}
