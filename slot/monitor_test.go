package slot

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"net"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/stagedoor/walrelay/cdc"
	"github.com/stagedoor/walrelay/internal/pg"
	"github.com/stagedoor/walrelay/internal/testservers"
)

// watched is a monitor that runs until the test ends, and what it said.
type watched struct {
	t       *testing.T
	samples chan Sample

	mu       sync.Mutex
	goodbyes []error
}

// watch runs a monitor with short intervals.
func (w *world) watch(m *Monitor, table Table, goodbye func()) *watched {
	w.t.Helper()
	ctx, cancel := context.WithCancel(context.Background())
	got := &watched{t: w.t, samples: make(chan Sample, 1)}
	ended := make(chan error, 1)
	go func() {
		ended <- m.Run(ctx, 20*time.Millisecond, table, func(s Sample) {
			select {
			case <-got.samples: // keep the newest only
			default:
			}
			got.samples <- s
		}, func(reason error) {
			got.mu.Lock()
			got.goodbyes = append(got.goodbyes, reason)
			got.mu.Unlock()
			if goodbye != nil {
				goodbye()
			}
		})
	}()
	w.t.Cleanup(func() {
		cancel()
		if err := <-ended; err != nil {
			w.t.Errorf("Run returned %v", err)
		}
	})
	return got
}

// asked is a table's part of a look.
type asked struct {
	question func() string
	answer   func(text string, s Sample, err error) error
	args     []any
}

func (a asked) Question(int) (string, []any) { return a.question(), a.args }

func (a asked) Answer(text string, s Sample, err error) error {
	if a.answer == nil {
		return err
	}
	return a.answer(text, s, err)
}

// until waits for a sample of the kind.
func (g *watched) until(what string, is func(Sample) bool) Sample {
	g.t.Helper()
	timeout := time.After(soon)
	var last Sample
	for {
		select {
		case last = <-g.samples:
			if is(last) {
				return last
			}
		case <-timeout:
			g.t.Fatalf("waited in vain until %s; the last sample is %+v", what, last)
		}
	}
}

func (g *watched) goodbye() []error {
	g.mu.Lock()
	defer g.mu.Unlock()
	return append([]error(nil), g.goodbyes...)
}

func works(s Sample) bool { return s.Err == nil }

func TestMonitorMeasuresBothLags(t *testing.T) {
	w := newWorld(t, map[string]string{"max_slot_wal_keep_size": "1GB"})
	m := w.monitor()
	seen := w.watch(m, nil, nil)
	s := seen.until("there is a sample", works)
	if s.Slot != nil || s.WALEnd == 0 || s.At.IsZero() || s.Unseen != nil {
		t.Errorf("without a slot the sample is %+v", s)
	}
	if !errors.Is(s.Problem, ErrPublication) {
		t.Errorf("without a publication the problem is %v", s.Problem)
	}
	if s.Recovery || s.Timeline != 1 || s.InsertLSN < s.WALEnd {
		t.Errorf("the sample of a primary is %+v", s)
	}
	_, st := w.stream()
	pid := w.value(`SELECT active_pid FROM pg_replication_slots`)
	s = seen.until("the slot is active and there is no problem", func(s Sample) bool {
		return s.Slot != nil && itoa(s.Slot.ActivePID) == pid && s.Problem == nil
	})
	if s.Slot.Name != "walrelay" || !s.Slot.Active || s.Slot.WALStatus != "reserved" || s.Slot.SafeWALSize == nil || *s.Slot.SafeWALSize <= 0 {
		t.Errorf("the slot is %+v", s.Slot)
	}
	f := receiveKeepalive(t, st)
	if err := st.Status(f.WALEnd, f.WALEnd, false); err != nil {
		t.Fatal(err)
	}
	w.exec(`SELECT pg_logical_emit_message(false, 'x', repeat('x', 1000000))`)
	s = seen.until("a megabyte is unconfirmed", func(s Sample) bool {
		return s.Slot.ConfirmedFlush == f.WALEnd && s.Slot.UnconfirmedBytes > 1_000_000
	})
	if s.Slot.UnconfirmedBytes != int64(s.WALEnd-s.Slot.ConfirmedFlush) || s.Slot.RetainedBytes != int64(s.WALEnd-s.Slot.RestartLSN) ||
		s.Slot.RetainedBytes <= s.Slot.UnconfirmedBytes {
		t.Errorf("the lags are %+v, the WAL ends at %s", s.Slot, s.WALEnd)
	}
}

// What a look costs the primary is planning it, so that is done once, whatever the
// table asks about; also where the table is changed in between.
func TestLookIsPlannedOnce(t *testing.T) {
	w := onCommon(t)
	m := w.monitor()
	o, err := dial(w.ctx(), m.cfg.Conn)
	if err != nil {
		t.Fatal(err)
	}
	defer o.close()
	if err := m.bound(w.ctx(), o.conn); err != nil {
		t.Fatal(err)
	}
	const question = "SELECT count(*) || $7::text FROM outbox"
	for i := range 10 {
		s, answer := m.look(w.ctx(), o.conn, asked{question: func() string { return question }, args: []any{" rows, " + itoa(i)}})
		if want := "0 rows, " + itoa(i); answer != want || s.Err != nil || s.Unseen != nil {
			t.Errorf("look %d has seen %q, want %q: %+v", i, answer, want, s)
		}
		if i == 5 {
			w.exec(`ALTER TABLE outbox RENAME TO former; CREATE TABLE outbox (LIKE former); DROP TABLE former`)
		}
	}
	var got string
	if err := o.conn.QueryRow(w.ctx(), `SELECT count(*) || ' prepared, planned anew ' || coalesce(sum((to_jsonb(p) ->> 'custom_plans')::int), 0) || ' times'
		FROM pg_prepared_statements p WHERE statement LIKE '%FROM outbox%' AND NOT from_sql`, pgx.QueryExecModeExec).Scan(&got); err != nil {
		t.Fatal(err)
	}
	if want := "1 prepared, planned anew 0 times"; got != want {
		t.Errorf("after ten looks %s, want %s", got, want)
	}
}

func TestMonitorSeesProblems(t *testing.T) {
	w := onCommon(t)
	w.slot()
	seen := w.watch(w.monitor(), nil, nil)
	seen.until("all is well", func(s Sample) bool { return works(s) && s.Slot != nil && s.Problem == nil })
	problem := func(of error) func(Sample) bool {
		return func(s Sample) bool { return errors.Is(s.Problem, of) }
	}
	w.exec(`ALTER PUBLICATION walrelay SET (publish = 'update')`)
	seen.until("the publication is wrong", problem(ErrPublication))
	w.exec(`ALTER SYSTEM SET synchronous_standby_names = '*'`)
	w.exec(`SELECT pg_reload_conf()`)
	s := seen.until("commits would wait for us", problem(ErrSynchronous))
	wantFault(t, s.Problem, ErrSynchronous, "ALTER SYSTEM")
	w.exec(`ALTER SYSTEM RESET synchronous_standby_names`)
	w.exec(`SELECT pg_reload_conf()`)
	w.exec(`ALTER PUBLICATION walrelay SET (publish = 'insert')`)
	seen.until("all is well again", func(s Sample) bool { return s.Problem == nil })
	w.exec(`SELECT pg_drop_replication_slot('walrelay')`)
	seen.until("the slot is gone", func(s Sample) bool { return s.Slot == nil })
	w.exec(`SELECT pg_create_logical_replication_slot('walrelay', 'test_decoding')`)
	seen.until("the slot is somebody else's", problem(ErrForeignSlot))
}

// What a slot costs beside WAL is seen, and whether it is another slot that the
// WAL is kept for.
func TestMonitorSeesTheSenderAndOtherSlots(t *testing.T) {
	w := newWorld(t, map[string]string{"logical_decoding_work_mem": "64kB"})
	seen := w.watch(w.monitor(), nil, nil)
	w.exec(`SELECT pg_create_physical_replication_slot('replica', true)`)
	w.exec(`SELECT pg_logical_emit_message(false, 'x', repeat('x', 1000000))`)
	s := seen.until("another slot is there, and none of ours", func(s Sample) bool { return works(s) && s.Other != nil })
	if o := s.Other; s.Slot != nil || o.Name != "replica" || o.Kind != "physical" || o.Database != "" || o.Active ||
		o.RetainedBytes != int64(s.WALEnd-o.RestartLSN) {
		t.Errorf("the other slot is %+v", o)
	}
	_, st := w.stream()
	s = seen.until("somebody streams", func(s Sample) bool { return works(s) && s.Slot != nil && s.Slot.Sender != nil })
	if s.Slot.Sender.Started.IsZero() || s.Slot.RetainedBytes >= s.Other.RetainedBytes {
		t.Errorf("the slot is %+v beside %+v", s.Slot, s.Other)
	}
	f := receiveKeepalive(t, st)
	if err := st.Status(f.WALEnd, f.WALEnd, false); err != nil {
		t.Fatal(err)
	}
	seen.until("the status has arrived", func(s Sample) bool {
		return works(s) && s.Slot.Sender != nil && !s.Slot.Sender.LastReply.IsZero()
	})
	w.exec(`SELECT pg_create_logical_replication_slot('later', 'pgoutput')`)
	w.exec(`SELECT pg_drop_replication_slot('replica')`)
	s = seen.until("it is another one", func(s Sample) bool { return works(s) && s.Other != nil && s.Other.Name != "replica" })
	if o := s.Other; o.Kind != "logical" || o.Database != w.value(`SELECT current_database()`) {
		t.Errorf("the other slot is %+v", o)
	}
	if w.version() >= 140000 {
		w.exec(`INSERT INTO outbox (payload) SELECT repeat('x', 1000) FROM generate_series(1, 1000)`)
		receiveInsert(t, st)
		// The statistics are sent on with what is decoded next.
		seen.until("the decoding has spilled", func(s Sample) bool {
			w.exec(`INSERT INTO outbox (payload) VALUES ('x')`)
			if _, _, err := st.Receive(time.Now().Add(10 * time.Millisecond)); err != nil {
				t.Fatal(err)
			}
			return works(s) && s.Slot.Spill != nil && s.Slot.Spill.Bytes > 0 && s.Slot.Spill.Transactions > 0 && s.Slot.Spill.Times > 0
		})
	}
	w.exec(`SELECT pg_create_logical_replication_slot('` + backfillPrefix + `1', 'pgoutput')`)
	w.exec(`SELECT pg_drop_replication_slot(slot_name) FROM pg_replication_slots WHERE slot_name = 'later'`)
	seen.until("a backfill's slot is not another", func(s Sample) bool { return works(s) && s.Other == nil })
}

func TestMonitorNamesWhoPinsWAL(t *testing.T) {
	w := onCommon(t)
	_, st := w.stream()
	other := w.fresh(t, w.cfg)
	conn := w.connect(other.dsn)
	if _, err := conn.Exec(w.ctx(), `BEGIN; INSERT INTO outbox (payload) VALUES ('x')`); err != nil {
		t.Fatal(err)
	}
	w.exec(`SELECT pg_logical_emit_message(false, 'x', repeat('x', 1000000))`)
	m := w.monitor()
	m.limits = holderLimits{bytes: 500_000}
	seen := w.watch(m, nil, nil)
	if s := seen.until("there is a sample", works); s.Holder != nil {
		t.Errorf("WAL that is not confirmed yet is blamed on %v", s.Holder)
	}
	// The slot lets WAL go up to the oldest transaction that was running at a
	// checkpoint that it has confirmed.
	w.exec(`CHECKPOINT`)
	s := seen.until("somebody is blamed", func(s Sample) bool {
		f, _, err := st.Receive(time.Now().Add(10 * time.Millisecond))
		if err == nil && f.Keepalive {
			err = st.Status(f.WALEnd, f.WALEnd, false)
		}
		if err == nil {
			err = st.Status(0, 0, true)
		}
		if err != nil {
			t.Fatal(err)
		}
		return s.Holder != nil
	})
	if s.Holder.PID != int(conn.PgConn().PID()) || s.Holder.Database != other.value(`SELECT current_database()`) || s.Holder.Since.IsZero() {
		t.Errorf("blamed is %v", s.Holder)
	}
	if _, err := conn.Exec(w.ctx(), `PREPARE TRANSACTION 'old'`); err != nil {
		t.Fatal(err)
	}
	seen.until("the prepared transaction is blamed", func(s Sample) bool { return s.Holder != nil && s.Holder.GID == "old" && s.Holder.PID == 0 })
	other.exec(`ROLLBACK PREPARED 'old'`)
	seen.until("nobody is blamed", func(s Sample) bool { return works(s) && s.Holder == nil })
}

// A fast shutdown waits until the relay confirms everything or hangs up. The
// goodbye of the ordinary connection is what tells it to.
func TestFastShutdownDoesNotWaitForUs(t *testing.T) {
	w := newWorld(t, nil)
	s, st := w.stream()
	w.insert("not confirmed")
	receiveInsert(t, st)
	m := w.monitor()
	seen := w.watch(m, nil, st.Close)
	seen.until("the monitor watches", works)
	if err := w.TryStop(w.ctx(), "fast"); err != nil {
		t.Fatal(err)
	}
	if byes := seen.goodbye(); len(byes) == 0 || !errors.Is(byes[0], ErrShutdown) {
		t.Errorf("said goodbye for %v", byes)
	}
	if err := receiveError(t, st); err == nil {
		t.Error("the stream goes on")
	}
	s.Close()
	seen.until("PostgreSQL is away", func(s Sample) bool { return s.Err != nil })
	w.Start()
	seen.until("PostgreSQL is back", works)
}

// A monitor that had lost its connection before learns of the shutdown from
// the refusal.
func TestGoodbyeWhenNobodyIsLetIn(t *testing.T) {
	w := newWorld(t, nil)
	conn := w.connect(w.dsn) // a smart shutdown waits for it
	stopped := make(chan error, 1)
	go func() { stopped <- w.TryStop(context.Background(), "smart") }()
	eventually(t, "PostgreSQL lets nobody in", func() bool {
		c, err := pgx.Connect(w.ctx(), w.dsn)
		if err == nil {
			closeQuietly(c)
		}
		return err != nil
	})
	seen := w.watch(w.monitor(), nil, nil)
	eventually(t, "it says goodbye", func() bool {
		byes := seen.goodbye()
		return len(byes) > 0 && errors.Is(byes[0], ErrShutdown)
	})
	closeQuietly(conn)
	if err := <-stopped; err != nil {
		t.Error(err)
	}
}

func TestMonitorOutlivesEverything(t *testing.T) {
	w := newWorld(t, nil)
	proxy := testservers.StartProxy(t, w.Addr())
	cfg := w.cfg
	cfg.Conn = w.parse("host=127.0.0.1 port=" + itoa(proxy.Port()) + " user=postgres sslmode=disable connect_timeout=1 dbname=" + w.value(`SELECT current_database()`))
	m := NewMonitor(cfg, w.source().log)
	m.timeout = 2 * time.Second // far more than a look takes on a busy machine
	seen := w.watch(m, nil, nil)
	away := func(s Sample) bool { return s.Err != nil }
	seen.until("it watches", works)
	for _, fault := range []struct {
		name        string
		cause, heal func()
		goodbye     bool
	}{
		{"the connection is dropped", proxy.Drop, func() {}, true},
		{"the connection is terminated", func() {
			w.exec(`SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE application_name = 'walrelay'`)
		}, func() {}, true},
		{"PostgreSQL is unreachable", proxy.Cut, proxy.Restore, true},
		{"the network moves nothing", proxy.Stall, proxy.Resume, false},
		{"PostgreSQL is frozen", w.Freeze, w.Thaw, false},
		{"PostgreSQL crashes", w.Kill, w.Start, true},
		{"PostgreSQL restarts at once", func() { w.Stop("immediate") }, w.Start, true},
	} {
		before := len(seen.goodbye())
		fault.cause()
		seen.until(fault.name, away)
		if after := len(seen.goodbye()); fault.goodbye != (after > before) {
			t.Errorf("%s: %d goodbyes", fault.name, after-before)
		}
		fault.heal()
		seen.until("it watches again after "+fault.name, works)
	}
}

// What the outbox asks must not take the monitor down, nor hold it: it is left
// out when it fails, and for a while when it was cut off.
func TestWhatIsWrongWithTheTableHidesNothingElse(t *testing.T) {
	w := onCommon(t)
	w.slot()
	m := w.monitor()
	m.timeout = 2 * time.Second
	table := w.cfg.Table.String()
	question := fmt.Sprintf(`SELECT count(*)::text || current_setting('enable_seqscan') || current_setting('enable_bitmapscan') || current_setting('enable_sort') FROM %s`, table)
	refused := errors.New("refused")
	var cut atomic.Bool
	seen := w.watch(m, asked{
		question: func() string {
			if cut.Load() {
				return `SELECT pg_sleep(1000)::text`
			}
			return question
		},
		answer: func(text string, s Sample, err error) error {
			if err == nil && (text != "0offoffoff" || s.WALEnd == 0 || s.Slot == nil) {
				t.Errorf("the answer is %q with %+v", text, s)
			}
			if pg.Code(err) == codeQueryCanceled {
				return errors.Join(refused, err)
			}
			return err
		},
	}, nil)
	seen.until("the table is looked at", func(s Sample) bool { return works(s) && s.Unseen == nil })
	whole := func(s Sample) bool { return works(s) && s.Unseen != nil && s.Slot != nil && s.Problem == nil }

	locker := w.connect(w.dsn)
	if _, err := locker.Exec(w.ctx(), `BEGIN; LOCK TABLE `+table+` IN ACCESS EXCLUSIVE MODE`); err != nil {
		t.Fatal(err)
	}
	if s := seen.until("the table is locked", whole); pg.Code(s.Unseen) != "55P03" {
		t.Errorf("the reason is %v", s.Unseen)
	}
	if _, err := locker.Exec(w.ctx(), `ROLLBACK`); err != nil {
		t.Fatal(err)
	}
	seen.until("the table is looked at again", func(s Sample) bool { return works(s) && s.Unseen == nil })

	w.exec(`ALTER TABLE ` + table + ` RENAME TO gone`)
	s := seen.until("the table is gone", func(s Sample) bool { return works(s) && s.Unseen != nil && s.Slot != nil })
	if pg.Code(s.Unseen) != "42P01" || !errors.Is(s.Problem, ErrPublication) {
		t.Errorf("the reason is %v, the problem %v", s.Unseen, s.Problem)
	}
	w.exec(`ALTER TABLE ` + cdc.QuoteIdent(w.cfg.Table.Schema) + `.gone RENAME TO ` + cdc.QuoteIdent(w.cfg.Table.Name))
	seen.until("it is back", func(s Sample) bool { return works(s) && s.Unseen == nil })

	cut.Store(true)
	if s := seen.until("the look is cut off", whole); !errors.Is(s.Unseen, refused) {
		t.Errorf("the reason is %v", s.Unseen)
	}
	cut.Store(false)
	// It is spared for a while, and the reason stays.
	if s := seen.until("there is another sample", works); !errors.Is(s.Unseen, refused) {
		t.Errorf("the next look found %v", s.Unseen)
	}
}

// A look is one statement, whatever there is to be seen, and nothing else is
// sent after the connection was made.
func TestALookIsOneStatement(t *testing.T) {
	w := onCommon(t)
	w.slot()
	conn := w.connect(w.fresh(t, w.cfg).dsn)
	if _, err := conn.Exec(w.ctx(), `BEGIN; CREATE TABLE old ()`); err != nil {
		t.Fatal(err)
	}
	w.exec(`SELECT pg_logical_emit_message(false, 'x', repeat('x', 100000))`)
	cfg := w.cfg
	cfg.Conn = w.parse(w.dsn)
	var statements atomic.Int64
	dial := cfg.Conn.DialFunc
	cfg.Conn.DialFunc = func(ctx context.Context, network, address string) (net.Conn, error) {
		conn, err := dial(ctx, network, address)
		return &counted{conn, &statements}, err
	}
	m := NewMonitor(cfg, w.source().log)
	m.limits = holderLimits{bytes: -1}
	var before int64
	looks := 0
	seen := w.watch(m, asked{question: func() string {
		if n := statements.Load(); looks > 0 && n != before+1 {
			t.Errorf("a look took %d statements", n-before)
		}
		before = statements.Load()
		looks++
		return `SELECT count(*)::text FROM ` + w.cfg.Table.String()
	}}, nil)
	for range 3 {
		s := seen.until("all is seen", func(s Sample) bool { return works(s) && s.Slot != nil })
		if s.Holder == nil || s.Holder.PID != int(conn.PgConn().PID()) || s.Unseen != nil {
			t.Errorf("the holder is %v, unseen %v", s.Holder, s.Unseen)
		}
	}
}

// counted counts the statements that are run over a connection.
type counted struct {
	net.Conn
	statements *atomic.Int64
}

func (c *counted) Write(b []byte) (int, error) {
	for rest := b; len(rest) >= 5 && rest[0] != 0; { // 0 begins the startup packet
		if rest[0] == 'B' || rest[0] == 'Q' { // Bind or Query
			c.statements.Add(1)
		}
		rest = rest[min(len(rest), 1+int(binary.BigEndian.Uint32(rest[1:]))):]
	}
	return c.Conn.Write(b)
}

func TestBehind(t *testing.T) {
	for _, test := range []struct {
		end, position cdc.LSN
		want          int64
	}{{10, 4, 6}, {10, 0, 0}, {10, 10, 0}, {10, 11, 0}} {
		if got := behind(test.end, test.position); got != test.want {
			t.Errorf("from %s to %s it is %d, want %d", test.position, test.end, got, test.want)
		}
	}
}

// PostgreSQL keeps no WAL for a slot that is lost, though from 16 on such a slot
// may still tell a position: one that was not read for too long, or for which a
// standby had removed rows. Here a view of our own says that they are lost.
func TestALostSlotKeepsNothing(t *testing.T) {
	w := onCommon(t)
	w.slot()
	w.exec(`SELECT pg_create_physical_replication_slot('lost_one', true);
		SELECT pg_create_physical_replication_slot('kept_one', true);
		SELECT pg_logical_emit_message(false, 'x', repeat('x', 100000))`)
	columns := w.value(`SELECT string_agg(CASE attname WHEN 'wal_status' THEN
			$$CASE WHEN slot_name IN ('lost_one', current_setting('test.ours', true)) THEN 'lost' ELSE wal_status END AS wal_status$$
			ELSE quote_ident(attname) END, ', ' ORDER BY attnum)
		FROM pg_attribute WHERE attrelid = 'pg_catalog.pg_replication_slots'::regclass AND attnum > 0`)
	w.exec(`CREATE SCHEMA told; CREATE VIEW told.pg_replication_slots AS SELECT ` + columns + ` FROM pg_catalog.pg_replication_slots`)
	for _, ours := range []string{"", w.cfg.Slot} {
		cfg := w.cfg
		cfg.Conn = w.parse(w.as("", "search_path", "told,pg_catalog", "test.ours", ours))
		m := NewMonitor(cfg, w.source().log)
		m.limits.bytes = -1
		s, _ := m.look(w.ctx(), w.connect(cfg.Conn.ConnString()), nil)
		if s.Err != nil || s.Other == nil || s.Other.Name != "kept_one" || s.Slot == nil {
			t.Fatalf("it sees %+v", s)
		}
		if lost := ours != ""; (s.Slot.WALStatus == "lost") != lost || (s.Slot.RestartLSN == 0) != lost || (s.Slot.RetainedBytes == 0) != lost {
			t.Errorf("where ours is lost (%v) it is %+v", lost, s.Slot)
		}
	}
}
