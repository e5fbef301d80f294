package slot

import (
	"context"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/stagedoor/walrelay/cdc"
	"github.com/stagedoor/walrelay/internal/finding"
	"github.com/stagedoor/walrelay/internal/testservers"
)

// findings are those of a check that begins now, by name.
func (w *world) findings(v cdc.Verdict) map[string]finding.Finding {
	w.t.Helper()
	source := w.source()
	source.lookEvery = 100 * time.Millisecond
	c := source.Check(w.ctx())
	defer c.Close()
	byName := map[string]finding.Finding{}
	for _, f := range c.Findings(v) {
		if _, twice := byName[f.Name]; twice {
			w.t.Errorf("%s is found twice", f.Name)
		}
		byName[f.Name] = f
	}
	return byName
}

// wantFinding looks for a level, and for parts of the text and of the fix.
func wantFinding(t *testing.T, found map[string]finding.Finding, name string, level finding.Level, text, fix string) {
	t.Helper()
	f, ok := found[name]
	if !ok || f.Level != level || !strings.Contains(f.Text, text) || !strings.Contains(f.Fix, fix) {
		t.Errorf("%s is %+v, want %s with %q and the fix %q", name, f, level, text, fix)
	}
}

// failures are the names of the findings that keep run from working.
func failures(found map[string]finding.Finding) (names []string) {
	for name, f := range found {
		if f.Level == finding.Fail {
			names = append(names, name)
		}
	}
	return names
}

// A check of a server as it should be finds nothing that fails, creates nothing,
// and leaves no slot, publication or setting behind.
func TestCheckChangesNothing(t *testing.T) {
	w := onCommon(t)
	const everything = `SELECT (SELECT count(*) FROM pg_replication_slots) || ' ' || (SELECT count(*) FROM pg_publication) || ' ' ||
		(SELECT count(*) FROM pg_class) || ' ' || (SELECT count(*) FROM pg_db_role_setting)`
	before := strings.Fields(w.value(everything))
	found := w.findings(cdc.Backfill)
	after := strings.Fields(w.value(everything))
	if names := failures(found); len(names) > 0 {
		t.Errorf("these fail: %v", found)
	}
	for i, name := range []string{"slots", "publications", "relations", "settings"} {
		if before[i] != after[i] {
			t.Errorf("%s %s of them became %s", before[i], name, after[i])
		}
	}
	wantFinding(t, found, "publication", finding.OK, "run creates it", "")
	wantFinding(t, found, "slot", finding.OK, "run creates it", "")
	wantFinding(t, found, "max_slot_wal_keep_size", finding.Warn, "no limit", "ALTER SYSTEM SET max_slot_wal_keep_size")
	// The same, where no run would create it any more.
	wantFinding(t, w.findings(cdc.Gap), "publication", finding.Fail, "does not exist", createPublicationSQL(w.cfg))
}

// What check says of a slot and of the publication is what a run does.
func TestCheckOfSlotAndPublication(t *testing.T) {
	w := onCommon(t)
	_, _ = w.stream()
	found := w.findings(cdc.StandBy)
	wantFinding(t, found, "slot", finding.OK, "in use by the server process", "")
	wantFinding(t, found, "publication", finding.OK, "publishes the inserts", "")

	other := w.fresh(t, w.cfg)
	wantFinding(t, other.findings(cdc.Stream), "slot", finding.Fail, "is of the database", "--slot")

	other.cfg.Slot = "check_physical"
	other.exec(`SELECT pg_create_physical_replication_slot('check_physical')`)
	wantFinding(t, other.findings(cdc.Stream), "slot", finding.Fail, "physical", "pg_drop_replication_slot('check_physical')")

	other.exec(`CREATE PUBLICATION walrelay FOR TABLE outbox WITH (publish = 'update')`)
	found = other.findings(cdc.Backfill)
	wantFinding(t, found, "publication", finding.Fail, "does not publish inserts", "ALTER PUBLICATION")
	other.exec(found["publication"].Fix)
	wantFinding(t, other.findings(cdc.Backfill), "publication", finding.OK, "publishes", "")

	other.exec(`DROP PUBLICATION walrelay; ALTER TABLE outbox SET UNLOGGED`)
	wantFinding(t, other.findings(cdc.Backfill), "publication", finding.Fail, "unlogged", "SET LOGGED")
	other.exec(`DROP TABLE outbox`)
	wantFinding(t, other.findings(cdc.Backfill), "publication", finding.Fail, "does not exist", "setup --create-table")
}

// Each privilege that a role lacks is named with the SQL that gives it, and with
// that the role can do what check says it can.
func TestCheckOfPrivilegesAndTheFixRepairsThem(t *testing.T) {
	w := onCommon(t)
	role := w.role("LOGIN")
	quoted := cdc.QuoteIdent(role)
	admin := w.cfg.Conn
	w.cfg.Conn = w.parse(w.as(role))

	found := w.findings(cdc.Backfill)
	wantFinding(t, found, "connection", finding.OK, "may log in", "")
	wantFinding(t, found, "replication", finding.Fail, "may not use replication", "ALTER ROLE "+quoted+" REPLICATION;")
	wantFinding(t, found, "wal_level", finding.OK, "logical", "") // all else is looked at
	w.exec(`ALTER ROLE ` + quoted + ` REPLICATION`)
	found = w.findings(cdc.Backfill)
	wantFinding(t, found, "replication", finding.OK, "", "")
	wantFinding(t, found, "publication", finding.Fail, "does not own", createPublicationSQL(w.cfg))
	w.exec(`ALTER TABLE outbox OWNER TO ` + quoted)
	wantFinding(t, w.findings(cdc.Backfill), "publication", finding.Fail, "may not create anything", "CREATE on the database")
	w.exec(fmt.Sprintf(`DO $$ BEGIN EXECUTE format('GRANT CREATE ON DATABASE %%I TO %%I', current_database(), %s); END $$`, cdc.QuoteLiteral(role)))
	wantFinding(t, w.findings(cdc.Backfill), "publication", finding.OK, "run creates it", "")
	w.exec(`ALTER ROLE ` + quoted + ` SET default_transaction_read_only = on`)
	wantFinding(t, w.findings(cdc.Backfill), "publication", finding.Fail, "read-only", "CREATE PUBLICATION")
	w.exec(`ALTER ROLE ` + quoted + ` RESET ALL`)
	if err := w.open().EnsurePublication(w.ctx(), true); err != nil {
		t.Errorf("check says that the role may, and it may not: %v", err)
	}
	w.exec(`ALTER ROLE ` + quoted + ` NOLOGIN`)
	found = w.findings(cdc.Backfill)
	wantFinding(t, found, "connection", finding.Fail, "does not let the role", "LOGIN")
	if len(found) != 1 {
		t.Errorf("without a connection it found %v", found)
	}
	w.cfg.Conn = admin
}

// A pooler is told as by run, and what it lets through is looked at.
func TestCheckOfPoolers(t *testing.T) {
	w := onCommon(t)
	w.cfg.Conn = w.parse(w.pooler())
	found := w.findings(cdc.Backfill)
	wantFinding(t, found, "connection", finding.Fail, "direct connection", "--postgres")
	wantFinding(t, found, "publication", finding.OK, "run creates it", "")
}

// Transactions that hold up the creation of a slot, in any database, are named
// with the command that ends them, also to a role that may not see since when
// they are open.
func TestCheckNamesOldTransactions(t *testing.T) {
	w := onCommon(t)
	role := w.role("LOGIN REPLICATION")
	w.cfg.Conn = w.parse(w.as(role))
	other := w.fresh(t, usual)
	holder := other.connect(other.dsn)
	if _, err := holder.Exec(w.ctx(), `BEGIN; INSERT INTO outbox (payload) VALUES ('open')`, pgx.QueryExecModeSimpleProtocol); err != nil {
		t.Fatal(err)
	}
	pid := fmt.Sprint(holder.PgConn().PID())
	wantFinding(t, w.findings(cdc.Backfill), "open_transactions", finding.Warn, "PID "+pid, "GRANT pg_read_all_stats TO ")
	if _, err := holder.Exec(w.ctx(), `ROLLBACK`); err != nil {
		t.Fatal(err)
	}
	wantFinding(t, w.findings(cdc.Backfill), "open_transactions", finding.OK, "", "")

	// Of a prepared one everybody sees since when, so that a young one is none.
	other.exec(`BEGIN; INSERT INTO outbox (payload) VALUES ('prepared'); PREPARE TRANSACTION 'old one'`)
	t.Cleanup(func() { other.exec(`ROLLBACK PREPARED 'old one'`) })
	wantFinding(t, w.findings(cdc.Backfill), "prepared_transactions", finding.OK, "", "")
	c := w.source().Check(w.ctx())
	defer c.Close()
	err := c.session.within(w.ctx(), soon, func(ctx context.Context, conn *pgx.Conn) (err error) {
		c.holders, err = readHolders(ctx, conn, 0) // as if it were
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	wantFinding(t, map[string]finding.Finding{"prepared_transactions": c.old(true)}, "prepared_transactions", finding.Warn, `"old one"`, `ROLLBACK PREPARED 'old one'`)
}

// A server whose settings are wrong in every way: each is named, with its repair.
func TestCheckOfSettings(t *testing.T) {
	w := newWorld(t, map[string]string{
		"wal_level": "replica", "max_replication_slots": "1", "max_wal_senders": "1", "max_slot_wal_keep_size": "1GB",
		"synchronous_standby_names": "*", "synchronous_commit": "local", "wal_sender_timeout": "500ms",
	})
	found := w.findings(cdc.Backfill)
	wantFinding(t, found, "wal_level", finding.Fail, "wal_level is replica", "ALTER SYSTEM SET wal_level = 'logical'")
	wantFinding(t, found, "max_replication_slots", finding.Fail, "0 of 1 in use", "max_replication_slots")
	wantFinding(t, found, "max_wal_senders", finding.Warn, "1 of 1 in use", "max_wal_senders")
	wantFinding(t, found, "synchronous_standby_names", finding.Fail, "matches the application name", "ALTER SYSTEM SET synchronous_standby_names")
	wantFinding(t, found, "wal_sender_timeout", finding.Warn, "500ms", "ALTER SYSTEM SET wal_sender_timeout")
	wantFinding(t, found, "max_slot_wal_keep_size", finding.OK, "1GB", "")
	noSenders := func() {
		t.Helper()
		// The server counts a sender for a moment after its client has left.
		eventually(t, "the sender has ended", func() bool {
			return w.value(`SELECT count(*) FROM pg_stat_get_wal_senders()`) == "0"
		})
	}
	noSenders()
	wantFinding(t, w.findings(cdc.Stream), "max_replication_slots", finding.Warn, "", "")

	noSenders()
	s := w.source().session() // has the only sender
	if err := s.connect(w.ctx()); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(s.Close)
	found = w.findings(cdc.Backfill)
	wantFinding(t, found, "replication", finding.Fail, "no connection left", "max_wal_senders")
	wantFinding(t, found, "max_wal_senders", finding.Fail, "1 of 1 in use", "max_wal_senders")
	wantFinding(t, found, "wal_level", finding.Fail, "wal_level is replica", "")
}

// A slot that was lost is no obstacle, only a gap; and so is one that is about
// to be.
func TestCheckOfALostSlot(t *testing.T) {
	w := newWorld(t, map[string]string{"max_replication_slots": "1", "max_slot_wal_keep_size": "1MB", "min_wal_size": "32MB", "max_wal_size": "32MB"})
	w.slot().Close()
	// A heal drops it, and needs one place more.
	wantFinding(t, w.findings(cdc.Stream), "max_replication_slots", finding.Warn, "1 of 1 in use", "max_replication_slots")
	wantFinding(t, w.findings(cdc.Gap), "max_replication_slots", finding.Fail, "1 of 1 in use", "max_replication_slots")
	for _, state := range []struct{ status, fix string }{{"unreserved", "max_slot_wal_keep_size"}, {"lost", "walrelay run"}} {
		eventually(t, "the slot is "+state.status, func() bool {
			now := w.value(`SELECT wal_status FROM pg_replication_slots`)
			if now != state.status {
				w.exec(`SELECT pg_switch_wal(), pg_logical_emit_message(false, 'check', repeat('x', 100))`)
				if state.status == "lost" {
					w.exec(`CHECKPOINT`)
				}
			}
			return now == state.status
		})
		wantFinding(t, w.findings(cdc.Gap), "slot", finding.Warn, "lost", state.fix)
	}
}

// Without a server, or with one that is frozen, there is one finding, in bounded
// time.
func TestCheckOfAServerThatIsAway(t *testing.T) {
	w := onCommon(t)
	proxy := testservers.StartProxy(t, w.Addr())
	w.cfg.Conn = w.parse(strings.Replace(w.as("", "connect_timeout", "1"), w.Addr(), proxy.Addr(), 1))
	for _, away := range []struct {
		how  func()
		says string
	}{{proxy.Stall, "timeout"}, {proxy.Cut, "refused"}} {
		away.how()
		found := w.findings(cdc.Backfill)
		wantFinding(t, found, "connection", finding.Fail, away.says, "")
		if len(found) != 1 {
			t.Errorf("it found %v", found)
		}
	}
}
