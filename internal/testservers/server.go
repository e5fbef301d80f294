package testservers

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
)

// server is what PostgreSQL and Redis have in common: a directory, a port, a
// log, and a process that comes and goes.
//
// Its methods may be called from any goroutine, but those without an error
// result end the test, which only the test's own goroutine may do; others use
// the Try forms.
type server struct {
	t     TB
	name  string
	dir   string
	port  *port
	guard *guard

	// command prepares one run of the program; ready reports whether the
	// server answers.
	command func() *exec.Cmd
	ready   func(context.Context) bool
	adopt   func() error // makes copied data this server's own; nil for nothing to do

	mu   sync.Mutex
	proc *process // the last run, nil before the first
}

// starter is a kind of server.
type starter interface {
	create(context.Context) error // directory, port, guard, first start
	close() error                 // also what a failed create leaves
	base() *server
}

func (s *server) base() *server { return s }

// start starts a server and ends it when the test is over, with the end of its
// log if the test failed.
func start[S starter](t TB, kind string, fresh func() S) S {
	t.Helper()
	var s S
	patient(t, "start "+kind, func(ctx context.Context) (err error) {
		s, err = firstStart(ctx, fresh)
		return err
	})
	t.Cleanup(func() {
		t.Helper()
		if t.Failed() {
			t.Logf("%s: the end of its log:\n%s", s.base().name, s.base().logTail())
		}
		if err := s.close(); err != nil {
			t.Fatalf("end %s: %v", s.base().name, err)
		}
	})
	return s
}

// firstStart makes a server from nothing, and another one with another port
// where a stranger took the port before the server did.
func firstStart[S starter](ctx context.Context, fresh func() S) (S, error) {
	var none S
	for try := 1; ; try++ {
		s := fresh()
		err := s.create(ctx)
		if err == nil {
			return s, nil
		}
		clash := strings.Contains(s.base().logTail(), "Address already in use")
		if closeErr := s.close(); closeErr != nil {
			return none, errors.Join(err, closeErr)
		}
		if !clash || try == 5 || ctx.Err() != nil {
			return none, err
		}
	}
}

// prepare takes a port, makes the directory and puts a guard beside it.
func (s *server) prepare(kind string, account *owner) (err error) {
	if s.port == nil {
		if s.port, err = reservePort(); err != nil {
			return err
		}
	}
	s.name = fmt.Sprintf("%s on port %d", kind, s.Port())
	if s.dir, err = newDir(account); err != nil {
		return err
	}
	s.guard, err = startGuard(s.dir)
	return err
}

// TryStart starts the server and returns when it answers.
func (s *server) TryStart(ctx context.Context) error {
	proc, err := s.launch()
	if err != nil {
		return err
	}
	ctx, cancel := proc.during(ctx)
	defer cancel()
	err = poll(ctx, func() bool { return s.ready(ctx) })
	if errors.Is(err, errExited) {
		return fmt.Errorf("%s did not start: %w: %v; the end of its log:\n%s", s.name, err, proc.err, s.logTail())
	}
	if err != nil {
		return fmt.Errorf("%s does not answer: %w; the end of its log:\n%s", s.name, err, s.logTail())
	}
	return nil
}

// launch starts the process and leaves it to itself.
func (s *server) launch() (*process, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.proc != nil && s.proc.running() {
		return nil, fmt.Errorf("%s runs already", s.name)
	}
	log, err := os.OpenFile(s.logPath(), os.O_WRONLY|os.O_CREATE|os.O_APPEND, 0o600)
	if err != nil {
		return nil, err
	}
	defer log.Close()
	cmd := s.command()
	cmd.Stdout, cmd.Stderr = log, log
	proc, err := startProcess(cmd, func() { _ = s.guard.forget() })
	if err != nil {
		return nil, fmt.Errorf("start %s: %w", s.name, err)
	}
	s.proc = proc
	return proc, s.guard.watch(proc.pid())
}

// process is the last run.
func (s *server) process() *process {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.proc
}

// Start starts a server that was stopped or killed, on its old port and with
// its old data, and returns when it answers.
func (s *server) Start() {
	s.t.Helper()
	patient(s.t, "start "+s.name, s.TryStart)
}

// Kill is a crash: SIGKILL to the server and all its children. It returns when
// none of them is left, so that the server can be started again at once.
func (s *server) Kill() {
	s.t.Helper()
	patient(s.t, "kill "+s.name, s.TryKill)
}

// TryKill is Kill with an error.
func (s *server) TryKill(ctx context.Context) error { return s.process().kill(ctx) }

// Freeze stops the server and its children with SIGSTOP: connections stay
// open, new ones are accepted by the kernel, and nothing answers.
func (s *server) Freeze() {
	s.t.Helper()
	patient(s.t, "freeze "+s.name, s.TryFreeze)
}

// TryFreeze is Freeze with an error.
func (s *server) TryFreeze(ctx context.Context) error {
	_, err := s.process().freeze(ctx)
	return err
}

// Thaw lets a frozen server go on.
func (s *server) Thaw() {
	s.t.Helper()
	if err := s.TryThaw(); err != nil {
		s.t.Fatalf("thaw %s: %v", s.name, err)
	}
}

// TryThaw is Thaw with an error.
func (s *server) TryThaw() error { return s.process().thaw() }

// Running reports whether the server's process is there.
func (s *server) Running() bool {
	proc := s.process()
	return proc != nil && proc.running()
}

// PID is the process id of the last run.
func (s *server) PID() int { return s.process().pid() }

// Port is the server's port on 127.0.0.1, the same over restarts.
func (s *server) Port() int { return s.port.number }

// Addr is the server's address as host:port.
func (s *server) Addr() string { return s.port.addr() }

// Dir is the server's directory. It is removed when the test is over.
func (s *server) Dir() string { return s.dir }

// Log is what the server has logged so far.
func (s *server) Log() string {
	raw, err := os.ReadFile(s.logPath())
	if err != nil {
		return err.Error()
	}
	return string(raw)
}

func (s *server) logPath() string { return filepath.Join(s.dir, "log") }

// logTail is the end of the log, enough to see what went wrong. It is empty
// where the server was never started.
func (s *server) logTail() string {
	const size = 4 << 10
	if s.process() == nil {
		return ""
	}
	file, err := os.Open(s.logPath())
	if err != nil {
		return err.Error()
	}
	defer file.Close()
	if info, err := file.Stat(); err == nil && info.Size() > size {
		_, _ = file.Seek(-size, io.SeekEnd)
	}
	raw, err := io.ReadAll(file)
	if err != nil {
		return err.Error()
	}
	return strings.TrimSpace(string(raw))
}

// close ends the server and gives back all it has.
func (s *server) close() error {
	var errs []error
	switch {
	case s.guard != nil:
		errs = append(errs, s.guard.close())
	case s.dir != "":
		errs = append(errs, os.RemoveAll(s.dir))
	}
	if proc := s.process(); proc != nil {
		ctx, cancel := context.WithTimeout(context.Background(), patience)
		defer cancel()
		errs = append(errs, proc.wait(ctx))
	}
	if s.port != nil {
		s.port.release()
	}
	return errors.Join(errs...)
}
