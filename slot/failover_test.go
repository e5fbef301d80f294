package slot

import (
	"errors"
	"os"
	"path/filepath"
	"testing"
)

// standBy restarts the server as a standby, of nobody.
func (w *world) standBy() {
	w.t.Helper()
	w.Stop("fast")
	w.overwrite("standby.signal", "")
	w.Start()
}

// overwrite writes a file of the data directory.
func (w *world) overwrite(name, content string) {
	w.t.Helper()
	file := filepath.Join(w.DataDir(), name)
	if err := os.WriteFile(file, []byte(content), 0o600); err != nil {
		w.t.Fatal(err)
	}
	info, err := os.Stat(w.DataDir())
	if err != nil {
		w.t.Fatal(err)
	}
	chown(w.t, file, info)
}

// failOver has the server begin another timeline.
func (w *world) failOver() {
	w.t.Helper()
	w.standBy()
	if got := w.value(`SELECT pg_promote()`); got != "t" {
		w.t.Fatal("the server was not promoted")
	}
}

// A standby decodes WAL from 16 on only, has no commits that could wait for us,
// and cannot be given a publication.
func TestStandby(t *testing.T) {
	w := newWorld(t, nil)
	w.exec(`ALTER SYSTEM SET synchronous_standby_names = '*'`)
	w.standBy()
	s, err := w.source().Open(w.ctx())
	if version := w.version(); version < oldestStandbyVersion {
		wantFault(t, err, nil, "name the primary")
		return
	}
	if err != nil {
		t.Fatal(err)
	}
	defer s.Close()
	if !s.Server().Standby {
		t.Error("it does not count as a standby")
	}
	if end, err := s.WALEnd(w.ctx()); err != nil || end == 0 {
		t.Errorf("the WAL ends at %s (%v)", end, err)
	}
	wantFault(t, s.EnsurePublication(w.ctx(), true), ErrPublication, "(on the primary)")
	seen := w.watch(w.monitor(), nil, nil).until("there is a sample", works)
	if seen.WALEnd == 0 || errors.Is(seen.Problem, ErrSynchronous) || !seen.Recovery || seen.Timeline != 0 || seen.InsertLSN != 0 {
		t.Errorf("the sample is %+v", seen)
	}
}

// Standbys keep a copy of the slot where PostgreSQL can.
func TestSlotSurvivesFailover(t *testing.T) {
	w := onCommon(t)
	_, st := w.stream()
	receive(t, st)
	if w.version() < failoverVersion {
		t.Skip("PostgreSQL cannot")
	}
	if got := w.value(`SELECT failover FROM pg_replication_slots`); got != "t" {
		t.Error("the slot has no failover property")
	}
}
