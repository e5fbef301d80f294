package slot

import (
	"fmt"
	"slices"
	"testing"

	"github.com/stagedoor/walrelay/cdc"
)

// A session knows on which timelines its server was before, and where it left
// them, also as the least of roles and after two failovers in a row.
func TestSessionKnowsTheHistory(t *testing.T) {
	w := newWorld(t, nil)
	w.cfg.Conn = w.parse(w.as(w.role("LOGIN REPLICATION")))
	if server := w.open().Server(); server.Timeline != 1 || len(server.History) != 0 || server.Standby {
		t.Errorf("at first the server is %+v", server)
	}
	var left []cdc.LSN // when the server was told to leave a timeline
	for timeline := uint32(2); timeline <= 3; timeline++ {
		w.insert("before")
		left = append(left, w.end())
		w.failOver()
		w.insert("after")
		server := w.open().Server()
		if server.Timeline != timeline || server.Standby || len(server.History) != len(left) {
			t.Fatalf("on timeline %d the server is %+v", timeline, server)
		}
		for i, s := range server.History {
			next := w.end()
			if i+1 < len(left) {
				next = left[i+1]
			}
			if s.Timeline != uint32(i+1) || s.LSN < left[i] || s.LSN >= next {
				t.Errorf("switch %d is %+v, not between %s and %s", i, s, left[i], next)
			}
		}
	}
	s := w.watch(w.monitor(), nil, nil).until("there is a sample", works)
	if s.Timeline != 3 || s.Recovery || s.InsertLSN < s.WALEnd {
		t.Errorf("the sample is %+v", s)
	}
}

// PostgreSQL does without its history, and so does the relay: as far as is
// known a checkpoint of the timeline before has nothing in common with the
// server, and one of the same timeline has all.
func TestHistoryIsNotKnown(t *testing.T) {
	w := newWorld(t, nil)
	w.failOver()
	before := w.open().Server()
	for _, sql := range []string{
		`COPY (SELECT) TO PROGRAM 'cat >/dev/null; rm pg_wal/00000002.history'`,
		`COPY (SELECT 'what is this?') TO PROGRAM 'cat > pg_wal/00000002.history'`,
	} {
		w.exec(sql)
		server := w.open().Server()
		if server.Timeline != 2 || len(server.History) != 0 {
			t.Errorf("the server is %+v", server)
		}
		if fork := server.Fork(&cdc.Checkpoint{Timeline: 1}); fork != 0 {
			t.Errorf("it has all up to %s in common with the timeline before", fork)
		}
		if fork := server.Fork(&cdc.Checkpoint{Timeline: 2, History: before.History}); fork != cdc.EndOfWAL {
			t.Errorf("it parts from itself at %s", fork)
		}
	}
	// Once it is known again, so is the fork.
	w.exec(fmt.Sprintf(`COPY (SELECT '1', '%s', 'restored') TO PROGRAM 'cat > pg_wal/00000002.history'`, before.History[0].LSN))
	if server := w.open().Server(); !slices.Equal(server.History, before.History) {
		t.Errorf("the history is %v, want %v", server.History, before.History)
	}
}

// end is where WAL is inserted.
func (w *world) end() cdc.LSN {
	w.t.Helper()
	end, err := cdc.ParseLSN(w.value(`SELECT pg_current_wal_insert_lsn()`))
	if err != nil {
		w.t.Fatal(err)
	}
	return end
}
