package slot

import (
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/stagedoor/walrelay/internal/testservers"
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

// Standbys may keep a copy of the slot where PostgreSQL can, whoever changed
// that.
func TestSlotIsAFailoverSlotAtEveryStart(t *testing.T) {
	w := onCommon(t)
	if w.version() < failoverVersion {
		t.Skip("PostgreSQL cannot")
	}
	s, st := w.stream()
	for range 2 {
		receiveKeepalive(t, st)
		if got := w.value(`SELECT failover FROM pg_replication_slots`); got != "t" {
			t.Error("the slot has no failover property")
		}
		s.Close()
		s = w.open()
		if _, err := s.repl.Exec(w.ctx(), `ALTER_REPLICATION_SLOT walrelay (FAILOVER false)`).ReadAll(); err != nil {
			t.Fatal(err)
		}
		var err error
		if st, err = s.Start(w.ctx()); err != nil {
			t.Fatal(err)
		}
	}
}

// The slot that a backfill leaves is copied to a standby, and goes on there
// after the failover with what was not confirmed. On the standby itself nobody
// streams from the copy, which is no reason to call it lost.
func TestSlotSurvivesAFailover(t *testing.T) {
	w := newWorld(t, nil)
	if w.version() < failoverVersion {
		t.Skip("PostgreSQL cannot")
	}
	standby := testservers.StartStandby(t, w.Postgres, testservers.StandbyOptions{Slot: "standby", SyncSlots: true})
	s := w.open()
	if err := s.EnsurePublication(w.ctx(), true); err != nil {
		t.Fatal(err)
	}
	snapshot, err := s.CreateTemporary(w.ctx(), func(string) {})
	if err != nil {
		t.Fatal(err)
	}
	if err := s.Keep(w.ctx(), snapshot); err != nil {
		t.Fatal(err)
	}
	s.Close()
	s = w.open()
	st, err := s.Start(w.ctx())
	if err != nil {
		t.Fatal(err)
	}
	other := &world{t: t, Postgres: standby, dsn: strings.Replace(w.dsn, w.Addr(), standby.Addr(), 1), cfg: w.cfg}
	other.cfg.Conn = other.parse(other.dsn)
	eventually(t, "the standby keeps a copy of the slot", func() bool {
		w.exec(`SELECT pg_log_standby_snapshot()`)
		f, _, err := st.Receive(time.Now().Add(100 * time.Millisecond))
		if err == nil && f.Keepalive {
			err = st.Status(f.WALEnd, f.WALEnd, false)
		}
		if err == nil {
			err = st.Status(0, 0, true)
		}
		if err != nil {
			t.Fatal(err)
		}
		return other.value(`SELECT count(*) FROM pg_replication_slots WHERE slot_name = 'walrelay' AND synced AND NOT temporary`) == "1"
	})
	w.insert("not confirmed")
	receiveInsert(t, st)
	standby.CatchUp(w.Postgres)

	copied := other.open()
	if !copied.Server().Standby {
		t.Error("the standby does not count as one")
	}
	if _, err := copied.Start(w.ctx()); err == nil || errors.Is(err, ErrSlotLost) || errors.Is(err, ErrSlotMissing) {
		t.Errorf("streaming from the copy on a standby: %v", err)
	}
	if _, _, err := copied.FirstCommit(w.ctx()); err == nil || errors.Is(err, ErrSlotLost) || errors.Is(err, ErrSlotMissing) {
		t.Errorf("looking into the copy on a standby: %v", err)
	}

	w.Kill()
	standby.Promote()
	promoted := other.open()
	server := promoted.Server()
	if server.Standby || server.Timeline != 2 || len(server.History) != 1 || server.SystemID != copied.Server().SystemID {
		t.Errorf("the promoted server is %+v", server)
	}
	if st, err = promoted.Start(w.ctx()); err != nil {
		t.Fatal(err)
	}
	if wal := receiveInsert(t, st); !strings.Contains(wal, "not confirmed") {
		t.Errorf("the first row after the failover is %q", wal)
	}
}
