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
	// holderAge is for how long a transaction must be the oldest to be the
	// reason: younger ones are there all the time on a busy server.
	holderAge = 10 * time.Second

	// plansKept is how many statements stay prepared: the one with the table's part,
	// and the one without.
	plansKept = 2

	// absentEvery is the interval while there is no slot.
	absentEvery = time.Second

	// lockPatience is how long a look waits for the lock that an ALTER TABLE of
	// the outbox has, before it does without the table.
	lockPatience = time.Second
	// spareTable is for how long the table is not looked at after a look was
	// cut off, which had read much more than an index has.
	spareTable = time.Minute

	backoffStart = 100 * time.Millisecond
	backoffCap   = 5 * time.Second
)

var (
	errLost = errors.New("the monitor's connection to PostgreSQL was lost")
	// errOlder ends a look at a server that was failed over from.
	errOlder = errors.New("there may be a newer primary")
)

// Table is the outbox's part of a look. It is asked in the monitor's own
// statement, so that a look is one.
type Table interface {
	// Question is a query of one text, whose parameters are numbered from first on,
	// and their values; "" for none at this time. Sessions find rows by an index
	// where there is one, and keep the plans of the last few texts.
	Question(first int) (sql string, args []any)
	// Answer takes what it gave, "" for NULL, with the sample of the same
	// statement; or the reason why it could not be asked. It returns why the table
	// could not be looked at, for [Sample.Unseen].
	Answer(text string, s Sample, err error) error
}

// Monitor watches the slot from a connection of its own, so that its lag is
// known when streaming does not work, and so that a PostgreSQL that is stopping
// is noticed: an ordinary connection is told at once, while the server waits
// for the streaming one to confirm all WAL, for as long as that takes.
//
// A look is one statement, which the server cuts off after three seconds. It is
// prepared, since planning it takes longer than running it. Only where it fails
// because of the table's part, the slot is asked for alone.
type Monitor struct {
	cfg Config
	log *slog.Logger

	leftover bool          // the slot is not ours to read
	timeout  time.Duration // of one statement, for the client
	limits   holderLimits
	oldest   lasting

	spareUntil time.Time // the table
	spareFor   error
}

// NewMonitor makes a monitor. It connects to nothing. A connection of its own has
// prepared statements, which a transaction pooler may not have.
func NewMonitor(cfg Config, log *slog.Logger) *Monitor {
	cfg.Conn = cfg.Conn.Copy()
	cfg.Conn.DefaultQueryExecMode, cfg.Conn.StatementCacheCapacity = pgx.QueryExecModeCacheStatement, plansKept
	return &Monitor{cfg: cfg, log: log, timeout: askTimeout, limits: holderLimits{bytes: farBehind, lasts: holderAge}}
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
//   - table is the outbox's part of each look. It may be nil.
//   - goodbye is called the moment that PostgreSQL ends the connection or says
//     that it is stopping. It should hang up the replication connection.
//
// The three are called one at a time, from this goroutine.
func (m *Monitor) Run(ctx context.Context, every time.Duration, table Table, report func(Sample), goodbye func(reason error)) error {
	backoff := backoffStart
	for {
		looked := false
		err := m.watch(ctx, every, table, func(s Sample) {
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
func (m *Monitor) watch(ctx context.Context, every time.Duration, table Table, report func(Sample), goodbye func(reason error)) error {
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
	works := false
	parted := func(err error) error {
		// A connection that never worked and is cut says nothing of the server.
		if gone := farewell(err); gone != nil && (works || errors.Is(gone, ErrShutdown)) {
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
		sample, answer := m.look(ctx, o.conn, table)
		if !first && m.cfg.Newest.Older(sample.Timeline) {
			return errOlder // the first look is better than none
		}
		if o.conn.IsClosed() || ctx.Err() != nil {
			return parted(cmp.Or(sample.Err, errLost))
		}
		if table != nil && sample.Err == nil {
			sample.Unseen = table.Answer(answer, sample, sample.Unseen)
		}
		report(sample)
		works = works || sample.Err == nil
		if sample.Err == nil && sample.Slot == nil && !m.leftover {
			// It is being made, and is to be seen when it is there.
			next = time.Now().Add(min(every, absentEvery))
		}
		if err := wait(ctx, o.conn, next); err != nil {
			return parted(err)
		}
	}
}

// bound has the server itself give up a statement, earlier than we do, since a
// time-out on our side costs the connection: preparing it, which may wait for a lock,
// and running it count apart. It also has rows found by an index and in its order,
// and a statement planned once: the plan stays while the table grows, until it is
// analysed.
func (m *Monitor) bound(ctx context.Context, conn *pgx.Conn) error {
	return m.call(ctx, conn, func(ctx context.Context, conn *pgx.Conn) error {
		_, err := conn.PgConn().Exec(ctx, fmt.Sprintf("SET statement_timeout = %d; SET lock_timeout = %d; SET plan_cache_mode = force_generic_plan; "+
			"SET enable_seqscan = off; SET enable_bitmapscan = off; SET enable_sort = off; SET jit = off",
			(m.timeout*3/5).Milliseconds(), min(lockPatience, m.timeout/2).Milliseconds())).ReadAll()
		return err
	})
}

// look takes a sample, with what the table answered. One with Err set may leave
// the connection usable. What is wrong with the table keeps nothing else from
// being seen.
func (m *Monitor) look(ctx context.Context, conn *pgx.Conn, table Table) (sample Sample, answer string) {
	question := ""
	var args []any
	if table != nil {
		question, args = table.Question(sampleParameters + 1)
	}
	var unseen error
	if question != "" && time.Now().Before(m.spareUntil) {
		question, args, unseen = "", nil, m.spareFor
	}
	sample, answer, err := m.ask(ctx, conn, question, args)
	if code := pg.Code(err); question != "" && code != "" && !conn.IsClosed() {
		unseen = err
		if code == codeQueryCanceled {
			m.spareUntil, m.spareFor = time.Now().Add(spareTable), err
		}
		sample, _, err = m.ask(ctx, conn, "", nil)
	}
	if err != nil {
		return Sample{At: time.Now(), Err: err}, ""
	}
	sample.Unseen = unseen
	if h := sample.Holder; h != nil && m.oldest.step(h, sample.At) < m.limits.lasts {
		sample.Holder = nil
	}
	if m.leftover {
		sample.Problem = nil
		if sample.Foreign {
			sample.Slot = nil
		}
	}
	return sample, answer
}

// ask sends the statement of a look.
func (m *Monitor) ask(ctx context.Context, conn *pgx.Conn, question string, args []any) (sample Sample, answer string, err error) {
	err = m.call(ctx, conn, func(ctx context.Context, conn *pgx.Conn) (err error) {
		sample, answer, err = m.cfg.readSample(ctx, conn, m.limits, question, args...)
		return err
	})
	return sample, answer, err
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
