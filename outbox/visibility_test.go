package outbox

import (
	"strings"
	"testing"

	"github.com/stagedoor/walrelay/cdc"
)

func TestTransactionIsOverInASnapshot(t *testing.T) {
	for _, test := range []struct {
		snapshot string
		xid      uint32
		want     bool
	}{
		{"700:700:", 699, true},
		{"700:700:", 700, false}, // not assigned yet, when the snapshot was taken
		{"700:700:", 701, false},
		{"690:700:690,695", 689, true},
		{"690:700:690,695", 690, false},
		{"690:700:690,695", 691, true},
		{"690:700:690,695", 695, false},
		{"690:700:690,695", 699, true},
		// Beyond 2^32 the log still has the lower half.
		{"8589934692:8589934692:", 99, true},
		{"8589934692:8589934692:", 100, false},
		{"8589934600:8589934692:8589934690", 98, false},
		{"8589934600:8589934692:8589934690", 97, true},
		// Around the turn: 3 is after 4294967290.
		{"4294967290:4294967300:4294967291", 4294967290, true},
		{"4294967290:4294967300:4294967291", 4294967291, false},
		{"4294967290:4294967300:4294967291", 3, true},
		{"4294967290:4294967300:4294967291", 4, false},
		{"4294967290:4294967295:", 3, false},
		{"4294967299:4294967300:4294967299", 4294967295, true},
		{"4294967299:4294967300:4294967299", 3, false},
	} {
		snap, err := parseSnapshot(test.snapshot)
		if err != nil {
			t.Fatal(err)
		}
		if got := snap.over(test.xid); got != test.want {
			t.Errorf("transaction %d is over in %s: %v, want %v", test.xid, test.snapshot, got, test.want)
		}
	}
}

func TestParseSnapshotRefusesWhatIsNone(t *testing.T) {
	for _, s := range []string{"", "1:2", "1:x:", "1:2:3,x", "1:2:3:4", "1:-2:"} {
		if snap, err := parseSnapshot(s); err == nil {
			t.Errorf("%q is taken for %+v", s, snap)
		}
	}
}

// TestExceptionsOfAMark: what a row that was not marked is, far in the life of
// a server.
func TestExceptionsOfAMark(t *testing.T) {
	const snapshot = "4000000000:4000000100:4000000000"
	batch := []cdc.Mark{{ID: "a", XID: 4000000000}, {ID: "b", XID: 4000000099}, {ID: "c"}, {ID: "d", XID: 4000000100}}
	for _, test := range []struct {
		row   string // number, visible, marked, suppressed, snapshot
		state cdc.MarkState
	}{
		{"1 t t f", cdc.Marked},
		{"1 t f f", cdc.MarkLocked},
		{"1 f f f " + snapshot, cdc.MarkInvisible},
		{"2 f f f " + snapshot, cdc.Marked},
		{"3 f f f " + snapshot, cdc.Marked}, // it was visible once
		{"4 f f f " + snapshot, cdc.MarkInvisible},
	} {
		var row [][]byte
		for _, value := range strings.Fields(test.row) {
			row = append(row, []byte(value))
		}
		state, index, err := exception(row, batch)
		if err != nil || state != test.state || index != int(row[0][0]-'1') {
			t.Errorf("%s: %v of row %d, %v, want %v", test.row, state, index, err, test.state)
		}
	}
	for _, number := range []string{"0", "5", "x"} {
		if _, _, err := exception([][]byte{[]byte(number), []byte("t"), []byte("t"), []byte("f"), nil}, batch); err == nil {
			t.Errorf("row %s of %d is taken", number, len(batch))
		}
	}
}
