package testservers

import (
	"bufio"
	"errors"
	"io"
	"net"
	"os"
	"strings"
	"sync/atomic"
	"syscall"
	"testing"
	"time"
)

// wire is a connection that speaks Redis' inline commands: a client that does
// nothing by itself, unlike those that reconnect and try again.
type wire struct {
	net.Conn
	replies *bufio.Reader
}

func dial(t *testing.T, addr string) *wire {
	t.Helper()
	conn, err := net.Dial("tcp", addr)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { conn.Close() })
	if err := conn.SetDeadline(time.Now().Add(patience)); err != nil {
		t.Fatal(err)
	}
	return &wire{Conn: conn, replies: bufio.NewReader(conn)}
}

func (w *wire) ask(command string) (string, error) {
	if _, err := io.WriteString(w, command+"\r\n"); err != nil {
		return "", err
	}
	return w.reply()
}

func (w *wire) reply() (string, error) {
	line, err := w.replies.ReadString('\n')
	return strings.TrimRight(line, "\r\n"), err
}

// expect asks and compares.
func (w *wire) expect(t *testing.T, command, want string) {
	t.Helper()
	if got, err := w.ask(command); err != nil || got != want {
		t.Errorf("%s: %q, %v; want %q", command, got, err, want)
	}
}

// expectGone fails if the connection still works.
func (w *wire) expectGone(t *testing.T) {
	t.Helper()
	if got, err := w.ask("PING"); err == nil || errors.Is(err, os.ErrDeadlineExceeded) {
		t.Errorf("the connection answers %q, %v; want it closed", got, err)
	}
}

// newProxy returns a proxy before a Redis, a connection through it that is in
// use, and one that goes to the server directly. There, counter is 1.
func newProxy(t *testing.T) (p *Proxy, through, direct *wire) {
	t.Helper()
	r := StartRedis(t, RedisOptions{})
	p = StartProxy(t, r.Addr())
	through, direct = dial(t, p.Addr()), dial(t, r.Addr())
	through.expect(t, "INCR counter", ":1")
	return p, through, direct
}

func TestProxyPassesBytesAndCounts(t *testing.T) {
	p, through, _ := newProxy(t)
	requested, replied := p.Requested(), p.Replied()
	text := strings.Repeat("x", 60<<10)
	for range 20 { // more than one buffer of whatever lies between
		if got, err := through.ask("PING " + text); err != nil || !strings.HasPrefix(got, "$") {
			t.Fatalf("%.10q, %v", got, err)
		}
		if got, err := through.reply(); err != nil || got != text {
			t.Fatalf("%d bytes came back, %v; want %d", len(got), err, len(text))
		}
	}
	if n, want := p.Requested()-requested, int64(20*len("PING "+text+"\r\n")); n != want {
		t.Errorf("%d bytes requested; want %d", n, want)
	}
	if n, want := p.Replied()-replied, int64(20*len("$61440\r\n"+text+"\r\n")); n != want {
		t.Errorf("%d bytes replied; want %d", n, want)
	}
	if p.Connections() != 1 || p.Open() != 1 {
		t.Errorf("%d connections, %d open; want 1, 1", p.Connections(), p.Open())
	}
	through.Close()
	eventually(t, "wait for the proxy to see the client leave", func() bool { return p.Open() == 0 })
}

func TestProxyDropClosesOnceAndWelcomesBack(t *testing.T) {
	p, through, _ := newProxy(t)
	p.Drop()
	through.expectGone(t)
	dial(t, p.Addr()).expect(t, "PING", "+PONG")
	if n := p.Connections(); n != 2 {
		t.Errorf("%d connections; want 2", n)
	}
}

func TestProxyCutRefusesUntilRestored(t *testing.T) {
	p, through, _ := newProxy(t)
	for range 2 { // cut twice is cut
		p.Cut()
	}
	through.expectGone(t)
	if _, err := net.Dial("tcp", p.Addr()); !errors.Is(err, syscall.ECONNREFUSED) {
		t.Errorf("a new connection: %v; want it refused", err)
	}
	for range 2 {
		p.Restore()
	}
	dial(t, p.Addr()).expect(t, "PING", "+PONG")
}

func TestProxyStallMovesNothingAndLosesNothing(t *testing.T) {
	p, through, direct := newProxy(t)
	p.Stall()
	before := p.Requested()
	late := dial(t, p.Addr()) // taken, and not served either
	for _, w := range []*wire{through, late} {
		if _, err := io.WriteString(w, "INCR counter\r\n"); err != nil {
			t.Fatal(err)
		}
	}
	eventually(t, "wait for the second connection", func() bool { return p.Open() == 2 })
	direct.expect(t, "INCR counter", ":2")
	if p.Requested() != before {
		t.Error("something was counted as moved")
	}
	p.Stall() // again is no more than once
	p.Resume()
	sum := ""
	for _, w := range []*wire{through, late} {
		got, err := w.reply()
		if err != nil {
			t.Errorf("after resume: %v", err)
		}
		sum += got
	}
	if sum != ":3:4" && sum != ":4:3" {
		t.Errorf("the stalled requests were answered %s", sum)
	}
}

func TestProxyCutEndsStalledConnections(t *testing.T) {
	p, through, direct := newProxy(t)
	p.Stall()
	if _, err := io.WriteString(through, "INCR counter\r\n"); err != nil {
		t.Fatal(err)
	}
	p.Cut()
	if got, err := through.reply(); err == nil {
		t.Errorf("a connection that was stalled and cut answered %s", got)
	}
	p.Resume()
	p.Close() // whatever was to move has moved
	direct.expect(t, "INCR counter", ":2")
}

// What OnReply is for: the server did it, and the client never learns.
func TestProxyLosesReplies(t *testing.T) {
	p, through, direct := newProxy(t)
	var lost atomic.Int64
	p.OnReply(func(piece []byte) bool { return string(piece) == ":2\r\n" && lost.Add(1) > 0 })
	if got, err := through.ask("INCR counter"); err == nil {
		t.Errorf("the reply %s arrived", got)
	}
	direct.expect(t, "INCR counter", ":3")
	if lost.Load() != 1 {
		t.Errorf("%d replies lost; want 1", lost.Load())
	}
	p.OnReply(func(piece []byte) bool { return true })
	p.OnReply(nil)
	dial(t, p.Addr()).expect(t, "INCR counter", ":4")
}

func TestProxyLosesRequests(t *testing.T) {
	p, through, direct := newProxy(t)
	p.OnRequest(func(piece []byte) bool { return strings.Contains(string(piece), "INCR") })
	if got, err := through.ask("INCR counter"); err == nil {
		t.Errorf("there was an answer: %s", got)
	}
	direct.expect(t, "INCR counter", ":2")
	p.OnRequest(nil)
	dial(t, p.Addr()).expect(t, "INCR counter", ":3")
}

func TestProxyResetsClientsOfAServerThatIsDown(t *testing.T) {
	r := StartRedis(t, RedisOptions{})
	p := StartProxy(t, r.Addr())
	through := dial(t, p.Addr())
	through.expect(t, "PING", "+PONG")
	r.Stop()
	through.expectGone(t)
	// The reset may come before the client has noticed that it is connected.
	if conn, err := net.Dial("tcp", p.Addr()); err == nil {
		(&wire{Conn: conn, replies: bufio.NewReader(conn)}).expectGone(t)
		conn.Close()
	}
	r.Start()
	dial(t, p.Addr()).expect(t, "PING", "+PONG")
}

// Clients may end a stream in one direction and go on reading the other.
func TestProxyPassesOneSidedEnds(t *testing.T) {
	_, through, _ := newProxy(t)
	if _, err := io.WriteString(through, "PING\r\n"); err != nil {
		t.Fatal(err)
	}
	if err := through.Conn.(*net.TCPConn).CloseWrite(); err != nil {
		t.Fatal(err)
	}
	got, err := io.ReadAll(through)
	if err != nil || string(got) != "+PONG\r\n" {
		t.Errorf("%q, %v; want the answer and then the end", got, err)
	}
}

func TestProxyCloseIsFinal(t *testing.T) {
	p, through, _ := newProxy(t)
	p.Close()
	through.expectGone(t)
	p.Restore()
	if _, err := net.Dial("tcp", p.Addr()); !errors.Is(err, syscall.ECONNREFUSED) {
		t.Errorf("a new connection: %v; want it refused", err)
	}
	if p.Open() != 0 {
		t.Errorf("%d connections are open", p.Open())
	}
	p.Close()
}
