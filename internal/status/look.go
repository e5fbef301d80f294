package status

import (
	"time"

	"github.com/stagedoor/walrelay/cdc"
	"github.com/stagedoor/walrelay/internal/health"
)

// Look is what was seen of both sides, at about one time.
type Look struct {
	At          time.Time
	Slot        string // names, as in the settings
	Publication string
	Table       string
	Stream      string
	HTTP        string // where the relay's pages should be; empty for nowhere
	DiskBudget  int64  // bytes, as in the settings; 0 for none

	Database Database
	Redis    Redis

	// Judgement is what a relay would find that starts now. It is nil where that
	// is not known: one is at work, or only a start finds it out.
	Judgement *cdc.Judgement
	// Problems are what would stop the line. An error is best a fault.
	Problems []error
	Doubt    string // as of a relay
	Notes    []string
}

// Database is what PostgreSQL told. While it is away that is what it told last.
type Database struct {
	SeenAt    time.Time // zero for never
	AwaySince time.Time // zero while it answers
	Error     string
	Check     string // the command that shows whether it answers

	Version  int // such as 150018
	Standby  bool
	Name     string // of the database
	WALEnd   cdc.LSN
	Timeline uint32
	Clock    time.Time // the server's, at SeenAt

	FullPages       *int64 // as of health.Input
	CheckpointEvery time.Duration

	Slot     *health.Slot // nil for none
	Foreign  bool         // it is somebody else's
	Plugin   string
	Database string // of the slot
	LockPID  int    // of a relay that begins; 0 for none

	Other   *health.Other // the other slot that keeps the most WAL
	Holder  string        // whose transaction holds WAL back
	EndHold string        // the SQL that ends it
	Waits   string        // whose transaction the relay waits for, to create the slot
	EndWait string        // the SQL that ends it

	Published   bool  // there is a publication
	Publication error // what is wrong with it

	Waiting    int      // unpublished rows, counted up to WaitingMost
	OldestAge  *float64 // seconds, of the oldest of them; 0 for none; nil where it is not known
	AgeUnknown string   // why it is not, where that is no fault
	Unseen     string   // why the table cannot be looked at
}

// Redis is what Redis told. While it is away that is what it told last.
type Redis struct {
	SeenAt    time.Time // zero for never
	AwaySince time.Time // zero while it answers
	Error     string
	Check     string // the command that shows whether it answers

	Stream        *health.Stream
	StreamUnknown string // why there is none

	Asked             bool            // for the checkpoint, so that nil is none
	Checkpoint        *cdc.Checkpoint //
	CheckpointUnknown string          // why it was not asked for
	// StillSince is since when the relay that streams has not written it; zero
	// while it does.
	StillSince time.Time
}

// WaitingMost is up to how many unpublished rows are counted: that is quick,
// however many there are.
const WaitingMost = 100

// role is what a relay does, as seen from outside.
func (l *Look) role() health.Role {
	d := &l.Database
	switch {
	case d.Slot != nil && d.Slot.Active && !d.Foreign:
		return health.RoleStreaming
	case d.LockPID == 0:
		return health.RoleNone
	case d.Slot == nil, l.phase() == cdc.PhaseBackfill:
		return health.RoleBackfill
	default:
		return health.RoleStarting
	}
}

// phase is that of the checkpoint; empty where there is none.
func (l *Look) phase() cdc.Phase {
	if l.Redis.Checkpoint == nil {
		return ""
	}
	return l.Redis.Checkpoint.Phase
}

// expected says that a relay worked here, so that one should.
func (l *Look) expected() bool {
	return l.Database.Slot != nil && !l.Database.Foreign || l.Redis.Checkpoint != nil
}

// blocked reports whether a relay stopped at a row. One that runs lets the slot go
// between two tries.
func (l *Look) blocked() bool { return l.Redis.Checkpoint != nil && l.Redis.Checkpoint.Blocked != nil }

// others reports that another program has appended to the stream since the last
// relay did.
func (l *Look) others() bool {
	cp, stream := l.Redis.Checkpoint, l.Redis.Stream
	if cp == nil || stream == nil || stream.LastID == nil {
		return false
	}
	last, known := cp.LastIDs[l.Stream]
	return known && last != *stream.LastID
}

// here is a time of the server's clock by ours.
func (l *Look) here(t time.Time) time.Time {
	if t.IsZero() || l.Database.Clock.IsZero() {
		return t
	}
	return l.Database.SeenAt.Add(t.Sub(l.Database.Clock))
}

// written is when a relay last wrote the checkpoint, which one that streams does
// once a second; zero where that is not known.
func (l *Look) written() time.Time {
	if cp := l.Redis.Checkpoint; cp != nil {
		return cp.WrittenAt
	}
	return time.Time{}
}

// covered is as of when the checkpoint covers what it does, by our clock; zero
// where that is not known. It stands still while no WAL is written.
func (l *Look) covered() time.Time {
	if cp := l.Redis.Checkpoint; cp != nil && !cp.CoveredTime.IsZero() {
		return l.here(cp.CoveredTime)
	}
	return time.Time{}
}

// idleSince is since when no relay reads from the slot, by our clock; zero where
// that is not known. Before PostgreSQL 17 the checkpoint tells.
func (l *Look) idleSince() time.Time {
	if s := l.Database.Slot; s != nil && !s.InactiveSince.IsZero() {
		return l.here(s.InactiveSince)
	}
	return l.written()
}

// Input is what package health judges by.
func (l *Look) Input(limits health.Thresholds) health.Input {
	d, r := &l.Database, &l.Redis
	in := health.Input{
		Now: l.At, Thresholds: limits, Role: l.role(),
		RedisAwaySince: r.AwaySince, RedisError: r.Error, RedisSeenAt: r.SeenAt,
		DatabaseAwaySince: d.AwaySince, DatabaseError: d.Error,
		SampledAt: d.SeenAt, WALEnd: d.WALEnd, Timeline: d.Timeline, FullPages: d.FullPages, CheckpointEvery: d.CheckpointEvery,
		Other: d.Other, Doubt: l.Doubt, TableUnseen: d.Unseen,
		OldestAge: d.OldestAge, Stream: r.Stream,
	}
	if d.Holder != "" {
		in.SlotPinnedBy = d.Holder + "; to end that: " + d.EndHold
	}
	if d.Waits != "" && in.Role == health.RoleBackfill {
		in.Waiting = "creating the slot waits for " + d.Waits + "; to end that: " + d.EndWait
	}
	if d.Slot != nil {
		s := *d.Slot
		if !s.Active && s.InactiveSince.IsZero() {
			s.InactiveSince = l.written()
		}
		in.Slot = &s
	}
	for _, p := range l.Problems {
		in.Problems = append(in.Problems, p.Error())
	}
	switch in.Role {
	case health.RoleStreaming:
		in.Streaming = true
		if !r.StillSince.IsZero() && r.AwaySince.IsZero() {
			in.RedisAwaySince = r.StillSince
			in.RedisError = "it answers here, and the relay that is connected writes nothing to it"
		}
	case health.RoleNone:
		in.Streaming = !l.expected()
		if !in.Streaming {
			in.StreamingAwaySince = l.idleSince()
		}
	}
	return in
}
