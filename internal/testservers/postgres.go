package testservers

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync/atomic"
	"syscall"
	"time"

	"github.com/jackc/pgx/v5/pgconn"
)

// PostgresOptions says how a server differs from the usual one.
type PostgresOptions struct {
	// Settings go into postgresql.conf, so that ALTER SYSTEM overrides them.
	Settings map[string]string
	// Durable has the server wait for its disk (fsync). Without it a commit
	// still survives the end of the process, by Kill or otherwise, since the
	// operating system keeps what was written.
	Durable bool
	// OwnSystemID makes the data directory with initdb, which takes a second
	// or two. The others are copies of one directory and share its system
	// identifier, as a restored backup does.
	OwnSystemID bool
}

// Postgres is a PostgreSQL server. Its superuser postgres needs no password.
type Postgres struct {
	server
	opts      PostgresOptions
	bin       string
	standby   func(context.Context) error // of one that begins as a standby: copies its primary
	databases atomic.Int64
}

// StartPostgres starts a server and ends it when the test is over. The
// programs are those in WALRELAY_TEST_PGBIN, else the newest of Debian's.
func StartPostgres(t TB, opts PostgresOptions) *Postgres {
	t.Helper()
	return start(t, "PostgreSQL", func() *Postgres { return &Postgres{server: server{t: t}, opts: opts} })
}

// create is called once. What it leaves behind when it fails, close removes.
func (pg *Postgres) create(ctx context.Context) error {
	var err error
	if pg.bin, err = postgresBin(); err != nil {
		return err
	}
	account, err := postgresOwner()
	if err != nil {
		return err
	}
	if err := pg.prepare("PostgreSQL", account); err != nil {
		return err
	}
	pg.command = func() *exec.Cmd {
		return account.command(pg.dir, filepath.Join(pg.bin, "postgres"), "-D", pg.DataDir())
	}
	pg.ready = pg.answers
	pg.adopt = pg.configure
	fill := func(data string) error { return copyTemplate(ctx, pg.bin, data, account) }
	if pg.opts.OwnSystemID {
		fill = func(data string) error { return initdb(ctx, pg.bin, data, account) }
	}
	if pg.standby != nil {
		fill = func(string) error { return pg.standby(ctx) }
	}
	if err := pg.replaceData(fill); err != nil {
		return err
	}
	return pg.TryStart(ctx)
}

// configure makes a data directory this server's own. Settings are written
// after those that are there, since the last one of a name counts.
func (pg *Postgres) configure() error {
	if err := forgetProcess(pg.DataDir()); err != nil {
		return err
	}
	onOff := map[bool]string{true: "on", false: "off"}
	settings := map[string]string{
		// In the data directory, as a killed server cannot clean up /dev/shm.
		"dynamic_shared_memory_type": "mmap",
		"fsync":                      onOff[pg.opts.Durable],
		"listen_addresses":           "127.0.0.1",
		"log_line_prefix":            "%m [%p] %q%a %d ",
		"max_prepared_transactions":  "10",
		"max_replication_slots":      "20",
		"max_wal_senders":            "20",
		"port":                       strconv.Itoa(pg.Port()),
		"unix_socket_directories":    pg.dir,
		"wal_level":                  "logical",
	}
	maps.Copy(settings, pg.opts.Settings)
	var conf strings.Builder
	for _, name := range slices.Sorted(maps.Keys(settings)) {
		fmt.Fprintf(&conf, "%s = '%s'\n", name, strings.ReplaceAll(settings[name], "'", "''"))
	}
	file, err := os.OpenFile(filepath.Join(pg.DataDir(), "postgresql.conf"), os.O_WRONLY|os.O_APPEND, 0)
	if err != nil {
		return err
	}
	_, err = file.WriteString(conf.String())
	return errors.Join(err, file.Close())
}

// answers reports whether the server lets clients in. A refusal for reasons of
// theirs, such as a password, is an answer; 57P03 says that it is starting up.
func (pg *Postgres) answers(ctx context.Context) bool {
	ctx, cancel := context.WithTimeout(ctx, 5*time.Second)
	defer cancel()
	conn, err := pgconn.Connect(ctx, pg.DSN("postgres"))
	if err == nil {
		return conn.Close(ctx) == nil
	}
	var pgErr *pgconn.PgError
	return errors.As(err, &pgErr) && pgErr.Code != "57P03"
}

// DSN is the connection string of a database.
func (pg *Postgres) DSN(db string) string {
	return (&url.URL{
		Scheme:   "postgres",
		User:     url.User("postgres"),
		Host:     pg.Addr(),
		Path:     "/" + db,
		RawQuery: "sslmode=disable",
	}).String()
}

// NewDatabase creates an empty database and returns its connection string. It
// goes with the server.
func (pg *Postgres) NewDatabase(t TB) string {
	t.Helper()
	name := fmt.Sprintf("test%d", pg.databases.Add(1))
	patient(t, "create a database on "+pg.name, func(ctx context.Context) error {
		return pg.Exec(ctx, "postgres", "CREATE DATABASE "+name)
	})
	return pg.DSN(name)
}

// Exec runs SQL in a database as the superuser, on a connection of its own.
func (pg *Postgres) Exec(ctx context.Context, db, sql string) error {
	conn, err := pgconn.Connect(ctx, pg.DSN(db))
	if err != nil {
		return err
	}
	_, err = conn.Exec(ctx, sql).ReadAll()
	return errors.Join(err, conn.Close(ctx))
}

// SocketDir is the directory of the server's Unix socket, a host for libpq.
func (pg *Postgres) SocketDir() string { return pg.dir }

// BinDir is the directory of the server's programs.
func (pg *Postgres) BinDir() string { return pg.bin }

// stopSignals are the signals behind pg_ctl's modes.
// https://www.postgresql.org/docs/current/server-shutdown.html
var stopSignals = map[string]syscall.Signal{
	"smart":     syscall.SIGTERM,
	"fast":      syscall.SIGINT,
	"immediate": syscall.SIGQUIT,
}

// Stop shuts the server down and returns when it is gone: "smart" waits for
// all clients, "fast" for the receivers of WAL, "immediate" is a crash with
// notice.
func (pg *Postgres) Stop(mode string) {
	pg.t.Helper()
	patient(pg.t, "stop "+pg.name, func(ctx context.Context) error { return pg.TryStop(ctx, mode) })
}

// TryStop is Stop with an error. When ctx ends first, the shutdown goes on.
func (pg *Postgres) TryStop(ctx context.Context, mode string) error {
	sig, ok := stopSignals[mode]
	if !ok {
		return fmt.Errorf("no such mode %q: smart, fast or immediate", mode)
	}
	if err := pg.process().stop(ctx, sig); err != nil {
		return fmt.Errorf("%w; the end of its log:\n%s", err, pg.logTail())
	}
	return nil
}

// Restart stops the server and starts it again.
func (pg *Postgres) Restart(mode string) {
	pg.t.Helper()
	patient(pg.t, "restart "+pg.name, func(ctx context.Context) error { return pg.TryRestart(ctx, mode) })
}

// TryRestart is Restart with an error.
func (pg *Postgres) TryRestart(ctx context.Context, mode string) error {
	if err := pg.TryStop(ctx, mode); err != nil {
		return err
	}
	return pg.TryStart(ctx)
}
