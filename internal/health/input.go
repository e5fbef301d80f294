package health

import (
	"encoding/json"
	"time"

	"github.com/stagedoor/walrelay/cdc"
)

// Role is what this relay does at the moment.
type Role string

// The roles of a relay. The zero Role counts as starting.
const (
	RoleStarting  Role = "starting"
	RoleBackfill  Role = "backfill"
	RoleStreaming Role = "streaming"
	RoleStandby   Role = "standby"
	RolePolling   Role = "polling"
)

// RoleNone is that of somebody who looks from outside and sees no relay at work:
// Streaming says that none is expected, and StreamingAwaySince since when there
// is none.
const RoleNone Role = "none"

// Roles returns every role of a relay.
func Roles() []Role {
	return []Role{RoleStarting, RoleBackfill, RoleStreaming, RoleStandby, RolePolling}
}

// Thresholds say when a value has which level. Zero switches one off. A level is
// left when the value is below four fifths of its threshold.
type Thresholds struct {
	AgeWarn     time.Duration // of the oldest unpublished row
	AgeCritical time.Duration // the same, and of being away
	LagWarn     int64         // bytes, unconfirmed or retained
	LagCritical int64         // bytes, unconfirmed or retained

	RunwayCritical time.Duration // until the budget for WAL ends
	DiskBudget     int64         // bytes that slots may keep; max_slot_wal_keep_size is another budget
}

// Input is everything that Judge goes by. A text is a driver's or a server's
// own words or a sentence, and is empty when there is nothing to say; a time is
// zero when nothing is wrong. Credentials in the texts never get out.
type Input struct {
	Now        time.Time
	Thresholds Thresholds
	Role       Role

	// Streaming says that the replication connection is up and delivers, or
	// would if there were something. It is false in a backfill and on a
	// standby, which is no fault there.
	Streaming bool
	// StreamingAwaySince is when streaming ended, when a start began, or on a
	// standby when the last active relay was seen. In a backfill it counts only
	// together with StreamingError.
	StreamingAwaySince time.Time
	StreamingError     string // the last error; empty after a success

	RedisAwaySince time.Time
	RedisError     string
	RedisStopped   bool      // it stays away until somebody acts, which is one of the Problems
	RedisSeenAt    time.Time // when it last answered

	// DatabaseAwaySince is about the monitor's own connection, from which Slot
	// and OldestAge come. While it is away they are what was last seen.
	DatabaseAwaySince time.Time
	DatabaseError     string

	// Problems are what stops the line until somebody acts, such as a gap or a
	// missing privilege, each with its repair.
	Problems []string
	// MarksRefused is how PostgreSQL refuses to let published rows be marked,
	// with the repair. Confirming goes on, so that the table no longer checks
	// the stream.
	MarksRefused string

	Holder           string // on a standby: what another relay does, such as "the slot is in use by process 4711"
	Healing          string // what a backfill repairs; empty for a first start
	Doubt            string // what no heal could know, and the commands that decide
	TableUnseen      string // why the monitor cannot look at the table
	BackfillProgress string // how far a backfill is
	Waiting          string // why the slot is not created yet: what that waits for, and the command that ends it
	LockedRow        string // why rows that are to be marked are not: who keeps them locked, and the command that ends it
	SlotPinnedBy     string // what holds restart_lsn back

	// SampledAt is when the monitor saw what follows, and is zero before it saw
	// anything. Several inputs may carry one sample.
	SampledAt time.Time
	WALEnd    cdc.LSN // written by the server so far
	Timeline  uint32  // of the server
	// FullPages is how many full pages the server has put into WAL, since its
	// statistics were reset; nil before PostgreSQL 14.
	FullPages *int64
	// CheckpointEvery is checkpoint_timeout; 0 when it is not known.
	CheckpointEvery time.Duration
	Other           *Other // the other slot that keeps the most WAL; nil for none

	Leftover  *Slot    // beside a poller: a relay's slot; nil where there is none
	Slot      *Slot    // nil where there is none
	OldestAge *float64 // seconds, of the oldest unpublished row; nil when no relay can know, 0 when there is none
	Stream    *Stream  // as last seen; nil when Redis has not told of it
	Published uint64   // rows, since the process started

	// What follows has no level.
	Started     time.Time   // when the process started
	Connection  *Connection // nil while nothing is streamed
	Unread      bool        // nothing is received over it, since the relay holds as many rows as it may
	Connections uint64      // that streamed, since the process started
	Witness     *Witness    // nil while the table has nothing to testify
}

// WALStatuses returns every wal_status that PostgreSQL has, from good to bad.
func WALStatuses() []string {
	return []string{"reserved", "extended", "unreserved", "lost"}
}

// Slot is a replication slot as an ordinary connection sees it.
//
// https://www.postgresql.org/docs/current/view-pg-replication-slots.html
type Slot struct {
	Name             string
	Active           bool
	WALStatus        string  // reserved, extended, unreserved or lost; empty for NULL
	ConfirmedFlush   cdc.LSN // zero for NULL
	Restart          cdc.LSN // zero for NULL, such as of a lost slot
	UnconfirmedBytes *int64  // from ConfirmedFlush to the end of WAL; nil for NULL
	RetainedBytes    *int64  // from Restart to the end of WAL; nil for NULL
	SafeWALSize      *int64  // bytes that may still be written before WAL is removed; nil without a limit

	InactiveSince      time.Time // zero while it is active, and before PostgreSQL 17
	InvalidationReason string    // empty while it is valid, and before PostgreSQL 17

	ActivePID int     // of the process that streams; 0 for none
	Sender    *Sender // that process; nil for none
	Spill     *Spill  // nil before PostgreSQL 14
}

// Sender is the server's end of the connection that streams, whosever it is.
//
// https://www.postgresql.org/docs/current/monitoring-stats.html#MONITORING-PG-STAT-REPLICATION-VIEW
type Sender struct {
	Started   *time.Time `json:"started"`    // nil where the role may not see it
	LastReply *time.Time `json:"last_reply"` // when the client sent its last status, by its clock; nil before the first, and where the role may not see it
}

// Spill is what decoding for the slot put on disk, since its statistics were
// reset.
//
// https://www.postgresql.org/docs/current/monitoring-stats.html#MONITORING-PG-STAT-REPLICATION-SLOTS-VIEW
type Spill struct {
	Transactions int64 `json:"transactions"` // that did not fit into logical_decoding_work_mem
	Times        int64 `json:"times"`
	Bytes        int64 `json:"bytes"`
}

// Other is a slot that is not ours.
type Other struct {
	Name          string     `json:"name"`
	Kind          string     `json:"type"`     // physical or logical
	Database      string     `json:"database"` // empty for a physical one
	Active        bool       `json:"active"`
	Restart       cdc.LSN    `json:"restart_lsn"`
	RetainedBytes int64      `json:"retained_bytes"`
	InactiveSince *time.Time `json:"inactive_since"` // nil while it is active, and before PostgreSQL 17
}

// slotJSON is the wire form: what PostgreSQL calls NULL is null.
type slotJSON struct {
	Name             string   `json:"name"`
	Active           bool     `json:"active"`
	WALStatus        *string  `json:"wal_status"`
	ConfirmedFlush   *cdc.LSN `json:"confirmed_flush_lsn"`
	Restart          *cdc.LSN `json:"restart_lsn"`
	UnconfirmedBytes *int64   `json:"unconfirmed_bytes"`
	RetainedBytes    *int64   `json:"retained_bytes"`
	SafeWALSize      *int64   `json:"safe_wal_size"`

	InactiveSince      *time.Time `json:"inactive_since"`
	InvalidationReason *string    `json:"invalidation_reason"`

	ActivePID *int    `json:"active_pid"`
	Sender    *Sender `json:"sender"`
	Spill     *Spill  `json:"spill"`
}

// MarshalJSON writes null for what is not known: a zero would read as a slot
// without lag.
func (s Slot) MarshalJSON() ([]byte, error) {
	return json.Marshal(slotJSON{
		Name:             s.Name,
		Active:           s.Active,
		WALStatus:        nonZero(s.WALStatus),
		ConfirmedFlush:   nonZero(s.ConfirmedFlush),
		Restart:          nonZero(s.Restart),
		UnconfirmedBytes: s.UnconfirmedBytes,
		RetainedBytes:    s.RetainedBytes,
		SafeWALSize:      s.SafeWALSize,

		InactiveSince:      nonZero(s.InactiveSince.UTC()),
		InvalidationReason: nonZero(s.InvalidationReason),

		ActivePID: nonZero(s.ActivePID),
		Sender:    s.Sender,
		Spill:     s.Spill,
	})
}

// UnmarshalJSON is the inverse of MarshalJSON.
func (s *Slot) UnmarshalJSON(text []byte) error {
	var j slotJSON
	if err := json.Unmarshal(text, &j); err != nil {
		return err
	}
	*s = Slot{
		Name:             j.Name,
		Active:           j.Active,
		WALStatus:        orZero(j.WALStatus),
		ConfirmedFlush:   orZero(j.ConfirmedFlush),
		Restart:          orZero(j.Restart),
		UnconfirmedBytes: j.UnconfirmedBytes,
		RetainedBytes:    j.RetainedBytes,
		SafeWALSize:      j.SafeWALSize,

		InactiveSince:      orZero(j.InactiveSince),
		InvalidationReason: orZero(j.InvalidationReason),

		ActivePID: orZero(j.ActivePID),
		Sender:    j.Sender,
		Spill:     j.Spill,
	}
	return nil
}

func nonZero[T comparable](v T) *T {
	var zero T
	if v == zero {
		return nil
	}
	return &v
}

func orZero[T any](v *T) T {
	if v == nil {
		var zero T
		return zero
	}
	return *v
}
