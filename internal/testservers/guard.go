package testservers

import (
	"fmt"
	"io"
	"os/exec"
	"strconv"
	"syscall"
)

// guard is a small shell process that outlives us if we die. Its standard
// input is a pipe of which only we hold the other end, so it reads
// end-of-file when we close it, and also when we are killed, panic, or run
// into go test's time-out. Then it ends the server, if one runs, and removes
// what it leaves.
//
// The kernel's parent-death signal would not do: it follows the thread that
// forked, not the process; a frozen server does not act on it; its frozen
// children never would; and nobody would remove the directory.
type guard struct {
	cmd  *exec.Cmd
	pipe io.WriteCloser
}

// guardScript is told the server's process id in a line whenever one starts,
// and 0 when it was reaped (the number may then be given to a stranger). $1 is
// the server's directory.
//
// It ignores the signals of the terminal, since it must outlive the program
// that it guards. It stops the server before it looks for children, so that
// there will be no more of them, and kills all: what is going to be removed
// needs no orderly end. A PostgreSQL that was killed, now or earlier, leaves a
// System V shared memory segment, whose number is the last word of the seventh
// line of postmaster.pid.
const guardScript = `
trap '' INT HUP TERM QUIT
pid=0
while read -r line; do pid=$line; done

alive() {
	for p in $family; do
		grep -q '^State:[[:space:]]*[^ZX[:space:]]' "/proc/$p/status" && return
	done
	return 1
}
if [ "$pid" -gt 1 ]; then
	kill -STOP "$pid"
	family="$pid $(grep -l "^PPid:[[:space:]]*$pid\$" /proc/[0-9]*/status | cut -d/ -f3)"
	kill -KILL $family
	n=0
	while alive && [ $n -lt 1000 ]; do sleep 0.01; n=$((n+1)); done
fi 2>/dev/null
segment=$(sed -n '7s/.* //p' "$1/data/postmaster.pid" 2>/dev/null)
[ -z "$segment" ] || ipcrm -m "$segment"
rm -rf -- "$1"
`

// startGuard guards dir, which must have been made for one server.
func startGuard(dir string) (*guard, error) {
	cmd := exec.Command("/bin/sh", "-c", guardScript, "walrelay-guard", dir)
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

// close has the guard do its work, and waits for it. It is the way that every
// server ends, so that the way it ends without us is well trodden.
func (g *guard) close() error {
	g.pipe.Close()
	return g.cmd.Wait()
}
