package slot

import (
	"bytes"
	"errors"
	"testing"
	"time"

	"github.com/stagedoor/walrelay/cdc"
	"github.com/stagedoor/walrelay/internal/testservers"
)

// lazyBeginVersion is the first that delivers no empty transactions.
const lazyBeginVersion = 150000

// What a slot still delivers is known without moving it, to a role that may
// replicate and no more.
func TestFirstCommitOfASlot(t *testing.T) {
	w := onCommon(t).fresh(t, odd)
	role := w.role("LOGIN REPLICATION")
	created := w.clock()
	w.slot().Close()
	w.cfg.Conn = w.parse(w.as(role))
	s := w.open()
	first := func() (time.Time, bool) {
		t.Helper()
		at, ok, err := s.FirstCommit(w.ctx())
		if err != nil {
			t.Fatal(err)
		}
		return at, ok
	}
	if at, ok := first(); ok {
		t.Errorf("an empty slot delivers a transaction of %s", at)
	}
	w.exec(`CREATE TABLE other (); INSERT INTO other DEFAULT VALUES`)
	if _, ok := first(); ok && w.version() >= lazyBeginVersion {
		t.Error("a transaction of another table counts")
	}
	before := w.clock()
	w.insert("one")
	after := w.clock()
	w.insert("two")
	place := w.value(`SELECT confirmed_flush_lsn::text || ' ' || restart_lsn FROM pg_replication_slots`)
	if w.version() < lazyBeginVersion {
		before = created
	}
	for range 2 {
		if at, ok := first(); !ok || at.Before(before) || at.After(after) {
			t.Errorf("the first row was committed between %s and %s, not %s (%v)", before, after, at, ok)
		}
	}
	if now := w.value(`SELECT confirmed_flush_lsn::text || ' ' || restart_lsn FROM pg_replication_slots`); now != place {
		t.Errorf("the slot moved from %s to %s", place, now)
	}
	st, err := s.Start(w.ctx())
	if err != nil {
		t.Fatal(err)
	}
	receiveInsert(t, st)
	receiveInsert(t, st)
}

// Rows that were written without a publication do not come over the slot, and
// no other attempt changes that.
func TestFirstCommitWithoutAPublication(t *testing.T) {
	w := onCommon(t)
	s := w.slot()
	w.exec(`DROP PUBLICATION walrelay`)
	w.insert("lost")
	if err := s.EnsurePublication(w.ctx(), true); err != nil {
		t.Fatal(err)
	}
	at, ok, err := s.FirstCommit(w.ctx())
	switch version := w.version(); {
	case version >= 180000:
		if ok || err != nil {
			t.Errorf("got %s, %v, %v, want that the slot has nothing", at, ok, err)
		}
	case version < lazyBeginVersion: // the drop itself is a transaction
		if !ok || err != nil {
			t.Errorf("got %s, %v, %v, want the time of an earlier transaction", at, ok, err)
		}
	case !errors.Is(err, ErrPublication) || errors.Is(err, ErrSlotMissing):
		t.Errorf("got %v, want ErrPublication", err)
	}
}

// PostgreSQL decodes a transaction whole before it shows its beginning.
func TestFirstCommitOfALargeTransaction(t *testing.T) {
	w := onCommon(t)
	role := w.role("LOGIN REPLICATION")
	w.exec(`ALTER ROLE ` + cdc.QuoteIdent(role) + ` SET work_mem = '64kB'; ALTER ROLE ` + cdc.QuoteIdent(role) + ` SET temp_file_limit = '1MB'`)
	w.slot().Close()
	w.exec(`INSERT INTO outbox (payload) SELECT repeat('x', 100) FROM generate_series(1, 20000)`)
	w.cfg.Conn = w.parse(w.as(role))
	s := w.open()
	if _, _, err := s.FirstCommit(w.ctx()); w.version() >= lazyBeginVersion || err != nil {
		wantFault(t, err, nil, `SET temp_file_limit = -1;`)
	}
	w.exec(`ALTER ROLE ` + cdc.QuoteIdent(role) + ` SET temp_file_limit = -1`)
	if at, ok, err := s.FirstCommit(w.ctx()); err != nil || !ok || at.IsZero() {
		t.Errorf("got %s, %v, %v", at, ok, err)
	}
}

func TestFirstCommitOfNoSlot(t *testing.T) {
	w := onCommon(t)
	s := w.open()
	if _, _, err := s.FirstCommit(w.ctx()); !errors.Is(err, ErrSlotMissing) {
		t.Errorf("got %v, want ErrSlotMissing", err)
	}
	w.exec(`SELECT pg_create_logical_replication_slot('walrelay', 'test_decoding')`)
	_, _, err := s.FirstCommit(w.ctx())
	wantFault(t, err, ErrForeignSlot, "--slot")
}

// Decoding takes as long as it takes, but not longer than the server lives.
func TestFirstCommitOnAFrozenServer(t *testing.T) {
	w := newWorld(t, nil)
	w.slot().Close()
	proxy := testservers.StartProxy(t, w.Addr())
	cfg := w.cfg
	cfg.Conn = w.parse("host=127.0.0.1 port=" + itoa(proxy.Port()) + " user=postgres sslmode=disable dbname=" + w.value(`SELECT current_database()`))
	source := New(cfg, w.source().log)
	source.lookEvery = 50 * time.Millisecond
	s := w.openSource(source)
	s.askTimeout = 200 * time.Millisecond
	proxy.OnRequest(func(piece []byte) bool {
		if bytes.Contains(piece, []byte("peek_binary_changes")) {
			w.Freeze()
		}
		return false
	})
	ctx := w.ctx()
	_, _, err := s.FirstCommit(ctx)
	if err == nil || ctx.Err() != nil {
		t.Errorf("got %v, want a time-out", err)
	}
	s.Close()
	w.Thaw()
}

// clock is the server's time.
func (w *world) clock() time.Time {
	w.t.Helper()
	at, err := w.open().Clock(w.ctx())
	if err != nil {
		w.t.Fatal(err)
	}
	return at
}
