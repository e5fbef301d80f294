package testservers

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/jackc/pgx/v5"
)

// connect opens a connection that is closed when the test is over.
func connect(t *testing.T, dsn string) *pgx.Conn {
	t.Helper()
	conn, err := pgx.Connect(context.Background(), dsn)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { conn.Close(context.Background()) })
	return conn
}

// ask runs a query that yields one text.
func ask(t *testing.T, dsn, sql string) string {
	t.Helper()
	ctx := context.Background()
	conn, err := pgx.Connect(ctx, dsn)
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close(ctx)
	var answer string
	if err := conn.QueryRow(ctx, sql).Scan(&answer); err != nil {
		t.Fatalf("%s: %v", sql, err)
	}
	return answer
}

func TestPostgresKeepsPortAndDataOverEveryEnd(t *testing.T) {
	pg := StartPostgres(t, PostgresOptions{})
	dsn := pg.NewDatabase(t)
	if err := pg.Exec(t.Context(), "test1", "CREATE TABLE ends (name text)"); err != nil {
		t.Fatal(err)
	}
	want := ""
	for _, end := range []struct {
		name string
		do   func()
	}{
		{"smart", func() { pg.Restart("smart") }},
		{"fast", func() { pg.Restart("fast") }},
		{"immediate", func() { pg.Restart("immediate") }},
		{"kill", func() { pg.Kill(); pg.Start() }},
		{"kill again", func() { pg.Kill(); pg.Start() }},
	} {
		if err := pg.Exec(t.Context(), "test1", fmt.Sprintf("INSERT INTO ends VALUES ('%s')", end.name)); err != nil {
			t.Fatal(err)
		}
		pid := pg.PID()
		end.do()
		if pg.PID() == pid {
			t.Errorf("%s: the process is the same", end.name)
		}
		want += end.name + ";"
		if got := ask(t, dsn, "SELECT string_agg(name || ';', '') FROM ends"); got != want {
			t.Errorf("after %s the rows are %s; want %s", end.name, got, want)
		}
	}
}

func TestPostgresSettings(t *testing.T) {
	pg := StartPostgres(t, PostgresOptions{Settings: map[string]string{"application_name": "it's set", "max_wal_senders": "7"}})
	for name, want := range map[string]string{
		"wal_level": "logical", "fsync": "off", "max_replication_slots": "20", "max_prepared_transactions": "10",
		"server_encoding": "UTF8", "lc_collate": "C.UTF-8", "listen_addresses": "127.0.0.1",
		"max_wal_senders": "7",
	} {
		sql := "SELECT current_setting('" + name + "')"
		if name == "lc_collate" { // not a setting any more since 16
			sql = "SELECT datcollate::text FROM pg_database WHERE datname = 'postgres'"
		}
		if got := ask(t, pg.DSN("postgres"), sql); got != want {
			t.Errorf("%s is %q; want %q", name, got, want)
		}
	}
	if got := ask(t, pg.DSN("postgres"), "SHOW application_name"); got != "it's set" {
		t.Errorf("application_name is %q", got)
	}
	if err := pg.Exec(t.Context(), "postgres", "ALTER SYSTEM SET max_wal_senders = 9"); err != nil {
		t.Fatal(err)
	}
	pg.Restart("fast")
	if got := ask(t, pg.DSN("postgres"), "SHOW max_wal_senders"); got != "9" {
		t.Errorf("ALTER SYSTEM did not override the settings: %s", got)
	}
}

func TestDurablePostgresWaitsForItsDisk(t *testing.T) {
	pg := StartPostgres(t, PostgresOptions{Durable: true})
	if got := ask(t, pg.DSN("postgres"), "SHOW fsync"); got != "on" {
		t.Errorf("fsync is %s", got)
	}
}

func TestPostgresListensOnASocketToo(t *testing.T) {
	pg := StartPostgres(t, PostgresOptions{})
	dsn := fmt.Sprintf("host=%s port=%d user=postgres dbname=postgres", pg.SocketDir(), pg.Port())
	if got := ask(t, dsn, "SELECT coalesce(inet_client_addr()::text, 'socket')"); got != "socket" {
		t.Errorf("connected from %s", got)
	}
}

func TestServersShareASystemIDUnlessTheyAsk(t *testing.T) {
	id := func(opts PostgresOptions) string {
		return ask(t, StartPostgres(t, opts).DSN("postgres"), "SELECT system_identifier::text FROM pg_control_system()")
	}
	a, b, own := id(PostgresOptions{}), id(PostgresOptions{}), id(PostgresOptions{OwnSystemID: true})
	if a != b || a == own {
		t.Errorf("system identifiers %s and %s of copies, %s of its own", a, b, own)
	}
}

func TestSmartStopWaitsForClientsAndGoesOnAfterItsDeadline(t *testing.T) {
	pg := StartPostgres(t, PostgresOptions{})
	conn := connect(t, pg.DSN("postgres"))
	ctx, cancel := context.WithCancel(context.Background())
	stopped := make(chan error)
	go func() { stopped <- pg.TryStop(ctx, "smart") }()
	eventually(t, "wait for the shutdown to begin", func() bool { return strings.Contains(pg.Log(), "smart shutdown request") })
	cancel()
	if err := <-stopped; !errors.Is(err, context.Canceled) || !strings.Contains(err.Error(), "smart shutdown request") {
		t.Errorf("the stop that waits for a client ended with %v; want why, and the log", err)
	}
	if err := conn.Close(context.Background()); err != nil {
		t.Fatal(err)
	}
	eventually(t, "wait for the server to leave", func() bool { return !pg.Running() })
}

func TestPostgresThatAsksForAPasswordCounts(t *testing.T) {
	pg := StartPostgres(t, PostgresOptions{})
	if err := os.WriteFile(filepath.Join(pg.DataDir(), "pg_hba.conf"), []byte("host all all all scram-sha-256\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	pg.Restart("fast")
	if err := pg.Exec(t.Context(), "postgres", "SELECT 1"); err == nil {
		t.Error("it let us in without one")
	}
}

func TestStopModesAreChecked(t *testing.T) {
	pg := StartPostgres(t, PostgresOptions{})
	if err := pg.TryStop(t.Context(), "gently"); err == nil {
		t.Error("a mode that does not exist")
	}
	if err := pg.TryStart(t.Context()); err == nil || !strings.Contains(err.Error(), "runs already") {
		t.Errorf("start of a server that runs: %v", err)
	}
}

func TestFrozenPostgresStopsWithAllItsProcesses(t *testing.T) {
	pg := StartPostgres(t, PostgresOptions{})
	conn := connect(t, pg.DSN("postgres"))
	backend := int(conn.PgConn().PID())
	pg.Freeze()
	for _, pid := range append(descendants(pg.PID()), pg.PID()) {
		if s := state(pid); s != 'T' {
			t.Errorf("process %d of the frozen server is in state %c", pid, s)
		}
	}
	if s := state(backend); s != 'T' {
		t.Errorf("the backend is in state %c", s)
	}
	answer := make(chan error)
	go func() { _, err := conn.Exec(context.Background(), "SELECT 1"); answer <- err }()
	pg.Thaw()
	if err := <-answer; err != nil {
		t.Errorf("a query over the frost: %v", err)
	}
}

func TestFrozenPostgresCanBeKilled(t *testing.T) {
	pg := StartPostgres(t, PostgresOptions{})
	backend := int(connect(t, pg.DSN("postgres")).PgConn().PID())
	pg.Freeze()
	pg.Kill()
	if pg.Running() || state(backend) != 0 {
		t.Error("something is left of the killed server")
	}
	pg.Start()
}

func TestKilledPostgresLeavesNoSharedMemory(t *testing.T) {
	var segment, dir string
	r := record(func(r *recorder) {
		pg := StartPostgres(r, PostgresOptions{})
		segment, dir = segmentOf(r, pg), pg.Dir()
		maps, err := os.ReadFile(fmt.Sprintf("/proc/%d/maps", pg.PID()))
		if err != nil || strings.Contains(string(maps), "/dev/shm/") {
			r.Fatalf("the server has memory in /dev/shm, which nobody removes after a kill (%v):\n%s", err, maps)
		}
		pg.Kill()
		if !hasSegment(t, segment) {
			r.Fatalf("segment %s is gone before the server is cleaned up: nothing is tested", segment)
		}
	})
	if r.fatal != "" {
		t.Fatal(r.fatal)
	}
	if hasSegment(t, segment) {
		t.Errorf("segment %s of the killed server is still there", segment)
	}
	if exists(dir) {
		t.Errorf("%s is still there", dir)
	}
}

// segmentOf is the number of a running server's System V segment.
func segmentOf(t TB, pg *Postgres) string {
	t.Helper()
	raw, err := os.ReadFile(filepath.Join(pg.DataDir(), "postmaster.pid"))
	if err != nil {
		t.Fatalf("%v", err)
	}
	return strings.Fields(strings.Split(string(raw), "\n")[6])[1]
}

// hasSegment looks a System V shared memory segment up by its number.
func hasSegment(t *testing.T, id string) bool {
	t.Helper()
	raw, err := os.ReadFile("/proc/sysvipc/shm")
	if err != nil {
		t.Fatal(err)
	}
	for line := range strings.Lines(string(raw)) {
		if fields := strings.Fields(line); len(fields) > 1 && fields[1] == id {
			return true
		}
	}
	return false
}

func TestEveryDatabaseIsNew(t *testing.T) {
	pg := StartPostgres(t, PostgresOptions{})
	a, b := pg.NewDatabase(t), pg.NewDatabase(t)
	if a == b {
		t.Errorf("two databases are %s", a)
	}
	if got := ask(t, b, "SELECT count(*)::text FROM pg_class WHERE relnamespace = 'public'::regnamespace"); got != "0" {
		t.Errorf("%s tables in a new database", got)
	}
}

func TestNewestPostgresIsTaken(t *testing.T) {
	root := t.TempDir()
	for _, file := range []string{"9/bin/postgres", "15/bin/postgres", "16/bin/psql", "other/bin/postgres"} {
		path := filepath.Join(root, file)
		if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(path, nil, 0o755); err != nil {
			t.Fatal(err)
		}
	}
	got, err := newestPostgres(root)
	if want := filepath.Join(root, "15/bin"); err != nil || got != want {
		t.Errorf("%s, %v; want %s", got, err, want)
	}
}

// An interrupted run must not leave half a template for all that follow.
func TestTemplateIsMadeWhole(t *testing.T) {
	bin, err := postgresBin()
	if err != nil {
		t.Fatal(err)
	}
	account, err := postgresOwner()
	if err != nil {
		t.Fatal(err)
	}
	cache := t.TempDir()
	t.Setenv("WALRELAY_TEST_CACHE", cache)
	interrupted, cancel := context.WithCancel(context.Background())
	cancel()
	if _, err := template(interrupted, bin, account); err == nil {
		t.Fatal("an interrupted initdb gave a template")
	}
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	path, err := template(ctx, bin, account)
	if err != nil {
		t.Fatal(err)
	}
	made, err := os.Stat(filepath.Join(path, "PG_VERSION"))
	if err != nil {
		t.Fatal(err)
	}
	again, err := template(ctx, bin, account)
	if err != nil || again != path {
		t.Fatalf("%s, %v; want %s", again, err, path)
	}
	same, err := os.Stat(filepath.Join(path, "PG_VERSION"))
	if err != nil || !os.SameFile(made, same) {
		t.Errorf("the template was made twice: %v", err)
	}
}
