package main

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"syscall"
	"time"
)

// process is a program that is measured.
type process interface {
	PID() int
	Done() <-chan struct{} // closed when it is gone
	Kill() error           // returns when it is gone
	LogTail() string       // goes behind an error
}

// program is a process that is no walrelay.
type program struct {
	cmd  *exec.Cmd
	log  string
	done chan struct{}
	err  error // how it ended; valid once done is closed
}

// startProgram starts a program. It dies with us, even if we are killed: the
// kernel kills it when the thread that started it ends, so that thread is kept
// for it.
func startProgram(cmd *exec.Cmd, dir string) (*program, error) {
	p := &program{cmd: cmd, log: filepath.Join(dir, filepath.Base(cmd.Path)+".log"), done: make(chan struct{})}
	log, err := os.Create(p.log)
	if err != nil {
		return nil, err
	}
	defer log.Close()
	cmd.Stderr = log
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true, Pdeathsig: syscall.SIGKILL}
	started := make(chan error, 1)
	go func() {
		runtime.LockOSThread()
		defer runtime.UnlockOSThread()
		defer close(p.done)
		err := cmd.Start()
		started <- err
		if err == nil {
			p.err = cmd.Wait()
		}
	}()
	if err := <-started; err != nil {
		return nil, fmt.Errorf("start %s: %w", cmd.Path, err)
	}
	return p, nil
}

// PID implements process.
func (p *program) PID() int { return p.cmd.Process.Pid }

// Done implements process.
func (p *program) Done() <-chan struct{} { return p.done }

// Kill implements process.
func (p *program) Kill() error {
	if err := p.cmd.Process.Kill(); err != nil && !errors.Is(err, os.ErrProcessDone) {
		return err
	}
	<-p.done
	return nil
}

// LogTail implements process.
func (p *program) LogTail() string {
	raw, err := os.ReadFile(p.log)
	if err != nil || len(raw) == 0 {
		return ""
	}
	return "\nit said:\n  " + string(bytes.ReplaceAll(bytes.TrimSpace(raw[max(0, len(raw)-2000):]), []byte("\n"), []byte("\n  ")))
}

// ended is the processor time of a program that is gone, and an error where it
// failed.
func (p *program) ended() (time.Duration, error) {
	if p.err != nil {
		return 0, fmt.Errorf("%s: %w%s", filepath.Base(p.cmd.Path), p.err, p.LogTail())
	}
	state := p.cmd.ProcessState
	return state.UserTime() + state.SystemTime(), nil
}

// contenderVariable has this program do the work of a contender instead of
// measuring: in a process of its own, so that what it takes can be told apart.
const contenderVariable = "WALRELAY_BENCH_CONTENDER"

// work is what such a process does.
type work struct {
	Contender   string // least or xadd
	Postgres    string
	Slot        string
	Publication string
	RedisURL    string
	RedisAddr   string
	Stream      string
	Shape       shape
}

// command starts this program as a contender.
func (w work) command() (*exec.Cmd, error) {
	self, err := os.Executable()
	if err != nil {
		return nil, err
	}
	document, err := json.Marshal(w)
	if err != nil {
		return nil, err
	}
	cmd := exec.Command(self)
	cmd.Env = append(os.Environ(), contenderVariable+"="+string(document))
	return cmd, nil
}
