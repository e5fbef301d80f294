package slot

import (
	"bytes"
	"context"
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"go.uber.org/goleak"

	"github.com/stagedoor/walrelay/cdc"
	"github.com/stagedoor/walrelay/internal/pg"
	"github.com/stagedoor/walrelay/internal/testservers"
)

// receive returns the next message, which must come.
func receive(t *testing.T, st *Stream) cdc.Frame {
	t.Helper()
	f, ok, err := st.Receive(time.Now().Add(soon))
	if err != nil || !ok {
		t.Fatalf("received nothing (%v)", err)
	}
	return f
}

// patience is for how long a keepalive may be left; a relay has a second.
const patience = 50 * time.Millisecond

// receiveKeepalive returns the next keepalive.
func receiveKeepalive(t *testing.T, st *Stream) cdc.Frame {
	t.Helper()
	for until := time.Now().Add(soon); time.Now().Before(until); {
		f, _, err := st.Receive(time.Now().Add(patience))
		if err != nil {
			t.Fatal(err)
		}
		if f.Keepalive {
			return f
		}
	}
	t.Fatal("no keepalive came")
	return cdc.Frame{}
}

// receiveInsert returns the next Insert message.
func receiveInsert(t *testing.T, st *Stream) string {
	t.Helper()
	for {
		if f := receive(t, st); len(f.WAL) > 0 && f.WAL[0] == 'I' {
			return string(f.WAL)
		}
	}
}

// receiveError receives until there is an error, and returns it.
func receiveError(t *testing.T, st *Stream) error {
	t.Helper()
	for {
		_, ok, err := st.Receive(time.Now().Add(soon))
		if err != nil {
			return err
		}
		if !ok {
			t.Fatal("waited in vain for an error")
		}
	}
}

func (w *world) confirmed() string {
	return w.value(`SELECT confirmed_flush_lsn FROM pg_replication_slots WHERE slot_name = ` + cdc.QuoteLiteral(w.cfg.Slot))
}

func TestStreamDeliversAndConfirms(t *testing.T) {
	w := onCommon(t).fresh(t, odd)
	_, st := w.stream()
	began := time.Now().Add(-time.Hour)
	w.insert("one")
	if wal := receiveInsert(t, st); !strings.Contains(wal, "one") {
		t.Errorf("received %q", wal)
	}
	// Asked, the server says at once how far it is.
	before := w.confirmed()
	if err := st.Status(1<<40, 0, true); err != nil {
		t.Fatal(err)
	}
	f := receiveKeepalive(t, st)
	if f.WAL != nil || f.WALEnd == 0 || f.ServerTime.Before(began) || f.ServerTime.After(time.Now().Add(time.Hour)) {
		t.Errorf("the keepalive is %+v", f)
	}
	// A status with nothing confirmed must move nothing, however much was
	// received. The keepalive shows that the server has read it.
	if written := w.value(`SELECT coalesce(max(write_lsn), '0/0') FROM pg_stat_replication WHERE state = 'streaming'`); written != "0/0" {
		t.Errorf("the server was told of %s", written)
	}
	if after := w.confirmed(); after != before {
		t.Errorf("confirmed moved from %s to %s", before, after)
	}
	if err := st.Status(f.WALEnd, f.WALEnd, false); err != nil {
		t.Fatal(err)
	}
	eventually(t, "the server has what was confirmed", func() bool { return w.confirmed() == f.WALEnd.String() })
	if lag := w.value(`SELECT write_lsn = flush_lsn AND flush_lsn = replay_lsn FROM pg_stat_replication WHERE state = 'streaming'`); lag != "t" {
		t.Error("the three positions differ")
	}
}

// When Close returns the last status has arrived and the slot is free, also
// over a slow network.
func TestCloseWaitsForTheLastStatus(t *testing.T) {
	w := onCommon(t)
	proxy := testservers.StartProxy(t, w.Addr())
	w.cfg.Conn = w.parse(strings.Replace(w.dsn, w.Addr(), proxy.Addr(), 1))
	s, st := w.stream()
	w.insert("one")
	receiveInsert(t, st)
	last := receive(t, st) // the commit
	proxy.OnRequest(func([]byte) bool {
		time.Sleep(200 * time.Millisecond) // a slow network, not a wait
		return false
	})
	if err := st.Status(last.WALEnd, last.WALEnd, false); err != nil {
		t.Fatal(err)
	}
	st.Interrupt()
	s.Close()
	if got := w.confirmed(); got != last.WALEnd.String() {
		t.Errorf("the last status did not arrive: confirmed is %s, want %s", got, last.WALEnd)
	}
	if got := w.value(`SELECT active FROM pg_replication_slots`); got != "f" {
		t.Error("the slot is still active")
	}
}

// A deadline in the middle of a message, and of a TLS record, costs nothing.
func TestDeadlineInTheMiddleOfAMessage(t *testing.T) {
	w := onCommon(t)
	w.enableTLS()
	tests := map[string]string{"plain": "disable", "tls": "require"}
	for name, mode := range tests {
		t.Run(name, func(t *testing.T) {
			w := w.named(t, name)
			proxy := testservers.StartProxy(t, w.Addr())
			w.cfg.Conn = w.parse(strings.Replace(w.as("", "sslmode", mode), w.Addr(), proxy.Addr(), 1))
			_, st := w.stream()
			// Let pass what comes before the row, and then a part of it.
			started := proxy.Replied()
			proxy.OnReply(func([]byte) bool {
				if proxy.Replied()-started < 100_000 {
					return false
				}
				proxy.Stall()
				return false
			})
			payload := strings.Repeat("0123456789", 300_000)
			w.insert(payload)
			deadlines := 0
			var got []byte
			for got == nil {
				f, ok, err := st.Receive(time.Now().Add(50 * time.Millisecond))
				if err != nil {
					t.Fatal(err)
				}
				if !ok {
					if deadlines++; deadlines == 3 {
						proxy.OnReply(nil)
						proxy.Resume()
					}
				}
				if ok && len(f.WAL) > 0 && f.WAL[0] == 'I' {
					got = bytes.Clone(f.WAL)
				}
			}
			if deadlines < 3 || !strings.Contains(string(got), payload) {
				t.Errorf("after %d deadlines received %d bytes, want the row whole", deadlines, len(got))
			}
			if err := st.Status(0, 0, true); err != nil {
				t.Error(err)
			}
		})
	}
}

// enableTLS gives the server a certificate.
func (w *world) enableTLS() {
	w.t.Helper()
	key, cert := filepath.Join(w.DataDir(), "server.key"), filepath.Join(w.DataDir(), "server.crt")
	out, err := exec.Command("openssl", "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-days", "1",
		"-subj", "/CN=localhost", "-keyout", key, "-out", cert).CombinedOutput()
	if err != nil {
		w.t.Fatalf("make a certificate: %v\n%s", err, out)
	}
	for _, file := range []string{key, cert} {
		info, err := os.Stat(w.DataDir())
		if err != nil {
			w.t.Fatal(err)
		}
		chown(w.t, file, info)
		if err := os.Chmod(file, 0o600); err != nil {
			w.t.Fatal(err)
		}
	}
	w.exec(`ALTER SYSTEM SET ssl = on`)
	w.exec(`SELECT pg_reload_conf()`)
	eventually(w.t, "the server speaks TLS", func() bool { return w.value(`SHOW ssl`) == "on" })
}

func TestInterrupt(t *testing.T) {
	w := onCommon(t)
	proxy := testservers.StartProxy(t, w.Addr())
	w.cfg.Conn = w.parse(strings.Replace(w.dsn, w.Addr(), proxy.Addr(), 1))
	_, st := w.stream()
	never := time.Time{}
	waits, done := make(chan struct{}), make(chan error, 1)
	go func() {
		receiveKeepalive(t, st) // there is a first one
		proxy.Stall()           // and no other that would end the wait
		close(waits)
		for ok, err := true, error(nil); ; {
			if _, ok, err = st.Receive(never); err != nil || !ok {
				done <- err
				return
			}
		}
	}()
	<-waits
	st.Interrupt()
	select {
	case err := <-done:
		if err != nil {
			t.Error(err)
		}
	case <-time.After(soon):
		st.Close()
		t.Fatal("the interrupt was lost")
	}
	proxy.Resume()
	// And every later one, whatever its deadline.
	w.insert("not received any more")
	for _, deadline := range []time.Time{never, time.Now().Add(time.Hour)} {
		if f, ok, err := st.Receive(deadline); ok || err != nil {
			t.Errorf("received %+v (%v)", f, err)
		}
	}
	if err := st.Status(0, 0, false); err != nil {
		t.Errorf("the last status: %v", err)
	}
}

// Interrupts that come at any moment of a Receive are never lost.
func TestInterruptIsNotLost(t *testing.T) {
	w := onCommon(t)
	s := w.slot()
	s.Close()
	for range 20 {
		s := w.open()
		st, err := s.Start(w.ctx())
		if err != nil {
			t.Fatal(err)
		}
		go st.Interrupt()
		lost := time.AfterFunc(soon, st.Close) // else it would wait for ever
		defer lost.Stop()
		for ok := true; ok; {
			if _, ok, err = st.Receive(time.Time{}); err != nil {
				t.Fatal(err)
			}
		}
		s.Close()
	}
}

func TestStreamCloseFromAnotherGoroutine(t *testing.T) {
	w := onCommon(t)
	s, st := w.stream()
	done := make(chan error, 1)
	go func() {
		for {
			if _, _, err := st.Receive(time.Time{}); err != nil {
				done <- err
				return
			}
		}
	}()
	st.Close()
	if err := <-done; !errors.Is(err, errHungUp) {
		t.Errorf("Receive ended with %v", err)
	}
	eventually(t, "the server has noticed", func() bool {
		return w.value(`SELECT active FROM pg_replication_slots`) == "f"
	})
	if err := st.Status(0, 0, false); err == nil {
		t.Error("Status succeeded")
	}
	s.Close()
	s.Close()
}

// Every reason why PostgreSQL does not stream has its own sentence.
func TestStartIsRefused(t *testing.T) {
	w := newWorld(t, map[string]string{"max_slot_wal_keep_size": "1MB", "max_wal_size": "32MB", "min_wal_size": "32MB"})
	t.Run("no slot", func(t *testing.T) {
		w := w.named(t, "none")
		s := w.open()
		if _, err := s.Start(w.ctx()); !errors.Is(err, ErrSlotMissing) {
			t.Errorf("got %v, want ErrSlotMissing", err)
		}
		// Dropped after the look.
		err := s.startError(s.start(w.ctx(), `START_REPLICATION SLOT none LOGICAL 0/0`), nil)
		if !errors.Is(err, ErrSlotMissing) {
			t.Errorf("got %v, want ErrSlotMissing", err)
		}
	})
	t.Run("a slot in use", func(t *testing.T) {
		w := w.named(t, "used")
		w.stream()
		_, err := w.open().Start(w.ctx())
		pid := w.value(`SELECT active_pid FROM pg_replication_slots WHERE slot_name = 'used'`)
		if !errors.Is(err, ErrSlotInUse) || !strings.Contains(err.Error(), "PID "+pid) {
			t.Errorf("got %v, want ErrSlotInUse and PID %s", err, pid)
		}
		if _, _, err := w.open().FirstCommit(w.ctx()); !errors.Is(err, ErrSlotInUse) {
			t.Errorf("got %v, want ErrSlotInUse", err)
		}
	})
	t.Run("a lost slot", func(t *testing.T) {
		w := w.named(t, "lost")
		s := w.slot()
		for range 4 {
			w.exec(`SELECT pg_logical_emit_message(false, 'x', 'x')`)
			w.exec(`SELECT pg_switch_wal()`)
		}
		w.exec(`CHECKPOINT`)
		slot, err := s.Slot(w.ctx())
		if err != nil || slot.WALStatus != "lost" || slot.RestartLSN != 0 {
			t.Errorf("the slot is %+v (%v), want it lost", slot, err)
		}
		if _, _, err := s.FirstCommit(w.ctx()); !errors.Is(err, ErrSlotLost) {
			t.Errorf("got %v, want ErrSlotLost", err)
		}
		if _, err := s.Start(w.ctx()); !errors.Is(err, ErrSlotLost) {
			t.Errorf("got %v, want ErrSlotLost", err)
		}
	})
	t.Run("a slot that is not lost", func(t *testing.T) {
		// 55000 says more than one thing.
		w := w.named(t, "fine")
		s := w.slot()
		slot, err := s.Slot(w.ctx())
		if err != nil {
			t.Fatal(err)
		}
		_, refusal := s.command(w.ctx(), `SELECT lastval()`)
		if pg.Code(refusal) != codeObjectNotInPrerequisiteState {
			t.Fatal(refusal)
		}
		if err := s.startError(refusal, slot); errors.Is(err, ErrSlotLost) || !errors.Is(err, refusal) {
			t.Errorf("got %v", err)
		}
	})
}

func TestStreamBreaks(t *testing.T) {
	w := newWorld(t, nil)
	t.Run("the publication is dropped", func(t *testing.T) {
		w := w.named(t, "unpublished")
		if w.version() >= 180000 {
			t.Skip("PostgreSQL 18 only writes a warning to its log")
		}
		_, st := w.stream()
		w.exec(`DROP PUBLICATION walrelay`)
		w.insert("lost")
		if err := receiveError(t, st); !errors.Is(err, ErrPublication) {
			t.Errorf("got %v, want ErrPublication", err)
		}
	})
	t.Run("the walsender is terminated", func(t *testing.T) {
		w := w.named(t, "terminated")
		s, st := w.stream()
		w.exec(`SELECT pg_terminate_backend(active_pid) FROM pg_replication_slots WHERE slot_name = 'terminated'`)
		if err := receiveError(t, st); !errors.Is(err, ErrShutdown) {
			t.Errorf("got %v, want ErrShutdown", err)
		}
		s.Close()
	})
	t.Run("the WAL is gone", func(t *testing.T) {
		w := w.named(t, "gone")
		s := w.slot()
		segment := w.value(`SELECT pg_walfile_name(restart_lsn) FROM pg_replication_slots WHERE slot_name = 'gone'`)
		w.exec(`SELECT pg_switch_wal()`)
		w.insert("x")
		if err := os.Remove(filepath.Join(w.DataDir(), "pg_wal", segment)); err != nil {
			t.Fatal(err)
		}
		if _, _, err := s.FirstCommit(w.ctx()); !errors.Is(err, ErrSlotLost) {
			t.Errorf("got %v, want ErrSlotLost", err)
		}
		st, err := s.Start(w.ctx())
		if err == nil {
			err = receiveError(t, st)
		}
		if !errors.Is(err, ErrSlotLost) {
			t.Errorf("got %v, want ErrSlotLost", err)
		}
	})
	t.Run("the server crashes", func(t *testing.T) {
		w := w.named(t, "crashed")
		s, st := w.stream()
		w.Kill()
		if err := receiveError(t, st); err == nil {
			t.Error("no error")
		}
		s.Close()
	})
}

func TestServerStopsInOrder(t *testing.T) {
	w := newWorld(t, nil)
	_, st := w.stream()
	stopped := make(chan error, 1)
	go func() { stopped <- w.TryStop(context.Background(), "fast") }()
	var err error
	for err == nil { // confirm all that there is, as the server wants
		var f cdc.Frame
		if f, _, err = st.Receive(time.Now().Add(patience)); err == nil && f.Keepalive {
			err = st.Status(f.WALEnd, f.WALEnd, false)
		}
	}
	if !errors.Is(err, ErrShutdown) {
		t.Errorf("got %v, want ErrShutdown", err)
	}
	if err := <-stopped; err != nil {
		t.Error(err)
	}
}

// Closing is bounded whatever the server does.
func TestCloseOfAFrozenServer(t *testing.T) {
	w := newWorld(t, nil)
	before := goleak.IgnoreCurrent()
	s, _ := w.stream()
	s.askTimeout = 100 * time.Millisecond
	w.Freeze()
	defer w.Thaw()
	if _, err := s.Clock(w.ctx()); err == nil {
		t.Error("a frozen server told the time")
	}
	s.Close()
	if err := goleak.Find(before); err != nil {
		t.Errorf("after Close: %v", err)
	}
}

func TestParseFrame(t *testing.T) {
	wal := append([]byte{'w', 0, 0, 0, 0, 0, 0, 0, 1, 0, 0, 0, 1, 0, 0, 0, 2, 0, 0, 0, 0, 0, 0, 0, 5}, "row"...)
	f, err := parseFrame(wal)
	if err != nil || string(f.WAL) != "row" || f.WALEnd != cdc.LSN(1<<32|2) ||
		!f.ServerTime.Equal(time.Date(2000, 1, 1, 0, 0, 0, 5000, time.UTC)) {
		t.Errorf("read %+v (%v)", f, err)
	}
	for _, bad := range [][]byte{nil, {'w'}, wal[:24], {'k', 1}, append([]byte{'x'}, wal[1:]...)} {
		if f, err := parseFrame(bad); err == nil {
			t.Errorf("read %+v from %q", f, bad)
		}
	}
}

// Gathering ends when enough has come, with the deadline, with an interrupt and
// with the stream, and whatever came by then is received as it would be without.
func TestGather(t *testing.T) {
	const enough = 32 << 10
	for name, tt := range map[string]struct {
		rows     int
		deadline time.Duration
		then     func(*world, *Session, *Stream)
		ends     bool // the stream
	}{
		"enough has come":         {rows: 2000, deadline: soon},
		"the deadline":            {rows: 3, deadline: 100 * time.Millisecond},
		"the deadline has passed": {rows: 3, deadline: -time.Second},
		"nothing comes":           {deadline: 50 * time.Millisecond},
		"an interrupt":            {deadline: soon, then: func(_ *world, _ *Session, st *Stream) { st.Interrupt() }},
		"the relay hangs up":      {deadline: soon, then: func(_ *world, _ *Session, st *Stream) { st.Close() }, ends: true},
		"PostgreSQL ends the flow": {deadline: soon, ends: true, then: func(w *world, s *Session, _ *Stream) {
			w.exec(`SELECT pg_terminate_backend(` + itoa(s.PID()) + `)`)
		}},
	} {
		t.Run(name, func(t *testing.T) {
			w := onCommon(t)
			s, st := w.stream()
			if tt.rows > 0 {
				w.exec(`INSERT INTO outbox (payload) SELECT 'x' FROM generate_series(1, ` + itoa(tt.rows) + `)`)
			}
			if tt.then != nil {
				go tt.then(w, s, st)
			}
			begun := time.Now()
			n, err := st.Gather(enough, begun.Add(tt.deadline))
			if err != nil && !(tt.ends && errors.Is(err, errHungUp)) {
				t.Fatal(err)
			}
			if tt.deadline == soon && time.Since(begun) >= soon {
				t.Error("it took until the deadline")
			}
			if (n >= enough) != (tt.rows > 1000) {
				t.Errorf("%d bytes were gathered", n)
			}
			if tt.ends {
				if err := receiveError(t, st); !errors.Is(err, errHungUp) && !errors.Is(err, ErrShutdown) {
					t.Error(err)
				}
				return
			}
			for range tt.rows {
				receiveInsert(t, st)
			}
			if tt.then != nil {
				if f, ok, err := st.Receive(time.Now().Add(soon)); ok || err != nil {
					t.Errorf("received %+v, %v", f, err)
				}
			}
		})
	}
}

// A busy table sends many thousand messages a second.
func TestMessageCostsNoMemory(t *testing.T) {
	w := onCommon(t)
	_, st := w.stream()
	const rows = 5000
	w.exec(`INSERT INTO outbox (payload) SELECT repeat('x', 100) FROM generate_series(1, ` + itoa(rows) + `)`)
	receiveInsert(t, st)
	deadline := time.Now().Add(soon)
	allocs := testing.AllocsPerRun(rows-100, func() {
		if _, ok, err := st.Receive(deadline); !ok || err != nil {
			t.Fatal(err)
		}
	})
	if allocs > 0 {
		t.Errorf("each message costs %v allocations", allocs)
	}
}
