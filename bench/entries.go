package main

import (
	"bytes"
	"fmt"
	"hash/maphash"
	"strconv"
	"time"
)

// entries are what a stream has after a run: how many, and by Redis' clock, which
// is this machine's, when the first and the last was appended. The ids tell, so
// that nobody has to ask meanwhile.
type entries struct {
	n           int
	first, last time.Time
}

// pageBytes bounds one page of entries, about.
const pageBytes = 4 << 20

// check reads a whole stream and compares it with the rows of a shape: each must
// be there once, in the order of the commits, with the same bytes. Where the run
// was cut, only the first rows need be there.
func check(addr, stream string, s shape, cut bool) (e entries, err error) {
	conn, err := dialRedis(addr)
	if err != nil {
		return e, err
	}
	defer conn.Close()
	page := min(max(1, pageBytes/(200+s.Body)), 10_000)
	after := "-"
	var id, buf []byte
	for {
		if err := conn.do("XRANGE", stream, after, "+", "COUNT", strconv.Itoa(page)); err != nil {
			return e, err
		}
		n, err := conn.array()
		if err != nil {
			return e, err
		}
		for range n {
			if _, err := conn.array(); err != nil {
				return e, err
			}
			if id, err = conn.bulk(id); err != nil {
				return e, err
			}
			var sum uint64
			if sum, buf, err = readFields(conn, buf); err != nil {
				return e, err
			}
			e.n++
			if e.n > s.Rows {
				return e, fmt.Errorf("the stream has more than the %d rows", s.Rows)
			}
			if sum != s.sum(e.n) {
				return e, fmt.Errorf("entry %d on the stream (%s) is not row %d", e.n, id, e.n)
			}
			if e.last, err = idTime(id); err != nil {
				return e, err
			}
			if e.n == 1 {
				e.first = e.last
			}
		}
		if n < page {
			break
		}
		after = "(" + string(id)
	}
	if e.n < s.Rows && !cut {
		return e, fmt.Errorf("the stream has %d of %d rows", e.n, s.Rows)
	}
	return e, nil
}

var seed = maphash.MakeSeed()

// readFields reads the fields of an entry, and returns their sum.
func readFields(conn *respConn, buf []byte) (uint64, []byte, error) {
	n, err := conn.array()
	if err != nil {
		return 0, buf, err
	}
	var h maphash.Hash
	h.SetSeed(seed)
	for range n {
		if buf, err = conn.bulk(buf); err != nil {
			return 0, buf, err
		}
		_, _ = h.Write(buf)
		_ = h.WriteByte(0)
	}
	return h.Sum64(), buf, nil
}

// sum is that of the entry of row i.
func (s shape) sum(i int) uint64 {
	var h maphash.Hash
	h.SetSeed(seed)
	for _, word := range []string{"kind", kind, "outbox_id", strconv.Itoa(i), "payload", s.payload(i)} {
		_, _ = h.WriteString(word)
		_ = h.WriteByte(0)
	}
	return h.Sum64()
}

// idTime is when Redis made an id.
func idTime(id []byte) (time.Time, error) {
	milliseconds, _, ok := bytes.Cut(id, []byte("-"))
	n, err := strconv.ParseInt(string(milliseconds), 10, 64)
	if !ok || err != nil {
		return time.Time{}, fmt.Errorf("%q is no id of an entry", id)
	}
	return time.UnixMilli(n), nil
}
