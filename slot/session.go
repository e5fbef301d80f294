package slot

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"strconv"
	"sync"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"

	"github.com/stagedoor/walrelay/cdc"
)

// Session is two connections to one server: the replication connection, which
// may hold the lock, a temporary slot or the stream, and an ordinary one for
// questions.
type Session struct {
	cfg    Config
	log    *slog.Logger
	server cdc.Server

	senderTimeout time.Duration
	askTimeout    time.Duration
	lookEvery     time.Duration

	repl     *pgconn.PgConn
	receiver *receiver       // what repl reads through
	wire     *wire           // below repl
	here     *pgx.ConnConfig // leads to the server that repl has reached
	stream   *Stream

	mu       sync.Mutex // for the connection below: one question at a time
	ordinary *ordinary
}

// Server says who answered when the session was opened.
func (s *Session) Server() cdc.Server { return s.server }

// PID is that of the server's process behind the replication connection.
func (s *Session) PID() int { return int(s.repl.PID()) }

// SenderTimeout is wal_sender_timeout as in force on the replication
// connection: the server hangs up on a client that is silent for so long. It is
// that of the server, but never endless, and 20 seconds at most.
func (s *Session) SenderTimeout() time.Duration { return s.senderTimeout }

// Slot returns the slot, or nil when there is none. A slot of our name that is
// somebody else's is a fault that wraps ErrForeignSlot.
func (s *Session) Slot(ctx context.Context) (*cdc.Slot, error) {
	slot := &cdc.Slot{}
	var kind string
	var confirmed, restart lsn
	var since *time.Time
	err := s.ask(ctx, `
		SELECT s.slot_name, s.slot_type, coalesce(s.plugin, ''), coalesce(s.database, ''), s.active, coalesce(s.active_pid, 0), r.backend_start,
			coalesce(s.wal_status, ''), s.confirmed_flush_lsn::text, s.restart_lsn::text
		FROM pg_replication_slots s LEFT JOIN pg_stat_replication r ON r.pid = s.active_pid
		WHERE s.slot_name = $1`, []any{s.cfg.Slot},
		&slot.Name, &kind, &slot.Plugin, &slot.Database, &slot.Active, &slot.ActivePID, &since,
		&slot.WALStatus, &confirmed, &restart)
	switch {
	case errors.Is(err, pgx.ErrNoRows):
		return nil, nil
	case err != nil:
		return nil, fmt.Errorf("read slot %q: %w", s.cfg.Slot, err)
	}
	slot.ConfirmedFlush, slot.RestartLSN, slot.ActiveSince = cdc.LSN(confirmed), cdc.LSN(restart), timeOrZero(since)
	if err := foreign(slot.Name, kind, slot.Plugin, slot.Database, s.server.Database); err != nil {
		return nil, err
	}
	return slot, nil
}

const walEndSQL = `SELECT (CASE WHEN pg_is_in_recovery() THEN pg_last_wal_replay_lsn() ELSE pg_current_wal_flush_lsn() END)::text`

// WALEnd is the end of the WAL that is safe on the server's disk; on a standby,
// of the WAL that it has replayed.
func (s *Session) WALEnd(ctx context.Context) (cdc.LSN, error) {
	var end lsn
	err := s.ask(ctx, walEndSQL, nil, &end)
	if err != nil {
		return 0, fmt.Errorf("read the end of the WAL: %w", err)
	}
	return cdc.LSN(end), nil
}

// Clock is the server's time.
func (s *Session) Clock(ctx context.Context) (time.Time, error) {
	var now time.Time
	if err := s.ask(ctx, `SELECT clock_timestamp()`, nil, &now); err != nil {
		return time.Time{}, fmt.Errorf("read the server's clock: %w", err)
	}
	return now, nil
}

// TryLock takes the advisory lock of the slot's name, without waiting: a
// session that waited for it would hold back vacuum. The lock is the replication
// connection's and dies with the session. It keeps two relays from creating or
// dropping the slot at once; for streaming, the slot itself is the lock.
func (s *Session) TryLock(ctx context.Context) (bool, error) {
	row, err := s.command(ctx, "SELECT pg_try_advisory_lock(hashtextextended("+cdc.QuoteLiteral(lockName(s.cfg.Slot))+", 0))")
	if err != nil {
		return false, s.commandError(fmt.Sprintf("lock slot %q", s.cfg.Slot), err)
	}
	return string(row[0]) == "t", nil
}

// lockName is what the key of a slot's lock is made of.
func lockName(slot string) string { return "walrelay:" + slot }

// Close ends both connections, in bounded time and whatever went wrong before.
// A stream is ended in order, so that the last status has arrived and the slot
// is free when Close returns, unless the server takes too long. The goroutine
// that receives must have stopped.
func (s *Session) Close() {
	if s.stream != nil {
		s.stream.finish()
	}
	if s.repl != nil {
		closeConn(s.repl, s.wire)
	} else if s.wire != nil {
		s.wire.cut()
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.ordinary != nil {
		s.ordinary.close()
	}
}

// ask reads one row over the ordinary connection.
func (s *Session) ask(ctx context.Context, sql string, args []any, dest ...any) error {
	return s.within(ctx, s.askTimeout, func(ctx context.Context, conn *pgx.Conn) error {
		return conn.QueryRow(ctx, sql, args...).Scan(dest...)
	})
}

// within uses the ordinary connection for a bounded time.
func (s *Session) within(ctx context.Context, bound time.Duration, use func(context.Context, *pgx.Conn) error) error {
	ctx, cancel := context.WithTimeout(ctx, bound)
	defer cancel()
	s.mu.Lock()
	defer s.mu.Unlock()
	err := use(ctx, s.ordinary.conn)
	if gone := farewell(err); gone != nil {
		return gone
	}
	return err
}

// oddReplyError is an answer that no walsender gives.
type oddReplyError struct{ rows int }

func (e *oddReplyError) Error() string {
	return fmt.Sprintf("the server answered with %d rows where there must be one", e.rows)
}

// command runs a replication command, or SQL, that answers with one row over
// the replication connection.
func (s *Session) command(ctx context.Context, command string) ([][]byte, error) {
	ctx, cancel := context.WithTimeout(ctx, s.askTimeout)
	defer cancel()
	return oneRow(s.repl.Exec(ctx, command).ReadAll())
}

func oneRow(results []*pgconn.Result, err error) ([][]byte, error) {
	if err != nil {
		return nil, err
	}
	if len(results) != 1 || len(results[0].Rows) != 1 {
		rows := 0
		for _, r := range results {
			rows += len(r.Rows)
		}
		return nil, &oddReplyError{rows: rows}
	}
	return results[0].Rows[0], nil
}

// commandError says what a command on the replication connection was for.
func (s *Session) commandError(doing string, err error) error {
	if gone := farewell(err); gone != nil {
		err = gone
	}
	return fmt.Errorf("%s: %w", doing, err)
}

// lsn scans PostgreSQL's spelling of an LSN; NULL is zero.
type lsn cdc.LSN

// Scan implements sql.Scanner.
func (l *lsn) Scan(v any) error {
	*l = 0
	if v == nil {
		return nil
	}
	text, ok := v.(string)
	if !ok {
		return fmt.Errorf("an LSN came as %T", v)
	}
	parsed, err := cdc.ParseLSN(text)
	*l = lsn(parsed)
	return err
}

// milliseconds reads a setting that pg_settings gives in milliseconds.
func milliseconds(text []byte) (time.Duration, error) {
	ms, err := strconv.ParseInt(string(text), 10, 64)
	return time.Duration(ms) * time.Millisecond, err
}
