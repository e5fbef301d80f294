package main

import (
	"context"
	"fmt"
	"io"
	"net"
	"strings"
	"testing"
	"time"

	"github.com/Shopify/toxiproxy/v2"
	"github.com/rs/zerolog"

	"github.com/stagedoor/walrelay/internal/testservers"
)

// network is what lies between the relays and a server: it can be cut, slow, or
// swallow what is sent, and lead to another server after a failover. The
// proxies of testservers look into the bytes instead, and lose none.
type network struct {
	t     *testing.T
	proxy *toxiproxy.Proxy
	probe string // a request that a server answers at once
}

// What a server answers before anybody has said who it is.
const (
	probeRedis    = "PING\r\n"
	probePostgres = "\x00\x00\x00\x08\x04\xd2\x16\x2f" // SSLRequest
)

// newNetwork returns a network that leads nowhere yet.
func newNetwork(t *testing.T, probe string) *network {
	t.Helper()
	logger := zerolog.Nop()
	server := toxiproxy.NewServer(toxiproxy.NewMetricsContainer(nil), logger)
	n := &network{t: t, proxy: toxiproxy.NewProxy(server, "network", testservers.ReserveAddr(t), ""), probe: probe}
	t.Cleanup(func() {
		n.heal()
		n.cut()
	})
	return n
}

func (n *network) addr() string { return n.proxy.Listen }

// leadTo has new connections lead to addr, and ends the others.
func (n *network) leadTo(addr string) {
	n.t.Helper()
	n.cut()
	n.proxy.Upstream = addr
	n.restore()
}

// cut ends all connections and refuses new ones.
func (n *network) cut() { n.proxy.Stop() }

// restore accepts connections again.
func (n *network) restore() {
	n.t.Helper()
	if err := n.proxy.Start(); err != nil {
		n.t.Fatalf("the network on %s: %v", n.addr(), err)
	}
}

// toxic spoils what goes one way, until heal.
func (n *network) toxic(kind, stream, attributes string) {
	n.t.Helper()
	document := fmt.Sprintf(`{"type": %q, "stream": %q, "attributes": {%s}}`, kind, stream, attributes)
	if _, err := n.proxy.Toxics.AddToxicJson(strings.NewReader(document)); err != nil {
		n.t.Fatalf("%s: %v", document, err)
	}
}

// delay has everything arrive later, both ways.
func (n *network) delay(d time.Duration) {
	for _, stream := range []string{"upstream", "downstream"} {
		n.toxic("latency", stream, fmt.Sprintf(`"latency": %d`, d.Milliseconds()))
	}
}

// swallow lets nothing arrive, while connections stay open: half of a
// connection, the way from the server or the one to it, or both.
func (n *network) swallow(streams ...string) {
	for _, stream := range streams {
		n.toxic("timeout", stream, `"timeout": 0`)
	}
}

// heal ends all toxics. Connections that lost bytes are closed.
func (n *network) heal() { n.proxy.Toxics.ResetToxics(context.Background()) }

// answers says how long a request and its reply take over a new connection; an
// error if there is none within the time.
func (n *network) answers(within time.Duration) (time.Duration, error) {
	began := time.Now()
	conn, err := net.DialTimeout("tcp", n.addr(), within)
	if err != nil {
		return 0, err
	}
	defer conn.Close()
	if err := conn.SetDeadline(began.Add(within)); err != nil {
		return 0, err
	}
	if _, err := io.WriteString(conn, n.probe); err != nil {
		return 0, err
	}
	if _, err := conn.Read(make([]byte, 1)); err != nil {
		return 0, err
	}
	return time.Since(began), nil
}
