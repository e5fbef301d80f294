package cdc

import (
	"cmp"
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
	Value []byte // as PostgreSQL prints the column
}

// Event is a row of the outbox on its way to a stream. Of a row read from the
// table instead of the log (a backfill), Position and Commit are zero.
type Event struct {
	Position Position
	Commit   Commit
	Table    uint32  // OID of the table; zero likewise
	ID       string  // the outbox id, as PostgreSQL prints it
	Fields   []Field // in the configured order; a NULL column is absent
	Bytes    int     // memory that the event holds, about
}
