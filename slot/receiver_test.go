package slot

import (
	"bytes"
	"encoding/binary"
	"errors"
	"io"
	"os"
	"testing"
	"testing/iotest"
)

// network delivers bytes in pieces of the given sizes, again and again, and has a
// read time out between any two of them.
type network struct {
	rest   []byte
	pieces []byte
	reads  int
}

func (n *network) Read(p []byte) (int, error) {
	n.reads++
	if n.reads%2 == 0 {
		return 0, os.ErrDeadlineExceeded
	}
	if len(n.rest) == 0 {
		return 0, io.EOF
	}
	size := len(n.rest)
	if len(n.pieces) > 0 {
		piece := int(n.pieces[n.reads/2%len(n.pieces)])
		size = 1 + piece*piece
	}
	read := copy(p, n.rest[:min(size, len(n.rest))])
	n.rest = n.rest[read:]
	return read, nil
}

// message is one of the protocol.
func message(kind byte, body string) []byte {
	b := append([]byte{kind}, 0, 0, 0, 0)
	binary.BigEndian.PutUint32(b[1:], uint32(4+len(body)))
	return append(b, body...)
}

// patiently repeats what a time-out cut short.
func patiently(read func() error) error {
	for {
		if err := read(); !errors.Is(err, os.ErrDeadlineExceeded) {
			return err
		}
	}
}

// Whatever the pieces in which messages come, and wherever a read is cut short,
// the driver gets its messages whole and none of the next, and the stream those
// that follow.
func FuzzReceiver(f *testing.F) {
	f.Add([]byte("driver"), []byte("stream"), []byte{0, 6, 200}, uint8(3), uint16(0))
	f.Add(bytes.Repeat([]byte("x"), receiveBytes), bytes.Repeat([]byte("y"), 3*receiveBytes), []byte{255}, uint8(255), uint16(5000))
	f.Add([]byte("xyz"), bytes.Repeat([]byte("y"), 1000), []byte{7, 30}, uint8(255), uint16(900))
	f.Add([]byte{}, []byte{}, []byte{}, uint8(0), uint16(1))
	f.Fuzz(func(t *testing.T, first, second, pieces []byte, window uint8, together uint16) {
		started := message('W', string(first))
		var all []byte
		all = append(all, started...)
		all = append(all, message('d', string(second))...)
		all = append(all, message('N', "a notice")...)
		all = append(all, message('d', "")...)
		r := newReceiver(&network{rest: all, pieces: pieces})
		var got []byte
		p := make([]byte, 1+int(window))
		for len(got) < len(started) {
			n := 0
			if err := patiently(func() (err error) { n, err = r.Read(p); return err }); err != nil {
				t.Fatal(err)
			}
			got = append(got, p[:n]...)
		}
		if !bytes.Equal(got, started) {
			t.Fatalf("the driver got %d bytes of a message of %d", len(got), len(started))
		}
		for i, want := range [][]byte{second, []byte("a notice"), {}} {
			frame := i != 1
			var kind byte
			var body []byte
			r.gather(int(together)) // which a time-out cuts short
			more := r.more()
			reads := r.from.(*network).reads
			if err := patiently(func() (err error) { kind, body, err = r.message(); return err }); err != nil {
				t.Fatal(err)
			}
			if (kind == 'd') != frame || !bytes.Equal(body, want) {
				t.Fatalf("the stream got a message %q of %d bytes, want %d", kind, len(body), len(want))
			}
			if now := r.from.(*network).reads; more != (now == reads && frame) {
				t.Fatalf("more is %v, and then came %d reads of %q", more, now-reads, kind)
			}
		}
		if err := patiently(func() error { _, _, err := r.message(); return err }); !errors.Is(err, io.EOF) {
			t.Fatalf("after the last message: %v", err)
		}
		if len(r.buf) > receiveBytes {
			t.Fatalf("%d bytes are kept for the next message", len(r.buf))
		}
	})
}

// A length that cannot be is an error for both readers, not memory.
func TestReceiverRefusesLengthsThatCannotBe(t *testing.T) {
	for _, length := range []uint32{0, 3, 1<<31 - 1, 1<<32 - 1} {
		header := binary.BigEndian.AppendUint32([]byte{'d'}, length)
		if _, _, err := newReceiver(iotest.OneByteReader(bytes.NewReader(header))).message(); err == nil || errors.Is(err, io.EOF) {
			t.Errorf("length %d: %v", length, err)
		}
		got := make([]byte, len(header))
		if _, err := io.ReadFull(newReceiver(bytes.NewReader(header)), got); err != nil || !bytes.Equal(got, header) {
			t.Errorf("length %d: the driver got %q, %v", length, got, err)
		}
	}
}
