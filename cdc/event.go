package cdc

import (
	"cmp"
	"strconv"
	"time"
)

// Position is the place of a row in the order of commits.
//
// LSN is the final LSN of the Begin message, which is where the transaction's
// commit record starts. Ordinal is the index, from 0, of the Insert within its
// transaction as it was received, before any filter. A slot delivers positions
// in growing order and, after a restart, the same positions again.
type Position struct {
	LSN     LSN    `json:"lsn"`
	Ordinal uint64 `json:"ordinal"`
}

// IsZero reports whether there is no position: no commit starts at LSN 0.
func (p Position) IsZero() bool { return p.LSN == 0 }

// String is how an operator reads and writes it, such as 0/16B3748/2.
func (p Position) String() string {
	return p.LSN.String() + "/" + strconv.FormatUint(p.Ordinal, 10)
}

// Compare orders positions as the slot delivers them.
func (p Position) Compare(q Position) int {
	return cmp.Or(cmp.Compare(p.LSN, q.LSN), cmp.Compare(p.Ordinal, q.Ordinal))
}

// Commit identifies a transaction. LSN alone does not: after a restored backup
// another transaction can commit at the same place.
type Commit struct {
	LSN  LSN       `json:"lsn"`
	XID  uint32    `json:"xid"`
	Time time.Time `json:"time"` // PostgreSQL's clock, in microseconds
}

// Equal reports whether both are the same transaction of the same history.
func (c Commit) Equal(d Commit) bool {
	return c.LSN == d.LSN && c.XID == d.XID && c.Time.Equal(d.Time)
}

// Field is one name and value of a stream entry.
type Field struct {
	Name  string
	Value string // as PostgreSQL prints the column
}

// Event is a row of the outbox on its way to a stream. Of a row read from the
// table instead of the log (a backfill), Position and Commit are zero.
type Event struct {
	Position Position
	Commit   Commit
	Table    uint32  // OID of the table; zero likewise
	ID       string  // the outbox id, as PostgreSQL prints it; where it is NULL, the row's place
	NoID     bool    // it is NULL
	Fields   []Field // in the configured order; a NULL column is absent
	Bytes    int     // memory that the event holds, about

	// Unfit is why no entry can be made of the row, nil for most. Fields are
	// then those that are known.
	Unfit error
	// SkipAsked says that an operator asked for the row to be skipped, which
	// this append settles. Dead says that it is: it goes to the dead stream.
	SkipAsked, Dead bool
}

// DeadStream is where the rows of a stream go that cannot be published and are
// skipped.
func DeadStream(stream string) string { return stream + ":dead" }

// What an entry of a dead stream has beside the fields of its row.
const (
	DeadReason   = "walrelay_reason"   // why the row could not be published
	DeadPosition = "walrelay_position" // its Position, or its place in the table; absent where that is not known
)
