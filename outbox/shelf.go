package outbox

import (
	"strings"

	"github.com/stagedoor/walrelay/cdc"
)

// Sizes of a shelf's boards: how much is allocated at once.
const (
	valueBoard = 16 << 10 // bytes
	idBoard    = 1 << 10  // bytes: what one id holds on to that is kept for long
	fieldBoard = 384      // fields
)

// shelf is where the values of rows are kept, side by side, so that a row costs
// no allocation of its own. What it gave out stays as it is for ever; memory is
// collected a board at a time, when nothing on it is in use any more.
//
// Ids have boards of their own: they are remembered for longer than their rows,
// and would hold on to all that stands beside them. What is large stands alone:
// hundreds of rows share a board, and each holds on to all the others.
type shelf struct {
	values, ids board
	fields      []cdc.Field // what is left of the board
}

// board holds texts.
type board struct{ b *strings.Builder }

func (s *shelf) value(text []byte) string { return s.values.keep(text, valueBoard) }

func (s *shelf) id(text []byte) string { return s.ids.keep(text, idBoard) }

// large is above how many bytes something stands alone, with a board of this size.
func large(board int) int { return board / 8 }

// keep copies a text. A board has so many bytes.
func (b *board) keep(text []byte, size int) string {
	if len(text) > large(size) {
		return string(text)
	}
	if b.b == nil || b.b.Cap()-b.b.Len() < len(text) {
		b.b = &strings.Builder{}
		b.b.Grow(size)
	}
	// What is written later goes behind what was given out.
	start := b.b.Len()
	b.b.Write(text)
	return b.b.String()[start:]
}

// room is a slice without fields that can take so many, whose values will have so
// many bytes.
func (s *shelf) room(fields, bytes int) []cdc.Field {
	if bytes > large(valueBoard) {
		return make([]cdc.Field, 0, fields)
	}
	if len(s.fields) < fields {
		s.fields = make([]cdc.Field, max(fields, fieldBoard))
	}
	room := s.fields[:0:fields]
	s.fields = s.fields[fields:]
	return room
}
