package slot

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"strconv"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/pgproto3"

	"github.com/stagedoor/walrelay/cdc"
	"github.com/stagedoor/walrelay/internal/pg"
)

const (
	// outputPlugin is the only plugin whose slots are ours. It is part of
	// PostgreSQL, so that nothing has to be installed on the server.
	outputPlugin = "pgoutput"

	// askTimeout bounds one question to the server, so that a frozen one
	// cannot hold the caller.
	askTimeout = 5 * time.Second
	// changeTimeout bounds a statement that writes the server's disk.
	changeTimeout = 30 * time.Second
	// closeTimeout bounds each polite step of closing a connection.
	closeTimeout = time.Second
)

// Config names the slot and what it delivers.
type Config struct {
	Conn        *pgx.ConnConfig // from pg.Parse
	Slot        string
	Publication string
	Table       cdc.Table // the outbox

	// Newest has sessions and the monitor prefer servers that were not failed
	// over from. Nil for no preference.
	Newest *pg.Newest
}

// Source is a slot of a PostgreSQL server, whether there already or not.
type Source struct {
	cfg Config
	log *slog.Logger

	askTimeout time.Duration
	lookEvery  time.Duration // while a slot is created
}

// New makes a source. It connects to nothing.
func New(cfg Config, log *slog.Logger) *Source {
	return &Source{cfg: cfg, log: log, askTimeout: askTimeout, lookEvery: 2 * time.Second}
}

// Open connects, and refuses a server that cannot or must not be streamed from.
// The errors that an operator has to act on are faults; ErrShutdown says that
// the server lets nobody in right now. The caller must close the session.
func (s *Source) Open(ctx context.Context) (*Session, error) {
	session := s.session()
	if err := session.open(ctx); err != nil {
		session.Close()
		return nil, err
	}
	return session, nil
}

// session is one that has not connected.
func (s *Source) session() *Session {
	return &Session{cfg: s.cfg, log: s.log, askTimeout: s.askTimeout, lookEvery: s.lookEvery}
}

func (s *Session) open(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, 2*connectBudget(s.cfg.Conn))
	defer cancel()
	if err := s.connect(ctx); err != nil {
		return err
	}
	return s.preflight(ctx)
}

// connect opens both connections, to one server, and learns which it is.
func (s *Session) connect(ctx context.Context) error {
	wire, cfg := newWire(s.cfg.Conn)
	s.wire = wire
	cfg.BuildFrontend = func(r io.Reader, w io.Writer) *pgproto3.Frontend {
		s.receiver = newReceiver(r) // the last one is that of the connection that was made
		return pgproto3.NewFrontend(s.receiver, w)
	}
	conn, err := pg.ConnectReplication(ctx, s.cfg.Newest.Only(cfg))
	if errors.Is(err, pg.ErrOlder) {
		conn, err = pg.ConnectReplication(ctx, cfg) // better than none: it tells who it is
	}
	if err != nil {
		return connectError(err, s.cfg.Conn, true)
	}
	s.repl = conn
	if err := s.identify(ctx); err != nil {
		return err
	}
	s.here = s.wire.pin(s.cfg.Conn)
	s.ordinary, err = dial(ctx, s.here)
	return err
}

// Conn leads to the server of this session, whatever else the connection string
// names.
func (s *Session) Conn() *pgx.ConnConfig { return s.here }

// identify learns which server answers, and whether it is one.
func (s *Session) identify(ctx context.Context) error {
	// In this order: a standby that is promoted in between counts as one, and
	// the timeline of a server that is none cannot change any more.
	recovery, err := s.command(ctx, "SELECT pg_is_in_recovery()")
	if err != nil {
		return s.commandError("ask who the server is", err)
	}
	row, err := s.command(ctx, "IDENTIFY_SYSTEM")
	var odd *oddReplyError
	switch {
	case pg.Code(err) == codeSyntaxError || errors.As(err, &odd):
		// A pooler that drops the parameter "replication" leads to an
		// ordinary backend, which does not know the command.
		return poolerFault(err)
	case err != nil:
		return s.commandError("ask who the server is", err)
	case len(row) < 4 || len(row[3]) == 0:
		return poolerFault(errors.New("the connection is not one for logical replication"))
	}
	timeline, err := strconv.ParseUint(string(row[1]), 10, 32)
	if err != nil {
		return poolerFault(fmt.Errorf("IDENTIFY_SYSTEM answered with the timeline %q", row[1]))
	}
	end, err := cdc.ParseLSN(string(row[2]))
	if err != nil {
		return poolerFault(fmt.Errorf("IDENTIFY_SYSTEM answered: %w", err))
	}
	s.server = cdc.Server{
		SystemID: string(row[0]),
		Timeline: uint32(timeline),
		Standby:  string(recovery[0]) == "t",
		Database: string(row[3]),
		Version:  pg.ServerVersion(s.repl),
		WALEnd:   end,
	}
	s.server.History, err = s.history(ctx, s.server.Timeline)
	return err
}

// ordinary is a connection for SQL.
type ordinary struct {
	conn *pgx.Conn
	wire *wire
}

// dial opens an ordinary connection in bounded time.
func dial(ctx context.Context, cfg *pgx.ConnConfig) (*ordinary, error) {
	ctx, cancel := context.WithTimeout(ctx, connectBudget(cfg))
	defer cancel()
	wire, c := newWire(cfg)
	conn, err := pg.Connect(ctx, c)
	if err != nil {
		wire.cut()
		return nil, connectError(err, cfg, false)
	}
	return &ordinary{conn: conn, wire: wire}, nil
}

// connectBudget is how long connecting may take at most: the time-out of the
// connection string is for each host by itself, and not for the settings that
// follow.
func connectBudget(cfg *pgx.ConnConfig) time.Duration {
	return cfg.ConnectTimeout*time.Duration(1+len(cfg.Fallbacks)) + askTimeout
}

// close ends the connection whatever state it is in.
func (o *ordinary) close() { closeConn(o.conn.PgConn(), o.wire) }

// closeConn says goodbye where that is possible at once, cuts the wire, and
// returns when no goroutine of the driver is left.
func closeConn(conn *pgconn.PgConn, wire *wire) {
	ctx, cancel := context.WithTimeout(context.Background(), closeTimeout)
	defer cancel()
	conn.Close(ctx)
	select {
	case <-conn.CleanupDone():
		// Usually so: else the driver is cancelling a statement, which is
		// worth a moment, since the server would go on with it otherwise.
	case <-ctx.Done():
	}
	wire.cut()
	<-conn.CleanupDone()
}
