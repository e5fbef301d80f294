package outbox

import (
	"errors"
	"fmt"
	"unsafe"

	"github.com/stagedoor/walrelay/cdc"
	"github.com/stagedoor/walrelay/internal/fault"
)

// ErrNullID says that a row has no id, so that no entry can be made of it.
var ErrNullID = errors.New("the id is NULL")

// binding says where a relation has the columns of the mapping.
type binding struct {
	relation  *cdc.Relation // nil for the rows of a query
	other     bool          // it is another table
	id        int
	published int   // -1 for none
	fields    []int // one an entry field
	lacks     error // why no entry can be made of a row
	shelf     shelf // for its rows
}

// Event makes an entry of an inserted row. It is false for a row that needs
// none: one of another table, or one that is marked already, as it is when an
// UPDATE moves a row to another partition, which arrives as an insert. A row of
// which no entry can be made says so itself (Unfit); an error is about the table.
//
// The event holds copies: the values of an Insert live only until the next
// Decode. Event may be called by one goroutine at a time.
func (t *Table) Event(in *cdc.Insert) (cdc.Event, bool, error) {
	b, ok, err := t.needsEntry(in)
	if !ok || err != nil {
		return cdc.Event{}, false, err
	}
	ev := t.entry(b, in.Values)
	ev.Position, ev.Commit, ev.Table = in.Position, in.Commit, in.Relation.OID
	if ev.NoID {
		ev.ID = in.Position.String()
	}
	return ev, true, nil
}

// ID is the id of an inserted row whose entry is on the stream already; false
// where Event is, and for a row without an id, which can have been skipped. It
// needs no other column: the log has rows as the table was when they were
// written, so that after a column was renamed no mapping fits all of those that
// come again.
func (t *Table) ID(in *cdc.Insert) (string, bool, error) {
	b, ok, err := t.needsEntry(in)
	if !ok || err != nil {
		return "", false, err
	}
	if in.Values[b.id].Null {
		return "", false, nil
	}
	return b.shelf.id(in.Values[b.id].Text), true, nil
}

// needsEntry finds the columns of a row, and is false for one that makes no
// entry.
func (t *Table) needsEntry(in *cdc.Insert) (*binding, bool, error) {
	if t.bound == nil || t.bound.relation != in.Relation {
		b, err := t.bind(in.Relation)
		if err != nil {
			return nil, false, err
		}
		t.bound = b
	}
	b := t.bound
	return b, !b.other && (b.published < 0 || in.Values[b.published].Null), nil
}

// bind looks the columns up by their names: the table can change at any time,
// and says so with a new Relation.
func (t *Table) bind(rel *cdc.Relation) (*binding, error) {
	b := &binding{relation: rel, id: -1, published: -1}
	if rel.Table != t.table {
		b.other = true
		return b, nil
	}
	index := make(map[string]int, len(rel.Columns))
	names := make([]string, len(rel.Columns))
	for i, c := range rel.Columns {
		index[c.Name] = i
		names[i] = c.Name
	}
	find := func(column string) (int, error) {
		if i, ok := index[column]; ok {
			return i, nil
		}
		return -1, t.missing(column, names)
	}
	var err error
	if b.id, err = find(t.mapping.ID); err != nil {
		return nil, err
	}
	for _, f := range t.fields {
		i, err := find(f.Column)
		if err != nil && b.lacks == nil {
			b.lacks = err
		}
		b.fields = append(b.fields, i) // -1 for none
	}
	if i, ok := index[t.mapping.PublishedAt]; ok {
		b.published = i
	}
	return b, nil
}

// missing is the operator's error for a column that is not there.
func (t *Table) missing(column string, there []string) error {
	flag := t.mapping.flag(column)
	fix := fmt.Sprintf("add the column, or name another one with %s", flag)
	if column != t.mapping.ID && (column == t.mapping.CreatedAt || column == t.mapping.PublishedAt) {
		fix += fmt.Sprintf(` (%s="" where the table has none)`, flag)
	}
	return &fault.Error{
		Problem: "the table does not have the columns that are configured",
		Fix:     fix,
		Err:     missingColumn(t.table, column, there),
	}
}

const (
	eventBytes = int(unsafe.Sizeof(cdc.Event{}))
	fieldBytes = int(unsafe.Sizeof(cdc.Field{}))
)

func (t *Table) nullID() error {
	return &fault.Error{
		Problem: fmt.Sprintf("in table %s it has no id", t.table),
		Fix: fmt.Sprintf("name a column that is never NULL with --column-id, and ALTER TABLE %s ALTER COLUMN %s SET NOT NULL",
			t.table, cdc.QuoteIdent(t.mapping.ID)),
		Err: ErrNullID,
	}
}

// entry copies a row.
func (t *Table) entry(b *binding, values []cdc.Value) cdc.Event {
	size := 0
	for _, i := range b.fields {
		if i >= 0 {
			size += len(values[i].Text)
		}
	}
	fields := b.shelf.room(len(b.fields), size)
	for n, i := range b.fields {
		if i >= 0 && !values[i].Null {
			fields = append(fields, cdc.Field{Name: t.fields[n].Name, Value: b.shelf.value(values[i].Text)})
		}
	}
	id := b.shelf.id(values[b.id].Text)
	ev := cdc.Event{
		ID:     id,
		NoID:   values[b.id].Null,
		Fields: fields,
		Bytes:  eventBytes + fieldBytes*cap(fields) + size + len(id),
		Unfit:  b.lacks,
	}
	if ev.NoID {
		ev.Unfit = t.nullID()
	}
	return ev
}
