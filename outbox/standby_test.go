package outbox

import (
	"context"
	"errors"
	"slices"
	"testing"
	"time"

	"github.com/stagedoor/walrelay/cdc"
	"github.com/stagedoor/walrelay/internal/pg"
	"github.com/stagedoor/walrelay/internal/testservers"
	"github.com/stagedoor/walrelay/migrations"
)

// TestRowThatWaitsForAStandby: with synchronous replication a row is decoded,
// and can be published, before its commit becomes visible. It is not taken for
// deleted, and the marks of other rows do not wait with it.
func TestRowThatWaitsForAStandby(t *testing.T) {
	own := testservers.StartPostgres(t, testservers.PostgresOptions{})
	d := newDBOn(t, own.NewDatabase(t))
	d.exec(migrations.Table(public))
	f := newFeed(d, public)
	d.exec("ALTER SYSTEM SET synchronous_standby_names = 'nobody'")
	d.exec("SELECT pg_reload_conf()")
	d.exec("SET synchronous_commit = local")
	d.fillOutbox(1)
	d.wait("SELECT setting FROM pg_settings WHERE name = 'synchronous_standby_names'", "nobody")

	// The checkpointer switches it on, in its own time: until then commits do
	// not wait.
	probe := d.connect()
	probing, enough := context.WithCancel(t.Context())
	probed := make(chan struct{})
	go func() {
		defer close(probed)
		for probing.Err() == nil {
			_, _ = probe.Exec(probing, "SELECT pg_logical_emit_message(true, 'probe', '')")
		}
	}()
	d.wait("SELECT count(*) FROM pg_stat_activity WHERE wait_event = 'SyncRep'", "1")
	enough()
	<-probed

	writer := d.connect()
	committed := make(chan error, 1)
	ctx, cancel := context.WithCancel(t.Context())
	go func() {
		_, err := writer.PgConn().Exec(ctx, "INSERT INTO outbox (id, kind, payload) VALUES (2, 'k', '{}')").ReadAll()
		committed <- err
	}()
	defer func() { cancel(); <-committed }()

	table := d.checked(Config{})
	var marks []cdc.Mark
	for _, in := range f.inserts(2) {
		ev, _, err := table.Event(in)
		if err != nil {
			t.Fatal(err)
		}
		marks = append(marks, cdc.Mark{ID: ev.ID, XID: ev.Commit.XID, LSN: ev.Commit.LSN})
	}
	states, err := table.Mark(d.ctx(), marks)
	if want := []cdc.MarkState{ok, invisible}; err != nil || !slices.Equal(states, want) {
		t.Fatalf("states %v, %v, want %v", states, err, want)
	}
	if text, pid, err := table.Locker(d.ctx(), "2"); text != "" || pid != 0 || err != nil {
		t.Errorf("an invisible row is locked by %q, %d, %v", text, pid, err)
	}
	d.exec("ALTER SYSTEM RESET synchronous_standby_names")
	d.exec("SELECT pg_reload_conf()")
	d.wait("SELECT count(*) FROM outbox", "2")
	states, err = table.Mark(d.ctx(), marks)
	if want := []cdc.MarkState{ok, ok}; err != nil || !slices.Equal(states, want) || d.text(unmarked) != "" {
		t.Errorf("states %v, %v, unmarked %q, want all marked", states, err, d.text(unmarked))
	}
}

// TestMarkOnAFrozenServer gives up when it is told to.
func TestMarkOnAFrozenServer(t *testing.T) {
	d := newOutbox(t)
	d.fillOutbox(2)
	proxy := testservers.StartProxy(t, server.Addr())
	cfg := d.config("")
	cfg.Port = uint16(proxy.Port())
	table := d.checked(Config{Conn: cfg})
	mark(d, table, 1)
	proxy.Stall()
	ctx, cancel := context.WithTimeout(d.ctx(), 100*time.Millisecond)
	defer cancel()
	if states, err := table.Mark(ctx, []cdc.Mark{{ID: "2"}}); err == nil {
		t.Errorf("states %v from a server that does not answer", states)
	}
	proxy.Resume()
	if got := mark(d, table, 2); got[0] != ok {
		t.Errorf("state %v", got)
	}
}

func TestMarkOnAReadOnlyServer(t *testing.T) {
	d := newOutbox(t)
	d.fillOutbox(1)
	table := d.checked(Config{})
	// For applications only: the marker's session undoes it.
	d.exec("ALTER DATABASE " + d.text("SELECT current_database()") + " SET default_transaction_read_only = on")
	if got := mark(d, table, 1); got[0] != ok || d.text(unmarked) != "" {
		t.Errorf("state %v, unmarked %q", got, d.text(unmarked))
	}
	// In earnest, as on a standby, it is an error that passes.
	d.on(table.marker.conn, "SET default_transaction_read_only = on")
	_, err := table.Mark(d.ctx(), []cdc.Mark{{ID: "1"}})
	if pg.Code(err) != "25006" || errors.Is(err, ErrMarkRefused) {
		t.Errorf("error %v, want a read-only transaction, to be tried again", err)
	}
}
