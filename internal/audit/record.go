package audit

import (
	"encoding/binary"
	"math/bits"

	"github.com/stagedoor/walrelay/internal/match"
)

// record is a row or an entry as it is kept: its id, and a hash of each field.
//
// Eight bytes a field are enough: they are compared under one id only.
type record struct {
	id     []byte // the outbox id
	flags  byte
	time   int64  // of a row when it was created, µs, 0 for unknown; of an entry the first half of its id
	seq    uint64 // of an entry the second half of its id
	has    uint64 // the set of fields, as in match.Values
	hashes []byte // hashSize for each of them
}

const hashSize = 8

// The flags of a record.
const (
	flagMarked byte = 1 << iota // a row that is marked
	flagDead                    // an entry of the stream of dead rows
	flagLate                    // an entry that may be of a row that the snapshot does not see
)

// hashes makes the hashes of all fields that are there.
func hashes(fields match.Fields, v match.Values) []byte {
	out := make([]byte, 0, hashSize*bits.OnesCount64(v.Has))
	for rest := v.Has; rest != 0; rest &= rest - 1 {
		fp := fields.Fingerprint(v, rest&-rest)
		out = append(out, fp[:hashSize]...)
	}
	return out
}

// hash is that of field number i, which must be there.
func (r *record) hash(i int) string {
	before := bits.OnesCount64(r.has & (1<<i - 1))
	return string(r.hashes[before*hashSize : (before+1)*hashSize])
}

// is reports whether an entry is of this row, which has the same id.
func (r *record) is(entry *record) bool {
	if entry.has&^r.has != 0 {
		return false
	}
	for rest := entry.has; rest != 0; rest &= rest - 1 {
		i := bits.TrailingZeros64(rest)
		if r.hash(i) != entry.hash(i) {
			return false
		}
	}
	return true
}

// append writes the record behind b.
func (r *record) append(b []byte) []byte {
	b = binary.AppendUvarint(b, uint64(len(r.id)))
	b = append(b, r.id...)
	b = append(b, r.flags)
	b = binary.AppendVarint(b, r.time)
	b = binary.AppendUvarint(b, r.seq)
	b = binary.AppendUvarint(b, r.has)
	return append(b, r.hashes...)
}

// next reads the record at the beginning of b, whose memory it shares, and
// returns what follows it. b is what append wrote.
func next(b []byte) (r record, rest []byte) {
	size, n := binary.Uvarint(b)
	r.id, b = b[n:n+int(size)], b[n+int(size):]
	r.flags, b = b[0], b[1:]
	r.time, n = binary.Varint(b)
	b = b[n:]
	r.seq, n = binary.Uvarint(b)
	b = b[n:]
	r.has, n = binary.Uvarint(b)
	b = b[n:]
	size = hashSize * uint64(bits.OnesCount64(r.has))
	r.hashes, b = b[:size], b[size:]
	return r, b
}
