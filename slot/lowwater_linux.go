package slot

import (
	"net"
	"syscall"
)

// lowWater sets for how many bytes the kernel wakes who waits for a connection.
// PostgreSQL sends a row of a transaction of its own in three messages and two
// keepalives, each with a system call, and waking us for each costs both sides
// more than the row.
//
// https://man7.org/linux/man-pages/man7/socket.7.html (SO_RCVLOWAT)
type lowWater struct {
	raw   syscall.RawConn
	bytes int // as set
	want  int
	set   func(fd uintptr)
	err   error
}

// newLowWater returns nil for a connection that has no such mark, a Unix socket, and
// for one whose reader reads bytes that are not the messages themselves: it would
// wait for the rest of a TLS record.
func newLowWater(conn net.Conn) *lowWater {
	tcp, ok := conn.(*net.TCPConn)
	if !ok {
		return nil
	}
	raw, err := tcp.SyscallConn()
	if err != nil {
		return nil
	}
	l := &lowWater{raw: raw, bytes: 1}
	l.set = func(fd uintptr) {
		l.err = syscall.SetsockoptInt(int(fd), syscall.SOL_SOCKET, syscall.SO_RCVLOWAT, l.want)
	}
	return l
}

// at sets the mark.
func (l *lowWater) at(bytes int) error {
	if l == nil || l.bytes == bytes {
		return nil
	}
	l.want = bytes
	if err := l.raw.Control(l.set); err != nil {
		return err
	}
	if l.err == nil {
		l.bytes = bytes
	}
	return l.err
}
