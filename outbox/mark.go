package outbox

import (
	"context"
	"errors"
	"fmt"
	"strconv"
	"strings"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/stagedoor/walrelay/cdc"
	"github.com/stagedoor/walrelay/internal/fault"
	"github.com/stagedoor/walrelay/internal/pg"
)

// ErrMarkRefused says that the server refuses to mark rows and goes on doing so
// until an operator acts.
var ErrMarkRefused = errors.New("marking rows is refused")

const (
	// markBatch bounds the rows of one statement, and so how long it holds them.
	markBatch = 2000
	// lockTimeout bounds the wait for the table. Meanwhile writers queue behind.
	lockTimeout = time.Second
	// markTimeout bounds a statement, which can be slow only without an index.
	markTimeout = 30 * time.Second
)

// markerSession is how the marker's session differs.
//
// synchronous_commit = local: a mark waits for its own disk, so that a crash
// does not show rows as missed that were confirmed, but not for standbys. A
// mark that a promoted standby lacks costs a look at the stream.
//
// Looking up ids is a job for an index whatever the statistics say, and too
// short for JIT. The other settings undo what somebody may have set for
// applications.
var markerSession = fmt.Sprintf(`
	SET lock_timeout = %d;
	SET statement_timeout = %d;
	SET synchronous_commit = local;
	SET enable_seqscan = off;
	SET jit = off;
	SET default_transaction_isolation = 'read committed';
	SET default_transaction_read_only = off`,
	lockTimeout.Milliseconds(), markTimeout.Milliseconds())

// Mark marks rows that are on the stream, and says of each what became of it.
// It never waits for rows that others have locked. Without marks all rows are
// done. After an error some may be marked; to try again does no harm.
func (t *Table) Mark(ctx context.Context, rows []cdc.Mark) ([]cdc.MarkState, error) {
	mode := t.Marks()
	states := make([]cdc.MarkState, len(rows))
	if mode == MarkNone || len(rows) == 0 {
		return states, nil
	}
	t.markerMu.Lock()
	defer t.markerMu.Unlock()
	for start := 0; start < len(rows); start += markBatch {
		end := min(start+markBatch, len(rows))
		err := t.markBatch(ctx, mode, rows[start:end], states[start:end])
		if pg.Code(err) == "55P03" { // lock_not_available: all rows are locked in effect
			for i := start; i < len(rows); i++ {
				states[i] = cdc.MarkLocked
			}
			return states, nil
		}
		if err != nil {
			err = t.refused(mode, err, func() string {
				if t.marker == nil {
					return ""
				}
				return t.missingGrant(ctx, t.marker.conn, mode)
			})
			// A new connection learns anew what the table looks like.
			t.closeMarker()
			return nil, err
		}
	}
	return states, nil
}

// markBatch is one statement, and the transaction around it.
func (t *Table) markBatch(ctx context.Context, mode MarkMode, batch []cdc.Mark, states []cdc.MarkState) error {
	// The server keeps the time itself; this is for one that does not answer.
	ctx, cancel := context.WithTimeout(ctx, markTimeout+5*time.Second)
	defer cancel()
	if err := t.openMarker(ctx); err != nil {
		return err
	}
	var suppressed error
	sql := t.markSQL(mode, t.marker.idType, t.marker.oid)
	err := rows(ctx, t.marker.conn, sql, [][]byte{t.markable(batch)}, func(row [][]byte) error {
		if string(row[0]) == "0" {
			return errSwapped
		}
		state, index, err := exception(row, batch)
		if err != nil {
			return err
		}
		states[index] = max(states[index], state)
		if string(row[3]) == "t" {
			suppressed = fmt.Errorf("the row with id %s was locked and stayed as it was", batch[index].ID)
		}
		return nil
	})
	if err == nil && suppressed != nil {
		return &fault.Error{
			Problem: fmt.Sprintf("a trigger of %s undoes the marks", t.table),
			Fix:     fmt.Sprintf("have the table's triggers pass what %s does", t.marker.role),
			Err:     fmt.Errorf("%w: %w", ErrMarkRefused, suppressed),
		}
	}
	return err
}

// markable are the ids of a batch, NULL for those of rows of another table: one
// that had the name before this one, and whose ids may be used here again.
func (t *Table) markable(batch []cdc.Mark) []byte {
	ids := make([]*string, len(batch))
	for i := range batch {
		if m := &batch[i]; m.Table == 0 || m.Table == t.marker.oid {
			ids[i] = &m.ID
		}
	}
	return nullableArray(ids)
}

// errSwapped says that another table has the name now.
var errSwapped = errors.New("another table has taken the name of the outbox; its rows are marked from now on")

// exception reads a row of markSQL.
func exception(row [][]byte, batch []cdc.Mark) (state cdc.MarkState, index int, err error) {
	n, err := strconv.Atoi(string(row[0]))
	if err != nil || n < 1 || n > len(batch) {
		return 0, 0, fmt.Errorf("marking: row %q of %d", row[0], len(batch))
	}
	index = n - 1
	visible, marked := string(row[1]) == "t", string(row[2]) == "t"
	switch {
	case marked:
		return cdc.Marked, index, nil
	case visible:
		return cdc.MarkLocked, index, nil
	case batch[index].XID == 0:
		return cdc.Marked, index, nil // it was visible once, so it is gone
	}
	snap, err := parseSnapshot(string(row[4]))
	if err != nil {
		return 0, 0, err
	}
	if snap.over(batch[index].XID) {
		return cdc.Marked, index, nil // gone
	}
	return cdc.MarkInvisible, index, nil
}

// markSQL marks those rows that can be locked at once and returns the others:
// the number in the batch (0: the name is another table's now, and nothing was
// done), whether the row is visible, whether it was marked
// already, whether it was locked and yet not marked, and the snapshot. All of
// that is seen at one moment, in the statement's snapshot.
//
// It is written so that PostgreSQL has no choice of plans. It expects few rows
// that are not marked, since the statistics know of none, and would compare each
// row of a batch with each of the others: an array is looked up in an index, and
// what stands behind IN and NOT IN, unlike EXISTS, in a hash table.
//
// Three quarters of what it costs are the UPDATE itself, which no other way to
// write the statement makes cheaper: a new version of the whole row, and an entry
// for it in each index, since published_at is in the predicate of one. The rest is
// mostly the lock before it, without which it would wait for rows.
//
// Locks are taken in the column's own order. FOR NO KEY UPDATE is what the
// UPDATE itself takes: it gets along with the locks of foreign keys.
func (t *Table) markSQL(mode MarkMode, idType string, oid uint32) string {
	published := "false"
	if mode == MarkPublishedAt {
		published = "t.{published} IS NOT NULL"
	}
	change := `
  UPDATE {table} t SET {published} = now()
  WHERE t.{id} = ANY (ARRAY(SELECT l.id FROM locked l)) AND t.{published} IS NULL
  RETURNING t.{id} AS id, t.{published} IS NOT NULL AS marked`
	look, lock := "AND t.{published} IS NULL", "FOR NO KEY UPDATE"
	if mode == MarkDelete {
		change = `
  DELETE FROM {table} t
  WHERE t.{id} = ANY (ARRAY(SELECT l.id FROM locked l))
  RETURNING t.{id} AS id, true AS marked`
		look, lock = "", "FOR UPDATE"
	}
	sql := `
WITH want AS MATERIALIZED (
  SELECT u.id, u.n FROM unnest($1::{type}[]) WITH ORDINALITY AS u (id, n)
  WHERE u.id IS NOT NULL AND to_regclass({name}) = ` + strconv.FormatUint(uint64(oid), 10) + `::oid
), locked AS MATERIALIZED (
  SELECT t.{id} AS id FROM {table} t
  WHERE t.{id} = ANY (ARRAY(SELECT w.id FROM want w)) ` + look + `
  ORDER BY t.{id} ` + lock + ` OF t SKIP LOCKED
), done AS (` + change + `
)
SELECT w.n, t.{id} IS NOT NULL, ` + published + `,
  w.id IN (SELECT l.id FROM locked l),
  CASE WHEN t.{id} IS NULL THEN pg_current_snapshot() END
FROM want w LEFT JOIN {table} t ON t.{id} = w.id
WHERE w.id NOT IN (SELECT d.id FROM done d WHERE d.marked)
UNION ALL
SELECT 0, NULL, NULL, NULL, NULL
WHERE to_regclass({name}) IS DISTINCT FROM ` + strconv.FormatUint(uint64(oid), 10) + `::oid`
	return t.fill(sql, idType)
}

// fill puts the quoted names into SQL. The replaced text is not looked at
// again, so a name may hold anything.
func (t *Table) fill(sql, idType string) string {
	return strings.NewReplacer(
		"{table}", t.table.String(),
		"{name}", cdc.QuoteLiteral(t.table.String()),
		"{id}", cdc.QuoteIdent(t.mapping.ID),
		"{created}", cdc.QuoteIdent(t.mapping.CreatedAt),
		"{published}", cdc.QuoteIdent(t.mapping.PublishedAt),
		"{type}", idType,
	).Replace(sql)
}

// idArray is an array in PostgreSQL's text form, whatever the type.
// https://www.postgresql.org/docs/current/arrays.html#ARRAYS-IO
func idArray(batch []cdc.Mark) []byte {
	ids := make([]string, len(batch))
	for i, m := range batch {
		ids[i] = m.ID
	}
	return textArray(ids)
}

func textArray(ids []string) []byte {
	some := make([]*string, len(ids))
	for i := range ids {
		some[i] = &ids[i]
	}
	return nullableArray(some)
}

func nullableArray(ids []*string) []byte {
	buf := []byte{'{'}
	for i, id := range ids {
		if i > 0 {
			buf = append(buf, ',')
		}
		if id == nil {
			buf = append(buf, "NULL"...)
			continue
		}
		buf = appendElement(buf, *id)
	}
	return append(buf, '}')
}

func appendElement(buf []byte, s string) []byte {
	buf = append(buf, '"')
	for i := range len(s) {
		if s[i] == '"' || s[i] == '\\' {
			buf = append(buf, '\\')
		}
		buf = append(buf, s[i])
	}
	return append(buf, '"')
}

// marker is the connection of Mark and Locker, with what it has learned when
// it was opened.
type marker struct {
	conn   *pgx.Conn
	oid    uint32 // of the table
	idType string
	role   string
}

// openMarker connects if there is no connection. The caller holds markerMu.
func (t *Table) openMarker(ctx context.Context) error {
	if t.marker != nil && !t.marker.conn.IsClosed() {
		return nil
	}
	t.closeMarker()
	conn, err := t.connect(ctx)
	if err != nil {
		return err
	}
	m := &marker{conn: conn}
	if err := t.prepareMarker(ctx, m); err != nil {
		hangUp(conn)
		return err
	}
	t.marker = m
	return nil
}

func (t *Table) prepareMarker(ctx context.Context, m *marker) error {
	if _, err := m.conn.PgConn().Exec(ctx, markerSession).ReadAll(); err != nil {
		return err
	}
	l, err := t.read(ctx, m.conn)
	if err != nil {
		return err
	}
	if !l.has(t.mapping.ID) {
		return t.missing(t.mapping.ID, l.names)
	}
	m.oid = l.oid
	m.idType, m.role = l.columns[t.mapping.ID].typ, l.role
	return nil
}

// closeMarker hangs up. The caller holds markerMu.
func (t *Table) closeMarker() {
	if t.marker != nil {
		hangUp(t.marker.conn)
		t.marker = nil
	}
}
