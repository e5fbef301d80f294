package outbox

import "testing"

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
