package outbox

import (
	"context"
	"strings"

	"github.com/jackc/pgx/v5"

	"github.com/stagedoor/walrelay/cdc"
	"github.com/stagedoor/walrelay/internal/pg"
)

// rowsChunk is how many ids are looked up at once.
const rowsChunk = 500

// rowsSession has ids looked up in an index, like those of marks.
const rowsSession = `SET enable_seqscan = off; SET jit = off; SET default_transaction_read_only = on`

// Rows are the rows with these ids as a backfill makes events of them, in no
// particular order, marked or not. An id stands as PostgreSQL prints it. Those
// that are not there are left out, and so are those that no row can have, such
// as "abc" where ids are numbers.
func (t *Table) Rows(ctx context.Context, ids []string) ([]cdc.Event, error) {
	l := t.checked.Load()
	if l == nil {
		return nil, errUnchecked
	}
	asked := make(map[string]bool, len(ids))
	var once []string
	for _, id := range ids {
		if !asked[id] {
			asked[id] = true
			once = append(once, id)
		}
	}
	if len(once) == 0 {
		return nil, nil
	}
	conn, err := t.connect(ctx)
	if err != nil {
		return nil, err
	}
	defer hangUp(conn)
	if _, err := conn.PgConn().Exec(ctx, rowsSession).ReadAll(); err != nil {
		return nil, err
	}
	look := lookup{table: t, conn: conn, asked: asked, columns: t.selected()}
	look.sql = t.fill("SELECT "+look.columns.list+" FROM {table} t WHERE t.{id} = ANY ($1::{type}[])", l.columns[t.mapping.ID].typ)
	for start := 0; start < len(once); start += rowsChunk {
		if err := look.chunk(ctx, once[start:min(start+rowsChunk, len(once))]); err != nil {
			return nil, t.explain(err)
		}
	}
	return look.events, nil
}

// lookup gathers rows by their ids.
type lookup struct {
	table   *Table
	conn    *pgx.Conn
	sql     string
	columns selected
	asked   map[string]bool
	events  []cdc.Event
}

// chunk looks up some ids. One that is no value of the column's type fails the
// statement without its name, so the ids are halved until it is alone.
func (l *lookup) chunk(ctx context.Context, ids []string) error {
	before := len(l.events)
	err := rows(ctx, l.conn, l.sql, [][]byte{textArray(ids)}, func(row [][]byte) error {
		ev := l.columns.event(l.table, row)
		// A cast is generous: it cuts text off and strips spaces.
		if l.asked[ev.ID] {
			l.events = append(l.events, ev)
		}
		return nil
	})
	if !notOfTheType(err) {
		return err
	}
	l.events = l.events[:before]
	if len(ids) == 1 {
		return nil
	}
	half := len(ids) / 2
	if err := l.chunk(ctx, ids[:half]); err != nil {
		return err
	}
	return l.chunk(ctx, ids[half:])
}

// notOfTheType reports whether a value does not belong to its type, or breaks
// the constraint of a domain.
func notOfTheType(err error) bool {
	code := pg.Code(err)
	return strings.HasPrefix(code, "22") || code == "23514" || code == "23502"
}

// selected are the columns of an entry in a query.
type selected struct {
	list    string // as SQL, of the table t
	binding *binding
	values  []cdc.Value
}

// selected are the columns that an entry is made of. They come as text, from
// the same output functions as the log's.
func (t *Table) selected() selected {
	columns := []string{"t." + cdc.QuoteIdent(t.mapping.ID)}
	b := &binding{id: 0, published: -1}
	for i, f := range t.fields {
		columns = append(columns, "t."+cdc.QuoteIdent(f.Column))
		b.fields = append(b.fields, i+1)
	}
	return selected{list: strings.Join(columns, ", "), binding: b, values: make([]cdc.Value, len(columns))}
}

// event makes an entry of a row that begins with these columns.
func (s selected) event(t *Table, row [][]byte) cdc.Event {
	for i := range s.values {
		s.values[i] = cdc.Value{Text: row[i], Null: row[i] == nil}
	}
	return t.entry(s.binding, s.values)
}
