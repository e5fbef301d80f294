package outbox

import (
	"context"
	"fmt"
	"strconv"
	"strings"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/stagedoor/walrelay/cdc"
)

const (
	// markedMargin is how much earlier than since a row may have been marked
	// and is looked at all the same: published_at is when the mark began.
	markedMargin = 10 * time.Second
	// zoneMargin is added where a column has no time zone: its writer's clock
	// may show up to 14 hours more than ours, or 12 less.
	zoneMargin = 15 * time.Hour
	// candidateChunk is how many rows are fetched at once. They are handled
	// one by one; it is how many an early end throws away.
	candidateChunk = 100
)

// Candidates are the rows that a backfill has to look at, in one snapshot. It
// is for one goroutine.
type Candidates struct {
	table  *Table
	conn   *pgx.Conn
	layout *layout
	since  cdc.Since
	margin time.Duration
	order  string
}

// Candidates opens the rows that a backfill has to look at, as the exported
// snapshot sees them. Those are the rows that nobody has marked, and those that
// were marked at or after since.Time, less ten seconds unless since.First is
// set: Redis may have lost them. Without marks (MarkNone) it is of these only
// the rows that were created after since.Time less margin, unless since.First is
// set or the table has no creation time.
//
// The snapshot is held until Close, and keeps vacuum from removing rows.
func (t *Table) Candidates(ctx context.Context, snapshot string, since cdc.Since, margin time.Duration) (*Candidates, error) {
	l := t.checked.Load()
	if l == nil {
		return nil, errUnchecked
	}
	conn, err := t.connect(ctx)
	if err != nil {
		return nil, err
	}
	c := &Candidates{table: t, conn: conn, layout: l, since: since, margin: margin}
	if err := c.begin(ctx, snapshot); err != nil {
		hangUp(conn)
		return nil, err
	}
	return c, nil
}

// begin takes over the snapshot. It has to be the transaction's first command.
func (c *Candidates) begin(ctx context.Context, snapshot string) error {
	_, err := c.conn.PgConn().Exec(ctx, "BEGIN ISOLATION LEVEL REPEATABLE READ READ ONLY; SET TRANSACTION SNAPSHOT "+
		cdc.QuoteLiteral(snapshot)).ReadAll()
	if err != nil {
		return err
	}
	var timestamps bool
	if err := c.conn.QueryRow(ctx, "SELECT current_setting('track_commit_timestamp')::bool").Scan(&timestamps); err != nil {
		return err
	}
	// The order is that of the commits where the server knows it. It forgets
	// the oldest ones first, so NULL is before all others. Without it, the
	// creation time is that of the transaction's start, and ids are drawn in
	// between. The last two make it the same at every call, also where ids are
	// not unique: scans of large tables begin in the middle.
	var by []string
	if timestamps {
		by = append(by, "pg_xact_commit_timestamp(t.xmin) NULLS FIRST")
	}
	if c.table.mapping.CreatedAt != "" {
		by = append(by, "t.{created}")
	}
	c.order = strings.Join(append(by, "t.{id}", "t.tableoid", "t.ctid"), ", ")
	return nil
}

// where is the condition of a candidate.
func (c *Candidates) where() string {
	l, m := c.layout, c.table.mapping
	var conditions []string
	if l.has(m.PublishedAt) {
		margin := markedMargin
		if c.since.First {
			// What was marked before is a poller's, and its entries may look
			// like none of ours.
			margin = 0
		}
		conditions = append(conditions, "(t.{published} IS NULL OR t.{published} >= "+
			since(c.since.Time, margin, l.columns[m.PublishedAt])+")")
	}
	if l.marks == MarkNone && !c.since.First && m.CreatedAt != "" {
		conditions = append(conditions, "(t.{created} IS NULL OR t.{created} >= "+
			since(c.since.Time, c.margin, l.columns[m.CreatedAt])+")")
	}
	if len(conditions) == 0 {
		return "true"
	}
	return strings.Join(conditions, " AND ")
}

// since is a moment less a margin as SQL.
func since(at time.Time, margin time.Duration, c column) string {
	if !c.zoned() {
		margin += zoneMargin
	}
	text := "-infinity"
	if !at.IsZero() {
		text = at.Add(-margin).UTC().Format("2006-01-02 15:04:05.999999Z07:00")
	}
	if c.zoned() {
		return "timestamptz '" + text + "'"
	}
	return "timestamp '" + strings.TrimSuffix(text, "Z") + "'"
}

// Count is how many candidates there are, and when the oldest of them was
// created: zero if that is not known of every one.
func (c *Candidates) Count(ctx context.Context) (n int64, oldest time.Time, err error) {
	m := c.table.mapping
	created := "NULL"
	if m.CreatedAt != "" {
		created = `CASE WHEN bool_and(coalesce(isfinite(t.{created}), false))
  THEN (extract(epoch FROM min(t.{created})) * 1000000)::bigint END`
	}
	var micros *int64
	err = c.conn.QueryRow(ctx, c.table.fill("SELECT count(*), "+created+" FROM {table} t WHERE "+c.where(), "")).
		Scan(&n, &micros)
	if err != nil || micros == nil {
		return n, time.Time{}, c.table.explain(err)
	}
	return n, c.table.createdAt(c.layout, *micros), nil
}

// Each calls fn for each candidate, in the same order at every call, and stops
// at its first error. The event is the caller's to keep and equals the one that
// the log gives for the same row, but for its position, and without an id is
// named by its place in the table. The row itself may have been changed since:
// then it is the version of the snapshot.
//
// Memory is bounded by the largest row: the server keeps the order, on its disk
// if need be. After an error only Close is left to do, unless it was fn's.
func (c *Candidates) Each(ctx context.Context, fn func(cdc.Candidate) error) error {
	t := c.table
	columns := t.selected()
	marked := t.markedSQL(c.layout)
	sql := "DECLARE candidates NO SCROLL CURSOR FOR SELECT " + columns.list + t.fill(
		", "+marked+", "+c.table.createdSQL()+", CASE WHEN t.{id} IS NULL THEN 'ctid/' || t.tableoid || '/' || btrim(t.ctid::text, '()') END FROM {table} t WHERE "+c.where()+" ORDER BY "+c.order, "")
	if err := c.exec(ctx, sql); err != nil {
		return err
	}
	for fetched := candidateChunk; fetched == candidateChunk; {
		fetched = 0
		err := rows(ctx, c.conn, fmt.Sprintf("FETCH %d FROM candidates", candidateChunk), nil, func(row [][]byte) error {
			fetched++
			ev := columns.event(t, row)
			rest := row[len(columns.values):]
			if ev.NoID {
				ev.ID = string(rest[2])
			}
			candidate := cdc.Candidate{Event: ev, Marked: string(rest[0]) == "t"}
			if rest[1] != nil {
				micros, err := strconv.ParseInt(string(rest[1]), 10, 64)
				if err != nil {
					return err
				}
				candidate.Created = c.table.createdAt(c.layout, micros)
			}
			return fn(candidate)
		})
		if err != nil {
			// The cursor goes with the transaction if that has failed.
			_ = c.exec(ctx, "CLOSE candidates")
			return t.explain(err)
		}
	}
	return c.exec(ctx, "CLOSE candidates")
}

func (c *Candidates) exec(ctx context.Context, sql string) error {
	_, err := c.conn.PgConn().Exec(ctx, sql).ReadAll()
	return c.table.explain(err)
}

// Close ends the transaction and lets go of the snapshot.
func (c *Candidates) Close() { hangUp(c.conn) }
