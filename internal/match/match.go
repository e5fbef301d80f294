// Package match says whether an entry of a stream and a row of the outbox are
// the same.
//
// They are if they have the same id and the same values in all of our fields
// that the entry has, whoever wrote it. JSON is compared as values, since others
// spell it differently. Ids alone do not do: after a failover they are issued
// again.
package match

import (
	"crypto/sha256"
	"encoding/binary"

	"github.com/stagedoor/walrelay/cdc"
)

// Field describes a field of an entry.
type Field struct {
	Name string
	ID   bool // it holds the outbox id
	JSON bool // its values are compared as JSON
}

// Fields are the fields of an entry, in order, 64 of them at most.
type Fields []Field

// Values are what an entry or a row has in our fields. They share the memory of
// what they were made of.
type Values struct {
	// Has is the set of the fields that are there: bit i for field i.
	Has   uint64
	texts []string
}

// OfEntry is false for an entry without our id field, which is none of ours.
func (fs Fields) OfEntry(e cdc.Entry) (Values, bool) {
	v := Values{texts: make([]string, len(fs))}
	id := false
	for i, f := range fs {
		if text, ok := e.Values[f.Name]; ok {
			v.Has |= 1 << i
			v.texts[i] = text
			id = id || f.ID
		}
	}
	return v, id
}

// OfRow is false for an event whose fields are not these, in their order.
func (fs Fields) OfRow(ev cdc.Event) (Values, bool) {
	v := Values{texts: make([]string, len(fs))}
	i := 0
	for _, f := range ev.Fields {
		for i < len(fs) && fs[i].Name != f.Name {
			i++
		}
		if i == len(fs) {
			return Values{}, false
		}
		v.Has |= 1 << i
		v.texts[i] = f.Value
	}
	return v, true
}

// ID is the outbox id; empty where it is not among the values.
func (fs Fields) ID(v Values) string {
	for i, f := range fs {
		if f.ID && v.Has&(1<<i) != 0 {
			return v.texts[i]
		}
	}
	return ""
}

// Fingerprint is the hash of some fields.
type Fingerprint [16]byte

// Fingerprint covers which fields are in the mask, all of which must be there,
// and their values.
func (fs Fields) Fingerprint(v Values, mask uint64) Fingerprint {
	h := sha256.New()
	var n [8]byte
	binary.BigEndian.PutUint64(n[:], mask)
	h.Write(n[:])
	for i, f := range fs {
		if mask&(1<<i) == 0 {
			continue
		}
		text := []byte(v.texts[i])
		if f.JSON {
			text = canonicalJSON(text)
		}
		binary.BigEndian.PutUint64(n[:], uint64(len(text)))
		h.Write(n[:])
		h.Write(text)
	}
	var fp Fingerprint
	copy(fp[:], h.Sum(nil))
	return fp
}
