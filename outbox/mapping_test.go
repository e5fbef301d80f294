package outbox

import (
	"slices"
	"strconv"
	"strings"
	"testing"
)

func TestMappingNamesTheFlagOfAMistake(t *testing.T) {
	for _, test := range []struct {
		name   string
		change func(*Mapping)
		want   string // the flag, "" for a mapping that is fine
	}{
		{"default", func(*Mapping) {}, ""},
		{"no id", func(m *Mapping) { m.ID = "" }, "--column-id:"},
		{"no kind", func(m *Mapping) { m.Kind = "" }, "--column-kind:"},
		{"no payload", func(m *Mapping) { m.Payload = "" }, "--column-payload:"},
		{"no times", func(m *Mapping) { m.CreatedAt, m.PublishedAt = "", "" }, ""},
		{"fields instead of kind and payload", func(m *Mapping) {
			m.Kind, m.Payload, m.Fields = "", "", []FieldColumn{{"data", "Body"}}
		}, ""},
		{"one column in two fields", func(m *Mapping) { m.Fields = []FieldColumn{{"a", "x"}, {"b", "x"}} }, ""},
		{"field without name", func(m *Mapping) { m.Fields = []FieldColumn{{"", "x"}} }, "--field:"},
		{"field without column", func(m *Mapping) { m.Fields = []FieldColumn{{"x", ""}} }, "--field:"},
		{"field twice", func(m *Mapping) { m.Fields = []FieldColumn{{"a", "x"}, {"a", "y"}} }, "--field:"},
		{"as many fields as may be", func(m *Mapping) { m.Fields = manyFields(MaxFields) }, ""},
		{"more fields", func(m *Mapping) { m.Fields = manyFields(MaxFields + 1) }, "--field:"},
		{"id as time", func(m *Mapping) { m.CreatedAt = m.ID }, "--column-created-at:"},
		{"one column for both times", func(m *Mapping) { m.PublishedAt = m.CreatedAt }, "--column-published-at:"},
	} {
		m := DefaultMapping()
		test.change(&m)
		err := m.Validate()
		switch {
		case test.want == "" && err != nil:
			t.Errorf("%s: %v", test.name, err)
		case test.want != "" && (err == nil || !strings.HasPrefix(err.Error(), test.want)):
			t.Errorf("%s: error %v, want one that starts with %s", test.name, err, test.want)
		}
	}
}

func manyFields(n int) []FieldColumn {
	fields := make([]FieldColumn, n)
	for i := range fields {
		fields[i] = FieldColumn{"field" + strconv.Itoa(i), "x"}
	}
	return fields
}

func TestEntryFieldsFollowTheMappedColumns(t *testing.T) {
	m := DefaultMapping()
	m.ID, m.Kind, m.Payload = "key", "type", "body"
	want := []FieldColumn{{"kind", "type"}, {"outbox_id", "key"}, {"payload", "body"}}
	if got := m.EntryFields(); !slices.Equal(got, want) {
		t.Errorf("fields %v, want %v", got, want)
	}
	m.Fields = []FieldColumn{{"a", "b"}}
	if got := m.EntryFields(); !slices.Equal(got, m.Fields) {
		t.Errorf("fields %v, want %v", got, m.Fields)
	}
}
