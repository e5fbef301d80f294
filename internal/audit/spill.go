package audit

import (
	"errors"
	"fmt"
	"io/fs"
	"os"

	"github.com/stagedoor/walrelay/internal/fault"
)

// spill keeps records apart by a hash of their ids, so that one part of each
// side fits into memory and has all that belongs together. What does not fit
// into the buffers goes to a temporary file, which has no name any more and so
// goes with the process, whatever ends it.
type spill struct {
	buffers [][]byte
	blocks  [][]block
	size    int // of a buffer, bytes
	file    *os.File
	end     int64
}

// block is a piece of a part in the file.
type block struct {
	offset int64
	length int
}

const (
	// partRecords is how many records of one side make a part, about.
	partRecords = 20_000
	// bufferBytes is for the buffers of all parts together.
	bufferBytes = 4 << 20
	minParts    = 16
	maxParts    = 4096
)

// parts is how many parts there should be for so many records.
func parts(records int64) int {
	n := minParts
	for int64(n)*partRecords < records && n < maxParts {
		n *= 2
	}
	return n
}

func newSpill(parts int) *spill {
	return &spill{buffers: make([][]byte, parts), blocks: make([][]block, parts), size: bufferBytes / parts}
}

// add puts a record into its part, behind those that are there.
func (s *spill) add(r *record) error {
	p := part(r.id, len(s.buffers))
	s.buffers[p] = r.append(s.buffers[p])
	if len(s.buffers[p]) < s.size {
		return nil
	}
	if s.file == nil {
		file, err := os.CreateTemp("", "walrelay-audit-")
		if err != nil {
			return noRoom(err)
		}
		_ = os.Remove(file.Name()) // where that is not possible it stays
		s.file = file
	}
	if _, err := s.file.WriteAt(s.buffers[p], s.end); err != nil {
		return noRoom(err)
	}
	s.blocks[p] = append(s.blocks[p], block{s.end, len(s.buffers[p])})
	s.end += int64(len(s.buffers[p]))
	s.buffers[p] = s.buffers[p][:0]
	return nil
}

// load appends the records of a part to b, in the order of add.
func (s *spill) load(b []byte, p int) ([]byte, error) {
	for _, block := range s.blocks[p] {
		start := len(b)
		b = append(b, make([]byte, block.length)...)
		if _, err := s.file.ReadAt(b[start:], block.offset); err != nil {
			return nil, fmt.Errorf("read the temporary file: %w", err)
		}
	}
	return append(b, s.buffers[p]...), nil
}

func (s *spill) close() {
	if s.file != nil {
		s.file.Close()
	}
}

// part is where a record with this id belongs: FNV-1a.
func part(id []byte, parts int) int {
	h := uint64(14695981039346656037)
	for _, c := range id {
		h = (h ^ uint64(c)) * 1099511628211
	}
	return int(h % uint64(parts))
}

func noRoom(err error) error {
	var path *fs.PathError
	if errors.As(err, &path) {
		err = path.Err
	}
	return &fault.Error{
		Problem: fmt.Sprintf("the audit needs room for about 50 bytes a row and an entry in %s", os.TempDir()),
		Fix:     "set the variable TMPDIR to a directory that may be written to and has room",
		Err:     err,
	}
}
