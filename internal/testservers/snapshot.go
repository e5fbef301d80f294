package testservers

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"
)

// Snapshot is a copy of a server's data directory: what a crash at that moment
// would have left. It goes with the server it was taken from.
type Snapshot struct{ path string }

// DataDir is the directory that holds all the server knows.
func (s *server) DataDir() string { return filepath.Join(s.dir, "data") }

// Snapshot copies the data directory, as a snapshot of its volume would: the
// server is frozen meanwhile, so the copy is of one moment.
func (s *server) Snapshot() *Snapshot {
	s.t.Helper()
	var snapshot *Snapshot
	patient(s.t, "take a snapshot of "+s.name, func(ctx context.Context) (err error) {
		snapshot, err = s.TrySnapshot(ctx)
		return err
	})
	return snapshot
}

// TrySnapshot is Snapshot with an error.
func (s *server) TrySnapshot(ctx context.Context) (*Snapshot, error) {
	dir, err := os.MkdirTemp(s.dir, "snapshot-")
	if err != nil {
		return nil, err
	}
	snapshot := &Snapshot{path: filepath.Join(dir, "data")}
	return snapshot, s.copyData(ctx, snapshot.path)
}

// copyData copies the data directory to a path that does not exist yet.
func (s *server) copyData(ctx context.Context, to string) error {
	if s.Running() {
		if err := s.TryFreeze(ctx); err != nil {
			return err
		}
		defer func() { _ = s.TryThaw() }()
	}
	return copyTree(ctx, s.DataDir(), to)
}

// Restore gives a stopped or killed server the data of a snapshot, of its own
// or of another server of its kind, in place of what it has.
func (s *server) Restore(from *Snapshot) {
	s.t.Helper()
	patient(s.t, "restore "+s.name, func(ctx context.Context) error { return s.TryRestore(ctx, from) })
}

// TryRestore is Restore with an error.
func (s *server) TryRestore(ctx context.Context, from *Snapshot) error {
	return s.replaceData(func(to string) error { return copyTree(ctx, from.path, to) })
}

// replaceData has fill make the data directory of a server that does not run.
func (s *server) replaceData(fill func(to string) error) error {
	if s.Running() {
		return fmt.Errorf("%s runs", s.name)
	}
	removeSegment(s.DataDir())
	if err := os.RemoveAll(s.DataDir()); err != nil {
		return err
	}
	if err := fill(s.DataDir()); err != nil {
		return err
	}
	if s.adopt == nil {
		return nil
	}
	return s.adopt()
}

// removeSegment removes the shared memory that a killed PostgreSQL left: its
// number is the last word of the seventh line of postmaster.pid.
func removeSegment(data string) {
	raw, err := os.ReadFile(filepath.Join(data, "postmaster.pid"))
	if err != nil {
		return
	}
	lines := strings.Split(string(raw), "\n")
	if len(lines) < 7 {
		return
	}
	words := strings.Fields(lines[6])
	if len(words) == 0 {
		return
	}
	if id, err := strconv.Atoi(words[len(words)-1]); err == nil {
		_, _ = unix.SysvShmCtl(id, unix.IPC_RMID, nil)
	}
}

// forgetProcess removes what a running PostgreSQL wrote of itself into a data
// directory that was copied meanwhile.
func forgetProcess(data string) error {
	for _, name := range []string{"postmaster.pid", "postmaster.opts"} {
		if err := os.Remove(filepath.Join(data, name)); err != nil && !errors.Is(err, os.ErrNotExist) {
			return err
		}
	}
	return nil
}
