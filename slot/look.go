package slot

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/stagedoor/walrelay/cdc"
	"github.com/stagedoor/walrelay/internal/pg"
)

const (
	// lookTimeout bounds one question of a Looker, for the server.
	lookTimeout = 3 * time.Second
	// lookLockTimeout bounds how long it waits for who changes a table.
	lookLockTimeout = time.Second
	// secondLook is how much later it is looked again whether a transaction is
	// still the oldest, and lookRest what is to be left then of the time.
	secondLook = 2 * time.Second
	lookRest   = 2 * time.Second
)

// Looker looks from outside, for somebody who is no relay. It keeps an ordinary
// connection, which needs no REPLICATION, and asks in transactions that may only
// read and end at once. No setting outlives them, so that a pooler, should one be
// between, has none to hand on. It is not safe for use by several goroutines at
// once.
type Looker struct {
	cfg      Config
	monitor  *Monitor
	ordinary *ordinary
	server   cdc.Server // of that connection
	oldest   lasting
	pause    func(context.Context, time.Duration) bool
}

// View is what a Looker saw.
type View struct {
	Sample
	// Server has the end of the WAL as written, and no history: who needs that
	// asks with REPLICATION. The timeline is not known of a standby.
	Server cdc.Server
	Clock  time.Time // the server's

	Publication error // that it is missing, or would lose rows
	Published   bool  // there is one
	// LockPID is the server process of a relay that is about to begin or in the
	// middle of a backfill; 0 for none.
	LockPID int
	// WaitsFor is the transaction that the relay waits for there, in order to
	// create the slot.
	WaitsFor *Holder
}

// NewLooker makes a looker. It connects to nothing.
func NewLooker(cfg Config, log *slog.Logger) *Looker {
	m := NewMonitor(cfg, log)
	m.limits = holderLimits{bytes: farBehind, age: holderAge} // somebody may look once only
	return &Looker{cfg: cfg, monitor: m, pause: pause}
}

// Look connects where that is needed, and looks. ctx bounds it.
func (l *Looker) Look(ctx context.Context) (View, error) {
	kept := l.ordinary != nil
	v, err := l.look(ctx)
	if err != nil && kept && ctx.Err() == nil { // that connection may be of before a restart
		l.Close()
		v, err = l.look(ctx)
	}
	if err != nil {
		l.Close()
	}
	if ctx.Err() != nil && errors.Is(err, context.DeadlineExceeded) {
		err = errors.New("no answer in time")
	}
	return v, err
}

func (l *Looker) look(ctx context.Context) (View, error) {
	if l.ordinary == nil {
		if err := l.connect(ctx); err != nil {
			return View{}, err
		}
	}
	v := View{Server: l.server}
	err := l.Ask(ctx, func(ctx context.Context, conn *pgx.Conn) error { return l.view(ctx, conn, &v) })
	if err == nil && v.Holder != nil && v.Holder.Since.IsZero() {
		err = l.lookAgain(ctx, &v)
	}
	return v, err
}

// lookAgain takes back who is said to hold WAL back, where that may be a
// transaction of just now: the role does not see since when it is open.
func (l *Looker) lookAgain(ctx context.Context, v *View) error {
	if l.oldest.step(v.Holder, v.At) >= secondLook {
		return nil
	}
	v.Holder = nil
	if end, ok := ctx.Deadline(); ok && time.Until(end) < secondLook+lookRest || !l.pause(ctx, secondLook) {
		return nil
	}
	return l.Ask(ctx, func(ctx context.Context, conn *pgx.Conn) error {
		all, err := readHolders(ctx, conn, holderAge)
		if len(all) > 0 && all[0].XID == l.oldest.xid {
			v.Holder = &all[0]
		}
		return err
	})
}

func (l *Looker) view(ctx context.Context, conn *pgx.Conn, v *View) error {
	v.Sample, _ = l.monitor.look(ctx, conn, nil)
	if v.Err != nil {
		return v.Err
	}
	v.Server.Standby, v.Server.Timeline, v.Server.WALEnd = v.Recovery, v.Timeline, v.WALEnd
	state, err := readPublication(ctx, conn, l.cfg)
	if err != nil {
		return err
	}
	v.Publication, v.Published = state.verify(l.cfg), state.Exists
	// As PostgreSQL shows the lock that TryLock takes.
	// https://www.postgresql.org/docs/current/view-pg-locks.html
	err = conn.QueryRow(ctx, `
		SELECT clock_timestamp(), coalesce((SELECT min(pid) FROM pg_locks
			WHERE locktype = 'advisory' AND granted AND objsubid = 1
				AND database = (SELECT oid FROM pg_database WHERE datname = current_database())
				AND classid::bigint << 32 | objid::bigint = hashtextextended($1, 0)), 0)`, lockName(l.cfg.Slot)).
		Scan(&v.Clock, &v.LockPID)
	if err == nil && v.LockPID != 0 {
		v.WaitsFor, _, err = readWaitedFor(ctx, conn, uint32(v.LockPID))
	}
	return err
}

// Ask asks further questions over the connection that Look has left, in a
// transaction of their own. An error of the server leaves the connection usable.
func (l *Looker) Ask(ctx context.Context, ask func(context.Context, *pgx.Conn) error) error {
	if l.ordinary == nil {
		return errLost
	}
	conn := l.ordinary.conn
	begin := fmt.Sprintf("BEGIN READ ONLY; SET LOCAL statement_timeout = %d; SET LOCAL lock_timeout = %d",
		lookTimeout.Milliseconds(), lookLockTimeout.Milliseconds())
	if _, err := conn.Exec(ctx, begin, pgx.QueryExecModeSimpleProtocol); err != nil {
		return err
	}
	err := ask(ctx, conn)
	_, ended := conn.Exec(ctx, "ROLLBACK", pgx.QueryExecModeSimpleProtocol)
	return cmp.Or(err, ended)
}

// connect opens the connection, and learns whose it is.
func (l *Looker) connect(ctx context.Context) (err error) {
	if l.ordinary, err = dial(ctx, l.cfg.Conn); err != nil {
		return err
	}
	return l.Ask(ctx, func(ctx context.Context, conn *pgx.Conn) error {
		l.server = cdc.Server{Version: pg.ServerVersion(conn.PgConn())}
		return conn.QueryRow(ctx, `SELECT system_identifier::text, current_database() FROM pg_control_system()`).
			Scan(&l.server.SystemID, &l.server.Database)
	})
}

// WALEnd is the end of the WAL that is safe on the server's disk.
func (l *Looker) WALEnd(ctx context.Context) (cdc.LSN, error) {
	var end lsn
	err := l.Ask(ctx, func(ctx context.Context, conn *pgx.Conn) error { return conn.QueryRow(ctx, walEndSQL).Scan(&end) })
	return cdc.LSN(end), err
}

// Close ends the connection. The next look opens another.
func (l *Looker) Close() {
	if l.ordinary != nil {
		l.ordinary.close()
		l.ordinary = nil
	}
}
