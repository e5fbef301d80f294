package slot

import (
	"context"
	"errors"
	"fmt"
	"net"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stagedoor/walrelay/cdc"
	"github.com/stagedoor/walrelay/internal/fault"
)

func TestOpenSaysWhoTheServerIs(t *testing.T) {
	w := newWorld(t, map[string]string{"wal_sender_timeout": "7s"})
	s := w.open()
	got := s.Server()
	if want := w.value(`SELECT system_identifier FROM pg_control_system()`); got.SystemID != want {
		t.Errorf("system id %s, want %s", got.SystemID, want)
	}
	if want := w.value(`SELECT current_database()`); got.Database != want {
		t.Errorf("database %s, want %s", got.Database, want)
	}
	if want := w.value(`SHOW server_version_num`); want != itoa(got.Version) {
		t.Errorf("version %d, want %s", got.Version, want)
	}
	if want := w.value(`SELECT timeline_id FROM pg_control_checkpoint()`); want != itoa(int(got.Timeline)) {
		t.Errorf("timeline %d, want %s", got.Timeline, want)
	}
	if s.SenderTimeout().Seconds() != 7 {
		t.Errorf("wal_sender_timeout %s, want 7s", s.SenderTimeout())
	}
	w.insert("one")
	end, err := s.WALEnd(w.ctx())
	if err != nil || end <= got.WALEnd {
		t.Errorf("the WAL ended at %s, after a row at %s (%v)", got.WALEnd, end, err)
	}
	if now, err := s.Clock(w.ctx()); err != nil || now.Year() < 2020 {
		t.Errorf("the clock says %s (%v)", now, err)
	}
}

func TestOpenRefuses(t *testing.T) {
	w := onCommon(t)
	plain, stranger := w.role("LOGIN"), w.role("LOGIN REPLICATION")
	w.exec(`REVOKE CONNECT ON DATABASE ` + w.value(`SELECT current_database()`) + ` FROM PUBLIC`)
	tests := []struct {
		name string
		dsn  string
		fix  string
	}{
		{"a role without REPLICATION", w.as(plain), `ALTER ROLE ` + cdc.QuoteIdent(plain) + ` REPLICATION;`},
		{"a role that does not exist", w.as("nobody"), "pg_hba.conf"},
		{"a database that does not exist", w.DSN("nothing"), "--postgres"},
	}
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			w := &world{t: t, Postgres: w.Postgres, dsn: w.dsn, cfg: w.cfg}
			w.cfg.Conn = w.parse(test.dsn)
			_, err := w.source().Open(w.ctx())
			wantFault(t, err, nil, test.fix)
		})
	}
	t.Run("a role that may not connect", func(t *testing.T) {
		_, err := dial(w.ctx(), w.parse(w.as(stranger)))
		wantFault(t, err, nil, "GRANT CONNECT ON DATABASE")
		w.exec(fault.As(err).Fix)
		if conn, err := dial(w.ctx(), w.parse(w.as(stranger))); err != nil {
			t.Errorf("after the fix: %v", err)
		} else {
			conn.close()
		}
	})
	t.Run("several servers that are away", func(t *testing.T) {
		w := &world{t: t, Postgres: w.Postgres, dsn: w.dsn, cfg: w.cfg}
		w.cfg.Conn = w.parse("host=127.0.0.1,localhost port=1,2 user=postgres sslmode=prefer")
		_, err := w.source().Open(w.ctx())
		text := fmt.Sprint(err)
		if fault.As(err) != nil || strings.Contains(text, "\n") || strings.Count(text, "127.0.0.1:1 ") != 1 || !strings.Contains(text, ":2 (localhost)") {
			t.Errorf("it says %q, want each server once, in one line", text)
		}
	})
}

func TestOpenRefusesWALLevel(t *testing.T) {
	w := newWorld(t, map[string]string{"wal_level": "replica"})
	_, err := w.source().Open(w.ctx())
	wantFault(t, err, nil, "ALTER SYSTEM SET wal_level = 'logical'")
}

func TestOpenWithoutAFreeConnection(t *testing.T) {
	w := newWorld(t, map[string]string{"max_wal_senders": "1"})
	w.open()
	_, err := w.source().Open(w.ctx())
	wantFault(t, err, nil, "max_wal_senders")
}

func TestOpenDuringShutdown(t *testing.T) {
	w := newWorld(t, nil)
	conn := w.connect(w.dsn) // a smart shutdown waits for it
	stopped := make(chan error, 1)
	go func() { stopped <- w.TryStop(context.Background(), "smart") }()
	var err error
	eventually(t, "PostgreSQL lets nobody in", func() bool {
		var s *Session
		if s, err = w.source().Open(w.ctx()); err == nil {
			s.Close()
		}
		return err != nil
	})
	if !errors.Is(err, ErrShutdown) || fault.As(err) != nil {
		t.Errorf("got %v, want ErrShutdown and no fault", err)
	}
	closeQuietly(conn)
	if err := <-stopped; err != nil {
		t.Error(err)
	}
}

// PostgreSQL itself says whose name matches: the priority of the stream.
func TestOpenRefusesSynchronous(t *testing.T) {
	w := onCommon(t)
	w.cfg.Conn = w.parse(w.as("", "application_name", "Relay-1"))
	_, st := w.stream()
	// Who has confirmed nothing counts as asynchronous.
	f := receiveKeepalive(t, st)
	if err := st.Status(f.WALEnd, f.WALEnd, false); err != nil {
		t.Fatal(err)
	}
	tests := []struct {
		setting string
		match   bool
	}{
		{`*`, true},
		{`"Relay-1"`, true},
		{`"relay-1"`, true},
		{`FIRST 1 (nobody, "RELAY-1")`, true},
		{`any 2 (a, b, *)`, true},
		{`1 ("Relay-1", b)`, true},
		{`"*"`, true},
		{`nobody`, false},
		{`FIRST 1 ("any", "first", "Relay-1 ")`, false},
		{`"Relay-1""", "a,Relay-1", "(Relay-1)"`, false},
		{`2 (1, 2)`, false},
		{``, false},
	}
	set := func(setting string) {
		w.exec(`ALTER SYSTEM SET synchronous_standby_names = ` + cdc.QuoteLiteral(setting))
		w.exec(`SELECT pg_reload_conf()`)
	}
	priority := func(match bool) func() bool {
		return func() bool { return (w.value(`SELECT max(sync_priority) FROM pg_stat_replication`) != "0") == match }
	}
	for _, test := range tests {
		// The server ends a connection that says nothing for long.
		if err := st.Status(f.WALEnd, f.WALEnd, false); err != nil {
			t.Fatal(err)
		}
		before := map[bool]string{true: "nobody", false: "*"}[test.match]
		set(before)
		eventually(t, "the server follows "+before, priority(!test.match))
		set(test.setting)
		eventually(t, "the server judges as expected: "+test.setting, priority(test.match))
		s, err := w.source().Open(w.ctx())
		if err == nil {
			s.Close()
		}
		if !test.match && err != nil {
			t.Errorf("%s: %v", test.setting, err)
		}
		if test.match {
			wantFault(t, err, ErrSynchronous, "ALTER SYSTEM SET synchronous_standby_names")
		}
	}
	w.exec(`ALTER SYSTEM RESET synchronous_standby_names`)
	w.exec(`SELECT pg_reload_conf()`)
}

// A list of hosts must not lead the two connections to two servers.
func TestBothConnectionsGoToOneServer(t *testing.T) {
	a, b := onCommon(t), newWorld(t, nil)
	dsn := strings.Replace(a.dsn, a.Addr(), a.Addr()+","+b.Addr(), 1)
	a.cfg.Conn = a.parse(dsn)
	dialer := a.cfg.Conn.DialFunc
	var dials atomic.Int64
	a.cfg.Conn.DialFunc = func(ctx context.Context, network, address string) (net.Conn, error) {
		if dials.Add(1) > 1 && address == a.Addr() {
			return nil, errors.New("the first server is gone")
		}
		return dialer(ctx, network, address)
	}
	_, err := a.source().Open(a.ctx())
	if err == nil || !strings.Contains(err.Error(), "the first server is gone") {
		t.Errorf("got %v, want that the first server is gone", err)
	}
	if n := dials.Load(); n != 2 {
		t.Errorf("%d dials, want 2: no other server may be asked", n)
	}
}

// The name is what a certificate is checked against.
func TestPinKeepsNamesAndSockets(t *testing.T) {
	w := onCommon(t)
	port := itoa(w.Port())
	for _, test := range []struct{ host, port, want string }{
		{"localhost", port, "localhost"},
		{w.SocketDir(), port, w.SocketDir()},
		{"127.0.0.1,localhost", "1," + port, "localhost"},
	} {
		w.cfg.Conn = w.parse(strings.Replace(w.as("", "host", test.host, "port", test.port, "sslmode", "prefer"), w.Addr(), "", 1))
		if got := w.open().ordinary.conn.Config().Host; got != test.want {
			t.Errorf("from %s the second connection goes to %s, want %s", test.host, got, test.want)
		}
	}
}

func TestPasswordIsNotTold(t *testing.T) {
	w := onCommon(t)
	dsn := strings.Replace(w.DSN("nothing"), "postgres@", "postgres:secret-word@", 1)
	w.cfg.Conn = w.parse(dsn)
	if _, err := w.source().Open(w.ctx()); err == nil || strings.Contains(err.Error(), "secret-word") {
		t.Errorf("the error is %v", err)
	}
}

func TestOneRelayHasTheLock(t *testing.T) {
	w := onCommon(t)
	first, second := w.open(), w.open()
	lock := func(s *Session, want bool) {
		t.Helper()
		if got, err := s.TryLock(w.ctx()); err != nil || got != want {
			t.Errorf("TryLock gave %v (%v), want %v", got, err, want)
		}
	}
	lock(first, true)
	lock(second, false)
	other := *w
	other.cfg.Slot = "other"
	lock(other.open(), true)
	first.Close()
	eventually(t, "the lock of the closed session is free", func() bool {
		got, err := second.TryLock(w.ctx())
		return err == nil && got
	})
}

// Somebody else's slot is not streamed from and not dropped, whatever we do.
func TestForeignSlotIsNeverTouched(t *testing.T) {
	w := onCommon(t)
	other := w.fresh(t, w.cfg)
	for name, create := range map[string]func(){
		"physical":         func() { w.exec(`SELECT pg_create_physical_replication_slot('walrelay', true)`) },
		"another plugin":   func() { w.exec(`SELECT pg_create_logical_replication_slot('walrelay', 'test_decoding')`) },
		"another database": func() { other.exec(`SELECT pg_create_logical_replication_slot('walrelay', 'pgoutput')`) },
	} {
		t.Run(name, func(t *testing.T) {
			create()
			defer w.execIn(other.dsn, `SELECT pg_drop_replication_slot('walrelay')`)
			s := w.open()
			defer s.Close()
			const all = `SELECT to_jsonb(s) FROM pg_replication_slots s`
			before := w.value(all)
			_, err := s.Slot(w.ctx())
			wantFault(t, err, ErrForeignSlot, "--slot")
			wantFault(t, s.Drop(w.ctx()), ErrForeignSlot, "--slot")
			_, err = s.Start(w.ctx())
			wantFault(t, err, ErrForeignSlot, "--slot")
			done, err := w.source().Teardown(w.ctx())
			wantFault(t, err, ErrForeignSlot, "--slot")
			if err := dropSlot(w.ctx(), s.ordinary.conn, "walrelay"); err != nil {
				t.Error(err)
			}
			if len(done) > 0 {
				t.Errorf("teardown did %q", done)
			}
			if after := w.value(all); after != before {
				t.Errorf("the slot was\n%s\nand is\n%s", before, after)
			}
		})
	}
}

func TestSlotAndDrop(t *testing.T) {
	w := onCommon(t)
	s := w.open()
	if slot, err := s.Slot(w.ctx()); slot != nil || err != nil {
		t.Errorf("there is no slot, and it is %v (%v)", slot, err)
	}
	if err := s.Drop(w.ctx()); err != nil {
		t.Errorf("drop no slot: %v", err)
	}
	w.exec(`SELECT pg_create_logical_replication_slot('walrelay', 'pgoutput')`)
	slot, err := s.Slot(w.ctx())
	if err != nil {
		t.Fatal(err)
	}
	confirmed, _ := cdc.ParseLSN(w.value(`SELECT confirmed_flush_lsn FROM pg_replication_slots`))
	restart, _ := cdc.ParseLSN(w.value(`SELECT restart_lsn FROM pg_replication_slots`))
	want := cdc.Slot{
		Name: "walrelay", Plugin: "pgoutput", Database: s.Server().Database,
		WALStatus: "reserved", ConfirmedFlush: confirmed, RestartLSN: restart,
	}
	if *slot != want {
		t.Errorf("the slot is %+v, want %+v", *slot, want)
	}
	if err := s.EnsurePublication(w.ctx(), true); err != nil {
		t.Fatal(err)
	}
	if _, err := w.open().Start(w.ctx()); err != nil {
		t.Fatal(err)
	}
	slot, err = s.Slot(w.ctx())
	if err != nil || !slot.Active {
		t.Fatalf("the slot that is streamed from is %+v (%v)", slot, err)
	}
	pid := itoa(slot.ActivePID)
	if w.value(`SELECT backend_start = '`+slot.ActiveSince.Format(time.RFC3339Nano)+`' FROM pg_stat_activity WHERE pid = `+pid) != "t" {
		t.Errorf("the process %s that streams started at %s", pid, slot.ActiveSince)
	}
	if err := s.Drop(w.ctx()); !errors.Is(err, ErrSlotInUse) || !strings.Contains(err.Error(), pid) {
		t.Errorf("drop an active slot: %v, want ErrSlotInUse with PID %s", err, pid)
	}
	if err := dropSlot(w.ctx(), s.ordinary.conn, "walrelay"); !errors.Is(err, ErrSlotInUse) {
		t.Errorf("drop a slot that became active: %v", err)
	}
	if _, err := s.Start(w.ctx()); !errors.Is(err, ErrSlotInUse) || !strings.Contains(err.Error(), pid) {
		t.Errorf("start from an active slot: %v, want ErrSlotInUse with PID %s", err, pid)
	}
	w.exec(`SELECT pg_terminate_backend(` + pid + `)`)
	eventually(t, "the slot can be dropped", func() bool { return s.Drop(w.ctx()) == nil })
	if slot, err := s.Slot(w.ctx()); slot != nil || err != nil {
		t.Errorf("the dropped slot is %v (%v)", slot, err)
	}
}
