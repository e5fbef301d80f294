package cdc

import (
	"fmt"
	"strconv"
	"strings"
	"time"
)

// CheckpointFormat is the only format this release reads and writes.
const CheckpointFormat = 1

// Phase says what the relay that wrote a checkpoint was doing.
type Phase string

// The phases of a checkpoint.
const (
	PhaseBackfill  Phase = "backfill"
	PhaseStreaming Phase = "streaming"
)

// Version names one state of a checkpoint. Invariant: never used twice, also
// not after Redis went back in time: Instance is random per process, and
// Counter only grows within it, whether the write succeeded or not.
type Version struct {
	Instance string
	Counter  uint64
}

// String is the version as it is stored; empty for no version.
func (v Version) String() string {
	if v == (Version{}) {
		return ""
	}
	return v.Instance + "-" + strconv.FormatUint(v.Counter, 10)
}

// ParseVersion reads what String printed.
func ParseVersion(s string) (Version, error) {
	if s == "" {
		return Version{}, nil
	}
	i := strings.LastIndexByte(s, '-')
	if i <= 0 {
		return Version{}, fmt.Errorf("checkpoint version %q: want INSTANCE-COUNTER", s)
	}
	n, err := strconv.ParseUint(s[i+1:], 10, 64)
	if err != nil || n == 0 {
		return Version{}, fmt.Errorf("checkpoint version %q: want INSTANCE-COUNTER", s)
	}
	return Version{Instance: s[:i], Counter: n}, nil
}

// Since bounds what a backfill has to look at again.
type Since struct {
	// Time is PostgreSQL's clock: rows marked before it are not looked at.
	Time time.Time `json:"time"`
	// Position is the last row that was known to be on the stream, or zero.
	Position Position `json:"position,omitzero"`
	// First says that no relay worked on this source before, so that nothing
	// is known of the rows in the table.
	First bool `json:"first,omitempty"`
}

// Checkpoint is what Redis knows of a source. It is stored beside the entries
// and replaced in the same atomic step that appends them, so the two cannot
// disagree, whatever crashes.
type Checkpoint struct {
	Version  Version `json:"-"` // stored beside the document: the script compares it
	Format   int     `json:"format"`
	Timeline uint32  `json:"timeline"`
	History  History `json:"history,omitempty"` // of that timeline
	Phase    Phase   `json:"phase"`

	// WrittenAt is when, by the clock of the relay that wrote it: for people, who
	// see by it whether one is at work. Nothing is decided by it.
	WrittenAt time.Time `json:"written_at,omitzero"`

	// Standby says that it was written while streaming from a standby. Such a
	// connection goes on over a promotion, so that it may know rows beyond the
	// point where the timelines part.
	Standby bool `json:"standby,omitempty"`

	// Last is the last streamed row that was appended: zero after a backfill.
	Last       Position `json:"last,omitzero"`
	LastCommit Commit   `json:"last_commit,omitzero"`

	// Covered is the LSN up to which nothing is missing from the streams, as
	// of the last stamp. Invariant: no confirmed LSN was ever beyond a Covered
	// that Redis held at that time.
	Covered     LSN       `json:"covered"`
	CoveredTime time.Time `json:"covered_time,omitzero"` // PostgreSQL's clock

	// Token names the backfill in progress; Since is what it goes by, nil where
	// that is still to be found out. A streaming checkpoint keeps Since until
	// the slot streams, so that a crash before the slot is made permanent
	// repeats the same backfill.
	Token string `json:"token,omitempty"`
	Since *Since `json:"since,omitempty"`

	// Generation counts the backfills of the source, so that what was found out
	// before one is not held against what came of it.
	Generation uint64 `json:"generation,omitempty"`

	// Consistent is the consistent point of the slot that the last backfill made.
	// What was committed before is on the streams without a position, so a slot of
	// that name that would deliver it is another one, of a database from before.
	Consistent LSN `json:"consistent,omitzero"`

	// Foreign is where the entries begin that others may have appended while
	// no relay streamed, nil when they no longer matter.
	Foreign *Foreign `json:"foreign,omitempty"`

	// Doubt is what a heal could not know, until an operator decides.
	Doubt *Doubt `json:"doubt,omitempty"`

	// Blocked is the row that the line stops at, nil for none.
	Blocked *Blocked `json:"blocked,omitempty"`

	// Skips are the rows that an operator asked to be skipped, by their ids.
	// They are stored beside the document, so that a relay keeps them without
	// knowing of them.
	Skips map[string]bool `json:"-"`

	// LastIDs is the id of the last entry this source appended to each stream.
	// The script fills it in, since Redis assigns the ids.
	LastIDs map[string]string `json:"-"`
	// Added is how many entries a stream ever had when the last one was appended,
	// whoever added them; 0 where Redis does not tell. The script keeps it.
	Added map[string]int64 `json:"-"`
}

// Foreign bounds entries that another program may have made of our rows.
type Foreign struct {
	After string `json:"after"` // they have higher ids in the stream
	Until LSN    `json:"until"` // and their rows were committed before it
	// Added is how many entries the stream ever had up to After; 0 if unknown.
	Added int64 `json:"added,omitempty"`
}

// Blocked is a row that cannot be published.
type Blocked struct {
	Row      string   `json:"row"` // its id, or its place where that is NULL
	Position Position `json:"position,omitzero"`
	Reason   string   `json:"reason"`
}

// Doubt says that entries may be gone that no heal puts back by itself: those
// of rows that were marked before a time.
type Doubt struct {
	Reason string    `json:"reason"`
	Before time.Time `json:"before"`
}

// StreamState is what a stream says of itself.
type StreamState struct {
	Exists       bool
	FirstID      string // of the oldest entry still there, empty for none
	LastID       string // the last id ever generated, also of a deleted entry
	MaxDeletedID string // the highest id that was deleted; Redis 7 tells
	Length       int64
	Added        int64 // entries ever added; Redis 7 tells, else 0
}

// Server is what a PostgreSQL server says of itself.
type Server struct {
	SystemID string
	Timeline uint32
	History  History // of that timeline
	Standby  bool    // it replays the WAL of another server
	Database string
	Version  int // such as 150018
	WALEnd   LSN // flushed when asked
}

// Slot is a row of pg_replication_slots.
type Slot struct {
	Name           string
	Plugin         string
	Database       string
	Active         bool
	ActivePID      int
	ActiveSince    time.Time // when that process started, by PostgreSQL's clock; zero where it is not known
	WALStatus      string    // reserved, extended, unreserved or lost
	ConfirmedFlush LSN
	RestartLSN     LSN
}
