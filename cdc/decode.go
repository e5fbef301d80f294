package cdc

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"time"
)

// Decoder turns pgoutput messages of protocol version 1 into changes. It keeps
// the relations and the open transaction, so one Decoder belongs to one
// connection and sees each of its messages once, in order.
//
// https://www.postgresql.org/docs/current/protocol-logicalrep-message-formats.html
type Decoder struct {
	relations map[uint32]*Relation

	// Invariant: open is true exactly between a Begin and its Commit, and
	// ordinal is the number of Inserts received in between.
	open    bool
	commit  Commit
	ordinal uint64

	// The messages handed out, reused so that a row costs no allocation.
	begin  Begin
	end    CommitEnd
	insert Insert
}

// NewDecoder returns a Decoder for a connection that has just started.
func NewDecoder() *Decoder {
	return &Decoder{relations: map[uint32]*Relation{}}
}

// InTransaction reports whether a Begin was decoded and its Commit was not:
// then a keepalive says nothing about what has been received.
func (d *Decoder) InTransaction() bool { return d.open }

// ErrUnknownMessage says that the server sent what this release cannot decode.
// Skipping it could skip a row.
var ErrUnknownMessage = errors.New("unknown pgoutput message")

// Decode reads one message. An error means that the connection cannot be
// followed any further.
func (d *Decoder) Decode(data []byte) (Message, error) {
	if len(data) == 0 {
		return nil, fmt.Errorf("%w: it is empty", ErrUnknownMessage)
	}
	r := reader{rest: data[1:]}
	var m Message
	var err error
	switch kind := data[0]; kind {
	case 'B':
		m, err = d.decodeBegin(&r)
	case 'C':
		m, err = d.decodeCommit(&r)
	case 'R':
		m, err = d.decodeRelation(&r)
	case 'I':
		m, err = d.decodeInsert(&r)
	case 'U', 'D', 'T', 'Y', 'O', 'M':
		return &Ignored{}, nil
	default:
		return nil, fmt.Errorf("%w: type %q, %d bytes", ErrUnknownMessage, kind, len(data))
	}
	if err == nil && r.short {
		err = errors.New("it ends early")
	}
	if err == nil && len(r.rest) > 0 {
		err = fmt.Errorf("%d bytes are left over", len(r.rest))
	}
	if err != nil {
		return nil, fmt.Errorf("pgoutput message of type %q, %d bytes: %w", data[0], len(data), err)
	}
	return m, nil
}

func (d *Decoder) decodeBegin(r *reader) (Message, error) {
	c := Commit{LSN: r.lsn(), Time: r.time(), XID: r.uint32()}
	switch {
	case r.short:
		return nil, nil
	case d.open:
		return nil, fmt.Errorf("transaction %d begins inside of transaction %d", c.XID, d.commit.XID)
	case c.LSN == 0:
		return nil, errors.New("the transaction has no commit LSN")
	}
	d.open, d.commit, d.ordinal = true, c, 0
	d.begin = Begin{Commit: c}
	return &d.begin, nil
}

func (d *Decoder) decodeCommit(r *reader) (Message, error) {
	r.uint8() // flags, unused
	lsn, end := r.lsn(), r.lsn()
	r.time()
	switch {
	case r.short:
		return nil, nil
	case !d.open:
		return nil, errors.New("a transaction ends that did not begin")
	case lsn != d.commit.LSN:
		return nil, fmt.Errorf("transaction %d was to commit at %s and commits at %s", d.commit.XID, d.commit.LSN, lsn)
	case end <= lsn:
		return nil, fmt.Errorf("transaction %d ends at %s, before its commit record at %s", d.commit.XID, end, lsn)
	}
	d.open = false
	d.end = CommitEnd{Commit: d.commit, End: end}
	return &d.end, nil
}

func (d *Decoder) decodeRelation(r *reader) (Message, error) {
	rel := &Relation{OID: r.uint32()}
	rel.Table = Table{Schema: r.string(), Name: r.string()}
	if rel.Table.Schema == "" {
		rel.Table.Schema = "pg_catalog" // sent as the empty string
	}
	r.uint8() // replica identity
	n := int(r.uint16())
	for i := 0; i < n && !r.short; i++ {
		r.uint8() // flags: part of the key
		column := Column{Name: r.string(), TypeOID: r.uint32()}
		r.uint32() // type modifier
		rel.Columns = append(rel.Columns, column)
	}
	if r.short || len(r.rest) > 0 {
		return rel, nil
	}
	d.relations[rel.OID] = rel
	return rel, nil
}

func (d *Decoder) decodeInsert(r *reader) (Message, error) {
	oid, tuple := r.uint32(), r.uint8()
	switch {
	case r.short:
		return nil, nil
	case !d.open:
		return nil, errors.New("a row outside of a transaction")
	case tuple != 'N':
		return nil, fmt.Errorf("the row is of kind %q, not a new tuple", tuple)
	}
	rel := d.relations[oid]
	if rel == nil {
		return nil, fmt.Errorf("a row of relation %d, which was not described", oid)
	}
	n := int(r.uint16())
	if n != len(rel.Columns) && !r.short {
		return nil, fmt.Errorf("a row of %s has %d columns, the table was described with %d", rel.Table, n, len(rel.Columns))
	}
	d.insert.Values = d.insert.Values[:0]
	for i := 0; i < n && !r.short; i++ {
		switch kind := r.uint8(); kind {
		case 'n':
			d.insert.Values = append(d.insert.Values, Value{Null: true})
		case 't':
			d.insert.Values = append(d.insert.Values, Value{Text: r.bytes(r.uint32())})
		default:
			if !r.short {
				return nil, fmt.Errorf("column %q of %s comes as %q, not as text", rel.Columns[i].Name, rel.Table, kind)
			}
		}
	}
	d.insert.Relation = rel
	d.insert.Commit = d.commit
	d.insert.Position = Position{LSN: d.commit.LSN, Ordinal: d.ordinal}
	if !r.short {
		d.ordinal++
	}
	return &d.insert, nil
}

// reader takes fields off the front of a message. Past the end it returns
// zeros and sets short, so that a decoder checks once.
type reader struct {
	rest  []byte
	short bool
}

func (r *reader) bytes(n uint32) []byte {
	if uint64(n) > uint64(len(r.rest)) {
		r.short, r.rest = true, nil
		return nil
	}
	b := r.rest[:n:n]
	r.rest = r.rest[n:]
	return b
}

func (r *reader) uint8() byte {
	if b := r.bytes(1); b != nil {
		return b[0]
	}
	return 0
}

func (r *reader) uint16() uint16 {
	if b := r.bytes(2); b != nil {
		return binary.BigEndian.Uint16(b)
	}
	return 0
}

func (r *reader) uint32() uint32 {
	if b := r.bytes(4); b != nil {
		return binary.BigEndian.Uint32(b)
	}
	return 0
}

func (r *reader) uint64() uint64 {
	if b := r.bytes(8); b != nil {
		return binary.BigEndian.Uint64(b)
	}
	return 0
}

func (r *reader) lsn() LSN { return LSN(r.uint64()) }

// time reads microseconds since 2000-01-01.
func (r *reader) time() time.Time { return Time(int64(r.uint64())) }

// string reads up to a zero byte.
func (r *reader) string() string {
	i := bytes.IndexByte(r.rest, 0)
	if i < 0 {
		r.short, r.rest = true, nil
		return ""
	}
	s := string(r.rest[:i])
	r.rest = r.rest[i+1:]
	return s
}
