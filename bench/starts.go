package main

import (
	"context"
	"errors"
	"fmt"
	"strconv"
	"time"

	"github.com/stagedoor/walrelay/internal/testservers"
)

// Databases of the starts.
const (
	emptyTable = "empty"
	fullTable  = "million"
)

// measureStarts measures how long it takes from the start of a process to its
// first row: the first start ever, a later one, and a poller's.
func (w *world) measureStarts(ctx context.Context, pg *testservers.Postgres, r *recovery) error {
	tables := []string{emptyTable, fullTable}
	next := map[string]int{}
	for _, db := range tables {
		if err := w.createDatabase(ctx, pg, db); err != nil {
			return err
		}
		next[db] = 1
	}
	w.step = "recovery, starts"
	w.progress.Show(w.step, "writing old rows")
	err := pg.Exec(ctx, fullTable, fmt.Sprintf(`
		INSERT INTO outbox (id, kind, payload, created_at, published_at)
		SELECT n, '%s', '{"note": "an old row"}', now() - interval '1 day', now() - interval '1 day' FROM generate_series(1, %d) n`, kind, r.Old))
	if err != nil {
		return err
	}
	if err := pg.Exec(ctx, fullTable, "VACUUM ANALYZE outbox"); err != nil {
		return err
	}
	next[fullTable] = r.Old + 1
	if err := w.sync(); err != nil {
		return err
	}
	for pair := range w.pairs {
		for i := range tables {
			db := tables[(i+pair)%len(tables)]
			w.step = fmt.Sprintf("recovery, starts, pair %d of %d, %s table", pair+1, w.pairs, db)
			w.progress.Show(w.step, "")
			runs, err := w.starts(ctx, pg, db, next[db])
			if err != nil {
				return fmt.Errorf("%s: %w", w.step, err)
			}
			next[db] += len(runs)
			for _, run := range runs {
				run.Pair, run.Table = pair+1, db
			}
			r.Starts = append(r.Starts, runs...)
		}
	}
	return nil
}

// starts starts run for the first time, run again, and poll, each with a row that
// waits for it.
func (w *world) starts(ctx context.Context, pg *testservers.Postgres, db string, next int) (runs []*recoveryRun, err error) {
	client := w.client()
	defer client.Close()
	if err := client.FlushAll(ctx).Err(); err != nil {
		return nil, err
	}
	const drop = `SELECT pg_drop_replication_slot(slot_name) FROM pg_replication_slots WHERE database = current_database()`
	if err := pg.Exec(ctx, db, drop); err != nil {
		return nil, err
	}
	for i, c := range []struct {
		key, start, role string
		args             []string
	}{
		{keyMarks, "first", "streaming", []string{"run", "--slot", db}},
		{keyMarks, "again", "streaming", []string{"run", "--slot", db}},
		{keyPoll, "", "polling", []string{"poll"}},
	} {
		id := next + i
		err := pg.Exec(ctx, db, fmt.Sprintf("INSERT INTO outbox (id, kind, payload) VALUES (%d, '%s', '{}')", id, kind))
		if err != nil {
			return nil, err
		}
		relay, err := w.relay(pg, db, stream, c.args...)
		if err != nil {
			return nil, err
		}
		began := time.Now()
		if err := relay.Start(); err != nil {
			return nil, err
		}
		if err := w.carried(ctx, stream, i+1); err != nil {
			return nil, errors.Join(err, relay.Running(), relay.Kill())
		}
		// A first start marks its rows when they have been on the stream for a
		// while, and only then has a slot to go on from.
		if err := w.works(ctx, relay, c.role); err != nil {
			return nil, errors.Join(err, relay.Kill())
		}
		if err := relay.Stop(); err != nil {
			return nil, err
		}
		if err := w.slotsFree(ctx, pg); err != nil {
			return nil, err
		}
		entries, err := client.XRevRangeN(ctx, stream, "+", "-", 10).Result()
		if err != nil {
			return nil, err
		}
		if len(entries) != i+1 || fmt.Sprint(entries[0].Values["outbox_id"]) != strconv.Itoa(id) {
			return nil, fmt.Errorf("the stream has the entries %v, not %d of them with row %d at the end", entries, i+1, id)
		}
		at, err := idTime([]byte(entries[0].ID))
		if err != nil {
			return nil, err
		}
		runs = append(runs, &recoveryRun{Contender: c.key, Start: c.start, Seconds: at.Sub(began).Seconds()})
	}
	return runs, nil
}
