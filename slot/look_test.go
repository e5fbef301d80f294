package slot

import (
	"context"
	"errors"
	"log/slog"
	"strings"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/stagedoor/walrelay/internal/pg"
	"github.com/stagedoor/walrelay/internal/testservers"
)

// A role that may not replicate, nor read the table, sees the slot, who reads
// it, who is about to, and the publication; and its connection changes nothing.
func TestLookFromOutside(t *testing.T) {
	common := onCommon(t)
	w := common.named(t, "looked_at")
	cfg := w.cfg
	cfg.Conn = w.parse(w.as(w.role(`LOGIN`)))
	l := NewLooker(cfg, slog.New(slog.DiscardHandler))
	defer l.Close()
	look := func() View {
		t.Helper()
		v, err := l.Look(w.ctx())
		if err != nil {
			t.Fatal(err)
		}
		return v
	}
	v := look()
	if v.Slot != nil || v.LockPID != 0 || v.Published || !errors.Is(v.Publication, ErrPublication) {
		t.Errorf("before anything is there it sees %+v", v)
	}
	s := w.open()
	if ok, err := s.TryLock(w.ctx()); err != nil || !ok {
		t.Fatalf("the lock: %v, %v", ok, err)
	}
	v = look()
	if v.LockPID != int(s.repl.PID()) {
		t.Errorf("the lock is held by %d, it sees %d", s.repl.PID(), v.LockPID)
	}
	if want := s.Server(); v.Server.SystemID != want.SystemID || v.Server.Database != want.Database || v.Server.Timeline != want.Timeline || v.Server.Version != want.Version {
		t.Errorf("the server is %+v, to a relay %+v", v.Server, want)
	}
	if d := time.Since(v.Clock); d.Abs() > soon {
		t.Errorf("its clock is off by %v", d)
	}
	// Before it has a slot, it waits for who has written.
	holder := w.connect(w.dsn)
	if _, err := holder.PgConn().Exec(w.ctx(), `BEGIN; INSERT INTO `+w.cfg.Table.String()+` (payload) VALUES ('x')`).ReadAll(); err != nil {
		t.Fatal(err)
	}
	created := make(chan error, 1)
	go func() {
		_, err := s.command(w.ctx(), `CREATE_REPLICATION_SLOT waits TEMPORARY LOGICAL pgoutput`)
		created <- err
	}()
	eventually(t, "it sees what is waited for", func() bool {
		v = look()
		return v.WaitsFor != nil
	})
	if v.WaitsFor.PID != int(holder.PgConn().PID()) {
		t.Errorf("it waits for %v, and sees %v", holder.PgConn().PID(), v.WaitsFor)
	}
	closeQuietly(holder)
	if err := <-created; err != nil {
		t.Error(err)
	}
	s.Close()
	second, _ := w.stream()
	v = look()
	if v.Slot == nil || v.Slot.Plugin != outputPlugin || v.Slot.Database != v.Server.Database || v.Slot.ActivePID != int(second.repl.PID()) || v.LockPID != 0 {
		t.Errorf("while a relay streams it sees %+v", v)
	}
	if !v.Published || v.Publication != nil {
		t.Errorf("the publication is there: %v, %v", v.Published, v.Publication)
	}
	if end, err := l.WALEnd(w.ctx()); err != nil || end < v.Slot.ConfirmedFlush {
		t.Errorf("the WAL ends at %s, %v", end, err)
	}
	err := l.Ask(w.ctx(), func(ctx context.Context, conn *pgx.Conn) error {
		_, err := conn.Exec(ctx, `CREATE TABLE t ()`)
		return err
	})
	if pg.Code(err) != codeReadOnlyTransaction {
		t.Errorf("a table can be made: %v", err)
	}
	var left string
	if err := l.ordinary.conn.QueryRow(w.ctx(), `SELECT concat_ws(' ', current_setting('default_transaction_read_only'), current_setting('statement_timeout'), current_setting('lock_timeout'))`).Scan(&left); err != nil || left != "off 0 0" {
		t.Errorf("of its settings are left %q, %v", left, err)
	}
	// It connects again where the connection was lost.
	lost := l.ordinary.conn.PgConn().PID()
	if _, err := common.connect(w.dsn).Exec(w.ctx(), `SELECT pg_terminate_backend($1)`, int(lost)); err != nil {
		t.Fatal(err)
	}
	if look(); l.ordinary.conn.PgConn().PID() == lost {
		t.Error("the connection was not lost")
	}
}

// A server that does not answer holds nobody for longer than is allowed.
func TestLookAtAFrozenServer(t *testing.T) {
	w := onCommon(t).named(t, "frozen_look")
	proxy := testservers.StartProxy(t, w.Addr())
	cfg := w.cfg
	cfg.Conn = w.parse(strings.Replace(w.dsn, w.Addr(), proxy.Addr(), 1))
	l := NewLooker(cfg, slog.New(slog.DiscardHandler))
	defer l.Close()
	if _, err := l.Look(w.ctx()); err != nil {
		t.Fatal(err)
	}
	proxy.Stall()
	for range 2 {
		ctx, cancel := context.WithTimeout(w.ctx(), 200*time.Millisecond)
		if _, err := l.Look(ctx); err == nil || !strings.Contains(err.Error(), "no answer in time") {
			t.Errorf("it says %v", err)
		}
		cancel()
		if l.ordinary != nil {
			t.Error("the connection is kept")
		}
	}
}

// On a busy server there is an oldest transaction at every look, and never one to
// be ended; only a role that sees since when they are open can tell that at once.
func TestShortTransactionsAreNotToBlame(t *testing.T) {
	w := onCommon(t)
	w.slot()
	cfg := w.cfg
	cfg.Conn = w.parse(w.as(w.role(`LOGIN`)))
	pair := [2]*pgx.Conn{w.connect(w.dsn), w.connect(w.dsn)}
	begin := func(conn *pgx.Conn) {
		if _, err := conn.Exec(w.ctx(), `BEGIN; SELECT txid_current()`, pgx.QueryExecModeSimpleProtocol); err != nil {
			t.Error(err)
		}
	}
	begin(pair[0])
	next := func() { // another is the oldest, and there always is one
		begin(pair[1])
		if _, err := pair[0].Exec(w.ctx(), `COMMIT`); err != nil {
			t.Error(err)
		}
		pair[0], pair[1] = pair[1], pair[0]
	}

	l := NewLooker(cfg, slog.New(slog.DiscardHandler))
	defer l.Close()
	l.monitor.limits.bytes = -1
	looked := 0
	l.pause = func(context.Context, time.Duration) bool { looked++; next(); return true }
	named := func() *Holder {
		t.Helper()
		v, err := l.Look(w.ctx())
		if err != nil {
			t.Fatal(err)
		}
		return v.Holder
	}
	for range 2 {
		if h := named(); h != nil {
			t.Errorf("a look from outside blames %v", h)
		}
	}
	if looked != 2 {
		t.Errorf("it looked again %d times", looked)
	}
	l.pause = func(context.Context, time.Duration) bool { return true }
	if h := named(); h == nil || h.PID != int(pair[0].PgConn().PID()) {
		t.Errorf("of a transaction that stays it blames %v", h)
	}

	for name, conn := range map[string]*pgx.ConnConfig{"a role that sees nothing": cfg.Conn, "a role that sees all": w.cfg.Conn} {
		t.Run(name, func(t *testing.T) {
			w := &world{t: t, Postgres: w.Postgres, dsn: w.dsn, cfg: w.cfg}
			w.cfg.Conn = conn
			m := w.monitor()
			m.limits = holderLimits{bytes: -1, lasts: 1}
			looks, short := 0, make(chan struct{})
			seen := w.watch(m, asked{
				question: func() string {
					if looks++; looks <= 5 {
						next()
					}
					return ""
				},
				answer: func(_ string, s Sample, _ error) error {
					if looks <= 5 && s.Holder != nil {
						t.Errorf("look %d blames %v", looks, s.Holder)
					}
					if looks == 5 {
						close(short)
					}
					return nil
				},
			}, nil)
			<-short
			s := seen.until("the one that stays is blamed", func(s Sample) bool { return works(s) && s.Holder != nil })
			if s.Holder.PID != int(pair[0].PgConn().PID()) {
				t.Errorf("blamed is %v", s.Holder)
			}
		})
	}
}
