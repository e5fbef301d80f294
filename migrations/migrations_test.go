package migrations

import (
	"context"
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/jackc/pgx/v5/pgconn"
	"go.uber.org/goleak"

	"github.com/stagedoor/walrelay/cdc"
	"github.com/stagedoor/walrelay/internal/testservers"
)

// server is the PostgreSQL that tests share, each with a database of its own.
var server *testservers.Postgres

func TestMain(m *testing.M) {
	goleak.VerifyTestMain(&testservers.Shared{M: m, Start: func(t testservers.TB) {
		server = testservers.StartPostgres(t, testservers.PostgresOptions{})
	}})
}

const patience = 30 * time.Second

// db is a session in a database of the test's own.
type db struct {
	t     *testing.T
	conn  *pgconn.PgConn
	dsn   string
	heard func(*pgconn.Notification)
}

func connect(t *testing.T, dsn string) *db {
	t.Helper()
	d := &db{t: t, dsn: dsn, heard: func(*pgconn.Notification) {}}
	cfg, err := pgconn.ParseConfig(dsn)
	if err != nil {
		t.Fatal(err)
	}
	cfg.OnNotification = func(_ *pgconn.PgConn, n *pgconn.Notification) { d.heard(n) }
	if d.conn, err = pgconn.ConnectConfig(t.Context(), cfg); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { d.conn.Close(context.Background()) })
	return d
}

// try runs SQL and returns its last column of all rows, in one line.
func (d *db) try(sql string) (string, error) {
	ctx, cancel := context.WithTimeout(d.t.Context(), patience)
	defer cancel()
	results, err := d.conn.Exec(ctx, sql).ReadAll()
	var all []string
	for _, result := range results {
		for _, row := range result.Rows {
			all = append(all, string(row[len(row)-1]))
		}
	}
	return strings.Join(all, "\n"), err
}

func (d *db) exec(sql string) string {
	d.t.Helper()
	text, err := d.try(sql)
	if err != nil {
		d.t.Fatalf("%s: %v", sql, err)
	}
	return text
}

// catalogue is what the database has in tables and indexes, and whether any of
// it was touched.
func (d *db) catalogue() string {
	d.t.Helper()
	return d.exec(`SELECT format('%s.%s %s %s', c.oid::regclass, c.relkind, c.xmin, pg_get_indexdef(c.oid))
		FROM pg_class c JOIN pg_namespace n ON n.oid = c.relnamespace
		WHERE n.nspname !~ '^(pg_|information_schema)' ORDER BY 1`)
}

var tables = []cdc.Table{
	{Schema: "public", Name: "outbox"},
	{Schema: "My App", Name: "Out.Box"},
	{Schema: `s"q`, Name: `it's "quoted"`},
	{Schema: `back\slash`, Name: `out\box'`},
	{Schema: "$walrelay$", Name: "$_walrelay$ {{table}} :x $1"},
	{Schema: "sélection", Name: "été😀 " + strings.Repeat("x", 48)}, // 63 bytes
}

// TestTableIsMadeOnceAndThenLeftAlone, whatever its name.
func TestTableIsMadeOnceAndThenLeftAlone(t *testing.T) {
	for _, table := range tables {
		t.Run(table.String(), func(t *testing.T) {
			d := connect(t, server.NewDatabase(t))
			d.exec("CREATE SCHEMA IF NOT EXISTS " + cdc.QuoteIdent(table.Schema))
			d.exec(Table(table))
			got := d.exec(`SELECT format('%s %s %s %s%s', a.attname, format_type(a.atttypid, a.atttypmod), a.attnotnull, pg_get_expr(b.adbin, b.adrelid), a.attidentity)
				FROM pg_attribute a LEFT JOIN pg_attrdef b ON b.adrelid = a.attrelid AND b.adnum = a.attnum
				WHERE a.attrelid = '` + strings.ReplaceAll(table.String(), "'", "''") + `'::regclass AND a.attnum > 0 ORDER BY a.attnum`)
			want := strings.Join([]string{
				"id bigint t d",
				"kind text t ",
				"payload jsonb t ",
				"created_at timestamp with time zone t now()",
				"published_at timestamp with time zone f ",
			}, "\n")
			if got != want {
				t.Errorf("columns:\n%s\nwant:\n%s", got, want)
			}
			indexes := d.exec(`SELECT substring(pg_get_indexdef(indexrelid) FROM 'USING .*') FROM pg_index
				WHERE indrelid = '` + strings.ReplaceAll(table.String(), "'", "''") + `'::regclass ORDER BY indisprimary`)
			if want := "USING btree (id) WHERE (published_at IS NULL)\nUSING btree (id)"; indexes != want {
				t.Errorf("indexes:\n%s\nwant:\n%s", indexes, want)
			}
			before := d.catalogue()
			d.exec(Table(table))
			if after := d.catalogue(); after != before {
				t.Errorf("before:\n%s\nafter:\n%s", before, after)
			}
		})
	}
}

// TestTableThatIsThereIsNotChanged, however it looks.
func TestTableThatIsThereIsNotChanged(t *testing.T) {
	for _, sql := range []string{
		"CREATE TABLE outbox (key uuid PRIMARY KEY, body text)",
		"CREATE TABLE outbox (id bigint, published_at timestamptz)",
		"CREATE VIEW outbox AS SELECT 1 AS id",
		"CREATE TABLE outbox (id bigint) PARTITION BY RANGE (id)",
	} {
		d := connect(t, server.NewDatabase(t))
		d.exec(sql)
		before := d.catalogue()
		d.exec(Table(tables[0]))
		if after := d.catalogue(); after != before {
			t.Errorf("%s; before:\n%s\nafter:\n%s", sql, before, after)
		}
	}
}

// TestTableThatIsThereIsNotLocked: it may be run beside busy writers, and by a
// role that owns nothing.
func TestTableThatIsThereIsNotLocked(t *testing.T) {
	dsn := server.NewDatabase(t)
	d, writer := connect(t, dsn), connect(t, dsn)
	d.exec(Table(tables[0]))
	writer.exec("BEGIN; LOCK TABLE outbox")
	d.exec("SET lock_timeout = '2s'")
	d.exec("CREATE ROLE nobody; SET ROLE nobody")
	d.exec(Table(tables[0]))
	writer.exec("ROLLBACK")
	d.exec("RESET ROLE; DROP ROLE nobody")
}

// TestTableWithoutSchema: making schemas is for whoever owns the database.
func TestTableWithoutSchema(t *testing.T) {
	d := connect(t, server.NewDatabase(t))
	_, err := d.try(Table(cdc.Table{Schema: "app", Name: "outbox"}))
	var pgErr *pgconn.PgError
	if !errors.As(err, &pgErr) || pgErr.Code != "3F000" {
		t.Errorf("error %v, want 3F000, that the schema does not exist", err)
	}
}

// TestNotifyTellsOfEachStatement that inserts, once its transaction commits,
// whatever the names; and it is made once.
func TestNotifyTellsOfEachStatement(t *testing.T) {
	const channel = `it's "new" \ {{table}}`
	for _, table := range tables {
		t.Run(table.String(), func(t *testing.T) {
			d := connect(t, server.NewDatabase(t))
			d.exec("CREATE SCHEMA IF NOT EXISTS " + cdc.QuoteIdent(table.Schema))
			d.exec(Table(table))
			triggers := func() string { return d.exec("SELECT format('%s %s', oid, tgname) FROM pg_trigger") }
			d.exec(Notify(table, channel))
			before := triggers()
			writer := connect(t, d.dsn)
			writer.exec("BEGIN; LOCK TABLE " + table.String())
			d.exec(Notify(table, channel))
			writer.exec("ROLLBACK")
			if after := triggers(); after != before || !strings.Contains(before, NotifyTrigger) {
				t.Errorf("the triggers %s became %s", before, after)
			}
			d.exec("LISTEN " + cdc.QuoteIdent(channel))
			insert := "INSERT INTO " + table.String() + " (kind, payload) VALUES ('k', '1'), ('k', '2')"
			writer.exec("BEGIN; " + insert + "; ROLLBACK")
			writer.exec("BEGIN; " + insert + "; " + insert + "; COMMIT; " + insert)
			heard := 0
			d.heard = func(n *pgconn.Notification) {
				if n.Channel != channel {
					t.Errorf("notified %q", n.Channel)
				}
				heard++
			}
			for heard < 2 {
				ctx, cancel := context.WithTimeout(t.Context(), patience)
				if err := d.conn.WaitForNotification(ctx); err != nil {
					t.Fatalf("heard %d notifications: %v", heard, err)
				}
				cancel()
			}
		})
	}
}
