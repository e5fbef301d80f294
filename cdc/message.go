package cdc

import "time"

// Frame is one message of the replication connection, around pgoutput's own.
// It holds either WAL data or a keepalive.
type Frame struct {
	WAL            []byte // a pgoutput message, valid until more is received; nil for a keepalive
	Keepalive      bool
	WALEnd         LSN       // of a keepalive: everything committed before it has been sent
	ServerTime     time.Time // PostgreSQL's clock when it sent this
	ReplyRequested bool
	More           bool // the next frame has come already
}

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

// Message is one decoded pgoutput message: *Begin, *CommitEnd, *Insert,
// *Relation or *Ignored. All but *Relation are valid until the next Decode.
type Message interface{ message() }

// Begin opens a transaction. pgoutput of protocol version 1 sends whole
// transactions, in the order of their commits.
type Begin struct{ Commit Commit }

// CommitEnd closes a transaction. End is the LSN behind the commit record, at
// which the next transaction's first record may start.
type CommitEnd struct {
	Commit Commit
	End    LSN
}

// Insert is a new row of the open transaction.
type Insert struct {
	Relation *Relation
	Position Position
	Commit   Commit
	Values   []Value // one a column of Relation, in its order
}

// Ignored is a message that never makes an entry: an update, a delete, a
// truncate, a type, an origin, a logical message.
type Ignored struct{}

func (*Begin) message()     {}
func (*CommitEnd) message() {}
func (*Insert) message()    {}
func (*Relation) message()  {}
func (*Ignored) message()   {}
