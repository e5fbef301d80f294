package outbox

import (
	"context"
	"fmt"

	"github.com/jackc/pgx/v5"

	"github.com/stagedoor/walrelay/cdc"
)

// noScan has the rest of a query string, which is one transaction, find its
// rows by an index, whatever the statistics say.
const noScan = "SET LOCAL enable_seqscan = off; SET LOCAL jit = off; "

// OldestUnmarked are the rows that are not marked with the smallest ids, and
// where WAL was inserted after they were read: their commits lie before it,
// also those that are not on the server's disk yet. Where marked rows are
// deleted all rows count. There are none without marks (MarkNone), and none on
// a standby, which writes no WAL.
//
// Those in except are left out: on a busy table with random ids they would
// crowd out all others.
func (t *Table) OldestUnmarked(ctx context.Context, conn *pgx.Conn, limit int, except []string) (ids []string, insertEnd cdc.LSN, err error) {
	l := t.checked.Load()
	switch {
	case l == nil:
		return nil, 0, errUnchecked
	case l.marks == MarkNone:
		return nil, 0, nil
	}
	// Each statement has a snapshot of its own, so that the second sees a later
	// moment than the first.
	results, err := conn.PgConn().Exec(ctx, noScan+t.oldestUnmarkedSQL(l, limit, except)+
		`; SELECT CASE WHEN NOT pg_is_in_recovery() THEN pg_current_wal_insert_lsn() END`).ReadAll()
	if err != nil {
		return nil, 0, t.explain(err)
	}
	end := results[len(results)-1].Rows[0][0]
	if end == nil {
		return nil, 0, nil
	}
	if insertEnd, err = cdc.ParseLSN(string(end)); err != nil {
		return nil, 0, err
	}
	for _, row := range results[len(results)-2].Rows {
		ids = append(ids, string(row[0]))
	}
	return ids, insertEnd, nil
}

func (t *Table) oldestUnmarkedSQL(l *layout, limit int, except []string) string {
	return t.fill("SELECT t.{id} FROM {table} t WHERE "+t.unmarked(l)+
		fmt.Sprintf(" AND t.{id} IS NOT NULL AND t.{id} NOT IN (SELECT unnest(%s::{type}[])) ORDER BY t.{id} LIMIT %d",
			cdc.QuoteLiteral(string(textArray(except))), limit), l.columns[t.mapping.ID].typ)
}

// unmarked is the condition of a row that is not marked.
func (t *Table) unmarked(l *layout) string {
	if l.has(t.mapping.PublishedAt) {
		return "t.{published} IS NULL"
	}
	return "true"
}

// StillUnmarked are those of the rows that are there and not marked. Without
// marks (MarkNone) there are none.
func (t *Table) StillUnmarked(ctx context.Context, conn *pgx.Conn, ids []string) ([]string, error) {
	l := t.checked.Load()
	switch {
	case l == nil:
		return nil, errUnchecked
	case l.marks == MarkNone || len(ids) == 0:
		return nil, nil
	}
	var still []string
	sql := t.fill("SELECT DISTINCT t.{id} FROM {table} t WHERE t.{id} = ANY ($1::{type}[]) AND "+t.unmarked(l),
		l.columns[t.mapping.ID].typ)
	err := rows(ctx, conn, sql, [][]byte{textArray(ids)}, func(row [][]byte) error {
		still = append(still, string(row[0]))
		return nil
	})
	return still, t.explain(err)
}
