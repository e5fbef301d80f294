package outbox

import (
	"context"
	"fmt"
	"strconv"
	"strings"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/stagedoor/walrelay/cdc"
	"github.com/stagedoor/walrelay/internal/pg"
)

// allChunk is how many rows All fetches at once. They are handled one by one,
// and what the client does not take yet waits at the server.
const allChunk = 1000

// All is the whole table, or the newer part of it, as one snapshot sees it. It
// is for one goroutine.
//
// The snapshot is held until Close, and keeps vacuum from removing rows.
type All struct {
	table  *Table
	conn   *pgx.Conn
	layout *layout
	since  time.Time
	lsn    cdc.LSN
	taken  time.Time
	now    *pgx.Conn // of Again; nil before
}

// Row is a row of the table and what may be known of when it was published. One
// without an id says so in its event.
type Row struct {
	Event   cdc.Event
	Marked  bool
	Created time.Time // not later than the row was written; zero where unknown
}

// All takes a snapshot of the rows that were created at since or later; zero is
// all of them, and so it is where the table has no creation time.
func (t *Table) All(ctx context.Context, since time.Time) (*All, error) {
	l := t.checked.Load()
	if l == nil {
		return nil, errUnchecked
	}
	conn, err := t.connect(ctx)
	if err != nil {
		return nil, err
	}
	a := &All{table: t, conn: conn, layout: l, since: since}
	if err := a.begin(ctx); err != nil {
		hangUp(conn)
		return nil, t.explain(err)
	}
	return a, nil
}

// begin takes the snapshot: the transaction's first query does. Its functions
// are called after that, so the position they give is beyond all commits that
// the snapshot sees.
func (a *All) begin(ctx context.Context) error {
	if _, err := a.conn.Exec(ctx, "BEGIN ISOLATION LEVEL REPEATABLE READ READ ONLY"); err != nil {
		return err
	}
	var lsn string
	var block uint64
	err := a.conn.QueryRow(ctx, `
		SELECT coalesce(CASE WHEN pg_is_in_recovery() THEN greatest(pg_last_wal_receive_lsn(), pg_last_wal_replay_lsn())
			ELSE pg_current_wal_insert_lsn() END::text, '0/0'), current_setting('wal_block_size')::int8, clock_timestamp()`).
		Scan(&lsn, &block, &a.taken)
	if err != nil {
		return err
	}
	parsed, err := cdc.ParseLSN(lsn)
	a.lsn = endOfRecord(parsed, block)
	return err
}

// pageHeader is the most that a page of the write-ahead log has before its first
// record, in bytes.
const pageHeader = 40

// endOfRecord is where the last record before an insert position ends. They
// differ at the beginning of a page: the next record goes behind its header,
// while nothing is written or confirmed beyond the last one.
func endOfRecord(insert cdc.LSN, block uint64) cdc.LSN {
	if in := uint64(insert) % block; in <= pageHeader {
		return insert - cdc.LSN(in)
	}
	return insert
}

// LSN is a position in the write-ahead log that all rows of the snapshot were
// committed before.
func (a *All) LSN() cdc.LSN { return a.lsn }

// Taken is the server's time when the snapshot was taken.
func (a *All) Taken() time.Time { return a.taken }

// Clock is the server's time.
func (a *All) Clock(ctx context.Context) (time.Time, error) {
	var now time.Time
	err := a.conn.QueryRow(ctx, "SELECT clock_timestamp()").Scan(&now)
	return now, err
}

// where is the condition of a row.
func (a *All) where() string {
	m := a.table.mapping
	if a.since.IsZero() || m.CreatedAt == "" {
		return "true"
	}
	return a.table.fill("(t.{created} IS NULL OR t.{created} >= "+since(a.since, 0, a.layout.columns[m.CreatedAt])+")", "")
}

// Count is how many rows there are, and the time since when the table may be
// whole: when the oldest of all rows that are marked was marked, or where rows
// have no such time, when the oldest row was created. Zero is not known.
func (a *All) Count(ctx context.Context) (n int64, whole time.Time, err error) {
	t, m := a.table, a.table.mapping
	oldest, column := "NULL::bigint", ""
	switch {
	case a.layout.has(m.PublishedAt):
		column = m.PublishedAt
	case m.CreatedAt != "":
		column = m.CreatedAt
	}
	if column != "" {
		quoted := "t." + cdc.QuoteIdent(column)
		oldest = "(extract(epoch FROM min(" + quoted + ") FILTER (WHERE isfinite(" + quoted + "))) * 1000000)::bigint"
	}
	var micros *int64
	err = a.conn.QueryRow(ctx, "SELECT count(*) FILTER (WHERE "+a.where()+"), "+oldest+" FROM "+t.table.String()+" t").Scan(&n, &micros)
	if err != nil || micros == nil {
		return n, time.Time{}, t.explain(err)
	}
	whole = time.UnixMicro(*micros).UTC()
	if !a.layout.columns[column].zoned() {
		whole = whole.Add(zoneMargin)
	}
	return n, whole, nil
}

// Each calls fn for each row, in no particular order, and stops at its first
// error. The event is fn's to keep. Memory is bounded by the largest row.
func (a *All) Each(ctx context.Context, fn func(Row) error) error {
	sql, b := a.query()
	if err := a.exec(ctx, "DECLARE everything NO SCROLL CURSOR FOR "+sql+a.where()); err != nil {
		return err
	}
	for fetched := allChunk; fetched == allChunk; {
		fetched = 0
		err := rows(ctx, a.conn, fmt.Sprintf("FETCH %d FROM everything", allChunk), nil, func(values [][]byte) error {
			fetched++
			row, err := a.row(b, values)
			if err != nil {
				return err
			}
			return fn(row)
		})
		if err != nil {
			return a.table.explain(err)
		}
	}
	return a.exec(ctx, "CLOSE everything")
}

// Again calls fn for the rows with these ids as they are now, not as the
// snapshot sees them. An id that cannot be one is no error: there is no such
// row.
func (a *All) Again(ctx context.Context, ids []string, fn func(Row) error) error {
	if a.now == nil {
		conn, err := a.table.connect(ctx)
		if err != nil {
			return err
		}
		a.now = conn
		if a.layout.indexedID {
			// Whatever the statistics say, and too short for JIT.
			if _, err := conn.Exec(ctx, "SET enable_seqscan = off; SET jit = off", pgx.QueryExecModeSimpleProtocol); err != nil {
				return err
			}
		}
	}
	sql, b := a.query()
	sql += a.table.fill("t.{id} = ANY ($1::{type}[])", a.layout.columns[a.table.mapping.ID].typ)
	marks := make([]cdc.Mark, len(ids))
	for i, id := range ids {
		marks[i].ID = id
	}
	err := rows(ctx, a.now, sql, [][]byte{idArray(marks)}, func(values [][]byte) error {
		row, err := a.row(b, values)
		if err != nil {
			return err
		}
		return fn(row)
	})
	switch {
	case !strings.HasPrefix(pg.Code(err), "22"): // data_exception
		return a.table.explain(err)
	case len(ids) == 1:
		return nil
	}
	for _, id := range ids {
		if err := a.Again(ctx, []string{id}, fn); err != nil {
			return err
		}
	}
	return nil
}

// query is the beginning of a SELECT up to its condition. Values come as text,
// from the same output functions as the log's.
func (a *All) query() (string, *binding) {
	t := a.table
	columns := []string{"t." + cdc.QuoteIdent(t.mapping.ID)}
	b := &binding{id: 0, published: -1}
	for i, f := range t.fields {
		columns = append(columns, "t."+cdc.QuoteIdent(f.Column))
		b.fields = append(b.fields, i+1)
	}
	marked, created := "false", "NULL"
	if a.layout.has(t.mapping.PublishedAt) {
		marked = "t.{published} IS NOT NULL"
	}
	if t.mapping.CreatedAt != "" {
		created = "CASE WHEN isfinite(t.{created}) THEN (extract(epoch FROM t.{created}) * 1000000)::bigint END"
	}
	return "SELECT " + strings.Join(columns, ", ") + ", " + t.fill(marked+", "+created+" FROM {table} t WHERE ", ""), b
}

func (a *All) row(b *binding, values [][]byte) (Row, error) {
	n := 1 + len(b.fields)
	texts := make([]cdc.Value, n)
	for i := range texts {
		texts[i] = cdc.Value{Text: values[i], Null: values[i] == nil}
	}
	ev := a.table.entry(b, texts)
	row := Row{Event: ev, Marked: string(values[n]) == "t"}
	if values[n+1] != nil {
		micros, err := strconv.ParseInt(string(values[n+1]), 10, 64)
		if err != nil {
			return Row{}, err
		}
		row.Created = time.UnixMicro(micros).UTC()
		if !a.layout.columns[a.table.mapping.CreatedAt].zoned() {
			row.Created = row.Created.Add(-zoneMargin)
		}
	}
	return row, nil
}

func (a *All) exec(ctx context.Context, sql string) error {
	_, err := a.conn.PgConn().Exec(ctx, sql).ReadAll()
	return a.table.explain(err)
}

// Close ends the transaction and lets go of the snapshot.
func (a *All) Close() {
	hangUp(a.conn)
	if a.now != nil {
		hangUp(a.now)
	}
}

// IndexedID reports whether Again finds rows by an index.
func (a *All) IndexedID() bool { return a.layout.indexedID }
