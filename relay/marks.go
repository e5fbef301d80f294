package relay

import (
	"errors"
	"slices"
	"sync"
	"time"

	"github.com/stagedoor/walrelay/cdc"
)

// The marker's rhythm.
const (
	markBatch  = 2000                   // rows in one statement
	markLinger = 50 * time.Millisecond  // how long a small batch waits for more
	markRetry  = 500 * time.Millisecond // until a locked row is tried again
)

// ErrMarkRefused says that the role may not mark rows (any more). It is the
// only failure of a mark that does not hold back confirming.
var ErrMarkRefused = errors.New("marking rows is refused")

// marks holds the rows that are on the stream and not yet marked, and so the
// limit of what may be confirmed.
//
// Invariant: a row is in exactly one of fresh, flying and stuck from its append
// until its mark is done, unless marking is refused.
type marks struct {
	limit int // bytes

	mu      sync.Mutex
	fresh   []cdc.Mark // in WAL order
	flying  []cdc.Mark // in a statement now
	stuck   []cdc.Mark // locked or invisible: tried again later
	turn    int        // where the next try of those begins
	bytes   int
	refused bool
	dropped uint64 // not marked, since marking is refused and memory is bounded

	ready chan struct{}
	space chan struct{}
}

func newMarks(limit int) *marks {
	return &marks{limit: limit, ready: make(chan struct{}, 1), space: make(chan struct{}, 1)}
}

// markOf is what marks the row of an event.
func markOf(ev cdc.Event) cdc.Mark {
	return cdc.Mark{ID: ev.ID, XID: ev.Commit.XID, LSN: ev.Commit.LSN, Table: ev.Table}
}

// markBytes is about what a row that waits for its mark costs.
func markBytes(m cdc.Mark) int { return 48 + len(m.ID) }

// add takes rows that are on the stream, in WAL order.
func (q *marks) add(rows ...cdc.Mark) {
	q.mu.Lock()
	defer q.mu.Unlock()
	q.fresh = append(q.fresh, rows...)
	for _, m := range rows {
		q.bytes += markBytes(m)
	}
	for q.refused && q.bytes > q.limit && len(q.fresh) > 0 {
		q.bytes -= markBytes(q.fresh[0])
		q.fresh = q.fresh[1:]
		q.dropped++
	}
	signal(q.ready)
}

// full reports whether the publisher has to wait for the marker.
func (q *marks) full() bool {
	q.mu.Lock()
	defer q.mu.Unlock()
	return !q.refused && q.bytes >= q.limit
}

// waiting is how many rows are on the stream and not marked.
func (q *marks) waiting() int {
	q.mu.Lock()
	defer q.mu.Unlock()
	return len(q.fresh) + len(q.flying) + len(q.stuck)
}

// limitLSN is the commit of the first row that waits for its mark: nothing
// beyond it may be confirmed. Zero when none waits, or when marking is refused.
func (q *marks) limitLSN() cdc.LSN {
	q.mu.Lock()
	defer q.mu.Unlock()
	if q.refused {
		return 0
	}
	var first cdc.LSN
	for _, rows := range [][]cdc.Mark{q.fresh, q.flying, q.stuck} {
		if len(rows) > 0 && (first == 0 || rows[0].LSN < first) {
			first = rows[0].LSN
		}
	}
	return first
}

// ids returns at most n rows that wait, oldest first.
func (q *marks) ids(n int) []string {
	q.mu.Lock()
	defer q.mu.Unlock()
	var ids []string
	for _, rows := range [][]cdc.Mark{q.stuck, q.flying, q.fresh} {
		for _, m := range rows {
			if len(ids) == n {
				return ids
			}
			ids = append(ids, m.ID)
		}
	}
	return ids
}

// set returns all rows that wait, by their ids.
func (q *marks) set() map[string]bool {
	q.mu.Lock()
	defer q.mu.Unlock()
	all := map[string]bool{}
	for _, rows := range [][]cdc.Mark{q.fresh, q.flying, q.stuck} {
		for _, m := range rows {
			all[m.ID] = true
		}
	}
	return all
}

// take moves the next batch to flying.
func (q *marks) take(n int, again bool) []cdc.Mark {
	q.mu.Lock()
	defer q.mu.Unlock()
	if !again {
		n = min(n, len(q.fresh))
		q.flying = append(q.flying[:0], q.fresh[:n]...)
		q.fresh = q.fresh[n:]
		return q.flying
	}
	// Each in its turn: the first ones may stay locked for long.
	if q.turn >= len(q.stuck) {
		q.turn = 0
	}
	end := min(q.turn+n, len(q.stuck))
	q.flying = append(q.flying[:0], q.stuck[q.turn:end]...)
	q.stuck = slices.Delete(q.stuck, q.turn, end)
	q.turn = end
	return q.flying
}

// settle ends a statement: rows whose state is not Marked are stuck, in order.
// Without states, nothing was done.
func (q *marks) settle(states []cdc.MarkState) {
	q.mu.Lock()
	defer q.mu.Unlock()
	var left []cdc.Mark
	for i, m := range q.flying {
		if states != nil && states[i] == cdc.Marked {
			q.bytes -= markBytes(m)
			continue
		}
		left = append(left, m)
	}
	q.flying = q.flying[:0]
	q.stuck = mergeMarks(q.stuck, left)
	if q.bytes < q.limit {
		signal(q.space)
	}
}

// mergeMarks keeps WAL order.
func mergeMarks(a, b []cdc.Mark) []cdc.Mark {
	if len(a) == 0 {
		return b
	}
	out := make([]cdc.Mark, 0, len(a)+len(b))
	for len(a) > 0 && len(b) > 0 {
		if b[0].LSN < a[0].LSN {
			out, b = append(out, b[0]), b[1:]
		} else {
			out, a = append(out, a[0]), a[1:]
		}
	}
	return append(append(out, a...), b...)
}

// setRefused notes whether marking is refused.
func (q *marks) setRefused(refused bool) {
	q.mu.Lock()
	defer q.mu.Unlock()
	q.refused = refused
	signal(q.space)
}

// takeDropped returns how many rows were left unmarked, for want of memory,
// since it was last asked.
func (q *marks) takeDropped() uint64 {
	q.mu.Lock()
	defer q.mu.Unlock()
	dropped := q.dropped
	q.dropped = 0
	return dropped
}

// counts returns how many rows wait for their first try and for another one.
func (q *marks) counts() (fresh, stuck int) {
	q.mu.Lock()
	defer q.mu.Unlock()
	return len(q.fresh), len(q.stuck)
}
