package outbox

import (
	"errors"
	"slices"
	"strconv"
	"testing"

	"github.com/stagedoor/walrelay/cdc"
)

// Another table takes the outbox's name, with the same ids again. Rows that the
// log has of the one before are done: there is nothing to mark, least of all the
// rows of the other.
func TestMarkKnowsTheTableFromItsName(t *testing.T) {
	d := newOutbox(t)
	d.fillOutbox(3)
	table := d.checked(Config{})
	oid, err := strconv.ParseUint(d.text("SELECT 'outbox'::regclass::oid"), 10, 32)
	if err != nil {
		t.Fatal(err)
	}
	marks := func(id string) []cdc.Mark { return []cdc.Mark{{ID: id, Table: uint32(oid)}} }
	expect := func(what string, id, want string) {
		t.Helper()
		states, err := table.Mark(d.ctx(), marks(id))
		if err != nil || !slices.Equal(states, []cdc.MarkState{ok}) {
			t.Errorf("%s: states %v, %v", what, states, err)
		}
		if got := d.text(unmarked); got != want {
			t.Errorf("%s: unmarked are %q, want %q", what, got, want)
		}
	}
	expect("before", "1", "2 3")
	d.exec("CREATE TABLE other (LIKE outbox INCLUDING ALL); ALTER TABLE outbox RENAME TO away; ALTER TABLE other RENAME TO outbox")
	d.fillOutbox(3)
	if _, err := table.Mark(d.ctx(), marks("2")); !errors.Is(err, errSwapped) {
		t.Errorf("a session that knows the other table gets %v", err)
	}
	expect("with a session that knows this one", "3", "1 2 3")
	states, err := table.Mark(d.ctx(), []cdc.Mark{{ID: "2"}})
	if got := d.text(unmarked); err != nil || states[0] != ok || got != "1 3" {
		t.Errorf("rows of this table: state %v, %v, unmarked are %q", states, err, got)
	}
}
