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
	news  bool // rows were pushed and not announced

	ready chan struct{} // holds a token when items may be there
	space chan struct{} // holds a token when the queue may have room again
}

func newQueue(limit int) *queue {
	return &queue{limit: limit, ready: make(chan struct{}, 1), space: make(chan struct{}, 1)}
}

// push adds an item; announce tells the publisher. Positions that follow each
// other with no row in between are one.
func (q *queue) push(it item) {
	q.mu.Lock()
	defer q.mu.Unlock()
	if n := len(q.items); it.kind == itemEnd && n > 0 && q.items[n-1].kind == itemEnd {
		q.items[n-1] = it
	} else {
		q.items = append(q.items, it)
		q.bytes += it.size()
	}
	q.news = q.news || it.kind != itemEnd
}

// announce tells the publisher of rows that were pushed. One that is told of
// each alone would append them one by one. A position alone is no news: it is
// taken when it can be covered, with the next stamp.
func (q *queue) announce() {
	q.mu.Lock()
	defer q.mu.Unlock()
	if q.news {
		signal(q.ready)
		q.news = false
	}
}

// full reports whether the reader has to wait for space.
func (q *queue) full() bool {
	q.mu.Lock()
	defer q.mu.Unlock()
	return q.bytes >= q.limit
}

// take returns items until they are this many rows or bytes, and leaves a token
// in ready if more are there. The batch before, which is over, gives its memory.
func (q *queue) take(batch []item, rows, bytes int) []item {
	q.mu.Lock()
	defer q.mu.Unlock()
	batch = batch[:0]
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
	if n == len(q.items) {
		batch, q.items = q.items, batch
	} else {
		batch = append(batch, q.items[:n]...)
		clear(q.items[:n]) // the rows are the batch's now
		q.items = q.items[n:]
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
