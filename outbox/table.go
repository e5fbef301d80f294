package outbox

import (
	"context"
	"errors"
	"log/slog"
	"sync"
	"sync/atomic"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"

	"github.com/stagedoor/walrelay/cdc"
	"github.com/stagedoor/walrelay/internal/fault"
	"github.com/stagedoor/walrelay/internal/pg"
)

// Config is what New needs.
type Config struct {
	Conn    *pgx.ConnConfig // of pg.Parse
	Table   cdc.Table
	Mapping Mapping
	Mark    MarkMode // MarkAuto if empty
}

// errUnchecked is a broken order of calls, not something an operator can cause.
var errUnchecked = errors.New("outbox: the table was not checked yet")

// Table is the outbox table. Its methods may be called from different
// goroutines at the same time, if nothing else is said.
type Table struct {
	conn    atomic.Pointer[pgx.ConnConfig]
	table   cdc.Table
	mapping Mapping
	fields  []FieldColumn
	mark    MarkMode
	log     *slog.Logger

	// checked is what the last Check found, nil before the first.
	checked atomic.Pointer[layout]
	// said holds what was logged of the table, so that it is said once.
	said sync.Map

	bound *binding // of Event

	markerMu sync.Mutex
	marker   *marker // of Mark and Locker; nil while there is none

	lookerMu sync.Mutex
	looker   *pgx.Conn // of Published; nil while there is none
}

// New prepares a table. It does not connect; the Mapping must be valid.
func New(cfg Config, log *slog.Logger) *Table {
	if cfg.Mark == "" {
		cfg.Mark = MarkAuto
	}
	t := &Table{
		table:   cfg.Table,
		mapping: cfg.Mapping,
		fields:  cfg.Mapping.EntryFields(),
		mark:    cfg.Mark,
		log:     log,
	}
	t.conn.Store(cfg.Conn)
	return t
}

// Follow has all further connections lead to the server of this configuration:
// rows have to be marked where they are streamed from, and a list of hosts, or a
// name, may lead to another server that takes writes, after a failover.
func (t *Table) Follow(conn *pgx.ConnConfig) {
	t.conn.Store(conn)
	t.Close()
}

// connect opens a connection.
func (t *Table) connect(ctx context.Context) (*pgx.Conn, error) {
	return pg.Connect(ctx, t.conn.Load())
}

// Marks is how rows are marked: MarkPublishedAt, MarkDelete or MarkNone. Before
// the first Check it is MarkNone.
func (t *Table) Marks() MarkMode {
	if l := t.checked.Load(); l != nil {
		return l.marks
	}
	return MarkNone
}

// KnowsAge reports whether rows tell when they were created.
func (t *Table) KnowsAge() bool { return t.mapping.CreatedAt != "" }

// KeepsRows reports whether published rows stay in the table: not where they
// are deleted. Before the first Check they do.
func (t *Table) KeepsRows() bool { return t.Marks() != MarkDelete }

// Fields are the fields of an entry, in order.
func (t *Table) Fields() []FieldColumn { return t.fields }

// JSONFields are the names of those fields of an entry whose columns are json
// or jsonb, which a poller may spell differently. Empty before the first Check.
func (t *Table) JSONFields() map[string]bool {
	fields := map[string]bool{}
	l := t.checked.Load()
	for _, f := range t.fields {
		if l != nil && l.columns[f.Column].json() {
			fields[f.Name] = true
		}
	}
	return fields
}

// Close ends the connections that are kept. Where they are needed again they are
// opened again.
func (t *Table) Close() {
	t.closeLooker()
	t.markerMu.Lock()
	defer t.markerMu.Unlock()
	t.closeMarker()
}

// closePatience bounds the goodbye to a server that may be frozen.
const closePatience = time.Second

// hangUp closes a connection and waits until pgx is done with it, which it is
// not at once where a query was cancelled.
func hangUp(conn *pgx.Conn) {
	ctx, cancel := context.WithTimeout(context.Background(), closePatience)
	defer cancel()
	conn.Close(ctx)
	select {
	case <-conn.PgConn().CleanupDone():
	case <-ctx.Done():
	}
}

// rows runs a query and calls fn for each row, whose values are valid during
// the call only. Parameters and results are text, untouched by any codec.
func rows(ctx context.Context, conn *pgx.Conn, sql string, params [][]byte, fn func(values [][]byte) error) error {
	result := conn.PgConn().ExecParams(ctx, sql, params, nil, nil, nil)
	var err error
	for err == nil && result.NextRow() {
		err = fn(result.Values())
	}
	// Close reads what is left, so that the connection is usable again.
	if _, closeErr := result.Close(); err == nil {
		err = closeErr
	}
	return err
}

// explain turns an error of the server into the operator's, where one can act.
func (t *Table) explain(err error) error {
	var pgErr *pgconn.PgError
	if err == nil || fault.As(err) != nil || !errors.As(err, &pgErr) {
		return err
	}
	problem, fix := "", ""
	switch pg.Code(err) {
	case "42501": // insufficient_privilege, or row_security = off and a policy
		problem, fix = "reading the table is refused", "GRANT SELECT ON "+t.table.String()+" TO the relay's role"
	case "42P01": // undefined_table
		problem, fix = "the table is gone", "bring it back, or name another one with --table"
	case "42703": // undefined_column
		problem, fix = "a column of the table is gone", "add it again, or name another one with --column-* and --field"
	default:
		return err
	}
	return &fault.Error{Problem: problem, Fix: fix, Err: err}
}
