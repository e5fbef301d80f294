package cdc

import (
	"errors"
	"strings"
)

// Table names a table exactly, with upper case and spaces as they are.
type Table struct {
	Schema string
	Name   string
}

// ParseTable reads SCHEMA.TABLE. The names are taken as they stand, not folded
// to lower case; a name that holds a dot goes in double quotes, and a double
// quote inside of those is doubled.
func ParseTable(s string) (Table, error) {
	schema, rest, err := parseName(s)
	if err != nil {
		return Table{}, err
	}
	rest, ok := strings.CutPrefix(rest, ".")
	if !ok {
		return Table{}, errors.New("want SCHEMA.TABLE, such as public.outbox")
	}
	name, rest, err := parseName(rest)
	if err != nil {
		return Table{}, err
	}
	if rest != "" {
		return Table{}, errors.New(`want SCHEMA.TABLE; put a name that holds a dot in double quotes, such as public."my.outbox"`)
	}
	return Table{Schema: schema, Name: name}, nil
}

// parseName reads one name off the front of s, in double quotes or up to a dot.
func parseName(s string) (name, rest string, err error) {
	if !strings.HasPrefix(s, `"`) {
		i := strings.IndexByte(s, '.')
		if i < 0 {
			i = len(s)
		}
		if i == 0 {
			return "", "", errors.New("want SCHEMA.TABLE, such as public.outbox; a name is empty")
		}
		return s[:i], s[i:], nil
	}
	var b strings.Builder
	for s = s[1:]; ; {
		i := strings.IndexByte(s, '"')
		if i < 0 {
			return "", "", errors.New("a double quote is not closed")
		}
		b.WriteString(s[:i])
		s = s[i+1:]
		if !strings.HasPrefix(s, `"`) {
			break
		}
		b.WriteByte('"')
		s = s[1:]
	}
	if b.Len() == 0 {
		return "", "", errors.New("want SCHEMA.TABLE, such as public.outbox; a name is empty")
	}
	return b.String(), s, nil
}

// String is the table quoted for use in SQL.
func (t Table) String() string {
	return QuoteIdent(t.Schema) + "." + QuoteIdent(t.Name)
}
