package slot

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"

	"github.com/stagedoor/walrelay/internal/pg"
)

const (
	// farBehind is how much more WAL a slot keeps than is unconfirmed before
	// the reason is looked for.
	farBehind = 64 << 20
	// holderAge is how old a transaction must be to be the reason: younger
	// ones are there all the time on a busy server.
	holderAge = 10 * time.Second

	// absentEvery is the interval while there is no slot.
	absentEvery = time.Second

	backoffStart = 100 * time.Millisecond
	backoffCap   = 5 * time.Second
)

var (
	errLost = errors.New("the monitor's connection to PostgreSQL was lost")
	// errOlder ends a look at a server that was failed over from.
	errOlder = errors.New("there may be a newer primary")
)

// Monitor watches the slot from a connection of its own, so that its lag is
// known when streaming does not work, and so that a PostgreSQL that is stopping
// is noticed: an ordinary connection is told at once, while the server waits
// for the streaming one to confirm all WAL, for as long as that takes.
type Monitor struct {
	cfg Config
	log *slog.Logger

	leftover  bool          // the slot is not ours to read
	timeout   time.Duration // of one statement, for the client
	farBehind int64
	holderAge time.Duration
}

// NewMonitor makes a monitor. It connects to nothing.
func NewMonitor(cfg Config, log *slog.Logger) *Monitor {
	return &Monitor{cfg: cfg, log: log, timeout: askTimeout, farBehind: farBehind, holderAge: holderAge}
}

// NewLeftoverMonitor makes a monitor that looks for a slot which nobody may read
// any more. It does not mind that there is none, nor anything that would keep a
// relay from streaming.
func NewLeftoverMonitor(cfg Config, log *slog.Logger) *Monitor {
	m := NewMonitor(cfg, log)
	m.leftover = true
	return m
}

// Run watches until ctx is done, and returns nil then. It connects again for
// ever, and every call to the server is bounded.
//
//   - report gets a sample at every interval, and one with Err for each failed
//     attempt.
//   - oldest is the outbox's look at its table over the same connection, with
//     the same time-out. It may be nil.
//   - goodbye is called the moment that PostgreSQL ends the connection or says
//     that it is stopping. It should hang up the replication connection.
//
// The three are called one at a time, from this goroutine.
func (m *Monitor) Run(ctx context.Context, every time.Duration,
	oldest func(context.Context, *pgx.Conn) error, report func(Sample), goodbye func(reason error),
) error {
	backoff := backoffStart
	for {
		looked := false
		err := m.watch(ctx, every, oldest, func(s Sample) {
			looked = looked || s.Err == nil
			report(s)
		}, goodbye)
		if ctx.Err() != nil {
			return nil
		}
		if errors.Is(err, errOlder) {
			continue
		}
		report(Sample{At: time.Now(), Err: err})
		if looked {
			backoff = backoffStart
		}
		if !pause(ctx, backoff/2+rand.N(backoff/2)) {
			return nil
		}
		backoff = min(2*backoff, backoffCap)
	}
}

// watch connects and looks at every interval until the connection fails. It
// says goodbye before anything else is done.
func (m *Monitor) watch(ctx context.Context, every time.Duration,
	oldest func(context.Context, *pgx.Conn) error, report func(Sample), goodbye func(reason error),
) error {
	o, err := dial(ctx, m.cfg.Newest.Only(m.cfg.Conn))
	if errors.Is(err, pg.ErrOlder) {
		o, err = dial(ctx, m.cfg.Conn)
	}
	if errors.Is(err, ErrShutdown) {
		goodbye(err)
	}
	if err != nil {
		return err
	}
	defer o.close()
	parted := func(err error) error {
		if gone := farewell(err); gone != nil {
			goodbye(gone)
			return gone
		}
		return err
	}
	if err := m.bound(ctx, o.conn); err != nil {
		return parted(err)
	}
	for first := true; ; first = false {
		next := time.Now().Add(every)
		sample := m.look(ctx, o.conn)
		if !first && m.cfg.Newest.Older(sample.Timeline) {
			return errOlder // the first look is better than none
		}
		if oldest != nil && sample.Err == nil {
			sample.Oldest = m.call(ctx, o.conn, oldest)
		}
		if o.conn.IsClosed() || ctx.Err() != nil {
			return parted(cmp.Or(sample.Err, sample.Oldest, errLost))
		}
		report(sample)
		if sample.Err == nil && sample.Slot == nil && !m.leftover {
			// It is being made, and is to be seen when it is there.
			next = time.Now().Add(min(every, absentEvery))
		}
		if err := wait(ctx, o.conn, next); err != nil {
			return parted(err)
		}
	}
}

// bound has the server itself give up a statement, a little earlier than we
// do, since a time-out on our side costs the connection.
func (m *Monitor) bound(ctx context.Context, conn *pgx.Conn) error {
	return m.call(ctx, conn, func(ctx context.Context, conn *pgx.Conn) error {
		_, err := conn.Exec(ctx, fmt.Sprintf("SET statement_timeout = %d", (m.timeout*4/5).Milliseconds()))
		return err
	})
}

// look takes a sample. One with Err set may leave the connection usable.
func (m *Monitor) look(ctx context.Context, conn *pgx.Conn) (sample Sample) {
	err := m.call(ctx, conn, func(ctx context.Context, conn *pgx.Conn) (err error) {
		sample, err = readSample(ctx, conn, m.cfg.Slot)
		return err
	})
	if m.leftover {
		sample.Problem = nil
		if sample.Foreign {
			sample.Slot = nil
		}
	}
	if err == nil && !m.leftover {
		err = m.call(ctx, conn, func(ctx context.Context, conn *pgx.Conn) error {
			state, err := readPublication(ctx, conn, m.cfg)
			if err == nil && sample.Problem == nil {
				sample.Problem = state.verify(m.cfg)
			}
			return err
		})
	}
	if err == nil && sample.Slot != nil && sample.Slot.RetainedBytes-sample.Slot.UnconfirmedBytes > m.farBehind {
		err = m.call(ctx, conn, func(ctx context.Context, conn *pgx.Conn) (err error) {
			sample.Holder, _, err = readHolder(ctx, conn, oldestSQL, m.holderAge.Seconds())
			return err
		})
	}
	if err != nil {
		return Sample{At: time.Now(), Err: err}
	}
	return sample
}

// call bounds one use of the connection.
func (m *Monitor) call(ctx context.Context, conn *pgx.Conn, use func(context.Context, *pgx.Conn) error) error {
	ctx, cancel := context.WithTimeout(ctx, m.timeout)
	defer cancel()
	return use(ctx, conn)
}

// wait listens until the next look is due. Nothing is expected but the
// server's goodbye, which is seen the moment it arrives.
func wait(ctx context.Context, conn *pgx.Conn, next time.Time) error {
	ctx, cancel := context.WithDeadline(ctx, next)
	defer cancel()
	for {
		_, err := conn.WaitForNotification(ctx)
		if pgconn.Timeout(err) {
			return nil
		}
		if err != nil {
			return err
		}
	}
}

// pause waits, and returns false when ctx is done.
func pause(ctx context.Context, d time.Duration) bool {
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-ctx.Done():
		return false
	case <-t.C:
		return true
	}
}
