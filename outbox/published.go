package outbox

import (
	"context"
	"strconv"
	"time"
)

// publishedTimeout bounds one look at a row: the caller has other things to do.
const publishedTimeout = 5 * time.Second

// Published reports whether all rows with this id are marked, or gone where
// marked rows are deleted, and when the first of them was created: zero if that is
// not known. Without marks (MarkNone) it is false. It keeps its connection, for
// the next of many rows.
func (t *Table) Published(ctx context.Context, id string) (marked bool, created time.Time, err error) {
	l := t.checked.Load()
	switch {
	case l == nil:
		return false, time.Time{}, errUnchecked
	case l.marks == MarkNone:
		return false, time.Time{}, nil
	}
	t.lookerMu.Lock()
	defer t.lookerMu.Unlock()
	ctx, cancel := context.WithTimeout(ctx, publishedTimeout)
	defer cancel()
	if t.looker == nil || t.looker.IsClosed() {
		if t.looker, err = t.connect(ctx); err != nil {
			return false, time.Time{}, err
		}
		if err := bounded(ctx, t.looker, rowsSession); err != nil {
			return false, time.Time{}, err
		}
	}
	sql := "SELECT coalesce(bool_and(" + t.markedSQL(l) + "), " + strconv.FormatBool(l.marks == MarkDelete) + "), min(" + t.createdSQL() +
		") FROM {table} t WHERE t.{id} = $1::{type}"
	err = rows(ctx, t.looker, t.fill(sql, l.columns[t.mapping.ID].typ), [][]byte{[]byte(id)}, func(row [][]byte) error {
		marked = string(row[0]) == "t"
		if row[1] == nil {
			return nil
		}
		micros, err := strconv.ParseInt(string(row[1]), 10, 64)
		created = t.createdAt(l, micros)
		return err
	})
	return marked, created, t.explain(err)
}

// markedSQL is whether a row is marked.
func (t *Table) markedSQL(l *layout) string {
	if l.has(t.mapping.PublishedAt) {
		return "t.{published} IS NOT NULL"
	}
	return "false"
}

// createdSQL is when a row was created, in microseconds since 1970.
func (t *Table) createdSQL() string {
	if t.mapping.CreatedAt == "" {
		return "NULL::bigint"
	}
	return "CASE WHEN isfinite(t.{created}) THEN (extract(epoch FROM t.{created}) * 1000000)::bigint END"
}

// createdAt is the earliest moment that a creation time can mean.
func (t *Table) createdAt(l *layout, micros int64) time.Time {
	at := time.UnixMicro(micros).UTC()
	if !l.columns[t.mapping.CreatedAt].zoned() {
		at = at.Add(-zoneMargin)
	}
	return at
}

// closeLooker hangs up.
func (t *Table) closeLooker() {
	t.lookerMu.Lock()
	defer t.lookerMu.Unlock()
	if t.looker != nil {
		hangUp(t.looker)
		t.looker = nil
	}
}
