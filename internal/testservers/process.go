package testservers

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"syscall"
)

// errExited says that the server's process ended while something else was
// expected of it.
var errExited = errors.New("the server exited")

// process is one run of a server's program.
type process struct {
	cmd  *exec.Cmd
	life context.Context // ends when the process was reaped
	err  error           // how it ended; valid after life
}

// startProcess starts cmd and a goroutine that reaps it, which ends with the
// process: whoever ends the process and waits has waited for both.
func startProcess(cmd *exec.Cmd, reaped func()) (*process, error) {
	if err := cmd.Start(); err != nil {
		return nil, err
	}
	life, end := context.WithCancel(context.Background())
	p := &process{cmd: cmd, life: life}
	go func() {
		defer end()
		p.err = cmd.Wait()
		reaped()
	}()
	return p, nil
}

// during returns a context that ends with ctx or with the process.
func (p *process) during(ctx context.Context) (context.Context, context.CancelFunc) {
	ctx, cancel := context.WithCancelCause(ctx)
	stop := context.AfterFunc(p.life, func() { cancel(errExited) })
	return ctx, func() {
		stop()
		cancel(nil)
	}
}

func (p *process) pid() int { return p.cmd.Process.Pid }

func (p *process) running() bool { return p.life.Err() == nil }

// signal sends to the program itself, not to its children. It is harmless when
// the process was reaped already.
func (p *process) signal(sig syscall.Signal) error {
	if err := p.cmd.Process.Signal(sig); err != nil && !errors.Is(err, os.ErrProcessDone) {
		return err
	}
	return nil
}

// wait returns when the process was reaped.
func (p *process) wait(ctx context.Context) error {
	select {
	case <-p.life.Done():
		return nil
	case <-ctx.Done():
		return fmt.Errorf("the server is still running: %w", context.Cause(ctx))
	}
}

// stop ends the process by a signal that it acts on.
func (p *process) stop(ctx context.Context, sig syscall.Signal) error {
	if err := p.signal(sig); err != nil {
		return err
	}
	return p.wait(ctx)
}

// kill ends the process and all its descendants with SIGKILL and returns when
// none is left. The parent is stopped first, so that it forks no more.
func (p *process) kill(ctx context.Context) error {
	if !p.running() {
		return nil // its number may be a stranger's
	}
	family, err := p.freeze(ctx)
	if err != nil {
		return err
	}
	for _, pid := range family {
		// A descendant that is gone already is what we want.
		_ = syscall.Kill(pid, syscall.SIGKILL)
	}
	if err := p.stop(ctx, syscall.SIGKILL); err != nil {
		return err
	}
	return poll(ctx, func() bool {
		return !slices.ContainsFunc(family, func(pid int) bool { return state(pid) != 0 })
	})
}

// freeze stops the process and its descendants, and returns the descendants.
// PostgreSQL's children each lead a session of their own, so that a signal to
// the process group would miss them.
func (p *process) freeze(ctx context.Context) ([]int, error) {
	if err := p.signal(syscall.SIGSTOP); err != nil {
		return nil, err
	}
	if err := poll(ctx, func() bool { return halted(p.pid()) }); err != nil {
		return nil, err
	}
	for {
		family := descendants(p.pid())
		awake := slices.DeleteFunc(slices.Clone(family), halted)
		if len(awake) == 0 {
			return family, nil
		}
		for _, pid := range awake {
			_ = syscall.Kill(pid, syscall.SIGSTOP)
		}
		err := poll(ctx, func() bool {
			return !slices.ContainsFunc(awake, func(pid int) bool { return !halted(pid) })
		})
		if err != nil {
			return nil, err
		}
	}
}

// thaw lets the process and its descendants go on.
func (p *process) thaw() error {
	for _, pid := range descendants(p.pid()) {
		_ = syscall.Kill(pid, syscall.SIGCONT)
	}
	return p.signal(syscall.SIGCONT)
}

// halted reports whether the process is stopped or gone.
func halted(pid int) bool {
	s := state(pid)
	return s == 'T' || s == 't' || s == 0
}

// state is the letter that /proc shows for a process, 0 for one that is gone,
// or dead and not yet reaped by its parent.
func state(pid int) byte {
	_, s := stat(pid)
	if s == 'Z' || s == 'X' {
		return 0
	}
	return s
}

// stat reads a process' parent and state, 0 and 0 if there is no such process.
func stat(pid int) (ppid int, state byte) {
	raw, err := os.ReadFile(filepath.Join("/proc", strconv.Itoa(pid), "stat"))
	if err != nil {
		return 0, 0
	}
	// The second field is the name in parentheses and may hold anything.
	fields := bytes.Fields(raw[bytes.LastIndexByte(raw, ')')+1:])
	if len(fields) < 2 {
		return 0, 0
	}
	ppid, _ = strconv.Atoi(string(fields[1]))
	return ppid, fields[0][0]
}

// descendants lists the live processes below pid. The parent's number is
// readable for everybody, unlike working directory or environment, which a
// container's root may not see of another user's processes.
func descendants(pid int) []int {
	entries, err := os.ReadDir("/proc")
	if err != nil {
		return nil
	}
	children := map[int][]int{}
	for _, e := range entries {
		if child, err := strconv.Atoi(e.Name()); err == nil {
			if ppid, s := stat(child); s != 0 && s != 'Z' && s != 'X' {
				children[ppid] = append(children[ppid], child)
			}
		}
	}
	found := slices.Clone(children[pid])
	for i := 0; i < len(found); i++ {
		found = append(found, children[found[i]]...)
	}
	return found
}
