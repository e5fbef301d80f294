package shop

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/redis/go-redis/v9"
)

// blockFor bounds a blocking read, since go-redis does not interrupt one when
// its context is done.
const blockFor = 300 * time.Millisecond

// Result is how a delivery ended.
type Result int

// The results of a delivery.
const (
	Done    Result = iota
	Again          // the work was committed by an earlier delivery; only the XACK was missing
	NotYet         // what it builds on is not there yet; stays pending and is claimed later
	Refused        // not a job that this worker knows; stays pending for somebody to look at
)

func (r Result) String() string {
	return [...]string{"done", "done before", "not yet", "refused"}[r]
}

// Delivery is one entry given to one worker.
type Delivery struct {
	Entry   Entry
	Result  Result
	Claimed bool  // from a worker that held it for too long
	Early   bool  // it was there before its order could be seen
	Err     error // why it is not done
}

// Worker does the jobs of a stream as one consumer of a group.
//
// Run returns errors of PostgreSQL and Redis instead of retrying: it loses
// nothing by dying, so that is left to whatever supervises it.
type Worker struct {
	Conn   *pgx.Conn // its own
	Redis  *redis.Client
	Stream string
	Group  string
	Name   string

	// MinIdle is how long an entry may stay with a worker before another one
	// takes it. Longer than the longest job, or two workers do it at a time:
	// harmless, since one of them waits and finds it done, but wasteful.
	MinIdle time.Duration

	// Observe, if set, is told of every delivery before its XACK.
	Observe func(Delivery)
	// BeforeAck, if set, runs between the work's COMMIT and the XACK. An error
	// ends the worker there and then, as kill -9 would.
	BeforeAck func(Entry) error

	pause func() // for tests: instead of waiting for a commit to be seen
}

var (
	errUnseen  = errors.New("the order is not to be seen")
	errNotYet  = errors.New("the tickets are not rendered yet")
	errRefused = errors.New("cannot be done")
)

// How long a worker waits for a commit to be seen. Mostly that takes less than
// a millisecond; where commits wait for a standby, as long as that takes.
const (
	looks   = 100
	lookGap = 5 * time.Millisecond
)

// Join creates the consumer group where there is none. It starts at the
// stream's first entry, so that a group that is created late misses nothing.
func (w *Worker) Join(ctx context.Context) error {
	err := w.Redis.XGroupCreateMkStream(ctx, w.Stream, w.Group, "0").Err()
	if err != nil && !strings.HasPrefix(err.Error(), "BUSYGROUP") {
		return fmt.Errorf("create the consumer group: %w", err)
	}
	return nil
}

// Run works until ctx is done; what it has in hand then, it finishes.
func (w *Worker) Run(ctx context.Context) error {
	if err := w.Join(ctx); err != nil {
		return err
	}
	var claimed time.Time
	for ctx.Err() == nil {
		if time.Since(claimed) >= w.MinIdle/2 {
			if _, err := w.Claim(ctx); err != nil {
				return w.unlessStopped(ctx, err)
			}
			claimed = time.Now()
		}
		if _, err := w.Work(ctx); err != nil {
			return w.unlessStopped(ctx, err)
		}
	}
	return nil
}

// unlessStopped drops the error that a read gives when ctx ends under it.
func (w *Worker) unlessStopped(ctx context.Context, err error) error {
	if ctx.Err() != nil && errors.Is(err, ctx.Err()) {
		return nil
	}
	return fmt.Errorf("%s: %w", w.Name, err)
}

// Work waits for new entries, does them one after the other, and returns how
// many there were. They are in commit order, and a worker keeps to it.
func (w *Worker) Work(ctx context.Context) (int, error) {
	reply, err := w.Redis.XReadGroup(ctx, &redis.XReadGroupArgs{
		Group: w.Group, Consumer: w.Name, Streams: []string{w.Stream, ">"},
		Count: 10, Block: blockFor,
	}).Result()
	if isNil(err) {
		return 0, nil
	}
	if err != nil {
		return 0, fmt.Errorf("read the group: %w", err)
	}
	n := 0
	for _, s := range reply {
		for _, m := range s.Messages {
			if err := w.deliver(ctx, m, false); err != nil {
				return n, err
			}
			n++
		}
	}
	return n, nil
}

// Claim takes over, from the oldest on, the entries that some worker has held
// for MinIdle, and does them. That worker is dead, or has put a refund off.
//
// https://redis.io/docs/latest/commands/xautoclaim/
func (w *Worker) Claim(ctx context.Context) (int, error) {
	n := 0
	for start := "0"; ; {
		messages, next, err := w.Redis.XAutoClaim(ctx, &redis.XAutoClaimArgs{
			Stream: w.Stream, Group: w.Group, Consumer: w.Name,
			MinIdle: w.MinIdle, Start: start, Count: 10,
		}).Result()
		if err != nil {
			return n, fmt.Errorf("claim: %w", err)
		}
		for _, m := range messages {
			if err := w.deliver(ctx, m, true); err != nil {
				return n, err
			}
			n++
		}
		if next == "0-0" {
			return n, nil
		}
		start = next
	}
}

// deliver does one entry's work and acknowledges it, in this order: the other
// way round, a worker that dies in between would lose the job.
func (w *Worker) deliver(ctx context.Context, m redis.XMessage, claimed bool) error {
	ctx = context.WithoutCancel(ctx) // finish what is in hand
	d := Delivery{Claimed: claimed}
	d.Entry, d.Err = parseEntry(m)
	if d.Err != nil {
		d.Err = fmt.Errorf("%w: %w", errRefused, d.Err)
	} else {
		d.Err = w.whenSeen(func() (err error) {
			d.Result, err = w.do(ctx, d.Entry)
			return err
		}, &d.Early)
	}
	switch {
	case d.Err == nil:
	case errors.Is(d.Err, errRefused):
		d.Result = Refused
	case errors.Is(d.Err, errUnseen), errors.Is(d.Err, errNotYet):
		d.Result = NotYet
	default:
		return fmt.Errorf("outbox row %s: %w", d.Entry.OutboxID, d.Err)
	}
	if w.Observe != nil {
		w.Observe(d)
	}
	if d.Err != nil {
		return nil
	}
	if w.BeforeAck != nil {
		if err := w.BeforeAck(d.Entry); err != nil {
			return err
		}
	}
	if err := w.Redis.XAck(ctx, w.Stream, w.Group, m.ID).Err(); err != nil {
		return fmt.Errorf("acknowledge entry %s: %w", m.ID, err)
	}
	return nil
}

// whenSeen does work again while the order is not to be seen. An entry can be
// early: PostgreSQL writes a commit to the log, from which the relay reads it,
// and shows it to other sessions a moment after that.
func (w *Worker) whenSeen(work func() error, early *bool) error {
	for range looks {
		if err := work(); !errors.Is(err, errUnseen) {
			return err
		}
		*early = true
		if w.pause != nil {
			w.pause()
		} else {
			time.Sleep(lookGap)
		}
	}
	return work()
}

// do does the work of an entry once, however often the entry is delivered: the
// row in jobs_done commits with the work or not at all, and a second worker that
// has the same entry waits at its key until the first one has ended.
func (w *Worker) do(ctx context.Context, e Entry) (Result, error) {
	result := Done
	err := pgx.BeginFunc(ctx, w.Conn, func(tx pgx.Tx) error {
		tag, err := tx.Exec(ctx, `
			INSERT INTO jobs_done (outbox_id, worker) VALUES ($1, $2)
			ON CONFLICT DO NOTHING`, e.OutboxID, w.Name)
		if err != nil {
			return err
		}
		if tag.RowsAffected() == 0 {
			result = Again
			return nil
		}
		job, err := e.Job()
		if err != nil {
			return fmt.Errorf("%w: %w", errRefused, err)
		}
		switch e.Kind {
		case RenderTickets:
			return render(ctx, tx, job)
		case RefundOrder:
			return refund(ctx, tx, job)
		default:
			return fmt.Errorf("%w: kind %q is not known here", errRefused, e.Kind)
		}
	})
	return result, err
}

// render would make a PDF and mail it. Whatever it does outside of PostgreSQL
// needs the outbox id as its own idempotency key.
func render(ctx context.Context, tx pgx.Tx, job Payload) error {
	tag, err := tx.Exec(ctx, `
		UPDATE tickets SET renders = renders + 1
		  FROM orders
		 WHERE orders.id = tickets.order_id AND orders.public_id = $1`, job.Order)
	if err != nil {
		return err
	}
	if tag.RowsAffected() == 0 {
		return fmt.Errorf("%w: %s", errUnseen, job.Order)
	}
	return nil
}

func refund(ctx context.Context, tx pgx.Tx, job Payload) error {
	var orderID int64
	var rendered bool
	err := tx.QueryRow(ctx, `
		SELECT orders.id, bool_and(renders > 0)
		  FROM orders JOIN tickets ON tickets.order_id = orders.id
		 WHERE orders.public_id = $1
		 GROUP BY orders.id`, job.Order).Scan(&orderID, &rendered)
	if errors.Is(err, pgx.ErrNoRows) {
		return fmt.Errorf("%w: %s", errUnseen, job.Order)
	}
	if err != nil {
		return err
	}
	if !rendered {
		return errNotYet
	}
	if _, err := tx.Exec(ctx, `UPDATE tickets SET void = true WHERE order_id = $1`, orderID); err != nil {
		return err
	}
	_, err = tx.Exec(ctx, `INSERT INTO payouts (order_id) VALUES ($1)`, orderID)
	return err
}

// isNil reports a read that found nothing.
func isNil(err error) bool { return errors.Is(err, redis.Nil) }
