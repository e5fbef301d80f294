package slot

import (
	"context"
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/stagedoor/walrelay/cdc"
	"github.com/stagedoor/walrelay/internal/pg"
)

// Between the snapshot and the slot there is no gap and no overlap, and the
// copy begins where the temporary slot did.
func TestSnapshotAndSlotMeet(t *testing.T) {
	w := onCommon(t).fresh(t, odd)
	s := w.open()
	if err := s.EnsurePublication(w.ctx(), true); err != nil {
		t.Fatal(err)
	}
	w.insert("before")
	snap, err := s.CreateTemporary(w.ctx(), func(string) {})
	if err != nil {
		t.Fatal(err)
	}
	w.insert("after")
	tx, err := w.connect(w.dsn).BeginTx(w.ctx(), pgx.TxOptions{IsoLevel: pgx.RepeatableRead})
	if err != nil {
		t.Fatal(err)
	}
	defer tx.Rollback(context.Background())
	if _, err := tx.Exec(w.ctx(), `SET TRANSACTION SNAPSHOT `+cdc.QuoteLiteral(snap.Name)); err != nil {
		t.Fatal(err)
	}
	var seen string
	if err := tx.QueryRow(w.ctx(), `SELECT string_agg(payload, ' ') FROM `+w.cfg.Table.String()).Scan(&seen); err != nil || seen != "before" {
		t.Errorf("the snapshot sees %q (%v)", seen, err)
	}
	if err := s.Keep(w.ctx(), snap); err != nil {
		t.Fatal(err)
	}
	if err := s.Keep(w.ctx(), snap); !errors.Is(err, ErrSlotInUse) {
		t.Errorf("keep over an existing slot: %v, want ErrSlotInUse", err)
	}
	s.Close()
	eventually(t, "the temporary slot is gone and the copy is left", func() bool {
		return w.value(`SELECT string_agg(slot_name || temporary, ' ') FROM pg_replication_slots`) == w.cfg.Slot+"false"
	})
	s = w.open()
	slot, err := s.Slot(w.ctx())
	if err != nil || slot == nil || slot.ConfirmedFlush != snap.Consistent {
		t.Errorf("the slot is %+v (%v), it must begin at %s", slot, err, snap.Consistent)
	}
	st, err := s.Start(w.ctx())
	if err != nil {
		t.Fatal(err)
	}
	wal := receiveInsert(t, st)
	if !strings.Contains(wal, "after") {
		t.Errorf("the first row of the slot is %q, want the one after the snapshot", wal)
	}
}

// The one that a slot waits for is named, in another database too, with the
// command that ends it; when it has ended the creation goes on.
func TestCreationSaysWhatItWaitsFor(t *testing.T) {
	w := onCommon(t)
	other := w.fresh(t, w.cfg)
	source := w.source()
	source.lookEvery = 50 * time.Millisecond
	create := func(t *testing.T, says, command string, end func()) {
		t.Helper()
		var texts []string
		_, err := w.openSource(source).CreateTemporary(w.ctx(), func(text string) {
			texts = append(texts, text)
			if strings.Contains(text, says) && strings.Contains(text, command) && end != nil {
				end()
				end = nil
			}
			if len(texts) > 200 {
				t.Fatalf("it says %q, want %q and %q", texts[len(texts)-1], says, command)
			}
		})
		if err != nil {
			t.Fatal(err)
		}
		if end != nil {
			t.Errorf("it did not say %q and %q but %q", says, command, texts)
		}
	}
	database := other.value(`SELECT current_database()`)
	t.Run("an open transaction", func(t *testing.T) {
		conn := w.connect(other.dsn)
		if _, err := conn.Exec(w.ctx(), `BEGIN; INSERT INTO outbox (payload) VALUES ('x')`); err != nil {
			t.Fatal(err)
		}
		pid := itoa(int(conn.PgConn().PID()))
		create(t, "PID "+pid+` (user "postgres", database "`+database+`", open since 20`, `SELECT pg_terminate_backend(`+pid+`);`, func() {
			w.exec(`SELECT pg_terminate_backend(` + pid + `)`)
		})
	})
	t.Run("a prepared transaction", func(t *testing.T) {
		other.exec(`BEGIN; INSERT INTO outbox (payload) VALUES ('x'); PREPARE TRANSACTION E'it''s \\ old'`)
		rollback := `ROLLBACK PREPARED E'it''s \\ old';`
		create(t, `prepared transaction "it's \\ old" (user "postgres", database "`+database+`", open since 20`,
			`in database "`+database+`": COMMIT PREPARED E'it''s \\ old'; or `+rollback, func() { other.exec(rollback) })
	})
	t.Run("of a user whose times are hidden", func(t *testing.T) {
		cfg := w.cfg
		cfg.Conn = w.parse(w.as(w.role("LOGIN REPLICATION")))
		source = New(cfg, source.log)
		source.lookEvery = 50 * time.Millisecond
		conn := w.connect(other.dsn)
		if _, err := conn.Exec(w.ctx(), `BEGIN; INSERT INTO outbox (payload) VALUES ('x')`); err != nil {
			t.Fatal(err)
		}
		create(t, `user "postgres"`, "pg_terminate_backend", func() { closeQuietly(conn) })
	})
}

// A relay that is told to stop while it waits leaves nothing on the server that
// would hold back vacuum.
func TestCreationIsCalledOff(t *testing.T) {
	w := onCommon(t)
	conn := w.connect(w.dsn)
	if _, err := conn.Exec(w.ctx(), `BEGIN; INSERT INTO outbox (payload) VALUES ('x')`); err != nil {
		t.Fatal(err)
	}
	source := w.source()
	source.lookEvery = 50 * time.Millisecond
	s := w.openSource(source)
	ctx, cancel := context.WithCancel(w.ctx())
	_, err := s.CreateTemporary(ctx, func(string) { cancel() })
	if !errors.Is(err, context.Canceled) {
		t.Errorf("got %v, want that it was cancelled", err)
	}
	s.Close()
	eventually(t, "no slot is left while the transaction is still open", func() bool {
		return w.value(`SELECT count(*) FROM pg_replication_slots`) == "0"
	})
}

// A frozen server is noticed although the connection that waits is silent
// anyway, and everything returns.
func TestCreationOnAFrozenServer(t *testing.T) {
	w := newWorld(t, nil)
	conn := w.connect(w.dsn)
	if _, err := conn.Exec(w.ctx(), `BEGIN; INSERT INTO outbox (payload) VALUES ('x')`); err != nil {
		t.Fatal(err)
	}
	source := w.source()
	source.lookEvery = 50 * time.Millisecond
	s := w.openSource(source)
	s.askTimeout = 200 * time.Millisecond
	frozen := false
	ctx := w.ctx()
	_, err := s.CreateTemporary(ctx, func(string) {
		if !frozen {
			w.Freeze()
			frozen = true
		}
	})
	if err == nil || ctx.Err() != nil {
		t.Errorf("got %v, want a time-out", err)
	}
	s.Close()
	w.Thaw()
	eventually(t, "no slot is left", func() bool {
		return w.value(`SELECT count(*) FROM pg_replication_slots`) == "0"
	})
}

func TestCreationNeedsTwoSlots(t *testing.T) {
	w := newWorld(t, map[string]string{"max_replication_slots": "1"})
	_, err := w.open().CreateTemporary(w.ctx(), func(string) {})
	wantFault(t, err, nil, "max_replication_slots")
}

// Somebody else takes the places between the look and the creation.
func TestSlotsRunOut(t *testing.T) {
	w := newWorld(t, map[string]string{"max_replication_slots": "2"})
	s := w.open()
	snap, err := s.CreateTemporary(w.ctx(), func(string) {})
	if err != nil {
		t.Fatal(err)
	}
	w.exec(`SELECT pg_create_physical_replication_slot('other')`)
	wantFault(t, s.Keep(w.ctx(), snap), nil, "max_replication_slots")
	row, err := oneRow(w.open().repl.Exec(w.ctx(), `CREATE_REPLICATION_SLOT x TEMPORARY LOGICAL pgoutput EXPORT_SNAPSHOT`).ReadAll())
	if pg.Code(err) != codeConfigurationLimitExceeded {
		t.Fatalf("the server has room for %q (%v)", row, err)
	}
	_, err = s.snapshot("x", nil, err)
	wantFault(t, err, nil, "max_replication_slots")
}

func TestKeepVerifiesTheCopy(t *testing.T) {
	w := onCommon(t)
	s := w.open()
	snap, err := s.CreateTemporary(w.ctx(), func(string) {})
	if err != nil {
		t.Fatal(err)
	}
	snap.Consistent++
	if err := s.Keep(w.ctx(), snap); err == nil {
		t.Error("a slot that begins elsewhere than the snapshot ends was kept")
	}
}

func TestKeepWithoutTheTemporarySlot(t *testing.T) {
	w := onCommon(t)
	s := w.open()
	snap, err := s.CreateTemporary(w.ctx(), func(string) {})
	if err != nil {
		t.Fatal(err)
	}
	w.exec(`SELECT pg_terminate_backend(` + itoa(int(s.repl.PID())) + `)`)
	eventually(t, "the temporary slot is gone", func() bool {
		return w.value(`SELECT count(*) FROM pg_replication_slots`) == "0"
	})
	if err := s.Keep(w.ctx(), snap); !errors.Is(err, ErrSlotLost) {
		t.Errorf("got %v, want ErrSlotLost", err)
	}
}
