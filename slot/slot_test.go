package slot

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net/url"
	"os"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/stagedoor/walrelay/cdc"
	"github.com/stagedoor/walrelay/internal/fault"
	"github.com/stagedoor/walrelay/internal/pg"
	"github.com/stagedoor/walrelay/internal/testservers"
)

// soon bounds what a healthy server does in a moment. It is no measurement: it
// only keeps a failure from hanging.
const soon = 30 * time.Second

// world is a server with a database that holds an outbox.
type world struct {
	*testservers.Postgres
	t   *testing.T
	dsn string
	cfg Config
}

// odd are names that nothing but right quoting gets through.
var odd = Config{
	Slot:        "0relay",
	Publication: `Wal"Relay's, \pub`,
	Table:       cdc.Table{Schema: `My "Shop"`, Name: `Out.box's \ Table`},
}

// usual are the names that most have.
var usual = Config{
	Slot:        "walrelay",
	Publication: "walrelay",
	Table:       cdc.Table{Schema: "public", Name: "outbox"},
}

func newWorld(t *testing.T, settings map[string]string) *world {
	t.Helper()
	w := &world{t: t, Postgres: testservers.StartPostgres(t, testservers.PostgresOptions{Settings: settings})}
	return w.fresh(t, usual)
}

// named is another database of the same server with a slot of its own name.
func (w *world) named(t *testing.T, slot string) *world {
	t.Helper()
	cfg := usual
	cfg.Slot = slot
	return w.fresh(t, cfg)
}

// fresh is another database of the same server.
func (w *world) fresh(t *testing.T, cfg Config) *world {
	t.Helper()
	w = &world{t: t, Postgres: w.Postgres, dsn: w.NewDatabase(t), cfg: cfg}
	w.cfg.Conn = w.parse(w.dsn)
	w.exec(fmt.Sprintf(`CREATE SCHEMA IF NOT EXISTS %s; CREATE TABLE %s (id bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY, payload text)`,
		cdc.QuoteIdent(cfg.Table.Schema), cfg.Table))
	return w
}

func (w *world) parse(dsn string) *pgx.ConnConfig {
	w.t.Helper()
	cfg, err := pg.Parse(dsn)
	if err != nil {
		w.t.Fatal(err)
	}
	return cfg
}

// as is the DSN for another user and with more parameters.
func (w *world) as(user string, params ...string) string {
	u, err := url.Parse(w.dsn)
	if err != nil {
		w.t.Fatal(err)
	}
	if user != "" {
		u.User = url.User(user)
	}
	q := u.Query()
	for i := 0; i+1 < len(params); i += 2 {
		q.Set(params[i], params[i+1])
	}
	u.RawQuery = q.Encode()
	return u.String()
}

// role creates a role that is nobody else's, with an odd name.
func (w *world) role(attributes string) string {
	w.t.Helper()
	name := fmt.Sprintf(`Relay's "%s" %s`, w.value(`SELECT current_database()`), attributes)
	w.exec(`CREATE ROLE ` + cdc.QuoteIdent(name) + ` ` + attributes)
	return name
}

func (w *world) source() *Source { return New(w.cfg, slog.New(slog.DiscardHandler)) }

func (w *world) monitor() *Monitor { return NewMonitor(w.cfg, slog.New(slog.DiscardHandler)) }

// open opens a session that ends with the test.
func (w *world) open() *Session {
	w.t.Helper()
	return w.openSource(w.source())
}

func (w *world) openSource(source *Source) *Session {
	w.t.Helper()
	s, err := source.Open(w.ctx())
	if err != nil {
		w.t.Fatal(err)
	}
	w.t.Cleanup(s.Close)
	return s
}

// slot creates publication and slot, and returns a session that can stream.
func (w *world) slot() *Session {
	w.t.Helper()
	s := w.open()
	if err := s.EnsurePublication(w.ctx(), true); err != nil {
		w.t.Fatal(err)
	}
	w.exec(`SELECT pg_create_logical_replication_slot(` + cdc.QuoteLiteral(w.cfg.Slot) + `, 'pgoutput')`)
	return s
}

// stream starts to stream from a new slot.
func (w *world) stream() (*Session, *Stream) {
	w.t.Helper()
	s := w.slot()
	st, err := s.Start(w.ctx())
	if err != nil {
		w.t.Fatal(err)
	}
	return s, st
}

// ctx ends with the test, or when something hangs.
func (w *world) ctx() context.Context { return testContext(w.t) }

func testContext(t *testing.T) context.Context {
	ctx, cancel := context.WithTimeout(t.Context(), 2*soon)
	t.Cleanup(cancel)
	return ctx
}

// connect opens a connection that ends with the test.
func (w *world) connect(dsn string) *pgx.Conn {
	w.t.Helper()
	conn, err := pgx.Connect(w.ctx(), dsn)
	if err != nil {
		w.t.Fatal(err)
	}
	w.t.Cleanup(func() { closeQuietly(conn) })
	return conn
}

func closeQuietly(conn *pgx.Conn) {
	ctx, cancel := context.WithTimeout(context.Background(), time.Second)
	defer cancel()
	conn.Close(ctx)
	<-conn.PgConn().CleanupDone()
}

func (w *world) exec(sql string) { w.t.Helper(); w.execIn(w.dsn, sql) }

func (w *world) execIn(dsn, sql string) {
	w.t.Helper()
	if err := (&world{t: w.t, dsn: dsn}).tryExec(sql); err != nil {
		w.t.Fatalf("%s: %v", sql, err)
	}
}

func (w *world) tryExec(sql string) error {
	// The context of the test is done when it cleans up.
	ctx, cancel := context.WithTimeout(context.Background(), soon)
	defer cancel()
	conn, err := pgx.Connect(ctx, w.dsn)
	if err != nil {
		return err
	}
	defer closeQuietly(conn)
	_, err = conn.PgConn().Exec(ctx, sql).ReadAll()
	return err
}

// value reads one value as text.
func (w *world) value(sql string) string {
	w.t.Helper()
	conn, err := pgx.Connect(w.ctx(), w.dsn)
	if err != nil {
		w.t.Fatal(err)
	}
	defer closeQuietly(conn)
	results, err := conn.PgConn().Exec(w.ctx(), sql).ReadAll()
	row, err := oneRow(results, err)
	if err != nil {
		w.t.Fatalf("%s: %v", sql, err)
	}
	return string(row[0])
}

// insert writes a row into the outbox.
func (w *world) insert(payload string) {
	w.t.Helper()
	w.exec(fmt.Sprintf(`INSERT INTO %s (payload) VALUES (%s)`, w.cfg.Table, cdc.QuoteLiteral(payload)))
}

// eventually waits until the condition holds.
func eventually(t *testing.T, what string, condition func() bool) {
	t.Helper()
	for end := time.Now().Add(soon); !condition(); time.Sleep(20 * time.Millisecond) {
		if time.Now().After(end) {
			t.Fatalf("waited in vain until %s", what)
		}
	}
}

// wantFault checks that err is for an operator, names the sentinel, and has a
// fix that holds a text.
func wantFault(t *testing.T, err, sentinel error, fix string) {
	t.Helper()
	f := fault.As(err)
	if f == nil {
		t.Fatalf("got %v, want a fault", err)
	}
	if sentinel != nil && !errors.Is(err, sentinel) {
		t.Errorf("%v does not wrap %q", err, sentinel)
	}
	if !strings.Contains(f.Fix, fix) {
		t.Errorf("the fix is %q, it must hold %q", f.Fix, fix)
	}
}

func itoa(n int) string { return fmt.Sprint(n) }

func (w *world) version() int {
	w.t.Helper()
	n, err := strconv.Atoi(w.value(`SHOW server_version_num`))
	if err != nil {
		w.t.Fatal(err)
	}
	return n
}

// chown gives a file to the owner of another.
func chown(t *testing.T, file string, like os.FileInfo) {
	t.Helper()
	stat := like.Sys().(*syscall.Stat_t)
	if err := os.Chown(file, int(stat.Uid), int(stat.Gid)); err != nil {
		t.Fatal(err)
	}
}
