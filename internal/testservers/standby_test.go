package testservers

import (
	"strconv"
	"testing"
)

const systemID = "SELECT system_identifier::text FROM pg_control_system()"

func insertInto(t *testing.T, pg *Postgres, n int) {
	t.Helper()
	if err := pg.Exec(t.Context(), "postgres", "INSERT INTO kept VALUES ("+strconv.Itoa(n)+")"); err != nil {
		t.Fatal(err)
	}
}

const kept = "SELECT coalesce(string_agg(n::text, ' ' ORDER BY n), '') FROM kept"

func startPrimary(t *testing.T) *Postgres {
	t.Helper()
	primary := StartPostgres(t, PostgresOptions{OwnSystemID: true})
	if err := primary.Exec(t.Context(), "postgres", "CREATE TABLE kept (n int)"); err != nil {
		t.Fatal(err)
	}
	insertInto(t, primary, 1)
	return primary
}

// A standby whose link is stalled does not have the end of the primary's WAL,
// and a promotion makes that the end of history. The old primary then follows
// the new one.
func TestPromotionLosesWhatTheStandbyDidNotReceive(t *testing.T) {
	primary := startPrimary(t)
	if err := primary.Exec(t.Context(), "postgres", "SELECT pg_create_logical_replication_slot('logical', 'test_decoding')"); err != nil {
		t.Fatal(err)
	}
	link := StartProxy(t, primary.Addr())
	standby := StartStandby(t, primary, StandbyOptions{From: link.Addr(), Slot: "standby"})
	insertInto(t, primary, 2)
	standby.CatchUp(primary)
	if got := ask(t, standby.DSN("postgres"), kept); got != "1 2" {
		t.Errorf("the standby has rows %q", got)
	}
	if ask(t, standby.DSN("postgres"), systemID) != ask(t, primary.DSN("postgres"), systemID) {
		t.Error("the standby has a system identifier of its own")
	}
	if got := ask(t, standby.DSN("postgres"), "SELECT count(*)::text FROM pg_replication_slots"); got != "0" {
		t.Errorf("the standby has %s slots", got)
	}
	link.Stall()
	insertInto(t, primary, 3)
	primary.Kill()
	standby.Promote()
	insertInto(t, standby, 4)
	if got := ask(t, standby.DSN("postgres"), kept); got != "1 2 4" {
		t.Errorf("the new primary has rows %q", got)
	}
	if got := ask(t, standby.DSN("postgres"), "SELECT substr(pg_walfile_name(pg_current_wal_lsn()), 1, 8)"); got != "00000002" {
		t.Errorf("the new primary is on timeline %s", got)
	}

	// And once more, the other way round.
	port := primary.Port()
	primary.Follow(standby, StandbyOptions{})
	insertInto(t, standby, 5)
	primary.CatchUp(standby)
	standby.Stop("immediate")
	primary.Promote()
	insertInto(t, primary, 6)
	primary.Restart("fast")
	if got := ask(t, primary.DSN("postgres"), kept); got != "1 2 4 5 6" || primary.Port() != port {
		t.Errorf("the first primary has rows %q, on port %d", got, primary.Port())
	}
}

func TestStandbyKeepsFailoverSlots(t *testing.T) {
	primary := startPrimary(t)
	version, err := strconv.Atoi(ask(t, primary.DSN("postgres"), "SELECT current_setting('server_version_num')"))
	if err != nil {
		t.Fatal(err)
	}
	if version < 170000 {
		t.Skip("PostgreSQL cannot")
	}
	if err := primary.Exec(t.Context(), "postgres", "SELECT pg_create_logical_replication_slot('logical', 'test_decoding', failover => true)"); err != nil {
		t.Fatal(err)
	}
	standby := StartStandby(t, primary, StandbyOptions{Slot: "standby", SyncSlots: true})
	eventually(t, "wait for the slot", func() bool {
		return ask(t, standby.DSN("postgres"), "SELECT count(*)::text FROM pg_replication_slots WHERE synced AND NOT temporary") == "1"
	})
}

// A snapshot is of one moment, and keeps the slots.
func TestRestoredSnapshotIsAsItWas(t *testing.T) {
	pg := startPrimary(t)
	if err := pg.Exec(t.Context(), "postgres", "SELECT pg_create_logical_replication_slot('logical', 'test_decoding')"); err != nil {
		t.Fatal(err)
	}
	snapshot := pg.Snapshot()
	insertInto(t, pg, 2)
	pg.Kill()
	for range 2 {
		pg.Restore(snapshot)
		pg.Start()
		if got := ask(t, pg.DSN("postgres"), kept); got != "1" {
			t.Errorf("the restored server has rows %q", got)
		}
		if got := ask(t, pg.DSN("postgres"), "SELECT count(*)::text FROM pg_replication_slots"); got != "1" {
			t.Errorf("the restored server has %s slots", got)
		}
		insertInto(t, pg, 3)
		pg.Stop("fast")
	}
	other := StartPostgres(t, PostgresOptions{})
	other.Stop("fast")
	other.Restore(snapshot)
	other.Start()
	if got := ask(t, other.DSN("postgres"), kept); got != "1" {
		t.Errorf("the other server has rows %q", got)
	}
}
