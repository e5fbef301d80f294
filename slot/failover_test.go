package slot

import (
	"errors"
	"os"
	"path/filepath"
	"testing"
)

// A standby decodes WAL from 16 on only, has no commits that could wait for us,
// and cannot be given a publication.
func TestStandby(t *testing.T) {
	w := newWorld(t, nil)
	w.exec(`ALTER SYSTEM SET synchronous_standby_names = '*'`)
	w.Stop("fast")
	signal := filepath.Join(w.DataDir(), "standby.signal")
	if err := os.WriteFile(signal, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	info, err := os.Stat(w.DataDir())
	if err != nil {
		t.Fatal(err)
	}
	chown(t, signal, info)
	w.Start()
	s, err := w.source().Open(w.ctx())
	if version := w.version(); version < oldestStandbyVersion {
		wantFault(t, err, nil, "name the primary")
		return
	}
	if err != nil {
		t.Fatal(err)
	}
	defer s.Close()
	if end, err := s.WALEnd(w.ctx()); err != nil || end == 0 {
		t.Errorf("the WAL ends at %s (%v)", end, err)
	}
	wantFault(t, s.EnsurePublication(w.ctx(), true), ErrPublication, "(on the primary)")
	seen := w.watch(w.monitor(), nil, nil).until("there is a sample", works)
	if seen.WALEnd == 0 || errors.Is(seen.Problem, ErrSynchronous) {
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
