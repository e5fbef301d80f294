package testservers

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
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
}

// StartRedis starts a server and ends it when the test is over. The program is
// WALRELAY_TEST_REDIS, else redis-server on the PATH.
func StartRedis(t TB, opts RedisOptions) *Redis {
	t.Helper()
	var r *Redis
	patient(t, "start Redis", func(ctx context.Context) (err error) {
		r, err = startRedis(ctx, t, opts)
		return err
	})
	t.Cleanup(func() {
		t.Helper()
		if t.Failed() {
			t.Logf("%s: the end of its log:\n%s", r.name, r.logTail())
		}
		if err := r.close(); err != nil {
			t.Fatalf("end %s: %v", r.name, err)
		}
	})
	return r
}

// startRedis tries again with another port where a stranger was quicker.
func startRedis(ctx context.Context, t TB, opts RedisOptions) (*Redis, error) {
	program := os.Getenv("WALRELAY_TEST_REDIS")
	if program == "" {
		program = "redis-server"
	}
	path, err := exec.LookPath(program)
	if err != nil {
		return nil, fmt.Errorf("no Redis; run: %s (or set WALRELAY_TEST_REDIS to the program redis-server): %w", installRedis, err)
	}
	for {
		r := &Redis{}
		r.t = t
		err := r.create(ctx, path, opts)
		if err == nil {
			return r, nil
		}
		taken := strings.Contains(r.logTail(), "Address already in use")
		if closeErr := r.close(); closeErr != nil {
			return nil, errors.Join(err, closeErr)
		}
		if !taken || ctx.Err() != nil {
			return nil, err
		}
	}
}

// create makes the directory and starts the server for the first time. What it
// leaves behind when it fails, close removes.
func (r *Redis) create(ctx context.Context, path string, opts RedisOptions) (err error) {
	if r.port, err = reservePort(); err != nil {
		return err
	}
	r.name = fmt.Sprintf("Redis on port %d", r.Port())
	if r.dir, err = newDir("walrelay-redis-", nil); err != nil {
		return err
	}
	if r.guard, err = startGuard(r.dir, "KILL"); err != nil {
		return err
	}
	args := []string{
		"--port", strconv.Itoa(r.Port()), "--bind", "127.0.0.1", "--protected-mode", "no",
		"--dir", r.dir, "--unixsocket", r.Socket(), "--save", "", "--daemonize", "no",
	}
	if opts.Durable {
		args = append(args, "--appendonly", "yes", "--appendfsync", "always")
	}
	args = append(args, opts.Args...)
	var self *owner
	r.command = func() *exec.Cmd { return self.command(r.dir, path, args...) }
	r.ready = r.answers
	return r.TryStart(ctx)
}

// answers reports whether the server does more than load its data. An error
// reply, such as one that asks for a password, is an answer.
func (r *Redis) answers(ctx context.Context) bool {
	dialer := net.Dialer{Timeout: 5 * time.Second}
	conn, err := dialer.DialContext(ctx, "tcp", r.Addr())
	if err != nil {
		return false
	}
	defer conn.Close()
	if err := conn.SetDeadline(time.Now().Add(5 * time.Second)); err != nil {
		return false
	}
	if _, err := conn.Write([]byte("PING\r\n")); err != nil {
		return false
	}
	reply, err := bufio.NewReader(conn).ReadString('\n')
	return err == nil && !strings.HasPrefix(reply, "-LOADING")
}

// close ends the server, whose data nobody needs any more, and removes it.
func (r *Redis) close() error {
	return errors.Join(r.end(syscall.SIGKILL), r.remove())
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
	r.Stop()
	r.Start()
}
