package main

import (
	"context"
	"errors"
	"fmt"
	"strconv"
	"time"

	"github.com/stagedoor/walrelay/internal/relayprocess"
	"github.com/stagedoor/walrelay/internal/testservers"
)

// recovery is how soon rows are on the stream after an outage or a start.
type recovery struct {
	Rows   int            `json:"rows"` // that waited for Redis
	Backs  []*recoveryRun `json:"redis_back"`
	Starts []*recoveryRun `json:"starts"`
	Old    int            `json:"old_rows"` // in the table that is not empty
}

// recoveryRun is one contender's. After an outage it is the time until the oldest
// unpublished row is younger than 100 ms; at a start, until the first row is on
// the stream.
type recoveryRun struct {
	Pair      int     `json:"pair"`
	Contender string  `json:"contender"`
	Start     string  `json:"start,omitempty"` // first, or again
	Table     string  `json:"table,omitempty"` // empty, or million
	Seconds   float64 `json:"seconds"`
}

const (
	backRows    = 300_000
	oldRows     = 1_000_000
	young       = 100 * time.Millisecond
	trickleRate = 100 // rows a second that are written while the backlog drains
)

// measureRecovery measures outages, then starts.
func (b *bench) measureRecovery(ctx context.Context) (r *recovery, err error) {
	w, err := b.newWorld(appendOnly()...)
	defer func() { err = errors.Join(err, w.close()) }()
	if err != nil {
		return nil, err
	}
	pg, err := w.startPostgres(ctx)
	if err != nil {
		return nil, err
	}
	r = &recovery{Rows: max(10, int(backRows*b.scale)), Old: max(10, int(oldRows*b.scale))}
	if err := w.redis.TryStop(ctx); err != nil {
		return nil, err
	}
	empty, err := w.redis.TrySnapshot(ctx)
	if err != nil {
		return nil, err
	}
	if err := w.redis.TryStart(ctx); err != nil {
		return nil, err
	}
	all := []struct {
		key, role string
		args      []string
	}{
		{keyRun, "streaming", []string{"run", "--mark", "none"}},
		{keyMarks, "streaming", []string{"run", "--mark", "published-at"}},
		{keyPoll, "polling", []string{"poll"}},
	}
	for pair := range b.pairs {
		for i := range all {
			c := all[(i+pair)%len(all)]
			b.step = fmt.Sprintf("recovery, Redis back, pair %d of %d, %s", pair+1, b.pairs, nameOf(c.key))
			b.progress.Show(b.step, "")
			if err := w.redis.TryKill(ctx); err != nil {
				return nil, err
			}
			if err := w.redis.TryRestore(ctx, empty); err != nil {
				return nil, err
			}
			if err := w.redis.TryStart(ctx); err != nil {
				return nil, err
			}
			took, err := w.redisBack(ctx, pg, r.Rows, c.role, c.args)
			if err != nil {
				return nil, fmt.Errorf("%s: %w", b.step, err)
			}
			r.Backs = append(r.Backs, &recoveryRun{Pair: pair + 1, Contender: c.key, Seconds: took.Seconds()})
		}
	}
	return r, w.measureStarts(ctx, pg, r)
}

// redisBack stops Redis under a relay, has rows pile up, starts Redis, and goes
// on writing. It returns how long after Redis answered the oldest unpublished row
// was young again.
func (w *world) redisBack(ctx context.Context, pg *testservers.Postgres, rows int, role string, args []string) (took time.Duration, err error) {
	if err := w.createDatabase(ctx, pg, database); err != nil {
		return 0, err
	}
	relay, err := w.relay(pg, database, stream, args...)
	if err != nil {
		return 0, err
	}
	if err := relay.Start(); err != nil {
		return 0, err
	}
	if err := w.works(ctx, relay, role); err != nil {
		return 0, errors.Join(err, relay.Kill())
	}
	took, err = w.outageUnder(ctx, pg, relay, rows)
	if err := errors.Join(err, relay.Kill()); err != nil {
		return 0, err
	}
	return took, w.dropDatabase(ctx, pg)
}

func (w *world) outageUnder(ctx context.Context, pg *testservers.Postgres, relay *relayprocess.Relay, rows int) (time.Duration, error) {
	conn, err := w.connect(ctx, pg, database)
	if err != nil {
		return 0, err
	}
	defer conn.Close(context.WithoutCancel(ctx))
	var s shape
	s.Transaction = 1
	if err := load(ctx, conn, s, 1, 1, func(int) {}); err != nil {
		return 0, err
	}
	if err := w.carried(ctx, stream, 1); err != nil {
		return 0, err
	}
	if err := w.redis.TryStop(ctx); err != nil {
		return 0, err
	}
	s.Rows = 1 + rows
	err = load(ctx, conn, s, 2, s.Rows, func(n int) {
		w.progress.Show(w.step, fmt.Sprintf("%s of %s rows written", grouped(int64(n)), grouped(int64(rows))))
	})
	if err != nil {
		return 0, err
	}
	t := &trickle{shape: s, first: s.Rows + 1}
	stop := t.start(ctx, conn)
	defer stop()
	if err := w.redis.TryStart(ctx); err != nil {
		return 0, err
	}
	back := time.Now()
	took, err := w.untilYoung(ctx, t, back)
	if err != nil {
		return 0, errors.Join(err, relay.Running())
	}
	if err := stop(); err != nil {
		return 0, err
	}
	s.Rows = t.last()
	if err := w.carried(ctx, stream, s.Rows); err != nil {
		return 0, err
	}
	if err := relay.Stop(); err != nil {
		return 0, err
	}
	_, err = check(w.redis.Addr(), stream, s, false)
	return took, err
}

// dropDatabase removes the database, and the slot that would keep its log.
func (w *world) dropDatabase(ctx context.Context, pg *testservers.Postgres) error {
	const slots = `SELECT pg_drop_replication_slot(slot_name) FROM pg_replication_slots WHERE database = '` + database + `'`
	if err := w.slotsFree(ctx, pg); err != nil {
		return err
	}
	if err := pg.Exec(ctx, database, slots); err != nil {
		return err
	}
	return pg.Exec(ctx, "postgres", "DROP DATABASE "+database+" WITH (FORCE)")
}

// slotsFree waits until no walsender holds a slot.
func (w *world) slotsFree(ctx context.Context, pg *testservers.Postgres) error {
	conn, err := w.connect(ctx, pg, "postgres")
	if err != nil {
		return err
	}
	defer conn.Close(context.WithoutCancel(ctx))
	return w.await(ctx, "the walsenders to leave", lookEvery, func() (free bool, err error) {
		err = conn.QueryRow(ctx, "SELECT NOT EXISTS (SELECT FROM pg_replication_slots WHERE active)").Scan(&free)
		return free, err
	})
}

// untilYoung looks at the stream's end. With one writer the rows are in order.
func (w *world) untilYoung(ctx context.Context, t *trickle, back time.Time) (took time.Duration, err error) {
	client := w.client()
	defer client.Close()
	shown := time.Now()
	err = w.await(ctx, "the oldest unpublished row to be young", 5*time.Millisecond, func() (bool, error) {
		last, err := client.XRevRangeN(ctx, stream, "+", "-", 1).Result()
		if err != nil || len(last) == 0 {
			return false, err
		}
		id, err := strconv.Atoi(fmt.Sprint(last[0].Values["outbox_id"]))
		if err != nil {
			return false, err
		}
		took = time.Since(back)
		if time.Since(shown) > showEvery {
			shown = time.Now()
			w.progress.Show(w.step, fmt.Sprintf("row %s is published", grouped(int64(id))))
		}
		return t.young(id), nil
	})
	return took, err
}
