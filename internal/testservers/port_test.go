package testservers

import (
	"context"
	"errors"
	"net"
	"os"
	"os/exec"
	"strconv"
	"testing"
)

func TestReservedPortIsKept(t *testing.T) {
	const env = "WALRELAY_TEST_PORT_TAKEN"
	if taken, err := strconv.Atoi(os.Getenv(env)); err == nil {
		// The other process of this test: it must not get the port.
		if _, err := reserve(func() int { return taken }); err == nil {
			t.Fatal("the port was given out twice")
		}
		return
	}
	p, err := reservePort()
	if err != nil {
		t.Fatal(err)
	}
	calls := 0
	next, err := reserve(func() int {
		if calls++; calls < 3 {
			return p.number
		}
		return lastPort + calls
	})
	if err != nil {
		t.Fatal(err)
	}
	if next.number == p.number {
		t.Error("the port was given out twice in one process")
	}
	next.release()
	other := exec.Command(os.Args[0], "-test.run=^TestReservedPortIsKept$")
	other.Env = append(os.Environ(), env+"="+strconv.Itoa(p.number))
	if out, err := other.CombinedOutput(); err != nil {
		t.Errorf("another process: %v\n%s", err, out)
	}
	p.release()
	again, err := reserve(func() int { return p.number })
	if err != nil {
		t.Fatalf("a port that was released: %v", err)
	}
	again.release()
}

func TestPortOfAStrangerIsNotReserved(t *testing.T) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	if _, err := reserve(func() int { return l.Addr().(*net.TCPAddr).Port }); err == nil {
		t.Error("a port that somebody listens on was reserved")
	}
}

// The stranger comes between the reservation and the server's own bind.
func TestServerTakesAnotherPortWhenAStrangerWasQuicker(t *testing.T) {
	for _, kind := range []struct {
		name  string
		fresh func(*port) starter
	}{
		{"PostgreSQL", func(p *port) starter { return &Postgres{server: server{t: t, port: p}} }},
		{"Redis", func(p *port) starter { return &Redis{server: server{t: t, port: p}} }},
	} {
		t.Run(kind.name, func(t *testing.T) {
			taken, err := reservePort()
			if err != nil {
				t.Fatal(err)
			}
			l, err := net.Listen("tcp", taken.addr())
			if err != nil {
				t.Fatal(err)
			}
			defer l.Close()
			tries := 0
			fresh := func() starter {
				if tries++; tries == 1 {
					return kind.fresh(taken)
				}
				return kind.fresh(nil)
			}
			s, err := firstStart(context.Background(), fresh)
			if err != nil {
				t.Fatal(err)
			}
			if tries != 2 {
				t.Errorf("it took %d tries; want 2", tries)
			}
			if err := s.close(); err != nil {
				t.Error(err)
			}
		})
	}
}

func TestServerWhosePortWasTakenWhileItWasDownSaysSo(t *testing.T) {
	r := StartRedis(t, RedisOptions{})
	r.Stop()
	l, err := net.Listen("tcp", r.Addr())
	if err != nil {
		t.Fatal(err)
	}
	if err := r.TryStart(context.Background()); !errors.Is(err, errExited) {
		t.Errorf("start on a port that is taken: %v", err)
	}
	l.Close()
	r.Start()
}
