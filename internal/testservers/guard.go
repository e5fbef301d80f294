package testservers

import (
	"fmt"
	"io"
	"os"
	"os/exec"
	"strconv"
	"syscall"
)

// guard is a small shell process that outlives us if we die. Its standard
// input is a pipe of which only we hold the other end, so it reads
// end-of-file when we close it, and also when we are killed, panic, or run
// into go test's time-out. Then it ends the server, if one runs, and removes
// the server's directory.
//
// The kernel's parent-death signal would not do: it follows the thread that
// forked, not the process; a frozen server does not act on it; its frozen
// children never would; and nobody would remove the directory.
type guard struct {
	cmd  *exec.Cmd
	pipe io.WriteCloser
}

// guardScript is told the server's process id in a line whenever one starts,
// and 0 when it was reaped (the number may then be given to a stranger).
// Signals of the terminal are ignored: the guard must outlive the program it
// guards. $1 is the directory, $2 the signal that ends the server in order;
// PostgreSQL gets one so that it gives back its System V shared memory.
const guardScript = `
trap '' INT HUP TERM QUIT
pid=0
while read -r line; do pid=$line; done
family() {
	echo "$pid"
	grep -l "^PPid:[[:space:]]*$pid\$" /proc/[0-9]*/status 2>/dev/null | cut -d/ -f3
}
if [ "$pid" -gt 1 ]; then
	kill "-$2" "$pid"
	kill -CONT $(family)
	n=0
	while [ $n -lt 100 ] && kill -0 "$pid"; do sleep 0.1; n=$((n+1)); done
	kill -0 "$pid" && kill -KILL $(family)
fi 2>/dev/null
rm -rf -- "$1"
`

// startGuard guards dir, which must have been made for one server.
func startGuard(dir, signal string) (*guard, error) {
	cmd := exec.Command("/bin/sh", "-c", guardScript, "walrelay-guard", dir, signal)
	cmd.Dir = "/"
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true} // out of reach of the terminal's ^C
	pipe, err := cmd.StdinPipe()
	if err != nil {
		return nil, err
	}
	if err := cmd.Start(); err != nil {
		return nil, fmt.Errorf("start the guard of %s: %w", dir, err)
	}
	return &guard{cmd: cmd, pipe: pipe}, nil
}

// watch tells the guard which process to end.
func (g *guard) watch(pid int) error {
	_, err := io.WriteString(g.pipe, strconv.Itoa(pid)+"\n")
	return err
}

// forget tells the guard that no process is left.
func (g *guard) forget() error { return g.watch(0) }

// close has the guard do its work, and waits for it.
func (g *guard) close() error {
	g.pipe.Close()
	return g.cmd.Wait()
}

// newDir makes a directory that the server's user can enter. Its path is
// short, since a Unix socket lies in it and has some 100 bytes for its name.
func newDir(account *owner) (string, error) {
	dir, err := os.MkdirTemp("", "walrelay-")
	if err != nil {
		return "", err
	}
	if err := account.own(dir); err != nil {
		os.RemoveAll(dir)
		return "", err
	}
	return dir, nil
}
