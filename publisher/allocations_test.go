package publisher

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/stagedoor/walrelay/cdc"
	"github.com/stagedoor/walrelay/internal/allocs"
)

// willing is a connection to a Redis that has done whatever it was told. What a
// real one does with an append is tested elsewhere; here it would be in the way.
type willing struct {
	hello   bool // was said last
	waiting bool // for an answer
}

// Read implements net.Conn.
func (w *willing) Read(b []byte) (int, error) {
	if !w.waiting {
		return 0, io.EOF
	}
	w.waiting = false
	if w.hello {
		return copy(b, "-ERR unknown command 'hello'\r\n"), nil
	}
	return copy(b, "*1\r\n:1\r\n"), nil
}

// Write implements net.Conn.
func (w *willing) Write(b []byte) (int, error) {
	if !w.waiting {
		w.waiting, w.hello = true, bytes.Contains(b[:min(len(b), 20)], []byte("hello"))
	}
	return len(b), nil
}

// The rest implements net.Conn.
func (*willing) Close() error                     { return nil }
func (*willing) LocalAddr() net.Addr              { return &net.TCPAddr{} }
func (*willing) RemoteAddr() net.Addr             { return &net.TCPAddr{} }
func (*willing) SetDeadline(time.Time) error      { return nil }
func (*willing) SetReadDeadline(time.Time) error  { return nil }
func (*willing) SetWriteDeadline(time.Time) error { return nil }

// encoding appends batches, up to what goes to the network.
func encoding(tb testing.TB) []allocs.Stage {
	const rows, batches = 500, 2
	client, err := Connect("redis://127.0.0.1:1/0")
	if err != nil {
		tb.Fatal(err)
	}
	options := *client.Options()
	if err := client.Close(); err != nil {
		tb.Fatal(err)
	}
	options.ClientName = ""
	options.Dialer = func(context.Context, string, string) (net.Conn, error) { return &willing{}, nil }
	client = redis.NewClient(&options)
	tb.Cleanup(func() { client.Close() })
	p := New(client, 0, "jobs")

	var events []cdc.Event
	for i := range rows {
		events = append(events, cdc.Event{ID: fmt.Sprint(100_000 + i), Fields: []cdc.Field{
			{Name: "kind", Value: "order.placed"},
			{Name: "outbox_id", Value: fmt.Sprint(100_000 + i)},
			{Name: "payload", Value: fmt.Sprintf(`{"note": "two seats beside each other, please", "order": %d, "total": "42.00"}`, 100_000+i)},
		}})
	}
	return []allocs.Stage{{Name: "encode batches of 500 rows", Rows: batches * rows, Pass: func() {
		for range batches {
			res, err := p.Append(context.Background(), key, version(1), state(2, 0x1000), events)
			if err == nil && !res.Done {
				err = errors.New("it was not appended")
			}
			if err != nil {
				panic(err)
			}
		}
	}}}
}

func TestAllocationsPerRow(t *testing.T) { allocs.Check(t, encoding(t)...) }

func BenchmarkEncode(b *testing.B) { allocs.Benchmark(b, encoding(b)...) }
