package main

import (
	"context"
	"fmt"
	"sync/atomic"
	"time"

	"github.com/jackc/pgx/v5"
	"golang.org/x/sync/errgroup"
)

// load is what is written, in transactions of about as many bytes each.
type load struct {
	name    string
	prepare string
	write   string
	bytes   int // of one transaction
}

// loads by name. The pages are of a table of about 100 MB.
var loads = map[string]load{
	"rows": {
		name:  "rows of the outbox",
		write: `INSERT INTO outbox (kind, payload) VALUES ('load', to_jsonb(repeat(md5(random()::text), 60)))`,
		bytes: 2000,
	},
	"pages": {
		name: "updates all over a table of 100 MB",
		prepare: `CREATE TABLE busy (id int PRIMARY KEY, filler text) WITH (fillfactor = 60);
			INSERT INTO busy SELECT i, repeat('x', 400) FROM generate_series(1, 120000) i`,
		write: `UPDATE busy SET filler = repeat(md5(random()::text), 12) WHERE id IN (SELECT 1 + (random() * 119999)::int FROM generate_series(1, 2))`,
		bytes: 1000,
	},
}

// writers write at a steady rate, whatever a transaction takes.
type writers struct {
	connect func(context.Context) (*pgx.Conn, error)
	load    load
	rate    int // bytes a second

	next atomic.Int64
	late atomic.Int64 // how much the last one was late, in milliseconds
}

// writersCount is how many sessions write.
const writersCount = 4

// run writes until ctx ends, and returns an error that came before.
func (w *writers) run(ctx context.Context) error {
	group, within := errgroup.WithContext(ctx)
	began := time.Now()
	for range writersCount {
		group.Go(func() error {
			conn, err := w.connect(within)
			if err != nil {
				return err
			}
			defer conn.Close(context.WithoutCancel(ctx))
			return w.write(within, conn, began)
		})
	}
	if err := group.Wait(); err != nil && ctx.Err() == nil {
		return fmt.Errorf("write: %w", err)
	}
	return nil
}

// write is one session's work.
func (w *writers) write(ctx context.Context, conn *pgx.Conn, began time.Time) error {
	each := time.Duration(w.load.bytes) * time.Second / time.Duration(w.rate)
	for {
		due := began.Add(time.Duration(w.next.Add(1)-1) * each)
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-time.After(time.Until(due)):
		}
		if _, err := conn.Exec(ctx, w.load.write); err != nil {
			return err
		}
		w.late.Store(time.Since(due).Milliseconds())
	}
}
