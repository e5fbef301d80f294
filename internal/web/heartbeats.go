package web

import (
	"fmt"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"
)

// LoopLimit is how long a loop may take for one turn. A loop that waits for
// something longer than that has to turn meanwhile.
const LoopLimit = 30 * time.Second

// Heartbeats tells whether the loops of the program turn. It knows nothing of
// what they wait for: a loop that keeps trying to reach a database is alive.
type Heartbeats struct {
	start time.Time // beats are measured from here, on the monotonic clock

	mu    sync.Mutex
	loops map[*Loop]struct{}
}

// NewHeartbeats has no loops yet, and is live.
func NewHeartbeats() *Heartbeats {
	return &Heartbeats{start: time.Now(), loops: make(map[*Loop]struct{})}
}

// Loop is one registered loop. Its methods may be called by any goroutine.
type Loop struct {
	name  string
	beats *Heartbeats
	last  atomic.Int64 // nanoseconds since start
}

// Register adds a loop, which counts as turning now. Several loops can have the
// same name.
func (h *Heartbeats) Register(name string) *Loop {
	l := &Loop{name: name, beats: h}
	l.Beat()
	h.mu.Lock()
	defer h.mu.Unlock()
	h.loops[l] = struct{}{}
	return l
}

// Beat says that the loop turned. It allocates nothing and takes no lock.
func (l *Loop) Beat() { l.last.Store(int64(time.Since(l.beats.start))) }

// Done removes the loop, once it has ended. Calling it again does nothing.
func (l *Loop) Done() {
	l.beats.mu.Lock()
	defer l.beats.mu.Unlock()
	delete(l.beats.loops, l)
}

// Live reports whether every loop turned within LoopLimit, and otherwise which
// did not, and for how long.
func (h *Heartbeats) Live() (ok bool, detail string) {
	h.mu.Lock()
	defer h.mu.Unlock()
	now := time.Since(h.start)
	var stuck []string
	for l := range h.loops {
		if idle := now - time.Duration(l.last.Load()); idle > LoopLimit {
			stuck = append(stuck, fmt.Sprintf("loop %s has not turned for %d s", l.name, idle/time.Second))
		}
	}
	slices.Sort(stuck)
	return len(stuck) == 0, strings.Join(stuck, "; ")
}
