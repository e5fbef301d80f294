package slot

import (
	"log/slog"
	"net"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/pgproto3"
)

// fakeStream is a stream whose messages are what the test writes to the other end.
func fakeStream(t *testing.T) (*Stream, net.Conn) {
	t.Helper()
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer listener.Close()
	conn, err := net.Dial("tcp", listener.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	server, err := listener.Accept()
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { conn.Close(); server.Close() })
	cfg, err := pgconn.ParseConfig("host=127.0.0.1")
	if err != nil {
		t.Fatal(err)
	}
	r := newReceiver(conn)
	driver, err := pgconn.Construct(&pgconn.HijackedConn{Conn: conn, Frontend: pgproto3.NewFrontend(r, conn), Config: cfg})
	if err != nil {
		t.Fatal(err)
	}
	return &Stream{
		conn: driver, receiver: r, lowWater: newLowWater(conn), wire: &wire{ctx: t.Context()}, log: slog.Default(),
	}, server
}

// The smallest transaction with a row, as PostgreSQL sends it.
// https://www.postgresql.org/docs/current/protocol-logicalrep-message-formats.html
var (
	walHeader   = "w" + strings.Repeat("\x00", 24)
	leastBegin  = message('d', walHeader+"B"+strings.Repeat("\x00", 20))
	leastInsert = message('d', walHeader+"I\x00\x00\x00\x01N\x00\x01t\x00\x00\x00\x00")
	leastCommit = message('d', walHeader+"C"+strings.Repeat("\x00", 25))
	keepalive   = message('d', "k"+strings.Repeat("\x00", 17))
)

// However its bytes come, a transaction with a row waits for nothing that comes after
// it.
func TestTransactionWaitsForNothing(t *testing.T) {
	if size := len(leastBegin) + len(leastInsert) + len(leastCommit); size != leastTransaction {
		t.Fatalf("the smallest transaction with a row has %d bytes, not %d", size, leastTransaction)
	}
	row := slices.Concat(leastBegin, leastInsert, leastCommit)
	whole := slices.Concat(keepalive, keepalive, row)
	for name, pieces := range map[string][][]byte{
		"at once":            {whole},
		"one by one":         {keepalive, leastBegin, leastInsert, leastCommit},
		"Begin before":       {slices.Concat(keepalive, leastBegin), leastInsert, leastCommit},
		"Commit after":       {slices.Concat(leastBegin, leastInsert), leastCommit},
		"cut in a keepalive": {whole[:7], whole[7:]},
		"cut in Begin":       {whole[:60], whole[60:]},
		"cut in Insert":      {whole[:120], whole[120:]},
		"byte by byte":       slices.Collect(slices.Chunk(whole, 1)),
		"cut in its header":  {row[:3], row[3:]},
		"cut in the first":   {row[:20], row[20:]},
		"cut in the second":  {row[:60], row[60:]},
	} {
		t.Run(name, func(t *testing.T) {
			st, server := fakeStream(t)
			for range 5 {
				if _, err := server.Write(pieces[0]); err != nil {
					t.Fatal(err) // it is there when the reader looks
				}
				// Whether another has been read when the next one comes is left to chance.
				written := make(chan error, 1)
				go func() {
					for _, piece := range pieces[1:] {
						time.Sleep(time.Millisecond)
						if _, err := server.Write(piece); err != nil {
							written <- err
							return
						}
					}
					written <- nil
				}()
				var got string
				for got != "BIC" {
					if f := receive(t, st); !f.Keepalive {
						got += string(f.WAL[:1])
					}
				}
				if err := <-written; err != nil {
					t.Fatal(err)
				}
			}
		})
	}
}

// PostgreSQL itself sends no less.
func TestSmallestTransaction(t *testing.T) {
	w := onCommon(t)
	_, st := w.stream()
	w.exec(`CREATE TABLE tiny (id text)`)
	w.exec(`ALTER PUBLICATION walrelay ADD TABLE tiny`)
	for range 3 {
		w.exec(`INSERT INTO tiny VALUES ('')`)
		receiveInsert(t, st)
		for f := receive(t, st); f.Keepalive || f.WAL[0] != 'C'; f = receive(t, st) {
		}
	}
}

// What is too little to wake anybody wakes nobody, and is received by the next call
// after the deadline.
func TestKeepaliveWaitsForTheDeadline(t *testing.T) {
	st, server := fakeStream(t)
	const wait = 50 * time.Millisecond
	waited := 0
	for until := time.Now().Add(soon); waited < 3 && time.Now().Before(until); {
		deadline := time.Now().Add(wait)
		written := make(chan time.Time, 1)
		go func() {
			time.Sleep(time.Millisecond)
			_, _ = server.Write(keepalive)
			written <- time.Now()
		}()
		f, ok, err := st.Receive(deadline) // it may come before the reader waits
		if at := <-written; !ok && err == nil {
			if deadline.Sub(at) > wait/2 {
				waited++
			}
			f, ok, err = st.Receive(time.Now().Add(soon))
		}
		if !ok || err != nil || !f.Keepalive {
			t.Fatalf("received %+v, %v", f, err)
		}
	}
	if waited < 3 {
		t.Error("keepalives wake the reader")
	}
}

// The end of the stream wakes at once, however little is said before.
func TestEndWaitsForNothing(t *testing.T) {
	for name, last := range map[string][]byte{
		"in order":   slices.Concat(message('c', ""), message('C', "COPY 0\x00")),
		"a hang-up":  nil,
		"in between": leastBegin,
	} {
		t.Run(name, func(t *testing.T) {
			st, server := fakeStream(t)
			go func() {
				time.Sleep(time.Millisecond)
				_, _ = server.Write(last)
				server.Close()
			}()
			for {
				_, ok, err := st.Receive(time.Now().Add(soon))
				if err != nil {
					return
				}
				if !ok {
					t.Fatal("the end was not noticed")
				}
			}
		})
	}
}
