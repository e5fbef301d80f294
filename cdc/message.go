package cdc

import "time"

// Relation describes a table as pgoutput does before its first row and after
// each change of the table.
type Relation struct {
	OID     uint32
	Table   Table
	Columns []Column
}

// Column is one column of a Relation.
type Column struct {
	Name    string
	TypeOID uint32
}

// Value is one column of a row: the text that PostgreSQL prints, or NULL.
type Value struct {
	Text []byte
	Null bool
}

// Message is one decoded pgoutput message: Begin, CommitEnd, Insert, *Relation,
// or Ignored.
type Message interface{ message() }

// Begin opens a transaction. pgoutput of protocol version 1 sends whole
// transactions, in the order of their commits.
type Begin struct{ Commit Commit }

// CommitEnd closes a transaction. End is the LSN behind the commit record, from
// which the next transaction's records may start at once.
type CommitEnd struct {
	LSN  LSN // where the commit record starts, as in Begin
	End  LSN
	Time time.Time
}

// Insert is a new row. The Values are valid until the next Decode.
type Insert struct {
	Relation *Relation
	Values   []Value // one a column of Relation, in its order
}

// Ignored is a message that never makes an entry: an update, a delete, a
// truncate, a type, an origin.
type Ignored struct{}

func (Begin) message()     {}
func (CommitEnd) message() {}
func (Insert) message()    {}
func (*Relation) message() {}
func (Ignored) message()   {}
