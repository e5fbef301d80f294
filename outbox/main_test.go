package outbox

import (
	"bytes"
	"context"
	"fmt"
	"log/slog"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/jackc/pglogrepl"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/pgproto3"
	"go.uber.org/goleak"

	"github.com/stagedoor/walrelay/cdc"
	"github.com/stagedoor/walrelay/internal/pg"
	"github.com/stagedoor/walrelay/internal/testservers"
	"github.com/stagedoor/walrelay/migrations"
)

// server is the PostgreSQL that tests share, each with a database of its own.
var server *testservers.Postgres

func TestMain(m *testing.M) {
	goleak.VerifyTestMain(&testservers.Shared{M: m, Start: func(t testservers.TB) {
		server = testservers.StartPostgres(t, testservers.PostgresOptions{})
	}})
}

// patience bounds a wait for something that has to come.
const patience = 30 * time.Second

// db is a database of a test's own, and a superuser's connection to it.
type db struct {
	t    *testing.T
	dsn  string
	conn *pgx.Conn
	logs *logBuffer
}

var public = cdc.Table{Schema: "public", Name: "outbox"}

// newDB makes an empty database on the shared server.
func newDB(t *testing.T) *db {
	t.Helper()
	return newDBOn(t, server.NewDatabase(t))
}

func newDBOn(t *testing.T, dsn string) *db {
	t.Helper()
	d := &db{t: t, dsn: dsn, logs: &logBuffer{}}
	d.conn = d.connect()
	return d
}

// newOutbox is newDB with the table of package migrations.
func newOutbox(t *testing.T) *db {
	t.Helper()
	d := newDB(t)
	d.exec(migrations.Table(public))
	return d
}

// anew gives a subtest the same database with nothing but a new table in it,
// which takes less time than another database.
func (d *db) anew(t *testing.T) *db {
	t.Helper()
	n := &db{t: t, dsn: d.dsn, conn: d.conn, logs: &logBuffer{}}
	n.exec("DROP SCHEMA public CASCADE; CREATE SCHEMA public; GRANT USAGE ON SCHEMA public TO public")
	n.exec(migrations.Table(public))
	return n
}

func (d *db) ctx() context.Context {
	ctx, cancel := context.WithTimeout(d.t.Context(), patience)
	d.t.Cleanup(cancel)
	return ctx
}

// config reads the database's connection string as the relay does, with another
// user if one is named.
func (d *db) config(user string) *pgx.ConnConfig {
	d.t.Helper()
	cfg, err := pg.Parse(d.dsn)
	if err != nil {
		d.t.Fatal(err)
	}
	if user != "" {
		cfg.User = user
	}
	return cfg
}

// connect opens another session.
func (d *db) connect() *pgx.Conn {
	d.t.Helper()
	conn, err := pg.Connect(d.ctx(), d.config(""))
	if err != nil {
		d.t.Fatal(err)
	}
	d.t.Cleanup(func() { hangUp(conn) })
	return conn
}

func (d *db) exec(sql string) {
	d.t.Helper()
	d.on(d.conn, sql)
}

// on runs SQL in one of several sessions.
func (d *db) on(conn *pgx.Conn, sql string) {
	d.t.Helper()
	if _, err := conn.PgConn().Exec(d.ctx(), sql).ReadAll(); err != nil {
		d.t.Fatalf("%s: %v", sql, err)
	}
}

// text is the first column of all rows, with spaces between them.
func (d *db) text(sql string) string {
	d.t.Helper()
	var all []string
	err := rows(d.ctx(), d.conn, sql, nil, func(row [][]byte) error {
		all = append(all, string(row[0]))
		return nil
	})
	if err != nil {
		d.t.Fatalf("%s: %v", sql, err)
	}
	return strings.Join(all, " ")
}

// wait repeats a query until its text is want.
func (d *db) wait(sql, want string) {
	d.t.Helper()
	deadline := time.Now().Add(patience)
	for got := ""; got != want; {
		if got = d.text(sql); time.Now().After(deadline) {
			d.t.Fatalf("%s: still %q, want %q", sql, got, want)
		}
		time.Sleep(5 * time.Millisecond)
	}
}

// role makes a role that may log in; roles belong to all databases of a server.
func (d *db) role(grants ...string) string {
	d.t.Helper()
	name := d.text("SELECT 'relay_' || current_database()")
	d.exec("CREATE ROLE " + name + " LOGIN")
	for _, grant := range grants {
		d.exec(fmt.Sprintf(grant, name))
	}
	d.t.Cleanup(func() {
		// The test's own context is done by now.
		ctx, cancel := context.WithTimeout(context.Background(), patience)
		defer cancel()
		conn, err := pg.Connect(ctx, d.config(""))
		if err != nil {
			return // the test stopped the server
		}
		defer hangUp(conn)
		if _, err := conn.PgConn().Exec(ctx, "DROP OWNED BY "+name+"; DROP ROLE "+name).ReadAll(); err != nil {
			d.t.Error(err)
		}
	})
	return name
}

// open makes a Table without checking it.
func (d *db) open(cfg Config) *Table {
	d.t.Helper()
	if cfg.Conn == nil {
		cfg.Conn = d.config("")
	}
	if cfg.Table == (cdc.Table{}) {
		cfg.Table = public
	}
	if cfg.Mapping.ID == "" {
		cfg.Mapping = DefaultMapping()
	}
	table := New(cfg, slog.New(slog.NewTextHandler(d.logs, nil)))
	d.t.Cleanup(table.Close)
	return table
}

// checked makes a Table and checks it.
func (d *db) checked(cfg Config) *Table {
	d.t.Helper()
	table := d.open(cfg)
	if err := table.Check(d.ctx(), nil); err != nil {
		d.t.Fatal(err)
	}
	return table
}

// logBuffer keeps what was logged.
type logBuffer struct {
	mu  sync.Mutex
	buf bytes.Buffer
}

func (b *logBuffer) Write(p []byte) (int, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.buf.Write(p)
}

func (b *logBuffer) String() string {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.buf.String()
}

// feed is a slot that delivers the inserts of a table, decoded by pglogrepl.
type feed struct {
	d         *db
	conn      *pgconn.PgConn
	relations map[uint32]*cdc.Relation
	commit    cdc.Commit
}

// newFeed publishes a table and starts to stream.
func newFeed(d *db, table cdc.Table) *feed {
	d.t.Helper()
	d.exec("CREATE PUBLICATION feed FOR TABLE " + table.String() + " WITH (publish = 'insert', publish_via_partition_root = true)")
	conn, err := pg.ConnectReplication(d.ctx(), d.config(""))
	if err != nil {
		d.t.Fatal(err)
	}
	d.t.Cleanup(func() {
		ctx, cancel := context.WithTimeout(context.Background(), closePatience)
		defer cancel()
		conn.Close(ctx)
		<-conn.CleanupDone()
	})
	slot := "feed_" + d.text("SELECT current_database()")
	if _, err := pglogrepl.CreateReplicationSlot(d.ctx(), conn, slot, "pgoutput",
		pglogrepl.CreateReplicationSlotOptions{Temporary: true}); err != nil {
		d.t.Fatal(err)
	}
	err = pglogrepl.StartReplication(d.ctx(), conn, slot, 0, pglogrepl.StartReplicationOptions{
		PluginArgs: []string{"proto_version '1'", "publication_names 'feed'"},
	})
	if err != nil {
		d.t.Fatal(err)
	}
	return &feed{d: d, conn: conn, relations: map[uint32]*cdc.Relation{}}
}

// inserts waits for n rows.
func (f *feed) inserts(n int) []*cdc.Insert {
	f.d.t.Helper()
	ctx := f.d.ctx()
	var got []*cdc.Insert
	for len(got) < n {
		msg, err := f.conn.ReceiveMessage(ctx)
		if err != nil {
			f.d.t.Fatalf("after %d of %d rows: %v", len(got), n, err)
		}
		data, ok := msg.(*pgproto3.CopyData)
		if !ok {
			f.d.t.Fatalf("unexpected message %T", msg)
		}
		if data.Data[0] != pglogrepl.XLogDataByteID {
			continue
		}
		wal, err := pglogrepl.ParseXLogData(data.Data[1:])
		if err != nil {
			f.d.t.Fatal(err)
		}
		change, err := pglogrepl.Parse(wal.WALData)
		if err != nil {
			f.d.t.Fatal(err)
		}
		switch change := change.(type) {
		case *pglogrepl.BeginMessage:
			f.commit = cdc.Commit{LSN: cdc.LSN(change.FinalLSN), XID: change.Xid, Time: change.CommitTime}
		case *pglogrepl.RelationMessage:
			rel := &cdc.Relation{OID: change.RelationID, Table: cdc.Table{Schema: change.Namespace, Name: change.RelationName}}
			for _, c := range change.Columns {
				rel.Columns = append(rel.Columns, cdc.Column{Name: c.Name, TypeOID: c.DataType})
			}
			f.relations[rel.OID] = rel
		case *pglogrepl.InsertMessage:
			in := &cdc.Insert{Relation: f.relations[change.RelationID], Commit: f.commit}
			in.Position.LSN = f.commit.LSN
			for _, c := range change.Tuple.Columns {
				in.Values = append(in.Values, cdc.Value{Text: bytes.Clone(c.Data), Null: c.DataType == pglogrepl.TupleDataTypeNull})
			}
			got = append(got, in)
		}
	}
	return got
}
