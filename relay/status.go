package relay

import (
	"errors"
	"fmt"
	"maps"
	"sync"
	"sync/atomic"
	"time"

	"github.com/stagedoor/walrelay/cdc"
)

// Role is what a relay does at the moment.
type Role string

// The roles.
const (
	RoleStarting  Role = "starting"
	RoleBackfill  Role = "backfill"
	RoleStreaming Role = "streaming"
	RoleStandby   Role = "standby"
	RolePolling   Role = "polling" // of a Poller
)

// Status is what a relay knows of itself.
type Status struct {
	Role Role
	// AwaySince is since when rows are not streamed; zero while they are, and
	// while another relay does it.
	AwaySince time.Time
	// Problem is why they are not, empty while it is not known. Stopped says
	// that it does not go away by itself.
	Problem string
	Stopped bool

	SinkAwaySince time.Time // since when Redis fails; zero while it does not
	SinkProblem   string
	SinkStopped   bool      // it does not go away by itself
	SinkSeenAt    time.Time // when Redis last answered; zero before that

	MarksRefused bool
	MarksProblem string
	MarksSince   time.Time // since when rows were to be marked and none could be; zero while they can
	LockedRow    string    // who locks a row that is to be marked, so that confirming waits, and the command that ends it
	Waiting      string    // what the creation of the slot waits for, and the command that ends it
	Progress     string    // how far a backfill has come
	Healing      string    // what a backfill repairs
	Doubt        string    // what no heal could know, and the commands that decide
	StandingBy   string    // for whom
	// Unread says that nothing is received from PostgreSQL, since the relay has
	// as many rows as it may hold, or one that stops it.
	Unread bool

	Oldest       time.Time // commit of the oldest row received and not published, on our clock
	MarksWaiting int
	WaitingIDs   []string // some rows that are published and not marked

	Published, Skipped, Marked, AppendRetries, StampRetries uint64

	Reconnects  uint64 // tries to stream, or to backfill, that failed and are made again
	Connections uint64 // that streamed
	// Of the connection that streams, zero while there is none: since when it
	// does, when its last message came, of any kind, and when PostgreSQL was last
	// told how far it has come.
	Connected, LastReceive, LastStatus time.Time

	Dead uint64 // rows that were put on the dead stream

	Heals       map[cdc.Kind]uint64 // begun, by what was wrong
	LostEntries uint64              // whose rows were lost with a database
}

// status is where the loops write down what they do.
type status struct {
	skipped, marked, rows            atomic.Uint64
	lostEntries, dead                atomic.Uint64
	appendRetries, stampRetries, ups atomic.Uint64
	reconnects                       atomic.Uint64

	mu        sync.Mutex
	now       Status
	streaming *streaming
	inFlight  time.Time
	silent    bool // Redis did not answer when it last failed; else it refused to write
}

func (s *status) set(change func(*Status)) {
	s.mu.Lock()
	defer s.mu.Unlock()
	change(&s.now)
}

func (s *status) role(role Role) {
	s.set(func(now *Status) {
		now.Waiting, now.Progress, now.Healing = "", "", ""
		if role != RoleStandby {
			now.StandingBy = ""
		}
		if role == RoleStandby && now.Role != role && !s.silent {
			now.SinkAwaySince, now.SinkProblem, now.SinkStopped = time.Time{}, "", false // it is another relay's affair
		}
		now.Role = role
		switch role {
		case RoleStandby, RoleBackfill:
			now.AwaySince, now.Problem, now.Stopped = time.Time{}, "", false
		case RoleStreaming: // it has to prove itself first
		default:
			if now.AwaySince.IsZero() {
				now.AwaySince = time.Now()
			}
		}
	})
}

func (s *status) failed(problem string, stopped bool) {
	s.set(func(now *Status) { now.Problem, now.Stopped = problem, stopped })
}

func (s *status) waiting(text string) { s.set(func(now *Status) { now.Waiting = text }) }

func (s *status) progress(text string) { s.set(func(now *Status) { now.Progress = text }) }

// healing notes what a backfill repairs, empty for nothing.
func (s *status) healing(reason string) { s.set(func(now *Status) { now.Healing = reason }) }

// healed counts a heal that has begun.
func (s *status) healed(kind cdc.Kind) {
	s.set(func(now *Status) {
		heals := maps.Clone(now.Heals)
		if heals == nil {
			heals = map[cdc.Kind]uint64{}
		}
		heals[kind]++
		now.Heals = heals
	})
}

// doubt notes what no heal could know; nil for nothing.
func (s *status) doubt(d *cdc.Doubt) {
	s.set(func(now *Status) { now.Doubt = InDoubt(d) })
}

// InDoubt is what no heal could know, and the commands that decide; "" for
// nothing.
func InDoubt(d *cdc.Doubt) string {
	if d == nil {
		return ""
	}
	at := d.Before.UTC().Format(time.RFC3339)
	return fmt.Sprintf("%s; entries of rows that were marked before %s may be gone, and were not appended again: to append those that the stream lacks, run `walrelay audit --repair`, or `walrelay heal --since TIME` with the time from which on; to leave it at that, run `walrelay heal --accept-gap`", d.Reason, at)
}

func (s *status) rowLocked(text string) { s.set(func(now *Status) { now.LockedRow = text }) }

func (s *status) streamingFrom(st *streaming) {
	s.role(RoleStreaming)
	s.mu.Lock()
	defer s.mu.Unlock()
	s.streaming = st
}

// streams notes that streaming works, not only that a connection was made.
func (s *status) streams() {
	s.ups.Add(1)
	s.set(func(now *Status) { now.AwaySince, now.Problem, now.Stopped = time.Time{}, "", false })
}

// polls notes that the table can be looked at.
func (s *status) polls() {
	s.set(func(now *Status) {
		now.Role = RolePolling
		now.AwaySince, now.Problem, now.Stopped = time.Time{}, "", false
	})
}

// pollFailed notes that the table cannot be looked at, or a row not published.
func (s *status) pollFailed(problem string, stopped bool) {
	s.set(func(now *Status) {
		if now.AwaySince.IsZero() {
			now.AwaySince = time.Now()
		}
		now.Problem, now.Stopped = problem, stopped
	})
}

// claimed notes that there is a row to publish, which is still so if that fails.
func (s *status) claimed() {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.inFlight.IsZero() {
		s.inFlight = time.Now()
	}
}

func (s *status) streamingEnded() {
	s.role(RoleStarting)
	s.mu.Lock()
	defer s.mu.Unlock()
	s.streaming, s.inFlight = nil, time.Time{}
	s.now.LockedRow, s.now.MarksSince = "", time.Time{}
}

// publishing notes that a batch is on its way, with the commit of its first row.
func (s *status) publishing(since time.Time) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.inFlight = since
}

func (s *status) published(rows int) {
	s.rows.Add(uint64(rows))
	s.mu.Lock()
	defer s.mu.Unlock()
	s.inFlight = time.Time{}
}

// sinkFailed notes that Redis did not do what it was to; asked says that this was
// but a question.
func (s *status) sinkFailed(err error, asked bool) {
	s.set(func(now *Status) {
		now.SinkProblem, now.SinkStopped = err.Error(), permanent(err)
		s.silent = asked || errors.Is(err, cdc.ErrNoAnswer)
		if now.SinkAwaySince.IsZero() {
			now.SinkAwaySince = time.Now()
		}
	})
}

// sinkAnswers notes that Redis answered a question, and reports whether it had
// failed to. That it takes no writes is not over with that.
func (s *status) sinkAnswers() (failed bool) {
	s.mu.Lock()
	silent := s.silent || s.now.SinkAwaySince.IsZero()
	s.now.SinkSeenAt = time.Now()
	s.mu.Unlock()
	return silent && s.sinkWorks()
}

// sinkWorks notes that Redis did what it was to, and reports whether it had failed.
func (s *status) sinkWorks() (failed bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	failed = !s.now.SinkAwaySince.IsZero()
	s.now.SinkSeenAt = time.Now()
	s.now.SinkAwaySince, s.now.SinkProblem, s.now.SinkStopped = time.Time{}, "", false
	return failed
}

// marksTried notes that rows are to be marked now.
func (s *status) marksTried() {
	s.set(func(now *Status) {
		if now.MarksSince.IsZero() {
			now.MarksSince = time.Now()
		}
	})
}

func (s *status) marksFailed(err error, refused bool) {
	s.set(func(now *Status) { now.MarksProblem, now.MarksRefused = err.Error(), refused })
}

// marksWork notes that rows could be marked, and reports whether that had failed.
func (s *status) marksWork() (failed bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	failed = s.now.MarksProblem != ""
	s.now.MarksProblem, s.now.MarksRefused, s.now.MarksSince = "", false, time.Time{}
	return failed
}

// snapshot is the status at this moment.
func (s *status) snapshot() Status {
	s.mu.Lock()
	defer s.mu.Unlock()
	now := s.now
	now.Published = s.rows.Load()
	now.AppendRetries, now.StampRetries = s.appendRetries.Load(), s.stampRetries.Load()
	now.LostEntries, now.Dead = s.lostEntries.Load(), s.dead.Load()
	now.Skipped, now.Marked = s.skipped.Load(), s.marked.Load()
	now.Connections, now.Reconnects = s.ups.Load(), s.reconnects.Load()
	now.Oldest = s.inFlight
	if s.streaming != nil {
		now.Unread = s.streaming.unread.Load()
		now.Connected = s.streaming.began
		now.LastReceive, now.LastStatus = s.streaming.heardAt.time(), s.streaming.toldAt.time()
		if now.Oldest.IsZero() {
			now.Oldest = s.streaming.queue.oldest()
		}
		now.MarksWaiting = s.streaming.marks.waiting()
		now.WaitingIDs = s.streaming.marks.ids(2000)
	}
	return now
}

// instant is a time that one goroutine notes and others read.
type instant struct{ nanos atomic.Int64 }

func (m *instant) note(t time.Time) { m.nanos.Store(t.UnixNano()) }

// time is zero before anything was noted.
func (m *instant) time() time.Time {
	if n := m.nanos.Load(); n != 0 {
		return time.Unix(0, n)
	}
	return time.Time{}
}
