package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"strings"
	"testing"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/pgproto3"
)

// holdSlot has somebody stream from the relay's slot who confirms nothing, and
// returns the PostgreSQL process and what ends it.
func (w *world) holdSlot() (pid string, end func()) {
	w.t.Helper()
	cfg, err := pgx.ParseConfig(w.dsn)
	if err != nil {
		w.t.Fatal(err)
	}
	cfg.RuntimeParams["replication"] = "database"
	conn, err := pgconn.ConnectConfig(context.Background(), &cfg.Config)
	if err != nil {
		w.t.Fatal(err)
	}
	end = func() { conn.Close(context.Background()) }
	w.t.Cleanup(end)
	conn.Frontend().SendQuery(&pgproto3.Query{String: `START_REPLICATION SLOT walrelay LOGICAL 0/0 (proto_version '1', publication_names 'walrelay')`})
	if err := conn.Frontend().Flush(); err != nil {
		w.t.Fatal(err)
	}
	if msg, err := conn.ReceiveMessage(context.Background()); err != nil {
		w.t.Fatal(err)
	} else if _, ok := msg.(*pgproto3.CopyBothResponse); !ok {
		w.t.Fatalf("PostgreSQL answered with %T: %v", msg, msg)
	}
	return fmt.Sprint(conn.PID()), end
}

// slotFacts is the slot as /healthz has it, where null and 0 differ.
func (p *relayProcess) slotFacts() (map[string]any, error) {
	if _, _, err := p.health(); err != nil { // finds the address
		return nil, err
	}
	res, err := http.Get("http://" + p.http + "/healthz")
	if err != nil {
		return nil, err
	}
	defer res.Body.Close()
	body, err := io.ReadAll(res.Body)
	if err != nil {
		return nil, err
	}
	var doc struct {
		Slot map[string]any `json:"slot"`
	}
	return doc.Slot, json.Unmarshal(body, &doc)
}

// showsSlot waits until the health document has the slot's lags of at least
// this many bytes.
func (p *relayProcess) showsSlot(active bool, bytes float64) {
	p.t.Helper()
	eventually(p.t, "health shows the slot's lags", func() error {
		slot, err := p.slotFacts()
		if err != nil {
			return err
		}
		if slot == nil {
			return errors.New("there is no slot")
		}
		for _, name := range []string{"unconfirmed_bytes", "retained_bytes"} {
			if n, ok := slot[name].(float64); !ok || n < bytes {
				return fmt.Errorf("%s is %v, want %v", name, slot[name], bytes)
			}
		}
		for name, want := range map[string]any{"name": "walrelay", "active": active, "wal_status": "reserved"} {
			if slot[name] != want {
				return fmt.Errorf("%s is %v, want %v", name, slot[name], want)
			}
		}
		for _, name := range []string{"confirmed_flush_lsn", "restart_lsn"} {
			if text, ok := slot[name].(string); !ok || !strings.Contains(text, "/") {
				return fmt.Errorf("%s is %v", name, slot[name])
			}
		}
		return nil
	})
}

// Both lags and the slot's state are there to be watched also while no relay
// streams: while somebody else has the slot, while nobody has it, and while
// Redis cannot be reached from the start.
func TestLagIsShownWhileNobodyStreams(t *testing.T) {
	t.Parallel()
	w := newWorld(t, worldOptions{settings: map[string]string{"wal_sender_timeout": "0"}})
	first := w.startRelay()
	first.streams()
	w.insert("before", 2)
	w.confirmedPast()
	first.stop()

	pid, end := w.holdSlot()
	p := w.startRelay()
	p.becomes("standby, and says for whom", func(_ int, doc healthDocument) bool {
		return doc.Role == "standby" && doc.Status == "ok" && doc.reason("Stands by", pid) != ""
	})
	p.showsSlot(true, 0)
	write := func() {
		t.Helper()
		w.exec(`INSERT INTO outbox (kind, payload) SELECT 'meanwhile', to_jsonb(repeat('x', 1000)) FROM generate_series(1, 1000)`)
	}
	write()
	p.showsSlot(true, 1<<20)

	w.toRedis.Cut()
	end()
	p.becomes("critical for want of Redis, or warn before", func(_ int, doc healthDocument) bool {
		return doc.Role == "starting" && doc.Status != "ok" && doc.reason("Redis") != ""
	})
	write()
	p.showsSlot(false, 2<<20)

	w.toRedis.Restore()
	p.streams()
	w.verify(0)
	w.allMarked()
	w.confirmedPast()
	p.showsSlot(true, 0)
}
