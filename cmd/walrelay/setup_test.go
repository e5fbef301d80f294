package main

import (
	"bytes"
	"context"
	"fmt"
	"log/slog"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/jackc/pgx/v5"

	"github.com/stagedoor/walrelay/cdc"
	"github.com/stagedoor/walrelay/internal/pg"
	"github.com/stagedoor/walrelay/internal/testservers"
	"github.com/stagedoor/walrelay/outbox"
	"github.com/stagedoor/walrelay/slot"
)

// connect opens a connection for the test to look with.
func connect(t *testing.T, dsn string) *pgx.Conn {
	t.Helper()
	conn, err := pgx.Connect(t.Context(), dsn)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { conn.Close(context.Background()) })
	return conn
}

// query reads one value as text.
func query(t *testing.T, conn *pgx.Conn, sql string, args ...any) (value string) {
	t.Helper()
	if err := conn.QueryRow(t.Context(), "SELECT ("+sql+")::text", args...).Scan(&value); err != nil {
		t.Fatalf("%s: %v", sql, err)
	}
	return value
}

func execute(t *testing.T, conn *pgx.Conn, sql string) {
	t.Helper()
	if _, err := conn.Exec(t.Context(), sql); err != nil {
		t.Fatalf("%s: %v", sql, err)
	}
}

// expect runs walrelay and compares what it did.
func expect(t *testing.T, code int, stdout string, args ...string) {
	t.Helper()
	gotCode, gotOut, gotErr := walrelay(nil, args...)
	if gotCode != code || gotOut != stdout {
		t.Fatalf("walrelay %s: exit code %d, printed:\n%s%s\nwant %d and:\n%s",
			strings.Join(args, " "), gotCode, gotOut, gotErr, code, stdout)
	}
}

// expectFailure runs walrelay and looks for what it must say.
func expectFailure(t *testing.T, code int, parts []string, args ...string) {
	t.Helper()
	gotCode, gotOut, gotErr := walrelay(nil, args...)
	if gotCode != code {
		t.Errorf("walrelay %s: exit code %d, want %d; printed:\n%s%s", strings.Join(args, " "), gotCode, code, gotOut, gotErr)
	}
	for _, part := range parts {
		if !strings.Contains(gotErr, part) {
			t.Errorf("walrelay %s: the error does not hold %q:\n%s", strings.Join(args, " "), part, gotErr)
		}
	}
}

func TestSetupCanBeRunAgain(t *testing.T) {
	server := testservers.StartPostgres(t, testservers.PostgresOptions{})
	dsn := server.NewDatabase(t)
	conn := connect(t, dsn)
	args := []string{"setup", "--create-table", "--postgres", dsn}

	expect(t, exitDone, `created the table "public"."outbox"
created the publication "walrelay" of "public"."outbox"
`, args...)
	before := query(t, conn, `SELECT oid FROM pg_class WHERE relname = 'outbox'`) +
		query(t, conn, `SELECT oid FROM pg_publication WHERE pubname = 'walrelay'`)
	expect(t, exitDone, `the table "public"."outbox" is there already
the publication "walrelay" of "public"."outbox" is there already
`, args...)
	after := query(t, conn, `SELECT oid FROM pg_class WHERE relname = 'outbox'`) +
		query(t, conn, `SELECT oid FROM pg_publication WHERE pubname = 'walrelay'`)
	if before != after {
		t.Error("the second run made table or publication anew")
	}
	if n := query(t, conn, `SELECT count(*) FROM pg_replication_slots`); n != "0" {
		t.Error("setup created a replication slot")
	}
}

func TestSetupAddsATriggerOnce(t *testing.T) {
	t.Parallel()
	server := testservers.StartPostgres(t, testservers.PostgresOptions{})
	dsn := server.NewDatabase(t)
	const added = "added the trigger walrelay_notify to \"public\".\"outbox\", which notifies new rows\n"
	const there = "the trigger walrelay_notify of \"public\".\"outbox\" is there already\n"
	args := []string{"setup", "--postgres", dsn, "--create-notify-trigger", "--listen", "new rows"}
	expectFailure(t, exitFailure, []string{`no table "public"."outbox"`, "--create-table"}, args...)
	_, out, _ := walrelay(nil, append(args, "--create-table")...)
	if !strings.Contains(out, added) {
		t.Errorf("it printed %s", out)
	}
	if _, out, _ = walrelay(nil, args...); !strings.Contains(out, there) {
		t.Errorf("the second time it printed %s", out)
	}
	// Nothing of it needs logical replication, or a role that may publish.
	_, out, _ = walrelay(nil, "setup", "--postgres", dsn, "--for-poll", "--create-table", "--create-notify-trigger", "--listen", "new rows", "--print-sql")
	if strings.Contains(out, "PUBLICATION") || strings.Contains(out, "REPLICATION") || !strings.Contains(out, `GRANT UPDATE ("published_at")`) {
		t.Errorf("--for-poll prints:\n%s", out)
	}
	execute(t, connect(t, dsn), `DROP PUBLICATION walrelay`)
	expect(t, exitDone, there+"the table \"public\".\"outbox\" is fit for walrelay poll\n", "setup", "--postgres", dsn, "--for-poll", "--create-notify-trigger", "--listen", "new rows")
	if n := query(t, connect(t, dsn), `SELECT count(*) FROM pg_publication`); n != "0" {
		t.Error("--for-poll makes a publication")
	}
	expectFailure(t, exitFailure, []string{`notifies the channel "new rows", not "new_outbox_event"`, "DROP TRIGGER walrelay_notify"},
		"setup", "--postgres", dsn, "--create-notify-trigger")
}

func TestSetupOfATableThatIsThere(t *testing.T) {
	server := testservers.StartPostgres(t, testservers.PostgresOptions{})
	dsn := server.NewDatabase(t)
	execute(t, connect(t, dsn), `
		CREATE SCHEMA "Odd Schema";
		CREATE TABLE "Odd Schema"."out.BOX ""1""" ("Key" uuid PRIMARY KEY, type text, body text)`)
	expect(t, exitDone, `created the publication "Pub ""1"" \ '" of "Odd Schema"."out.BOX ""1"""
`, "setup", "--postgres", dsn, "--publication", `Pub "1" \ '`, "--table", `Odd Schema."out.BOX ""1"""`,
		"--column-id", "Key", "--column-kind", "type", "--column-payload", "body", "--column-created-at", "", "--column-published-at", "")
}

func TestSetupSaysWhatIsMissing(t *testing.T) {
	server := testservers.StartPostgres(t, testservers.PostgresOptions{})
	dsn := server.NewDatabase(t)
	conn := connect(t, dsn)

	expectFailure(t, exitFailure, []string{`"public"."outbox" does not exist`, "setup --create-table"},
		"setup", "--postgres", dsn)
	expectFailure(t, exitFailure, []string{`no schema "app"`, `CREATE SCHEMA "app";`},
		"setup", "--create-table", "--table", "app.outbox", "--postgres", dsn)
	expectFailure(t, exitUsage, []string{"--create-table", `"type"`},
		"setup", "--create-table", "--column-kind", "type", "--postgres", dsn)
	expectFailure(t, exitUsage, []string{"--create-table", `"trace"`},
		"setup", "--create-table", "--print-sql", "--field", "id=id", "--field", "trace=trace", "--postgres", dsn)
	expectFailure(t, exitUsage, []string{"--role", "--print-sql"},
		"setup", "--role", "relay", "--postgres", dsn)

	execute(t, conn, `CREATE TABLE outbox (id bigint PRIMARY KEY, "Kind" text, payload jsonb)`)
	expectFailure(t, exitFailure, []string{`no column "kind"`, `"Kind"`}, "setup", "--postgres", dsn)

	execute(t, conn, `CREATE ROLE nobody LOGIN`)
	poor := strings.Replace(dsn, "postgres@", "nobody@", 1)
	execute(t, conn, `REVOKE CREATE ON SCHEMA public FROM PUBLIC`)
	expectFailure(t, exitFailure, []string{`"nobody"`, "--print-sql"},
		"setup", "--create-table", "--table", "public.another", "--postgres", poor)
}

// TestPrintedSQLMakesAWorkingSetup feeds what setup prints to psql, as a DBA
// would, and then does with the role's privileges all that run needs.
func TestPrintedSQLMakesAWorkingSetup(t *testing.T) {
	server := testservers.StartPostgres(t, testservers.PostgresOptions{})
	for i, tt := range []struct {
		name, database, role, publication string
		table                             cdc.Table
		prepare                           string // by the DBA before
		args                              []string
		marks                             outbox.MarkMode
	}{
		{
			name: "defaults", database: "shop", role: "relay", publication: "walrelay",
			table: cdc.Table{Schema: "public", Name: "outbox"},
			args:  []string{"--create-table", "--purge-after", "1h"}, marks: outbox.MarkPublishedAt,
		},
		{
			name: "odd names", database: `Da"ta $$ 'Base`, role: `Re"lay -- \ ':x`, publication: `Pub $walrelay$ 'x\y" :z`,
			table:   cdc.Table{Schema: `Sch"ema`, Name: `Out.Box $walrelay$ '\`},
			prepare: `CREATE SCHEMA "Sch""ema"`,
			args:    []string{"--create-table"}, marks: outbox.MarkPublishedAt,
		},
		{
			name: "a table of one's own, rows deleted", database: "del", role: "relay2", publication: "walrelay",
			table:   cdc.Table{Schema: "app", Name: "events"},
			prepare: `CREATE SCHEMA app; CREATE TABLE app.events ("Event Id" uuid PRIMARY KEY, kind text, payload bytea)`,
			args:    []string{"--mark", "delete", "--column-id", "Event Id", "--column-created-at", "", "--column-published-at", ""},
			marks:   outbox.MarkDelete,
		},
		{
			name: "a table of one's own, rows left alone", database: "none", role: "relay3", publication: "walrelay",
			table:   cdc.Table{Schema: "app", Name: "events"},
			prepare: `CREATE SCHEMA app; CREATE TABLE app.events (id text PRIMARY KEY, kind text, payload text)`,
			args:    []string{"--column-created-at", "", "--column-published-at", ""},
			marks:   outbox.MarkNone,
		},
	} {
		t.Run(tt.name, func(t *testing.T) {
			dba := connect(t, server.DSN("postgres"))
			execute(t, dba, "CREATE DATABASE "+cdc.QuoteIdent(tt.database))
			execute(t, dba, "CREATE ROLE "+cdc.QuoteIdent(tt.role)+" LOGIN")
			owner := connect(t, server.DSN(tt.database))
			// As hardened databases are: nobody has what is not granted.
			execute(t, owner, "REVOKE ALL ON DATABASE "+cdc.QuoteIdent(tt.database)+" FROM PUBLIC; REVOKE ALL ON SCHEMA public FROM PUBLIC;"+tt.prepare)

			args := append([]string{
				"setup", "--print-sql", "--postgres", server.DSN(tt.database), "--role", tt.role,
				"--table", tt.table.String(), "--publication", tt.publication,
			}, tt.args...)
			code, script, stderr := walrelay(nil, args...)
			if code != exitDone {
				t.Fatalf("exit code %d: %s", code, stderr)
			}
			for range 2 {
				psql := exec.Command(psqlProgram(t, server), "-X", "-q", "-v", "ON_ERROR_STOP=1", "-d", server.DSN(tt.database))
				psql.Stdin = strings.NewReader(script)
				if out, err := psql.CombinedOutput(); err != nil || len(out) > 0 {
					t.Fatalf("psql: %v, printed:\n%s\nof:\n%s", err, out, script)
				}
			}

			dsn, err := pg.Parse(server.DSN(tt.database))
			if err != nil {
				t.Fatal(err)
			}
			dsn.User = tt.role
			_, cfg, _, err := parse(append([]string{"setup", "--postgres", server.DSN(tt.database), "--table", tt.table.String()}, tt.args...), nil, &bytes.Buffer{}, &bytes.Buffer{})
			if err != nil {
				t.Fatal(err)
			}
			cfg.Postgres, cfg.Publication, cfg.Slot = dsn, tt.publication, fmt.Sprintf("printed%d", i)
			asRunDoes(t, cfg, tt.marks)
		})
	}
}

// psqlProgram is the server's psql, or whichever there is.
func psqlProgram(t *testing.T, server *testservers.Postgres) string {
	t.Helper()
	path, err := exec.LookPath(filepath.Join(server.BinDir(), "psql"))
	if err != nil {
		path, err = exec.LookPath("psql")
	}
	if err != nil {
		t.Fatal(err)
	}
	return path
}

// asRunDoes goes through what run does with the database.
func asRunDoes(t *testing.T, cfg *Config, marks outbox.MarkMode) {
	t.Helper()
	log := slog.New(slog.DiscardHandler)
	session, err := slot.New(slotConfig(cfg), log).Open(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	defer session.Close()
	if err := session.EnsurePublication(t.Context(), false); err != nil {
		t.Fatal(err)
	}
	if ok, err := session.TryLock(t.Context()); !ok || err != nil {
		t.Fatalf("TryLock: %t, %v", ok, err)
	}
	snapshot, err := session.CreateTemporary(t.Context(), func(text string) { t.Log(text) })
	if err != nil {
		t.Fatal(err)
	}
	if err := session.Keep(t.Context(), snapshot); err != nil {
		t.Fatal(err)
	}
	if err := session.Drop(t.Context()); err != nil {
		t.Fatal(err)
	}
	table := outbox.New(outbox.Config{Conn: cfg.Postgres, Table: cfg.Table, Mapping: cfg.Mapping(), Mark: cfg.Mark}, log)
	defer table.Close()
	if err := table.Check(t.Context(), nil); err != nil {
		t.Fatal(err)
	}
	if table.Marks() != marks {
		t.Errorf("rows are marked by %s, want %s", table.Marks(), marks)
	}
	if cfg.PurgeAfter > 0 {
		purger := outbox.NewPurger(table, outbox.PurgeConfig{OlderThan: cfg.PurgeAfter, Batch: purgeBatch}, log)
		if _, err := purger.Pass(t.Context()); err != nil {
			t.Error(err)
		}
	}
}

// TestPrintedSQLNeedsNoServer, so that it can be printed anywhere.
func TestPrintedSQLNeedsNoServer(t *testing.T) {
	code, script, stderr := walrelay(nil, "setup", "--print-sql", "--postgres", "postgres://app@127.0.0.1:1/shop")
	if code != exitDone || !strings.Contains(script, `TO "app";`) || !strings.Contains(script, `DATABASE "shop"`) {
		t.Errorf("exit code %d, printed:\n%s%s", code, script, stderr)
	}
	expectFailure(t, exitUsage, []string{"control character"},
		"setup", "--print-sql", "--role", "a\nb", "--postgres", "postgres://app@127.0.0.1:1/shop")
}
