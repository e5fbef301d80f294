package main

import (
	"bufio"
	"errors"
	"fmt"
	"io"
	"net"
	"strconv"
)

// respConn speaks to Redis without a library in between, whose work would count
// for what is measured, or make checking as slow as measuring.
// https://redis.io/docs/latest/develop/reference/protocol-spec/
type respConn struct {
	net.Conn
	in  *bufio.Reader
	out *bufio.Writer
}

func dialRedis(addr string) (*respConn, error) {
	conn, err := net.Dial("tcp", addr)
	if err != nil {
		return nil, err
	}
	return &respConn{Conn: conn, in: bufio.NewReaderSize(conn, 256<<10), out: bufio.NewWriterSize(conn, 64<<10)}, nil
}

// appendCommand encodes a command.
func appendCommand(b []byte, words ...string) []byte {
	b = append(b, '*')
	b = strconv.AppendInt(b, int64(len(words)), 10)
	b = append(b, "\r\n"...)
	for _, word := range words {
		b = append(b, '$')
		b = strconv.AppendInt(b, int64(len(word)), 10)
		b = append(b, "\r\n"...)
		b = append(b, word...)
		b = append(b, "\r\n"...)
	}
	return b
}

// do sends a command; its reply is still to be read.
func (c *respConn) do(words ...string) error {
	if _, err := c.out.Write(appendCommand(nil, words...)); err != nil {
		return err
	}
	return c.out.Flush()
}

// header reads the line that a value begins with: its type, and the number or
// length in it. A simple string has none.
func (c *respConn) header() (kind byte, n int, err error) {
	line, err := c.in.ReadSlice('\n')
	if err != nil {
		return 0, 0, err
	}
	if len(line) < 3 {
		return 0, 0, fmt.Errorf("redis says %q", line)
	}
	kind, line = line[0], line[1:len(line)-2]
	switch kind {
	case '-':
		return 0, 0, errors.New("redis says " + string(line))
	case '+':
		return kind, 0, nil
	case ':', '$', '*':
		n, err = strconv.Atoi(string(line))
		return kind, n, err
	}
	return 0, 0, fmt.Errorf("redis says %q", string(kind)+string(line))
}

// array reads the length of an array.
func (c *respConn) array() (int, error) {
	kind, n, err := c.header()
	if err == nil && kind != '*' {
		err = fmt.Errorf("redis sent a value of type %q, not an array", kind)
	}
	return n, err
}

// bulk reads a string into buf, which it returns, grown where needed.
func (c *respConn) bulk(buf []byte) ([]byte, error) {
	kind, n, err := c.header()
	if err != nil {
		return buf, err
	}
	if kind != '$' || n < 0 {
		return buf, fmt.Errorf("redis sent a value of type %q and length %d, not a string", kind, n)
	}
	if cap(buf) < n+2 {
		buf = make([]byte, n+2)
	}
	buf = buf[:n+2]
	if _, err := io.ReadFull(c.in, buf); err != nil {
		return buf, err
	}
	return buf[:n], nil
}
