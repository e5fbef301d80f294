package relay

import (
	"context"
	"time"

	"github.com/stagedoor/walrelay/cdc"
	"github.com/stagedoor/walrelay/internal/match"
)

// Source is PostgreSQL's replication side. Package slot provides it.
type Source interface {
	// Open connects and checks what does not depend on the slot's state.
	Open(ctx context.Context) (Session, error)
	// Prefer has Open choose a server of this timeline or a newer one where
	// there are several, and reports whether that was not so before.
	Prefer(timeline uint32) (news bool)
}

// Session is a replication connection that does not stream yet, with an
// ordinary connection to the same server beside it.
type Session interface {
	Server() cdc.Server
	// PID is that of the server's process behind the replication connection.
	PID() int
	// Slot reads the slot, nil for none.
	Slot(ctx context.Context) (*cdc.Slot, error)
	WALEnd(ctx context.Context) (cdc.LSN, error)
	Clock(ctx context.Context) (time.Time, error)
	// FirstCommit is when the first transaction of the outbox was committed that
	// the slot still delivers; false when there is none. Nobody may hold the slot.
	FirstCommit(ctx context.Context) (time.Time, bool, error)
	// EnsurePublication verifies the publication, and makes it where create is
	// set and there is none.
	EnsurePublication(ctx context.Context, create bool) error
	// Start streams from the slot's own position. ErrSlotInUse says that
	// another process was faster.
	Start(ctx context.Context) (Stream, error)
	// SenderTimeout is the server's patience with a silent client; 0 is endless.
	// A server that decodes a large transaction of other tables is silent itself
	// for up to half of it, which has to be less than the relay's own patience.
	SenderTimeout() time.Duration
	SlotMaker
	Close()
}

// SlotMaker is the part of a Session that a backfill needs.
type SlotMaker interface {
	// TryLock takes the lock on the slot's name, until the session ends.
	TryLock(ctx context.Context) (bool, error)
	// CreateTemporary makes a temporary slot and a snapshot of the same
	// moment, and says meanwhile what it has to wait for.
	CreateTemporary(ctx context.Context, waiting func(text string)) (cdc.Snapshot, error)
	// Keep makes a permanent copy of the temporary slot under the slot's name.
	Keep(ctx context.Context, s cdc.Snapshot) error
	// Drop drops the slot if there is one and no process holds it.
	Drop(ctx context.Context) error
}

// Stream is a replication connection that streams. One goroutine owns it, but
// for Interrupt and Close.
type Stream interface {
	// Gather waits until at least so many bytes have come, or the deadline, and
	// returns how many have. It takes nothing: also the end of the stream is
	// Receive's to tell.
	Gather(bytes int, deadline time.Time) (int, error)
	// Receive waits for the next message until the deadline; false then. Messages
	// that belong to no row may be left until the first call after the deadline.
	Receive(deadline time.Time) (cdc.Frame, bool, error)
	// Status reports how far this connection has come. A confirmed LSN of zero
	// reports no flush at all.
	Status(received, confirmed cdc.LSN, askReply bool) error
	// Interrupt ends the current Gather or Receive and all later ones at once.
	Interrupt()
	// Close hangs up.
	Close()
}

// Table is the outbox. Package outbox provides it.
type Table interface {
	// Check verifies table and privileges, and settles how rows are marked.
	Check(ctx context.Context) error
	// Marks reports whether published rows are marked (or deleted).
	Marks() bool
	// Fields describes the fields of an entry, in order.
	Fields() match.Fields
	// Event makes an entry of an inserted row; false for a row that needs none.
	Event(in *cdc.Insert) (cdc.Event, bool, error)
	// ID is the id of an inserted row that has its entry; false where Event is.
	ID(in *cdc.Insert) (string, bool, error)
	// Candidates opens the rows that a backfill has to look at.
	Candidates(ctx context.Context, s cdc.Snapshot, since cdc.Since) (Candidates, error)
	// Rows reads rows by their ids, as the entries that they make; those that
	// are not there are left out.
	Rows(ctx context.Context, ids []string) ([]cdc.Event, error)
	// Published reports whether a row is marked, or gone where marked rows are
	// deleted, and when it was created: zero if that is not known.
	Published(ctx context.Context, id string) (marked bool, created time.Time, err error)
	// KeepsRows reports whether published rows stay in the table.
	KeepsRows() bool
	// Mark marks rows that are on the stream.
	Mark(ctx context.Context, rows []cdc.Mark) ([]cdc.MarkState, error)
	// Locker says who holds a row that could not be marked.
	Locker(ctx context.Context, id string) (string, error)
}

// Candidates are the rows a backfill looks at, in one snapshot.
type Candidates interface {
	// Count is how many there are, and the oldest creation time, zero if unknown.
	Count(ctx context.Context) (int64, time.Time, error)
	// Each calls fn for each row, in the same order every time.
	Each(ctx context.Context, fn func(cdc.Candidate) error) error
	Close()
}

// Sink is Redis. Package publisher provides it.
type Sink interface {
	// Append replaces the checkpoint and appends the events, or does nothing.
	// After an error it may be repeated with the same arguments.
	Append(ctx context.Context, key string, expected cdc.Version, next cdc.Checkpoint, events []cdc.Event) (cdc.AppendResult, error)
	// Load reads the checkpoint, nil for none, and then the streams.
	Load(ctx context.Context, key string) (*cdc.Checkpoint, map[string]cdc.StreamState, error)
	// Entries reads a stream from one id to another, both included.
	Entries(ctx context.Context, stream, first, last string, fn func(cdc.Entry) error) error
	// EntriesBack reads a stream from an id, included, towards its beginning,
	// until fn says that it has seen enough.
	EntriesBack(ctx context.Context, stream, last string, fn func(cdc.Entry) (more bool, err error)) error
	// HangUp ends what is waiting for Redis, for good: the process stops.
	HangUp()
	// Clock is the time by which Redis makes entry ids.
	Clock(ctx context.Context) (time.Time, error)
}
