package outbox

import (
	"context"
	"fmt"
	"log/slog"
	"strings"
	"sync/atomic"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/stagedoor/walrelay/cdc"
	"github.com/stagedoor/walrelay/internal/fault"
)

// PurgeConfig is what NewPurger needs.
type PurgeConfig struct {
	// OlderThan is how long ago a row must have been published, by the server's
	// clock; where rows are not marked, how long ago it was created.
	OlderThan time.Duration
	// Batch is how many rows are deleted in a transaction, at most.
	Batch int
	// Slot is the relay's. It tells what is published where rows are not marked.
	Slot string
}

// Purged is what became of the rows that are old enough.
type Purged struct {
	Deleted int64
	// Kept rows were in use: locked, changed or deleted by somebody else, or
	// held by a foreign key or a trigger. The next pass comes to them again.
	Kept int64
}

const (
	// purgeSay is how often a pass tells how far it is.
	purgeSay = 10 * time.Second
	// purgeTimeout bounds a statement, which can be slow only where a foreign key
	// has no index, or past entries of an index that vacuum has not removed.
	purgeTimeout = 30 * time.Second
	// purgeLock bounds the wait for the table, and for what is deleted along with
	// a row. Meanwhile the batch's rows are held.
	purgeLock = 200 * time.Millisecond
	// purgeGrace is what a statement gets that is under way when it is time to
	// stop. Cut off, it has deleted nothing.
	purgeGrace = 2 * time.Second
)

// purgeSession is how the session differs from others.
//
// synchronous_commit = off: deletions that a crash takes back are made again.
//
// All rows are found by the index of the ids, whatever the statistics say, and
// rows of a batch are put together by hashing their ids, not by comparing each
// with each.
var purgeSession = fmt.Sprintf(`
	SET lock_timeout = %d;
	SET statement_timeout = %d;
	SET synchronous_commit = off;
	SET enable_seqscan = off;
	SET enable_nestloop = off;
	SET jit = off;
	SET default_transaction_isolation = 'read committed';
	SET default_transaction_read_only = off`,
	purgeLock.Milliseconds(), purgeTimeout.Milliseconds())

// Purger deletes published rows that are old enough, in small batches, each a
// transaction of its own. It waits for nobody's rows and holds none for longer
// than a batch takes: what is locked is left for the next pass.
//
// # What is published
//
// Where rows are marked, what has a published_at. That is looked at again when
// the row is deleted.
//
// Where they are not ([MarkNone]), the slot says so. Rows are read, then a
// position is taken from the log: the commits of all those rows lie before it.
// When the slot's confirmed_flush_lsn has passed it, a relay has them on the
// stream. Only then are they deleted, and only if each is the version that was
// read: one that has the same id and another xmin is another row.
//
// Where published rows are deleted anyway ([MarkDelete]), there is nothing to do.
//
// # What it costs
//
// A pass walks over the table once, in the order of the ids, along their index.
// With ids that are integers and grow, the old rows come first, and the pass
// ends with the first thousand rows that are all too young: it costs what it
// deletes. With other ids it looks at each row of the table once, and Run does
// that for at most a twentieth of the time. Between batches it pauses for
// as long as they take.
//
// A batch in which a foreign key or a trigger keeps a row is halved until that
// row is alone: about twenty more statements for each such row in each pass.
//
// Rows without an id stay.
type Purger struct {
	table   *Table
	cfg     PurgeConfig
	log     *slog.Logger
	deleted atomic.Uint64
	said    time.Time // when it was last said what is waited for
}

// NewPurger prepares a Purger. It does not connect.
func NewPurger(table *Table, cfg PurgeConfig, log *slog.Logger) *Purger {
	return &Purger{table: table, cfg: cfg, log: log}
}

// Deleted is how many rows were deleted since NewPurger. It may be called at any
// time, also of a nil Purger, which deletes none.
func (p *Purger) Deleted() uint64 {
	if p == nil {
		return 0
	}
	return p.deleted.Load()
}

// Pass deletes what is old enough now, and says at the end, or after an error or
// the end of ctx, what it did. It logs its progress. What an operator has to
// repair is a fault.Error.
//
// Where rows are not marked it waits for the slot for as long as it takes, and
// says so. It fails at once where there is no slot, or one that lost its WAL.
func (p *Purger) Pass(ctx context.Context) (Purged, error) {
	pass := &purgePass{Purger: p}
	err := pass.run(ctx)
	return pass.done, err
}

// purgePass is one walk over the table.
type purgePass struct {
	*Purger
	done Purged

	conn     *pgx.Conn
	config   *pgx.ConnConfig // that conn was made of
	layout   *layout
	patience time.Duration // of a wait for the slot; 0 waits for ever
	may      func() bool   // nil, or false when the pass is to end

	old, young string        // conditions of rows
	reported   time.Time     // when it was last said how far it is
	cut        bool          // it ends before the end of the table
	reading    time.Duration // what the walk took, without the deletions
}

func (p *purgePass) run(ctx context.Context) error {
	p.config = p.table.conn.Load()
	conn, err := p.table.connect(ctx)
	if err != nil {
		return err
	}
	defer hangUp(conn)
	p.conn, p.reported = conn, time.Now()
	if err := p.prepare(ctx); err != nil {
		return err
	}
	return p.walk(ctx)
}

// prepare learns what the table is like, and settles the conditions. What was
// learned is not the relay's to use: it may know better, since it marks.
func (p *purgePass) prepare(ctx context.Context) error {
	if _, err := p.conn.PgConn().Exec(ctx, purgeSession).ReadAll(); err != nil {
		return err
	}
	t := p.table
	l, err := t.read(ctx, p.conn)
	if err != nil {
		return err
	}
	if err := t.verify(l); err != nil {
		return err
	}
	if err := t.resolve(l); err != nil {
		return err
	}
	p.layout = l
	if err := t.refusePurge(l); err != nil {
		return err
	}
	var micros int64
	err = p.conn.QueryRow(ctx, "SELECT (extract(epoch FROM clock_timestamp()) * 1000000)::bigint").Scan(&micros)
	if err != nil {
		return err
	}
	p.conditions(time.UnixMicro(micros).Add(-p.cfg.OlderThan))
	if p.unmarked() {
		_, err = p.confirmed(ctx)
	}
	return err
}

// unmarked reports whether the slot tells what is published.
func (p *purgePass) unmarked() bool { return p.layout.marks == MarkNone }

// refusePurge names what a purge needs and is not there.
func (t *Table) refusePurge(l *layout) error {
	unmarked := l.marks == MarkNone
	switch {
	case l.marks == MarkDelete:
		return &fault.Error{
			Problem: "--mark=delete deletes rows as soon as they are published, and leaves nothing to purge",
			Fix:     "leave it out",
		}
	case unmarked && t.mark == MarkAuto && l.has(t.mapping.PublishedAt) && !l.columns[t.mapping.PublishedAt].generated:
		// Another role may mark rows, and then those that are not marked were
		// missed, and only the table still has them.
		return &fault.Error{
			Problem: fmt.Sprintf("the role may not update column %s of %s, so that it is not known whether rows are marked when they are published",
				cdc.QuoteIdent(t.mapping.PublishedAt), t.table),
			Fix: t.grant(l, MarkPublishedAt) + ", or --mark=none where no relay marks them",
		}
	case unmarked && t.mapping.CreatedAt == "":
		return &fault.Error{
			Problem: fmt.Sprintf("rows of %s are not marked, and no column tells when they were created, so that none is known to be old enough", t.table),
			Fix:     "name the column with --column-created-at, or one that marks rows with --column-published-at",
		}
	case !l.deletable || !l.updatable:
		return &fault.Error{
			Problem: fmt.Sprintf("the role may not delete rows of %s, or not lock them, which comes first", t.table),
			Fix:     t.purgeGrant(l),
		}
	case !l.indexedID:
		fix := "CREATE INDEX CONCURRENTLY ON %s (%s)"
		if l.partitioned() {
			fix = "CREATE INDEX ON %s (%s)"
		}
		return &fault.Error{
			Problem: fmt.Sprintf("no index of %s starts with %s, and without one the whole table would be read for each batch", t.table, cdc.QuoteIdent(t.mapping.ID)),
			Fix:     fmt.Sprintf(fix, t.table, cdc.QuoteIdent(t.mapping.ID)),
		}
	}
	return nil
}

// purgeGrant is the SQL for the privileges that the role lacks. Locking a row takes
// UPDATE on some column of it.
func (t *Table) purgeGrant(l *layout) string {
	var missing []string
	if !l.deletable {
		missing = append(missing, "DELETE")
	}
	if !l.updatable {
		missing = append(missing, fmt.Sprintf("UPDATE (%s)", cdc.QuoteIdent(t.mapping.ID)))
	}
	return fmt.Sprintf("GRANT %s ON %s TO %s", strings.Join(missing, ", "), t.table, l.role)
}

// conditions are those of a row that may go, and of one after which there is
// none. A time without a time zone must be old in all of them.
//
// A row is young by when it was created, if the table knows: published lately
// are also old rows, by a backfill, and older ones may be behind them.
func (p *purgePass) conditions(cut time.Time) {
	m := p.table.mapping
	before := func(column, name string) string {
		return column + " < " + since(cut, 0, p.layout.columns[name])
	}
	if p.unmarked() {
		p.old = before("t.{created}", m.CreatedAt)
	} else {
		p.old = before("t.{published}", m.PublishedAt)
	}
	p.young = "NOT " + p.old
	if m.CreatedAt != "" {
		p.young = "NOT " + before("t.{created}", m.CreatedAt)
	}
}
