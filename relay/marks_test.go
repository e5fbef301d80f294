package relay

import (
	"fmt"
	"strings"
	"testing"

	"github.com/stagedoor/walrelay/cdc"
)

func mark(id string, lsn cdc.LSN) cdc.Mark { return cdc.Mark{ID: id, LSN: lsn, XID: uint32(lsn)} }

func ids(rows []cdc.Mark) string {
	var all []string
	for _, m := range rows {
		all = append(all, m.ID)
	}
	return strings.Join(all, " ")
}

// Nothing beyond the first row that waits may be confirmed, wherever it waits.
func TestFirstUnmarkedRowLimitsTheConfirm(t *testing.T) {
	q := newMarks(1 << 20)
	want := func(when string, limit cdc.LSN) {
		t.Helper()
		if got := q.limitLSN(); got != limit {
			t.Errorf("%s: the limit is %d, want %d", when, got, limit)
		}
	}
	want("none waits", 0)
	q.add(mark("a", 10), mark("b", 20), mark("c", 20), mark("d", 30))
	want("all are fresh", 10)
	if got := ids(q.take(2, false)); got != "a b" {
		t.Fatalf("takes %q", got)
	}
	want("the first two are in a statement", 10)
	q.settle([]cdc.MarkState{cdc.MarkLocked, cdc.Marked})
	want("the first is locked", 10)
	q.take(2, false)
	want("the first is locked, the others are in a statement", 10)
	q.settle([]cdc.MarkState{cdc.Marked, cdc.MarkInvisible})
	want("the first and the last are stuck", 10)
	if got := ids(q.take(10, true)); got != "a d" {
		t.Fatalf("tries %q again, want a d", got)
	}
	q.settle([]cdc.MarkState{cdc.Marked, cdc.MarkLocked})
	want("only the last waits", 30)
	q.take(10, true)
	q.settle(nil) // the statement failed
	want("a statement that failed did nothing", 30)
	q.take(10, true)
	q.settle([]cdc.MarkState{cdc.Marked})
	want("all are marked", 0)
	if q.waiting() != 0 || q.bytes != 0 {
		t.Errorf("%d rows wait, of %d bytes", q.waiting(), q.bytes)
	}
}

// Rows that are stuck stay in the order of the WAL, whenever they got stuck:
// the first of them is the limit.
func TestStuckRowsStayInOrderOfTheWAL(t *testing.T) {
	q := newMarks(1 << 20)
	q.add(mark("a", 10), mark("b", 20), mark("c", 30), mark("d", 40))
	locked := func(n int) []cdc.MarkState {
		states := make([]cdc.MarkState, n)
		for i := range states {
			states[i] = cdc.MarkLocked
		}
		return states
	}
	q.take(2, false)
	q.settle(locked(2)) // a b are stuck
	q.take(1, true)     // a is tried again
	q.settle(locked(1))
	if got := ids(q.stuck); got != "a b" {
		t.Errorf("stuck are %q, want a b", got)
	}
	q.take(2, false) // c d
	q.settle(locked(2))
	q.take(2, true) // a b
	q.settle(locked(2))
	if got := ids(q.stuck); got != "a b c d" {
		t.Errorf("stuck are %q, want a b c d", got)
	}
	if got := strings.Join(q.ids(3), " "); got != "a b c" {
		t.Errorf("the oldest three are %q", got)
	}
	if fresh, stuck := q.counts(); fresh != 0 || stuck != 4 {
		t.Errorf("%d fresh, %d stuck", fresh, stuck)
	}
}

// The publisher waits while too many rows wait for their mark, in bytes.
func TestMarksAreBoundedInBytes(t *testing.T) {
	long := strings.Repeat("x", 100)
	q := newMarks(2*(48+len(long)) + 1)
	q.add(mark(long, 1), mark(long, 2))
	if q.full() {
		t.Fatal("full below its bound")
	}
	q.add(mark("short", 3))
	if !q.full() {
		t.Fatal("not full")
	}
	q.take(1, false)
	if !q.full() {
		t.Fatal("a row in a statement still counts")
	}
	token(q.space)
	q.settle([]cdc.MarkState{cdc.MarkLocked})
	if !q.full() || token(q.space) {
		t.Fatal("a row that is locked still counts")
	}
	q.take(1, true)
	q.settle([]cdc.MarkState{cdc.Marked})
	if q.full() || !token(q.space) {
		t.Fatal("full though a row was marked")
	}
}

// Where the role may not mark, confirming goes on, and memory stays bounded:
// the latest rows are kept for when it may again.
func TestRefusedMarksHoldNothingBack(t *testing.T) {
	q := newMarks(3 * markBytes(mark("0", 1)))
	q.add(mark("0", 1))
	q.take(1, false)
	q.settle(nil)
	q.setRefused(true)
	if !token(q.space) {
		t.Error("the publisher is not told that it need not wait any more")
	}
	for i := 1; i < 10; i++ {
		q.add(mark(fmt.Sprint(i), cdc.LSN(10*i)))
		if q.full() || q.limitLSN() != 0 {
			t.Fatalf("with %d rows: full %v, limit %d; want neither", i, q.full(), q.limitLSN())
		}
	}
	if got := strings.Join(q.ids(10), " "); got != "0 8 9" {
		t.Errorf("remembers the rows %q, want 0 8 9", got)
	}
	q.setRefused(false)
	if dropped := q.takeDropped(); dropped != 7 {
		t.Errorf("%d rows stay unmarked, want 7", dropped)
	}
	if !q.full() || q.limitLSN() != 1 {
		t.Errorf("full %v, limit %d; want the bound and the first row to count again", q.full(), q.limitLSN())
	}
	if dropped := q.takeDropped(); dropped != 0 {
		t.Errorf("%d rows are reported a second time", dropped)
	}
}

// Rows that stay locked do not keep the ones behind them from their turn.
func TestStuckRowsTakeTurns(t *testing.T) {
	q := newMarks(1 << 20)
	for i := range 5 {
		q.add(mark(fmt.Sprint(i), cdc.LSN(10+i)))
	}
	q.take(5, false)
	q.settle(nil)
	locked := func(rows []cdc.Mark) []cdc.MarkState {
		states := make([]cdc.MarkState, len(rows))
		for i, m := range rows {
			if m.ID < "2" {
				states[i] = cdc.MarkLocked
			}
		}
		return states
	}
	for range 4 {
		q.settle(locked(q.take(2, true)))
	}
	if got := strings.Join(q.ids(10), " "); got != "0 1" {
		t.Errorf("%q wait, want only the locked rows 0 1", got)
	}
	if q.limitLSN() != 10 {
		t.Errorf("limit %d, want the first locked row's 10", q.limitLSN())
	}
}
