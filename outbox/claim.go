package outbox

import (
	"context"
	"errors"
	"fmt"
	"math"
	"strconv"
	"strings"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/stagedoor/walrelay/cdc"
	"github.com/stagedoor/walrelay/internal/fault"
	"github.com/stagedoor/walrelay/internal/pg"
)

// claimPatience bounds the wait for an answer of the server. What the caller
// does with the rows meanwhile does not count.
const claimPatience = 30 * time.Second

// claimerSession is how a claimer's session differs. A process that is suspended
// must not keep its rows, and what vacuum waits for, for ever.
//
// synchronous_commit = local: like a mark that a promoted standby lacks, a row
// that is taken twice because of a failover is on the stream twice, and a poller
// may do that; writers' standbys do not slow it down.
var claimerSession = fmt.Sprintf(`
	SET lock_timeout = %d;
	SET idle_in_transaction_session_timeout = '10min';
	SET synchronous_commit = local;
	SET enable_seqscan = off;
	SET jit = off;
	SET default_transaction_isolation = 'read committed';
	SET default_transaction_read_only = off`,
	lockTimeout.Milliseconds())

// Claimer takes unpublished rows for a poller, in one transaction from the claim
// to the mark: whoever dies in between gives them back. Rows that others have
// locked, such as another poller's, are passed over. It is for one goroutine.
type Claimer struct {
	table *Table
	conn  *pgx.Conn // nil while there is none
	role  string

	lock, claim, mark, left string // SQL
	mode                    MarkMode
	rows                    []claimed
}

// claimed is where a row is: its lock keeps it there. An id would do where it is
// unique, and where it is not, another row could be marked with it.
type claimed struct{ part, at string }

// Claimer returns a claimer. It connects with the first claim.
func (t *Table) Claimer() *Claimer { return &Claimer{table: t} }

// Close gives back what is claimed and hangs up.
func (c *Claimer) Close() {
	if c.conn != nil {
		hangUp(c.conn)
		c.conn = nil
	}
	c.rows = nil
}

// Claim locks the unpublished rows with the smallest ids, at most limit, and
// calls fn for each as it arrives; it returns how many there were. created is
// about when the row was created, by our clock: now less its age by the server's;
// zero where the table does not tell. A row holds memory only until fn is done
// with it. After an error of fn the rows are still claimed; after any other all is
// given back.
func (c *Claimer) Claim(ctx context.Context, limit int, fn func(ev cdc.Event, created time.Time) error) (n int, err error) {
	if err := c.open(ctx); err != nil {
		return 0, err
	}
	c.rows = c.rows[:0]
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	watch := time.AfterFunc(claimPatience, func() {
		cancel(fmt.Errorf("PostgreSQL has not answered for %s", claimPatience))
	})
	defer watch.Stop()

	columns := c.table.selected()
	// EXPLAIN of the mark takes the lock on the table that the mark takes: asked
	// for when the rows are on the stream, it would be refused too late.
	result := c.conn.PgConn().Exec(ctx, "BEGIN; "+c.lock+"; "+fmt.Sprintf(c.claim, limit))
	var failed error // fn's
	for n := 0; result.NextResult(); n++ {
		reader := result.ResultReader()
		for claim := n == 2; claim && failed == nil && reader.NextRow(); {
			watch.Stop()
			row := reader.Values()
			ev := columns.event(c.table, row)
			place := row[len(columns.values):]
			c.rows = append(c.rows, claimed{string(place[0]), string(place[1])})
			if ev.NoID {
				ev.ID = fmt.Sprintf("ctid/%s/%s", place[0], strings.Trim(string(place[1]), "()"))
			}
			failed = fn(ev, ago(place[2]))
			watch.Reset(claimPatience)
		}
		reader.Close() // the rest, after an error of fn
	}
	if err := result.Close(); err != nil {
		if cause := context.Cause(ctx); cause != nil {
			err = cause
		}
		return 0, c.failed(ctx, err, false)
	}
	return len(c.rows), failed
}

// Done marks the first n claimed rows and ends the claim. After an error none
// is marked, or, where the answer was lost, perhaps all are.
func (c *Claimer) Done(ctx context.Context, n int) error {
	if c.conn == nil {
		return errNothingClaimed
	}
	if err := c.markRows(ctx, n); err != nil {
		return err
	}
	c.rows = c.rows[:0]
	if err := c.exec(ctx, "COMMIT"); err != nil {
		return c.failed(ctx, err, true)
	}
	return nil
}

// markRows marks the first n claimed rows.
func (c *Claimer) markRows(ctx context.Context, n int) error {
	ctx, cancel := context.WithTimeout(ctx, claimPatience)
	defer cancel()
	if n > 0 {
		parts, places := make([]string, n), make([]string, n)
		for i, row := range c.rows[:n] {
			parts[i], places[i] = row.part, row.at
		}
		marked := 0
		err := rows(ctx, c.conn, c.mark, [][]byte{textArray(parts), textArray(places)}, func(row [][]byte) error {
			if string(row[0]) == "t" {
				marked++
			}
			return nil
		})
		if err == nil && marked < n {
			err = &fault.Error{
				Problem: fmt.Sprintf("a trigger of %s undoes the marks of %d rows", c.table.table, n-marked),
				Fix:     fmt.Sprintf("have the table's triggers pass what %s does", c.role),
				Err:     ErrMarkRefused,
			}
		}
		if err != nil {
			return c.failed(ctx, err, true)
		}
	}
	return nil
}

// Rehearse claims and marks rows and takes that back: those that cannot be marked
// would be appended again and again. It returns how many there were.
func (c *Claimer) Rehearse(ctx context.Context, limit int) (n int, err error) {
	n, err = c.Claim(ctx, limit, func(cdc.Event, time.Time) error { return nil })
	if err != nil {
		return 0, err
	}
	if err := c.markRows(ctx, n); err != nil {
		return 0, err
	}
	// The constraints that would wait for the commit.
	if err := c.exec(ctx, "SET CONSTRAINTS ALL IMMEDIATE"); err != nil {
		return 0, c.failed(ctx, err, true)
	}
	if err := c.exec(ctx, "ROLLBACK"); err != nil {
		return 0, c.failed(ctx, err, true)
	}
	return n, nil
}

// Left reports whether there are rows that are not marked, whoever has them
// claimed or locked.
func (c *Claimer) Left(ctx context.Context) (left bool, err error) {
	if err := c.open(ctx); err != nil {
		return false, err
	}
	ctx, cancel := context.WithTimeout(ctx, claimPatience)
	defer cancel()
	err = rows(ctx, c.conn, c.left, nil, func([][]byte) error { left = true; return nil })
	if err != nil {
		return false, c.failed(ctx, err, false)
	}
	return left, nil
}

var errNothingClaimed = errors.New("outbox: nothing is claimed")

// failed gives everything back and says what the error means.
func (c *Claimer) failed(ctx context.Context, err error, marking bool) error {
	defer c.Close()
	if !marking && pg.Code(err) != "42501" { // insufficient_privilege: locking takes what marking takes
		return c.table.explain(err)
	}
	return c.table.explain(c.table.refused(c.mode, err, func() string {
		if !c.conn.IsClosed() {
			_ = c.exec(ctx, "ROLLBACK") // else nothing can be looked up
		}
		return c.table.missingGrant(ctx, c.conn, c.mode)
	}))
}

// open connects if there is no connection, and learns what the table looks like.
func (c *Claimer) open(ctx context.Context) error {
	if c.conn != nil && !c.conn.IsClosed() {
		return nil
	}
	c.Close()
	conn, err := c.table.connect(ctx)
	if err != nil {
		return err
	}
	c.conn = conn
	if err := c.prepare(ctx); err != nil {
		c.Close()
		return err
	}
	return nil
}

func (c *Claimer) prepare(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, claimPatience)
	defer cancel()
	t := c.table
	if err := t.Check(ctx, c.conn); err != nil {
		return err
	}
	l := t.checked.Load()
	c.role, c.mode = l.role, l.marks
	if c.mode == MarkNone {
		return t.unmarkable(l)
	}
	// FOR NO KEY UPDATE is what the UPDATE itself takes: it gets along with the
	// locks of foreign keys, and excludes other pollers all the same.
	strength := "NO KEY UPDATE"
	change, marked := "UPDATE {table} t SET {published} = clock_timestamp()", "t.{published} IS NOT NULL"
	from := " FROM "
	if c.mode == MarkDelete {
		strength, change, from, marked = "UPDATE", "DELETE FROM {table} t", " USING ", "true"
	}
	c.lock = t.fill("EXPLAIN "+change+" WHERE false", "")
	c.claim = strings.ReplaceAll("SELECT "+t.selected().list+", t.tableoid, t.ctid, "+
		t.fill(t.ageSQL(l)+" FROM {table} t WHERE "+t.unmarked(l)+" ORDER BY t.{id}", ""), "%", "%%") + " LIMIT %d FOR " + strength + " OF t SKIP LOCKED"
	c.left = t.fill("SELECT FROM {table} t WHERE "+t.unmarked(l)+" ORDER BY t.{id} LIMIT 1", "")
	c.mark = t.fill(change+from+"unnest($1::oid[], $2::tid[]) c (part, at) WHERE t.tableoid = c.part AND t.ctid = c.at RETURNING "+marked, "")
	return c.exec(ctx, claimerSession)
}

// ageSQL is for how many seconds a row has been there. A creation time without a
// time zone is taken for one of the session's.
func (t *Table) ageSQL(l *layout) string {
	name := t.mapping.CreatedAt
	if name == "" {
		return "NULL"
	}
	now := "clock_timestamp()"
	if !l.columns[name].zoned() {
		now += "::timestamp"
	}
	// Two numbers, whose difference fails for no creation time.
	return "CASE WHEN isfinite(t.{created}) THEN extract(epoch FROM " + now + ") - extract(epoch FROM t.{created}) END"
}

// ago is the moment that many seconds before now; zero for none, and for one
// that is no creation time.
func ago(seconds []byte) time.Time {
	const generation = 1e9
	age, err := strconv.ParseFloat(string(seconds), 64)
	if err != nil || math.Abs(age) > generation {
		return time.Time{}
	}
	return time.Now().Add(-time.Duration(age * float64(time.Second)))
}

// unmarkable is the operator's error for a table whose rows a poller cannot
// mark: it would send them again and again.
func (t *Table) unmarkable(l *layout) error {
	e := &fault.Error{Problem: fmt.Sprintf("rows of %s cannot be marked, and a poller would send them for ever", t.table)}
	switch name := t.mapping.PublishedAt; {
	case t.mark == MarkNone:
		e.Fix = "choose --mark published-at or delete"
	case !l.has(name):
		e.Fix = "name a timestamptz column with --column-published-at, or choose --mark delete"
	default:
		e.Fix = t.grant(l, MarkPublishedAt)
	}
	return e
}

func (c *Claimer) exec(ctx context.Context, sql string) error {
	ctx, cancel := context.WithTimeout(ctx, claimPatience)
	defer cancel()
	_, err := c.conn.PgConn().Exec(ctx, sql).ReadAll()
	return err
}

// PassOver is the SQL that takes a row out of a poller's way, for an operator.
func (c *Claimer) PassOver(ev cdc.Event) string {
	t := c.table
	where := fmt.Sprintf("%s = %s", cdc.QuoteIdent(t.mapping.ID), cdc.QuoteLiteral(ev.ID))
	if ev.NoID {
		where = cdc.QuoteIdent(t.mapping.ID) + " IS NULL"
	}
	if c.mode == MarkDelete {
		return fmt.Sprintf("DELETE FROM %s WHERE %s", t.table, where)
	}
	return fmt.Sprintf("UPDATE %s SET %s = now() WHERE %s", t.table, cdc.QuoteIdent(t.mapping.PublishedAt), where)
}
