package outbox

import (
	"context"
	"encoding/json"
	"fmt"
	"strconv"
	"strings"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/stagedoor/walrelay/cdc"
	"github.com/stagedoor/walrelay/internal/fault"
	"github.com/stagedoor/walrelay/internal/pg"
)

// noScan has the rest of a transaction find its rows by an index, in its order,
// whatever the statistics say.
const noScan = "SET LOCAL enable_seqscan = off; SET LOCAL enable_bitmapscan = off; SET LOCAL enable_sort = off; SET LOCAL jit = off"

// Looked is what a look at the rows that are not marked saw.
type Looked struct {
	// Unmarked are those with the smallest ids, in order. Where marked rows are
	// deleted all rows count. A row without an id is not among them.
	Unmarked []string
	// Age is that of the first of them that tells when it was created, by the
	// server's clock; Found is false where none does.
	Age   time.Duration
	Found bool
	// Still are those of the rows asked for that are there and not marked.
	Still []string
}

// Look is a query of one text, for [Table.Saw], which may be part of another
// statement: its parameters are numbered from first on. It reads the rows that are
// not marked with the smallest ids, and looks again at those in again. Those in
// except are left out: rows that are on the stream and only wait for their mark. It
// is "" without marks (MarkNone). The same text comes each time, so that PostgreSQL
// can keep its plan.
//
// The index on unmarked ids has the rows at its beginning, in order; the session
// should not be left to choose a sequential scan, nor to read all of them and sort
// them, which is cheap only while there are few.
func (t *Table) Look(first, limit int, except, again []string) (sql string, args []any, err error) {
	l := t.checked.Load()
	switch {
	case l == nil:
		return "", nil, errUnchecked
	case l.marks == MarkNone:
		return "", nil, nil
	}
	age := "NULL"
	if t.mapping.CreatedAt != "" {
		age = "CASE WHEN isfinite(t.{created}) THEN (extract(epoch FROM clock_timestamp() - t.{created}::timestamptz) * 1000000)::bigint END"
	}
	ids := func(n int) string { return "$" + strconv.Itoa(n) + "::{type}[]" }
	unmarked := t.unmarked(l)
	// Written so, the ids to leave out are hashed, on every version.
	sql = "SELECT json_build_object(" +
		"'still', CASE WHEN " + ids(first+1) + " IS NOT NULL THEN ARRAY (SELECT DISTINCT " + printedID + " FROM {table} t WHERE t.{id} = ANY (" + ids(first+1) + ") AND " + unmarked + ") END, " +
		"'rows', ARRAY (SELECT json_build_array(" + printedID + ", " + age + ") FROM {table} t WHERE " + unmarked + " AND t.{id} NOT IN (SELECT unnest(" + ids(first) + ")) ORDER BY t.{id} LIMIT " + strconv.Itoa(limit) + "))::text"
	args = []any{string(textArray(except)), nil}
	if len(again) > 0 {
		args[1] = string(textArray(again))
	}
	return t.fill(sql, l.columns[t.mapping.ID].typ), args, nil
}

// unmarked is the condition of a row that is not marked.
func (t *Table) unmarked(l *layout) string {
	if l.has(t.mapping.PublishedAt) {
		return "t.{published} IS NULL"
	}
	return "true"
}

// printedID is an id as the log has it: what the type's own output function
// prints, which a cast to text does not always.
const printedID = "CASE WHEN t.{id} IS NOT NULL THEN format('%s', t.{id}) END"

// Saw reads what a Look gave, "" for nothing.
func (t *Table) Saw(text string) (seen Looked, err error) {
	if text == "" {
		return seen, nil
	}
	var answer struct {
		Still []string `json:"still"`
		Rows  [][2]any `json:"rows"`
	}
	decoder := json.NewDecoder(strings.NewReader(text))
	decoder.UseNumber()
	if err := decoder.Decode(&answer); err != nil {
		return seen, fmt.Errorf("read the rows that are not marked: %w", err)
	}
	seen.Still = answer.Still
	for _, row := range answer.Rows {
		if id, ok := row[0].(string); ok {
			seen.Unmarked = append(seen.Unmarked, id)
		}
		if micros, ok := row[1].(json.Number); ok && !seen.Found {
			n, err := micros.Int64()
			if err != nil {
				return seen, fmt.Errorf("read the age of a row: %w", err)
			}
			// A clock that was set back makes no row younger than now.
			seen.Age, seen.Found = max(0, time.Duration(n)*time.Microsecond), true
		}
	}
	return seen, nil
}

// Unseen says what an operator can do about a Look that failed.
func (t *Table) Unseen(err error) error {
	switch pg.Code(err) {
	case "57014": // query_canceled
		return &fault.Error{
			Problem: "finding the oldest rows that are not published takes too long, so that it is tried once a minute",
			Fix:     t.quicker(),
			Err:     err,
		}
	case "55P03": // lock_not_available
		return &fault.Error{
			Problem: "the table is locked",
			Fix:     fmt.Sprintf("to see by whom: SELECT pid, mode FROM pg_locks WHERE relation = %s::regclass AND mode = 'AccessExclusiveLock';", cdc.QuoteLiteral(t.table.String())),
			Err:     err,
		}
	}
	return t.explain(err)
}

// Outdated reports whether a Look failed since the id column has another type than
// the last Check saw.
func Outdated(err error) bool { return pg.Code(err) == "42883" } // undefined_function: text = bigint

// quicker is what makes a Look quick.
func (t *Table) quicker() string {
	l := t.checked.Load()
	if l == nil || l.marks == MarkPublishedAt && !l.unpublished || l.marks == MarkDelete && !l.indexedID {
		return "an index makes it quick: walrelay check has the SQL"
	}
	// Rows that were marked or deleted stay in the index until then.
	return fmt.Sprintf("VACUUM %s; walrelay check names old transactions, which keep it from removing anything", t.table)
}

// LookNow looks by itself at the rows that are not marked with the smallest ids,
// but for those in except. Without marks nothing is seen. It needs a transaction,
// and has the rest of it find rows by an index.
func (t *Table) LookNow(ctx context.Context, conn *pgx.Conn, limit int, except []string) (Looked, error) {
	sql, args, err := t.Look(1, limit, except, nil)
	if err != nil || sql == "" {
		return Looked{}, err
	}
	var text string
	_, err = conn.Exec(ctx, noScan, pgx.QueryExecModeSimpleProtocol)
	if err == nil {
		err = conn.QueryRow(ctx, sql, args...).Scan(&text)
	}
	if err != nil {
		return Looked{}, t.Unseen(err)
	}
	return t.Saw(text)
}
