package protocol

import (
	"fmt"
	"time"

	"github.com/stagedoor/walrelay/cdc"
)

// relays is how many relays a world has at most.
const relays = 2

// settings are what a world is made of and what may happen in it.
type settings struct {
	name string

	relays  int
	delay   int8 // ticks
	ticks   int8 // of the model's clock, beyond which nothing but coming to rest is explored
	steady  bool // begins with a finished backfill of one row, and relay 0 streaming
	rows    int8 // rows that are committed meanwhile, one by one
	pair    bool // the first two in one transaction
	busy    int8 // records of other tables
	before  int8 // rows in the table before the first start
	witness bool // somebody looks at unmarked rows
	reread  bool // the server goes back in its log at a start, and says so

	faults int8   // how many
	first  bool   // they meet only relay 0
	kinds  []step // of which kinds

	bug bug // planted
}

func (s *settings) may(kind step) bool {
	for _, k := range s.kinds {
		if k == kind {
			return true
		}
	}
	return false
}

// world is everything there is at one moment. It is copied for each step, so
// what its slices and pointers hold is never changed in place.
type world struct {
	*settings
	trace *[]string // of a world that tells what happens in it

	now      int8
	last     int8 // tick that is explored
	pg       postgres
	redis    redis
	relay    [relays]relay
	lock     int8 // the advisory lock of the slot's name: 1 + the relay
	stray    *request
	dump     *redis // what Redis falls back to
	dumpLost int8   // tick of the first write that the dump lacks; never: none

	rowsLeft int8
	busyLeft int8
	budget   int8 // faults left
	nextRow  int8
	nextID   int8 // of an entry
	nextSeq  int8
	nextInst int8

	// What the faults allow.
	mayHeal  int8   // gaps that faults made
	heals    int8   // that a relay began
	lossy    bool   // Redis forgot something
	emptied  bool   // of all that it had, and of more than the confirm delay
	excused  uint8  // rows that may be missing, if the checkpoint says so
	both     bool   // Redis and the slot went, so that nothing tells
	problem  string // a broken invariant
	requests int8   // of the operator
}

// never is a tick that was not.
const never = -100

func (w *world) say(format string, args ...any) {
	if w.trace != nil {
		*w.trace = append(*w.trace, fmt.Sprintf("%d  ", w.now)+fmt.Sprintf(format, args...))
	}
}

func (w *world) broken(format string, args ...any) {
	if w.problem == "" {
		w.problem = fmt.Sprintf(format, args...)
	}
}

// newWorld is a database with a table, an empty Redis, and relays that have
// started and done nothing yet.
func newWorld(s *settings) *world {
	w := &world{settings: s, dumpLost: never, rowsLeft: s.rows, busyLeft: s.busy, budget: s.faults, nextSeq: 1}
	w.pg.timeline = 1
	for i := range s.relays {
		w.relay[i].start(w)
	}
	for range s.before {
		w.insert(1, false)
	}
	if s.steady {
		w.insert(1, false)
		mustRest(w)
	}
	w.last = w.now + s.ticks
	return w
}

func (w *world) insert(rows int8, hidden bool) {
	w.pg.insert(w.nextRow, rows, w.nextSeq, w.now, hidden)
	w.nextRow += rows
	w.nextSeq++
}

// clock is the time of both the relay's and PostgreSQL's clock.
func clock(tick int8) time.Time { return cdc.Time(int64(tick) * 1e6) }
