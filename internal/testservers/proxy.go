package testservers

import (
	"context"
	"errors"
	"io"
	"net"
	"sync"
	"sync/atomic"
	"syscall"
	"time"
)

// Proxy passes TCP connections on to a server, and breaks them on demand. Its
// methods may be called from any goroutine.
type Proxy struct {
	t        TB
	target   string
	port     *port
	requests direction
	replies  direction

	connections atomic.Int64
	tasks       sync.WaitGroup // every goroutine of the proxy

	mu     sync.Mutex
	refuse func() // closes the listener and ends what it accepted; nil while cut
	links  map[*link]struct{}
	moving chan struct{} // closed while bytes may move
	closed bool
}

// direction is what flows one way, over all connections.
type direction struct {
	moved atomic.Int64
	hook  atomic.Pointer[func([]byte) bool]
}

func (d *direction) watch(f func([]byte) bool) {
	if f == nil {
		d.hook.Store(nil)
		return
	}
	d.hook.Store(&f)
}

// link is a client's connection and its continuation to the server.
type link struct {
	client, server *net.TCPConn
	gone           chan struct{}
	sever          func() // closes gone and both connections; once
}

func newLink(client, server *net.TCPConn) *link {
	l := &link{client: client, server: server, gone: make(chan struct{})}
	l.sever = sync.OnceFunc(func() {
		close(l.gone)
		for _, conn := range []*net.TCPConn{client, server} {
			_ = conn.SetLinger(0) // a reset, as when the peer has vanished
			_ = conn.Close()
		}
	})
	return l
}

// StartProxy starts a proxy in front of the server at addr (host:port) and
// closes it when the test is over.
func StartProxy(t TB, addr string) *Proxy {
	t.Helper()
	port, err := reservePort()
	if err != nil {
		t.Fatalf("start a proxy to %s: %v", addr, err)
	}
	p := &Proxy{t: t, target: addr, port: port, links: map[*link]struct{}{}, moving: make(chan struct{})}
	close(p.moving)
	t.Cleanup(p.Close)
	p.Restore()
	return p
}

// Addr is where clients connect, the same for the proxy's whole life.
func (p *Proxy) Addr() string { return p.port.addr() }

// Port is the port of Addr.
func (p *Proxy) Port() int { return p.port.number }

// Connections is how many connections reached the server so far.
func (p *Proxy) Connections() int64 { return p.connections.Load() }

// Requested is how many bytes went from clients to the server so far.
func (p *Proxy) Requested() int64 { return p.requests.moved.Load() }

// Replied is how many bytes went from the server to clients so far.
func (p *Proxy) Replied() int64 { return p.replies.moved.Load() }

// Open is how many connections are open now.
func (p *Proxy) Open() int {
	p.mu.Lock()
	defer p.mu.Unlock()
	return len(p.links)
}

// OnRequest has f look at each piece of what clients send, as the network
// delivers it. Where f returns true the connection is cut instead: the server
// never gets that piece. Nil ends it. Connections call f at the same time.
func (p *Proxy) OnRequest(f func(piece []byte) bool) { p.requests.watch(f) }

// OnReply has f look at each piece of what the server sends, as the network
// delivers it. Where f returns true the connection is cut instead: the server
// did its work, and the client never learns. Nil ends it. Connections call f
// at the same time.
func (p *Proxy) OnReply(f func(piece []byte) bool) { p.replies.watch(f) }

// Drop closes the connections that are open now. New ones are welcome.
func (p *Proxy) Drop() {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.drop()
}

func (p *Proxy) drop() {
	for l := range p.links {
		l.sever()
	}
}

// Cut closes all connections and refuses new ones until Restore.
func (p *Proxy) Cut() {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.cut()
}

func (p *Proxy) cut() {
	if p.refuse != nil {
		p.refuse()
		p.refuse = nil
	}
	p.drop()
}

// Restore accepts connections again after Cut. It ends the test if the port
// was taken meanwhile.
func (p *Proxy) Restore() {
	p.t.Helper()
	if err := p.listen(); err != nil {
		p.t.Fatalf("proxy to %s: %v", p.target, err)
	}
}

func (p *Proxy) listen() error {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.refuse != nil || p.closed {
		return nil
	}
	// A process that is being started has, for a moment, whatever was open here:
	// also the socket that found the port to be free, or that was closed by Cut.
	var l net.Listener
	var err error
	for tries := 0; ; tries++ {
		l, err = net.Listen("tcp", p.Addr())
		if !errors.Is(err, syscall.EADDRINUSE) || tries == 100 {
			break
		}
		time.Sleep(20 * time.Millisecond)
	}
	if err != nil {
		return err
	}
	ctx, cancel := context.WithCancel(context.Background())
	p.refuse = func() {
		cancel()
		_ = l.Close()
	}
	p.tasks.Go(func() { p.accept(ctx, l) })
	return nil
}

// Stall keeps all connections open and moves nothing, like a network that
// swallows packets. New connections are accepted, and are stalled too.
func (p *Proxy) Stall() {
	p.mu.Lock()
	defer p.mu.Unlock()
	if !p.stalled() {
		p.moving = make(chan struct{})
	}
}

// Resume moves what waited since Stall, and all that follows.
func (p *Proxy) Resume() {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.stalled() {
		close(p.moving)
	}
}

func (p *Proxy) stalled() bool {
	select {
	case <-p.moving:
		return false
	default:
		return true
	}
}

// Close ends all connections and waits for the proxy's goroutines.
func (p *Proxy) Close() {
	p.mu.Lock()
	first := !p.closed
	p.closed = true
	p.cut()
	p.mu.Unlock()
	p.tasks.Wait()
	if first {
		p.port.release()
	}
}

// accept serves one listener until it is closed.
func (p *Proxy) accept(ctx context.Context, l net.Listener) {
	for {
		client, err := l.Accept()
		if errors.Is(err, net.ErrClosed) {
			return
		}
		if err != nil {
			continue // the client is gone already
		}
		p.tasks.Go(func() { p.serve(ctx, client.(*net.TCPConn)) })
	}
}

// serve connects a client to the server and moves bytes until both are done.
func (p *Proxy) serve(ctx context.Context, client *net.TCPConn) {
	var dialer net.Dialer
	server, err := dialer.DialContext(ctx, "tcp", p.target)
	if err != nil {
		_ = client.SetLinger(0) // too late to refuse; a reset is the nearest
		_ = client.Close()
		return
	}
	link := newLink(client, server.(*net.TCPConn))
	if !p.enter(ctx, link) {
		link.sever()
		return
	}
	defer p.leave(link)
	// In order, since a reset would take unread bytes from the peer.
	defer client.Close()
	defer server.Close()
	var replies sync.WaitGroup
	replies.Go(func() { p.pump(link, link.server, link.client, &p.replies) })
	p.pump(link, link.client, link.server, &p.requests)
	replies.Wait()
}

// enter adds a link, unless the proxy was cut after it had accepted it.
func (p *Proxy) enter(ctx context.Context, l *link) bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	if ctx.Err() != nil {
		return false
	}
	p.links[l] = struct{}{}
	p.connections.Add(1)
	return true
}

func (p *Proxy) leave(l *link) {
	p.mu.Lock()
	defer p.mu.Unlock()
	delete(p.links, l)
}

// pump moves bytes one way. The end of one direction is passed on and leaves
// the other open; an error ends both.
func (p *Proxy) pump(l *link, from, to *net.TCPConn, d *direction) {
	buf := make([]byte, 64<<10)
	for {
		n, err := from.Read(buf)
		if !p.mayMove(l) {
			return
		}
		if n > 0 {
			if f := d.hook.Load(); f != nil && (*f)(buf[:n]) {
				l.sever()
				return
			}
			d.moved.Add(int64(n)) // before the peer can know
			if _, err := to.Write(buf[:n]); err != nil {
				l.sever()
				return
			}
		}
		if errors.Is(err, io.EOF) {
			_ = to.CloseWrite()
			return
		}
		if err != nil {
			l.sever()
			return
		}
	}
}

// mayMove waits while the proxy is stalled, and reports whether the link is
// still there.
func (p *Proxy) mayMove(l *link) bool {
	p.mu.Lock()
	moving := p.moving
	p.mu.Unlock()
	select {
	case <-l.gone:
		return false
	case <-moving:
	}
	select {
	case <-l.gone:
		return false
	default:
		return true
	}
}
