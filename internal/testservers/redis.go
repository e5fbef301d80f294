package testservers

import (
	"bufio"
	"context"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync/atomic"
	"syscall"
	"time"

	"github.com/redis/go-redis/v9"
)

// RedisOptions says how a server differs from the usual one, which keeps
// nothing on disk and so is empty after each start.
type RedisOptions struct {
	// Args are options of redis-server, such as "--appendonly", "yes".
	Args []string
	// Durable keeps every write over any end: appendonly, appendfsync always.
	Durable bool
}

// Redis is a Redis server without a password.
type Redis struct {
	server
	opts RedisOptions
	from atomic.Pointer[string] // whom it follows, as host:port; nil for nobody
}

// StartRedis starts a server and ends it when the test is over. The program is
// WALRELAY_TEST_REDIS, else redis-server on the PATH.
func StartRedis(t TB, opts RedisOptions) *Redis {
	t.Helper()
	return start(t, "Redis", func() *Redis { return &Redis{server: server{t: t}, opts: opts} })
}

// create is called once. What it leaves behind when it fails, close removes.
func (r *Redis) create(ctx context.Context) error {
	program := os.Getenv("WALRELAY_TEST_REDIS")
	if program == "" {
		program = "redis-server"
	}
	path, err := exec.LookPath(program)
	if err != nil {
		return fmt.Errorf("no Redis; run: %s (or set WALRELAY_TEST_REDIS to the program redis-server): %w", installRedis, err)
	}
	var self *owner
	if err := r.prepare("Redis", self); err != nil {
		return err
	}
	args := []string{
		"--port", strconv.Itoa(r.Port()), "--bind", "127.0.0.1", "--protected-mode", "no",
		"--dir", r.DataDir(), "--unixsocket", r.Socket(), "--save", "", "--daemonize", "no",
		"--repl-diskless-sync-delay", "0", // or replicas wait for others to come
	}
	if r.opts.Durable {
		args = append(args, "--appendonly", "yes", "--appendfsync", "always")
	}
	args = append(args, r.opts.Args...)
	r.command = func() *exec.Cmd { return self.command(r.dir, path, slices.Concat(args, r.following())...) }
	r.ready = r.answers
	if err := os.Mkdir(r.DataDir(), 0o700); err != nil {
		return err
	}
	return r.TryStart(ctx)
}

// answers reports whether the server does more than load its data. An error
// reply, such as one that asks for a password, is an answer.
func (r *Redis) answers(ctx context.Context) bool {
	ctx, cancel := context.WithTimeout(ctx, 5*time.Second)
	defer cancel()
	var dialer net.Dialer
	conn, err := dialer.DialContext(ctx, "tcp", r.Addr())
	if err != nil {
		return false
	}
	defer conn.Close()
	stop := context.AfterFunc(ctx, func() { _ = conn.SetDeadline(time.Unix(1, 0)) })
	defer stop()
	if _, err := conn.Write([]byte("PING\r\n")); err != nil {
		return false
	}
	reply, err := bufio.NewReader(conn).ReadString('\n')
	return err == nil && !strings.HasPrefix(reply, "-LOADING")
}

// URL is the server's address for a client.
func (r *Redis) URL() string { return "redis://" + r.Addr() + "/0" }

// Socket is the path of the server's Unix socket.
func (r *Redis) Socket() string { return filepath.Join(r.dir, "redis.sock") }

// Client returns a client that is closed when the test is over.
func (r *Redis) Client(t TB) *redis.Client {
	t.Helper()
	client := redis.NewClient(&redis.Options{Addr: r.Addr()})
	t.Cleanup(func() {
		if err := client.Close(); err != nil {
			t.Logf("close the client of %s: %v", r.name, err)
		}
	})
	return client
}

// Stop shuts the server down with SIGTERM and returns when it is gone.
func (r *Redis) Stop() {
	r.t.Helper()
	patient(r.t, "stop "+r.name, r.TryStop)
}

// TryStop is Stop with an error.
func (r *Redis) TryStop(ctx context.Context) error {
	if err := r.process().stop(ctx, syscall.SIGTERM); err != nil {
		return fmt.Errorf("%w; the end of its log:\n%s", err, r.logTail())
	}
	return nil
}

// Restart stops the server with SIGTERM and starts it again.
func (r *Redis) Restart() {
	r.t.Helper()
	patient(r.t, "restart "+r.name, r.TryRestart)
}

// TryRestart is Restart with an error.
func (r *Redis) TryRestart(ctx context.Context) error {
	if err := r.TryStop(ctx); err != nil {
		return err
	}
	return r.TryStart(ctx)
}
