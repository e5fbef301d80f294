package main

import (
	"fmt"
	"strconv"
)

// pipeline appends the rows of a shape with plain XADDs, as fast as Redis takes
// them: no database, no checkpoint, and no reply is waited for before the next
// command is sent. It is the limit that Redis sets.
func pipeline(addr, stream string, s shape) error {
	conn, err := dialRedis(addr)
	if err != nil {
		return err
	}
	defer conn.Close()
	replies := make(chan error, 1)
	go func() {
		var buf []byte
		for range s.Rows {
			if buf, err = conn.bulk(buf); err != nil {
				replies <- err
				conn.Close() // or the sender would wait for ever
				return
			}
		}
		replies <- nil
	}()
	var buf []byte
	for i := 1; i <= s.Rows; i++ {
		buf = appendCommand(buf[:0], "XADD", stream, "*", "kind", kind, "outbox_id", strconv.Itoa(i), "payload", s.payload(i))
		if _, err := conn.out.Write(buf); err != nil {
			return fmt.Errorf("row %d: %w", i, err)
		}
	}
	if err := conn.out.Flush(); err != nil {
		return err
	}
	return <-replies
}
