package outbox

import (
	"context"
	"fmt"
	"strconv"
	"strings"
	"time"

	"github.com/jackc/pgx/v5/pgtype"

	"github.com/stagedoor/walrelay/cdc"
	"github.com/stagedoor/walrelay/internal/fault"
	"github.com/stagedoor/walrelay/internal/pg"
)

const (
	// purgeChunk is how many rows are looked at in one step.
	purgeChunk = 1000
	// purgeRound is how many rows are deleted after one wait for the slot, and
	// purgeBytes how large their ids may be in memory.
	purgeRound = 20_000
	purgeBytes = 2 << 20
	// The pause after a statement is as long as that took, within bounds.
	purgePauseLeast = 20 * time.Millisecond
	purgePauseMost  = time.Second
)

// oldRow is one version of a row: another one of the same id has another xmin,
// that of its own transaction. Which of the versions that one transaction wrote
// is the last was settled when that was committed, before the row was read.
type oldRow struct{ id, xmin string }

// chunk is what a step of the walk has seen.
type chunk struct {
	rows  int
	last  string // the greatest id
	young bool   // every row
	old   []oldRow
}

// walk goes over the table in the order of the ids.
func (p *purgePass) walk(ctx context.Context) error {
	base := p.layout.columns[p.table.mapping.ID].base
	growing := base == pgtype.Int8OID || base == pgtype.Int4OID || base == pgtype.Int2OID
	enough := p.cfg.Batch
	if p.unmarked() {
		enough = max(enough, purgeRound)
	}
	var found []oldRow
	bytes := 0
	var after *string
	for {
		if p.interrupted(ctx) {
			return ctx.Err()
		}
		began := time.Now()
		var c chunk
		err := p.untilFree(ctx, func() (err error) {
			c, err = p.next(ctx, after)
			return err
		})
		if err != nil {
			return p.explain(err)
		}
		p.reading += time.Since(began)
		for _, r := range c.old {
			bytes += len(r.id) + len(r.xmin)
		}
		found = append(found, c.old...)
		end := c.rows < purgeChunk || growing && c.young && len(c.old) == 0
		if len(found) >= enough || bytes >= purgeBytes || end {
			if err := p.deleteAll(ctx, found); err != nil {
				return err
			}
			found, bytes = nil, 0
		}
		if end || !p.pause(ctx, time.Since(began), 0) {
			return ctx.Err()
		}
		after = &c.last
	}
}

// interrupted reports whether the pass is to end: by ctx, by whoever started it,
// or since the relay follows another server now.
func (p *purgePass) interrupted(ctx context.Context) bool {
	if ctx.Err() != nil || p.may != nil && !p.may() || p.table.conn.Load() != p.config {
		p.cut = true
	}
	return p.cut
}

// pause lets others work.
func (p *purgePass) pause(ctx context.Context, took, least time.Duration) bool {
	return rest(ctx, min(max(took, least), purgePauseMost))
}

// rest waits, and reports whether ctx let it.
func rest(ctx context.Context, d time.Duration) bool {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-timer.C:
		return true
	case <-ctx.Done():
		return false
	}
}

// statement is the time of one: it may go on for a little when ctx ends. The
// server keeps the time itself; the rest is for one that does not answer.
func statement(ctx context.Context) (context.Context, context.CancelFunc) {
	own, cancel := context.WithTimeout(context.WithoutCancel(ctx), purgeTimeout+5*time.Second)
	stop := context.AfterFunc(ctx, func() {
		if rest(own, purgeGrace) {
			cancel()
		}
	})
	return own, func() {
		stop()
		cancel()
	}
}

// next reads the rows behind an id, nil for the first ones. Rows with the same
// id come in one chunk.
func (p *purgePass) next(ctx context.Context, after *string) (chunk, error) {
	ctx, cancel := statement(ctx)
	defer cancel()
	condition, params := "t.{id} IS NOT NULL", [][]byte(nil)
	if after != nil {
		condition, params = "t.{id} > $1::{type}", [][]byte{[]byte(*after)}
	}
	c := chunk{young: true}
	err := rows(ctx, p.conn, p.fill(fmt.Sprintf(
		"SELECT t.{id}, t.xmin, %s, %s FROM {table} t WHERE %s ORDER BY t.{id} FETCH FIRST %d ROWS WITH TIES",
		p.old, p.young, condition, purgeChunk)), params, func(row [][]byte) error {
		c.rows++
		c.last = string(row[0])
		if string(row[2]) == "t" {
			c.old = append(c.old, oldRow{id: string(row[0]), xmin: string(row[1])})
		}
		c.young = c.young && string(row[3]) == "t"
		return nil
	})
	return c, err
}

// deleteAll deletes these rows in batches, once they are known to be published.
func (p *purgePass) deleteAll(ctx context.Context, found []oldRow) error {
	if len(found) == 0 {
		return nil
	}
	if p.unmarked() {
		passed, err := p.published(ctx)
		if err != nil || !passed {
			return err
		}
	}
	for len(found) > 0 && !p.interrupted(ctx) {
		n := min(len(found), p.cfg.Batch)
		if err := p.delete(ctx, found[:n]); err != nil {
			return err
		}
		found = found[n:]
		if time.Since(p.reported) >= purgeSay {
			p.reported = time.Now()
			p.log.Info("purging published rows", "table", p.table.table.String(), "deleted", p.done.Deleted, "kept", p.done.Kept)
		}
	}
	return nil
}

// delete deletes rows in one transaction. Where one of them cannot be deleted,
// the others are, in smaller ones.
func (p *purgePass) delete(ctx context.Context, batch []oldRow) error {
	if p.interrupted(ctx) {
		return nil
	}
	began := time.Now()
	deleted, err := p.deleteBatch(ctx, batch)
	took := time.Since(began)
	switch {
	case err == nil:
		p.done.Deleted += deleted
		p.deleted.Add(uint64(deleted))
		p.done.Kept += int64(len(batch)) - deleted
	case !inUse(err):
		return p.explain(err)
	case len(batch) == 1:
		p.log.Debug("a published row cannot be deleted", "id", batch[0].id, "err", err)
		p.done.Kept++
	default:
		if pg.Code(err) == lockNotAvailable {
			// Perhaps it is not a row, but the whole table.
			if err := p.untilFree(ctx, func() error { return p.lockTable(ctx) }); err != nil {
				return p.explain(err)
			}
		}
		if err := p.delete(ctx, batch[:len(batch)/2]); err != nil {
			return err
		}
		return p.delete(ctx, batch[len(batch)/2:])
	}
	p.pause(ctx, took, purgePauseLeast)
	return nil
}

// inUse reports whether rows of a batch are used by others: by a foreign key or
// another constraint, a trigger, or a lock on what is deleted along with them.
func inUse(err error) bool {
	code := pg.Code(err)
	switch code {
	case lockNotAvailable, "40P01", "P0001": // the last two are deadlock_detected and raise_exception
		return true
	}
	return strings.HasPrefix(code, "23") // integrity violations
}

const lockNotAvailable = "55P03"

// untilFree does something that waits for the table, until nobody holds that, as
// an ALTER TABLE does. In between others come first.
func (p *purgePass) untilFree(ctx context.Context, do func() error) error {
	began := time.Now()
	for {
		err := do()
		if pg.Code(err) != lockNotAvailable || p.patience > 0 && time.Since(began) >= p.patience {
			return err
		}
		if time.Since(p.said) >= purgeSay {
			p.said = time.Now()
			p.log.Info("purging published rows waits for whoever has locked the table", "table", p.table.table.String(), "deleted", p.done.Deleted)
		}
		rest(ctx, purgeLook)
		if p.interrupted(ctx) {
			return ctx.Err()
		}
	}
}

// lockTable takes the lock of a DELETE, for a moment.
func (p *purgePass) lockTable(ctx context.Context) error {
	ctx, cancel := statement(ctx)
	defer cancel()
	_, err := p.conn.PgConn().Exec(ctx, p.fill("BEGIN; LOCK TABLE {table} IN ROW EXCLUSIVE MODE; COMMIT")).ReadAll()
	if err != nil {
		_, _ = p.conn.PgConn().Exec(ctx, "ROLLBACK").ReadAll()
	}
	return err
}

// deleteBatch is one transaction.
func (p *purgePass) deleteBatch(ctx context.Context, batch []oldRow) (deleted int64, err error) {
	ctx, cancel := statement(ctx)
	defer cancel()
	ids, xmins := make([]string, len(batch)), make([]string, len(batch))
	for i, r := range batch {
		ids[i], xmins[i] = r.id, r.xmin
	}
	err = rows(ctx, p.conn, p.deleteSQL(), [][]byte{textArray(ids), textArray(xmins)}, func(row [][]byte) (err error) {
		deleted, err = strconv.ParseInt(string(row[0]), 10, 64)
		return err
	})
	return deleted, err
}

// deleteSQL deletes those rows that can be locked at once and are what was read.
//
// The row that is locked may be a newer version than that of the statement's
// snapshot, and its place is where that one is: only what was locked where the
// snapshot has it is deleted, so that the second look at the table waits for
// nobody either. The condition is looked at again in each version.
func (p *purgePass) deleteSQL() string {
	return p.fill(`
WITH want AS MATERIALIZED (
  SELECT u.id, u.xmin FROM unnest($1::{type}[], $2::text[]) AS u (id, xmin)
), locked AS MATERIALIZED (
  SELECT t.{id} AS id, t.xmin::text AS xmin, t.tableoid AS part, t.ctid AS place FROM {table} t
  WHERE t.{id} = ANY (ARRAY(SELECT w.id FROM want w)) AND ` + p.old + `
  FOR UPDATE OF t SKIP LOCKED
), doomed AS MATERIALIZED (
  SELECT l.id, l.part, l.place FROM locked l WHERE (l.id, l.xmin) IN (SELECT w.id, w.xmin FROM want w)
), gone AS (
  DELETE FROM {table} t USING doomed d
  WHERE t.{id} = ANY (ARRAY(SELECT e.id FROM doomed e)) AND t.{id} = d.id AND t.tableoid = d.part AND t.ctid = d.place
    AND ` + p.old + `
  RETURNING 1
)
SELECT count(*) FROM gone`)
}

// fill puts the names into SQL.
func (p *purgePass) fill(sql string) string {
	return p.table.fill(sql, p.layout.columns[p.table.mapping.ID].typ)
}

// explain turns an error of the server into the operator's, where one can act.
func (p *purgePass) explain(err error) error {
	t := p.table
	problem, fix := fmt.Sprintf("the server does not delete rows of %s", t.table), ""
	switch pg.Code(err) {
	case "42501": // insufficient_privilege
		fix = fmt.Sprintf("GRANT DELETE, UPDATE (%s) ON %s TO %s", cdc.QuoteIdent(t.mapping.ID), t.table, p.layout.role)
	case "55000": // object_not_in_prerequisite_state
		fix = fmt.Sprintf("a publication with deletes has the table, which takes a primary key: ALTER TABLE %s ADD PRIMARY KEY (%s), or ALTER TABLE %s REPLICA IDENTITY FULL",
			t.table, cdc.QuoteIdent(t.mapping.ID), t.table)
	case "25006": // read_only_sql_transaction
		fix = "have --postgres lead to a server that takes writes"
	case "57014": // query_canceled
		problem = fmt.Sprintf("a batch of %s took more than %v", t.table, purgeTimeout)
		fix = "have an index on each foreign key that refers to it, or a smaller --batch"
	default:
		return err
	}
	return &fault.Error{Problem: problem, Fix: fix, Err: err}
}
