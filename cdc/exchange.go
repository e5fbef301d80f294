package cdc

import "time"

import "errors"

// Snapshot is a temporary slot and the view of the table at exactly the
// position where the slot starts: together they miss no row and have none twice.
type Snapshot struct {
	Name       string // for SET TRANSACTION SNAPSHOT
	Slot       string
	Consistent LSN
}

// Candidate is a row that a backfill looks at.
type Candidate struct {
	Event   Event
	Marked  bool
	Created time.Time // PostgreSQL's clock, not later than the row was written; zero where it is not known
}

// Mark is a row that is on the stream and is to be marked in the table. XID is
// the transaction that inserted it, 0 for a row that was read from the table.
type Mark struct {
	ID    string
	XID   uint32
	LSN   LSN    // where that transaction's commit record starts; 0 likewise
	Table uint32 // OID of the table that it was inserted into; 0 likewise
}

// MarkState is what became of a Mark.
type MarkState int

// The states of a Mark.
const (
	// Marked: it is marked now, was so already, or is gone.
	Marked MarkState = iota
	// MarkLocked: another session holds the row.
	MarkLocked
	// MarkInvisible: the row's transaction is committed in the WAL and not yet
	// visible, as while it waits for a synchronous standby.
	MarkInvisible
)

// AppendResult is how an append or a stamp went when Redis answered.
type AppendResult struct {
	Done bool
	// Held is the checkpoint that is there instead of the expected one, nil
	// for none.
	Held *Checkpoint
	// MissingStream names a stream that this source appended to and that is
	// gone.
	MissingStream string
	// Refused is why the events are not taken, however often that is tried.
	Refused string
}

// ErrNoAnswer says that Redis did not answer, so that it is not known whether
// it did what it was asked for.
var ErrNoAnswer = errors.New("no answer from Redis")

// Entry is one entry of a stream, as somebody wrote it.
type Entry struct {
	ID     string
	Values map[string]string
}
