package outbox

import (
	"context"
	"strconv"
	"time"

	"github.com/jackc/pgx/v5"
)

// OldestUnpublished is the age of the oldest row that is not marked, by the
// server's clock, leaving out rows that are on the stream already and only
// wait for their mark. It is not defined, and not found, without marks or
// without a creation time.
//
// The oldest is the one with the smallest id, which the index on unpublished
// ids has at its beginning.
func (t *Table) OldestUnpublished(ctx context.Context, conn *pgx.Conn, except []string) (age time.Duration, found bool, err error) {
	l := t.checked.Load()
	if l == nil {
		return 0, false, errUnchecked
	}
	if l.marks == MarkNone || t.mapping.CreatedAt == "" {
		return 0, false, nil
	}
	// Written so, the ids to leave out are hashed, on every version.
	sql := t.fill(`
SELECT (extract(epoch FROM clock_timestamp() - t.{created}::timestamptz) * 1000000)::bigint
FROM {table} t
WHERE `+t.unmarked(l)+` AND isfinite(t.{created})
  AND t.{id} NOT IN (SELECT unnest($1::{type}[]))
ORDER BY t.{id} LIMIT 1`, l.columns[t.mapping.ID].typ)
	err = rows(ctx, conn, sql, [][]byte{textArray(except)}, func(row [][]byte) error {
		micros, err := strconv.ParseInt(string(row[0]), 10, 64)
		// A clock that was set back makes no row younger than now.
		age, found = max(0, time.Duration(micros)*time.Microsecond), true
		return err
	})
	return age, found, t.explain(err)
}
