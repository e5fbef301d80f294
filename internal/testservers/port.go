package testservers

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"net"
	"os"
	"path/filepath"
	"strconv"

	"golang.org/x/sys/unix"
)

// Ports lie below Linux's ephemeral range (32768 and up). A server that is
// down keeps its port that way: no outgoing connection is given it meanwhile,
// and a client that dials it again and again cannot end up connected to
// itself, as happens when the kernel picks the dialled port as the source.
const (
	firstPort = 20000
	lastPort  = 32767
)

// port is a port of 127.0.0.1 that no other user of this package takes, in
// this process or another, also while nothing listens on it.
type port struct {
	number int
	lock   *os.File
}

// reservePort finds a free port.
func reservePort() (*port, error) {
	return reserve(func() int { return firstPort + rand.IntN(lastPort-firstPort+1) })
}

// reserve takes the first port of the numbers that next gives. The reservation
// is a lock on the byte of that number in a file that all processes share; the
// kernel drops it when we die.
func reserve(next func() int) (*port, error) {
	name := filepath.Join(os.TempDir(), "walrelay-ports-"+strconv.Itoa(os.Getuid()))
	file, err := os.OpenFile(name, os.O_RDWR|os.O_CREATE|unix.O_NOFOLLOW, 0o600)
	if err != nil {
		return nil, err
	}
	for range 100 {
		number := next()
		// A lock of the open file description, since those of the process
		// would be shared by all reservations and dropped by any close.
		lock := unix.Flock_t{Type: unix.F_WRLCK, Start: int64(number), Len: 1}
		err := unix.FcntlFlock(file.Fd(), unix.F_OFD_SETLK, &lock)
		if errors.Is(err, unix.EAGAIN) || errors.Is(err, unix.EACCES) {
			continue
		}
		if err != nil {
			file.Close()
			return nil, fmt.Errorf("lock %s: %w", name, err)
		}
		if l, err := net.Listen("tcp", "127.0.0.1:"+strconv.Itoa(number)); err == nil {
			l.Close()
			return &port{number: number, lock: file}, nil
		}
		lock.Type = unix.F_UNLCK
		if err := unix.FcntlFlock(file.Fd(), unix.F_OFD_SETLK, &lock); err != nil {
			file.Close()
			return nil, fmt.Errorf("unlock %s: %w", name, err)
		}
	}
	file.Close()
	return nil, fmt.Errorf("no free port on 127.0.0.1 between %d and %d", firstPort, lastPort)
}

func (p *port) addr() string { return "127.0.0.1:" + strconv.Itoa(p.number) }

// release gives the port back.
func (p *port) release() { p.lock.Close() }

// ReserveAddr returns an address (host:port) of 127.0.0.1 that is the test's own
// until it is over, also while nothing listens there.
func ReserveAddr(t TB) string {
	t.Helper()
	port, err := reservePort()
	if err != nil {
		t.Fatalf("reserve a port: %v", err)
	}
	t.Cleanup(port.release)
	return port.addr()
}
