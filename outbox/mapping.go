package outbox

import (
	"errors"
	"fmt"
	"strings"

	"github.com/stagedoor/walrelay/cdc"
)

// FieldColumn is a field of a stream entry and the column that it is read from.
type FieldColumn struct {
	Name   string
	Column string
}

// Mapping says which columns the outbox has. The names are exact: case and
// spaces count.
type Mapping struct {
	ID          string
	Kind        string // used where there are no Fields
	Payload     string // used where there are no Fields
	CreatedAt   string // "" where the table has none
	PublishedAt string // "" where the table has none
	// Fields are the fields of an entry, in order. Where there are none, they
	// are kind, outbox_id and payload, of the columns above.
	Fields []FieldColumn
}

// DefaultMapping is the mapping of the table that package migrations makes.
func DefaultMapping() Mapping {
	return Mapping{
		ID:          "id",
		Kind:        "kind",
		Payload:     "payload",
		CreatedAt:   "created_at",
		PublishedAt: "published_at",
	}
}

// EntryFields are the fields of an entry, in order.
func (m Mapping) EntryFields() []FieldColumn {
	if len(m.Fields) > 0 {
		return m.Fields
	}
	return []FieldColumn{
		{Name: "kind", Column: m.Kind},
		{Name: "outbox_id", Column: m.ID},
		{Name: "payload", Column: m.Payload},
	}
}

// MaxFields is how many fields an entry may have: whoever looks for an entry on
// the stream keeps the set of its fields in 64 bits.
const MaxFields = 64

// Validate names the flag of a name that is missing or given twice.
func (m Mapping) Validate() error {
	if m.ID == "" {
		return errors.New("--column-id: want the name of the column that identifies a row, such as id")
	}
	if len(m.Fields) == 0 && m.Kind == "" {
		return errors.New("--column-kind: want the name of a column, or name an entry's fields with --field NAME=COLUMN")
	}
	if len(m.Fields) == 0 && m.Payload == "" {
		return errors.New("--column-payload: want the name of a column, or name an entry's fields with --field NAME=COLUMN")
	}
	if len(m.Fields) > MaxFields {
		return fmt.Errorf("--field: %d fields are given; want at most %d", len(m.Fields), MaxFields)
	}
	seen := map[string]bool{}
	for _, f := range m.Fields {
		if f.Name == "" || f.Column == "" {
			return fmt.Errorf("--field: %q is not NAME=COLUMN, such as kind=event_type", f.Name+"="+f.Column)
		}
		if seen[f.Name] {
			return fmt.Errorf("--field: the name %q is given twice; an entry's fields need different names", f.Name)
		}
		seen[f.Name] = true
	}
	flags := map[string]string{}
	for _, c := range []struct{ flag, column string }{
		{"--column-id", m.ID},
		{"--column-created-at", m.CreatedAt},
		{"--column-published-at", m.PublishedAt},
	} {
		if other := flags[c.column]; other != "" && c.column != "" {
			return fmt.Errorf("%s: the column %q is already that of %s", c.flag, c.column, other)
		}
		flags[c.column] = c.flag
	}
	return nil
}

// flag is the flag by which an operator names a column.
func (m Mapping) flag(column string) string {
	switch {
	case column == m.ID:
		return "--column-id"
	case len(m.Fields) > 0:
		for _, f := range m.Fields {
			if f.Column == column {
				return "--field " + f.Name + "=COLUMN"
			}
		}
	case column == m.Kind:
		return "--column-kind"
	case column == m.Payload:
		return "--column-payload"
	}
	if column == m.CreatedAt {
		return "--column-created-at"
	}
	return "--column-published-at"
}

// MissingColumnError says that the table has no column of that name.
type MissingColumnError struct {
	Table  cdc.Table
	Column string
	// Similar is a column whose name differs only in case, or "".
	Similar string
}

func (e *MissingColumnError) Error() string {
	s := fmt.Sprintf("table %s has no column %s", e.Table, cdc.QuoteIdent(e.Column))
	if e.Similar != "" {
		s += fmt.Sprintf(" (there is %s; case counts)", cdc.QuoteIdent(e.Similar))
	}
	return s
}

// missingColumn looks for a name that differs only in case.
func missingColumn(t cdc.Table, column string, there []string) *MissingColumnError {
	e := &MissingColumnError{Table: t, Column: column}
	for _, name := range there {
		if strings.EqualFold(name, column) {
			e.Similar = name
		}
	}
	return e
}
