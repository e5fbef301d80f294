package slot

import (
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"os"
)

const (
	// receiveBytes is how much is read at once: hundreds of rows of the usual
	// size.
	receiveBytes = 64 << 10
	// headerBytes are a message's type and length.
	headerBytes = 5
)

// receiver reads what the server sends, many messages at a time where they have
// come. The driver, which makes the connection and starts the stream, reads
// through it, and is never given more than the message it is at, so that the
// stream can go on from there without it: a message costs the driver several
// calls and a copy, and a row of its own transaction is three messages.
//
// https://www.postgresql.org/docs/current/protocol-message-formats.html
type receiver struct {
	from io.Reader

	// buf[next:end] was read and not given out. Invariant: where driver is not
	// zero, that many bytes from next on belong to a message that the driver has
	// begun to read.
	buf       []byte
	next, end int
	driver    int
	usual     []byte // buf, where no message is larger
	err       error  // why no more can be read
}

func newReceiver(from io.Reader) *receiver {
	usual := make([]byte, receiveBytes)
	return &receiver{from: from, buf: usual, usual: usual}
}

// Read is the driver's. It ends where a message does.
func (r *receiver) Read(p []byte) (int, error) {
	if r.driver == 0 {
		if err := r.fill(headerBytes); err != nil {
			return 0, err
		}
		r.driver = max(headerBytes, r.size()) // what is wrong with a length is the driver's to say
	}
	if err := r.fill(1); err != nil {
		return 0, err
	}
	n := copy(p, r.buf[r.next:min(r.end, r.next+r.driver)])
	r.next += n
	r.driver -= n
	return n, nil
}

// size is that of the message at next, whose header is there.
func (r *receiver) size() int {
	return 1 + int(binary.BigEndian.Uint32(r.buf[r.next+1:]))
}

// fill has at least n bytes from next on in the buffer. After an error it goes on
// where it was.
func (r *receiver) fill(n int) error {
	if r.next == r.end {
		r.next, r.end = 0, 0
		if len(r.buf) > receiveBytes && n <= receiveBytes {
			r.buf = r.usual // one message was larger
		}
	}
	if r.next+n > len(r.buf) {
		buf := r.buf
		if n > len(buf) {
			buf = make([]byte, n)
		}
		r.next, r.end = 0, copy(buf, r.buf[r.next:r.end])
		r.buf = buf
	}
	for r.end-r.next < n {
		if r.err != nil {
			return r.err
		}
		read, err := r.from.Read(r.buf[r.end:])
		r.end += read
		if read == 0 && err != nil {
			if !errors.Is(err, os.ErrDeadlineExceeded) {
				r.err = err // a socket may say it once
			}
			return err
		}
	}
	return nil
}

// gather reads until n bytes are there, at most receiveBytes, or reading ends, for
// which message has the reason.
func (r *receiver) gather(n int) { _ = r.fill(n) }

// message returns the next message: its type, and the rest, which is valid until
// the next call.
func (r *receiver) message() (kind byte, body []byte, err error) {
	if err := r.fill(headerBytes); err != nil {
		return 0, nil, err
	}
	size := r.size()
	if size < headerBytes || size > maxMessageBytes {
		return 0, nil, fmt.Errorf("the stream holds a message of type %q and length %d", r.buf[r.next], size-1)
	}
	if err := r.fill(size); err != nil {
		return 0, nil, err
	}
	kind, body = r.buf[r.next], r.buf[r.next+headerBytes:r.next+size]
	r.next += size
	return kind, body, nil
}

// more reports whether another frame of the stream (CopyData) has come already,
// whole. Any other message is none: what follows it may not have come.
func (r *receiver) more() bool {
	return r.buffered() >= headerBytes && r.buf[r.next] == 'd' && r.buffered() >= r.size()
}

// buffered is how many bytes were read and not given out.
func (r *receiver) buffered() int { return r.end - r.next }

// maxMessageBytes bounds what a header can make us allocate. PostgreSQL's own
// bound of what it builds in memory is 1 GiB.
const maxMessageBytes = 1<<30 + 1<<10
