package match

import (
	"testing"

	"github.com/stagedoor/walrelay/cdc"
)

// The fingerprint of some of a row's fields is that of an entry with just these.
func TestFingerprintOfAPart(t *testing.T) {
	fields := Fields{{Name: "kind"}, {Name: "outbox_id", ID: true}, {Name: "payload", JSON: true}}
	row, ok := fields.OfRow(cdc.Event{Fields: []cdc.Field{
		{Name: "kind", Value: "sold"}, {Name: "outbox_id", Value: "7"}, {Name: "payload", Value: `{"a": 1.0}`},
	}})
	if !ok || row.Has != 7 || fields.ID(row) != "7" {
		t.Fatalf("the row has %b, id %q, %v", row.Has, fields.ID(row), ok)
	}
	entry, ok := fields.OfEntry(cdc.Entry{Values: map[string]string{"outbox_id": "7", "payload": `{"a":1}`, "trace": "x"}})
	if !ok || entry.Has != 6 {
		t.Fatalf("the entry has %b, %v", entry.Has, ok)
	}
	if fields.Fingerprint(row, entry.Has) != fields.Fingerprint(entry, entry.Has) {
		t.Error("the same fields differ")
	}
	if fields.Fingerprint(row, 4) == fields.Fingerprint(row, 6) {
		t.Error("a field more is the same")
	}
	if _, ok := fields.OfEntry(cdc.Entry{Values: map[string]string{"kind": "sold"}}); ok {
		t.Error("an entry without an id is ours")
	}
	if _, ok := fields.OfRow(cdc.Event{Fields: []cdc.Field{{Name: "other"}}}); ok {
		t.Error("a row of other fields is ours")
	}
}
