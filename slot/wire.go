package slot

import (
	"context"
	"errors"
	"net"
	"slices"
	"sync"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
)

var errHungUp = errors.New("the relay hung up")

// wire is what lies under one connection to PostgreSQL: it remembers every
// network connection that was made for it (the driver opens more by itself, to
// cancel a statement), so that all can be cut at once, from any goroutine.
type wire struct {
	dial   pgconn.DialFunc
	lookup pgconn.LookupFunc

	ctx    context.Context // done when cut
	cancel context.CancelFunc

	mu      sync.Mutex
	conns   []net.Conn
	network string              // of the first that the server accepted
	address string              //
	found   map[string][]string // addresses by host name
}

// newWire makes a copy of cfg whose connections run over the wire.
func newWire(cfg *pgx.ConnConfig) (*wire, *pgx.ConnConfig) {
	c := cfg.Copy()
	w := &wire{dial: c.DialFunc, lookup: c.LookupFunc, found: make(map[string][]string)}
	w.ctx, w.cancel = context.WithCancel(context.Background())
	c.DialFunc = w.dialContext
	c.LookupFunc = w.lookupHost
	return w, c
}

func (w *wire) dialContext(ctx context.Context, network, address string) (net.Conn, error) {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	defer context.AfterFunc(w.ctx, cancel)()
	conn, err := w.dial(ctx, network, address)
	if err != nil {
		return nil, err
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.ctx.Err() != nil {
		conn.Close()
		return nil, errHungUp
	}
	w.conns = append(w.conns, conn)
	w.network, w.address = network, address
	return conn, nil
}

func (w *wire) lookupHost(ctx context.Context, host string) ([]string, error) {
	addrs, err := w.lookup(ctx, host)
	w.mu.Lock()
	defer w.mu.Unlock()
	w.found[host] = addrs
	return addrs, err
}

// cut closes everything below the protocol, without a goodbye and without
// waiting for the other side.
func (w *wire) cut() {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.cancel()
	for _, conn := range w.conns {
		conn.Close()
	}
	w.conns = nil
}

// pin narrows cfg to the server that the wire has just reached, so that a list
// of hosts, or a name with several addresses, does not lead a second connection
// to another server. It must be called before the driver dials again.
func (w *wire) pin(cfg *pgx.ConnConfig) *pgx.ConnConfig {
	w.mu.Lock()
	defer w.mu.Unlock()
	c := cfg.Copy()
	entries := append([]*pgconn.FallbackConfig{{Host: c.Host, Port: c.Port, TLSConfig: c.TLSConfig}}, c.Fallbacks...)
	i := slices.IndexFunc(entries, w.reached)
	if i < 0 {
		return c
	}
	host, port := entries[i].Host, entries[i].Port
	// A host stands there twice where encryption is preferred, not required.
	entries = slices.DeleteFunc(entries, func(e *pgconn.FallbackConfig) bool {
		return e.Host != host || e.Port != port
	})
	c.Host, c.Port, c.TLSConfig = host, port, entries[0].TLSConfig
	c.Fallbacks = entries[1:]
	address := w.address
	c.LookupFunc = func(context.Context, string) ([]string, error) { return []string{address}, nil } // not asked for a socket
	return c
}

// reached reports whether the wire's address is one of the entry's.
func (w *wire) reached(e *pgconn.FallbackConfig) bool {
	if network, address := pgconn.NetworkAddress(e.Host, e.Port); network == w.network && address == w.address {
		return true
	}
	for _, ip := range w.found[e.Host] {
		if ip == w.address {
			return true // a lookup may give the port, too
		}
		if _, address := pgconn.NetworkAddress(ip, e.Port); address == w.address {
			return true
		}
	}
	return false
}
