package relay

import (
	"sync"
	"time"

	"github.com/stagedoor/walrelay/cdc"
)

// item is what the reader hands to the publisher, in the order of the WAL.
type item struct {
	kind itemKind
	// ev is the row of an itemRow or itemSkip.
	ev cdc.Event
	// lsn, of an itemEnd, is the end of a commit or a keepalive's position:
	// everything before it has been received. serverTime is PostgreSQL's clock.
	lsn        cdc.LSN
	serverTime time.Time
	// since, of an itemRow, is about when it was committed, on our clock.
	since time.Time
	// err, of an itemFail, is why nothing can follow.
	err error
}

type itemKind uint8

const (
	itemRow  itemKind = iota // to be appended
	itemSkip                 // on the stream already: to be marked
	itemEnd                  // a position up to which all was received
	itemFail                 // the line stops here
)

// itemBytes is about what an item costs beside its row.
const itemBytes = 200

func (it *item) size() int { return itemBytes + it.ev.Bytes }

// queue carries items from the reader to the publisher. It is bounded in bytes,
// whatever a row's size: the reader stops reading while it is full. It always
// takes one more item, so a row larger than the bound passes through alone.
type queue struct {
	limit int

	mu    sync.Mutex
	items []item
	bytes int

	ready chan struct{} // holds a token when items may be there
	space chan struct{} // holds a token when the queue may have room again
}

func newQueue(limit int) *queue {
	return &queue{limit: limit, ready: make(chan struct{}, 1), space: make(chan struct{}, 1)}
}

// push adds an item. Positions that follow each other with no row in between
// are one.
func (q *queue) push(it item) {
	q.mu.Lock()
	defer q.mu.Unlock()
	if n := len(q.items); it.kind == itemEnd && n > 0 && q.items[n-1].kind == itemEnd {
		q.items[n-1] = it
	} else {
		q.items = append(q.items, it)
		q.bytes += it.size()
	}
	signal(q.ready)
}

// full reports whether the reader has to wait for space.
func (q *queue) full() bool {
	q.mu.Lock()
	defer q.mu.Unlock()
	return q.bytes >= q.limit
}

// take moves items into batch until it holds this many rows or bytes, and
// leaves a token in ready if more are there.
func (q *queue) take(batch []item, rows, bytes int) []item {
	q.mu.Lock()
	defer q.mu.Unlock()
	n := 0
	for n < len(q.items) && rows > 0 && bytes > 0 {
		it := &q.items[n]
		if it.kind == itemRow || it.kind == itemSkip {
			rows--
			bytes -= it.ev.Bytes
		}
		q.bytes -= it.size()
		n++
	}
	batch = append(batch, q.items[:n]...)
	clear(q.items[:n]) // the rows are the batch's now
	q.items = q.items[n:]
	if len(q.items) > 0 {
		signal(q.ready)
	}
	if q.bytes < q.limit {
		signal(q.space)
	}
	return batch
}

// oldest is about when the oldest row in the queue was committed; zero when
// there is none.
func (q *queue) oldest() time.Time {
	q.mu.Lock()
	defer q.mu.Unlock()
	for i := range q.items {
		if q.items[i].kind == itemRow {
			return q.items[i].since
		}
	}
	return time.Time{}
}

// signal leaves a token in a channel of capacity one.
func signal(c chan struct{}) {
	select {
	case c <- struct{}{}:
	default:
	}
}
