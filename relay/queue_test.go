package relay

import (
	"testing"
	"time"

	"github.com/stagedoor/walrelay/cdc"
)

func row(id string, bytes int) item {
	return item{kind: itemRow, ev: cdc.Event{ID: id, Bytes: bytes}}
}

func end(lsn cdc.LSN) item { return item{kind: itemEnd, lsn: lsn} }

// token takes the token out of a channel, and reports whether there was one.
func token(c chan struct{}) bool {
	select {
	case <-c:
		return true
	default:
		return false
	}
}

// The bound is in bytes, counts what an item costs beside its row, and lets one
// row through whatever its size.
func TestQueueIsBoundedInBytes(t *testing.T) {
	q := newQueue(1000)
	if q.push(row("a", 1000-itemBytes-1)); q.full() {
		t.Fatal("full below its bound")
	}
	if q.push(end(5)); !q.full() {
		t.Fatal("not full: what an item costs beside its row does not count")
	}
	if got := q.take(nil, 1, 1<<20); len(got) != 1 || got[0].ev.ID != "a" {
		t.Fatalf("took %v", got)
	}
	if q.full() || !token(q.space) {
		t.Fatal("still full")
	}
	if q.push(row("huge", 1<<30)); !q.full() {
		t.Fatal("not full")
	}
	token(q.space)
	if got := q.take(nil, 10, 10); len(got) != 2 || got[1].ev.ID != "huge" {
		t.Fatalf("took %v: a row beyond the bound is stuck", got)
	}
	if q.full() || q.bytes != 0 || !token(q.space) {
		t.Fatalf("%d bytes are left in an empty queue", q.bytes)
	}
}

// space is said when there is room again, and not before.
func TestQueueStaysFullUntilItHasRoom(t *testing.T) {
	q := newQueue(1000)
	q.push(row("a", 1000))
	q.push(row("b", 1000))
	q.take(nil, 1, 1<<20)
	if !q.full() || token(q.space) {
		t.Error("has room with a full row in it")
	}
	q.take(nil, 1, 1<<20)
	if q.full() || !token(q.space) {
		t.Error("has no room and is empty")
	}
}

func TestBatchIsBoundedInRowsAndBytes(t *testing.T) {
	q := newQueue(1 << 20)
	q.push(row("a", 10))
	q.push(item{kind: itemSkip, ev: cdc.Event{ID: "b", Bytes: 10}})
	q.push(row("c", 10))
	q.push(row("d", 10))
	q.push(end(7))
	ids := func(items []item) string {
		s := ""
		for _, it := range items {
			s += it.ev.ID
			if it.kind == itemEnd {
				s += "."
			}
		}
		return s
	}
	token(q.ready)
	batch := q.take(nil, 2, 1000)
	if got := ids(batch); got != "ab" {
		t.Errorf("a batch of 2 rows has %q", got)
	}
	if !token(q.ready) {
		t.Error("does not say that more is there")
	}
	if got := ids(q.take(batch[:0], 1000, 5)); got != "c" {
		t.Errorf("a batch of 5 bytes has %q", got)
	}
	if got := ids(q.take(nil, 1000, 1000)); got != "d." {
		t.Errorf("the rest is %q", got)
	}
	if got := q.take(nil, 1, 1); len(got) != 0 {
		t.Errorf("took %v out of an empty queue", got)
	}
}

// An idle outbox beside a busy table brings hundreds of positions a second.
func TestPositionsWithNoRowBetweenAreOne(t *testing.T) {
	q := newQueue(1 << 20)
	for lsn := cdc.LSN(1); lsn <= 1000; lsn++ {
		q.push(end(lsn))
	}
	q.push(row("a", 1))
	q.push(end(2000))
	q.push(end(3000))
	got := q.take(nil, 1000, 1000)
	if len(got) != 3 || got[0].lsn != 1000 || got[1].ev.ID != "a" || got[2].lsn != 3000 {
		t.Errorf("took %v; a position must not pass a row", got)
	}
	if q.bytes != 0 {
		t.Errorf("%d bytes are left in an empty queue", q.bytes)
	}
}

// The publisher is told of rows once they were announced, and of positions not at
// all: what comes together is appended together.
func TestPublisherHearsOfRowsTogether(t *testing.T) {
	q := newQueue(1 << 20)
	if q.push(row("a", 1)); token(q.ready) {
		t.Error("told of a row before the one that came with it")
	}
	q.push(item{kind: itemSkip})
	if q.announce(); !token(q.ready) || token(q.ready) {
		t.Error("not told once of two rows")
	}
	q.push(end(5))
	if q.announce(); token(q.ready) {
		t.Error("told of a position alone")
	}
	if got := q.take(nil, 10, 10); len(got) != 3 {
		t.Errorf("took %v, want two rows and what was not announced", got)
	}
	q.push(item{kind: itemFail})
	if q.announce(); !token(q.ready) {
		t.Error("not told of what stops the line")
	}
}

func TestQueueKnowsItsOldestRow(t *testing.T) {
	q := newQueue(1 << 20)
	if !q.oldest().IsZero() {
		t.Error("an empty queue has an oldest row")
	}
	first := time.Now()
	q.push(end(1))
	q.push(item{kind: itemSkip, ev: cdc.Event{ID: "on the stream"}, since: first.Add(-time.Hour)})
	for i := range 3 {
		q.push(item{kind: itemRow, since: first.Add(time.Duration(i))})
	}
	if got := q.oldest(); !got.Equal(first) {
		t.Errorf("the oldest row is of %v, want %v", got, first)
	}
}

// What a batch leads to ends where the line does.
func TestBatchEndsWhereTheLineStops(t *testing.T) {
	b := batch{items: []item{row("a", 1), end(5), row("b", 1), {kind: itemFail, err: errAgain}, row("c", 1), end(9)}}
	b.sort(true)
	if len(b.events) != 2 || len(b.marks) != 2 || b.end != 5 || b.err == nil {
		t.Errorf("%d events, %d marks, up to %d, error %v; want a and b, up to 5, and the error", len(b.events), len(b.marks), b.end, b.err)
	}
	b.sort(false)
	if len(b.marks) != 0 {
		t.Errorf("%d marks where rows are not marked", len(b.marks))
	}
}
