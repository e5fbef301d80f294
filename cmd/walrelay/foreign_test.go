package main

import (
	"fmt"
	"net/url"
	"os"
	"os/exec"
	"os/user"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"

	"github.com/jackc/pgx/v5"
)

// pooler starts PgBouncer in transaction mode before PostgreSQL, and returns the
// connection string that leads through it.
func (w *world) pooler(settings ...string) string {
	w.t.Helper()
	dir, err := os.MkdirTemp("", "walrelay-bouncer-")
	if err != nil {
		w.t.Fatal(err)
	}
	w.t.Cleanup(func() { _ = os.RemoveAll(dir) })
	conf := fmt.Sprintf("[databases]\n* = host=127.0.0.1 port=%d user=postgres\n[pgbouncer]\npool_mode = transaction\n"+
		"listen_addr =\nunix_socket_dir = %s\nlisten_port = 6432\nauth_type = any\n%s\n", w.pg.Port(), dir, strings.Join(settings, "\n"))
	ini := filepath.Join(dir, "pgbouncer.ini")
	if err := os.WriteFile(ini, []byte(conf), 0o644); err != nil {
		w.t.Fatal(err)
	}
	// timeout ends it if this process cannot.
	cmd := exec.Command("timeout", "600", "pgbouncer", ini)
	if os.Getuid() == 0 { // which it refuses to run as
		account, err := user.Lookup("postgres")
		if err != nil {
			w.t.Fatal(err)
		}
		uid, _ := strconv.Atoi(account.Uid)
		gid, _ := strconv.Atoi(account.Gid)
		if err := os.Chown(dir, uid, gid); err != nil {
			w.t.Fatal(err)
		}
		cmd.SysProcAttr = &syscall.SysProcAttr{Credential: &syscall.Credential{Uid: uint32(uid), Gid: uint32(gid)}}
	}
	log := &lockedBuffer{}
	cmd.Stdout, cmd.Stderr = log, log
	if err := cmd.Start(); err != nil {
		w.t.Fatalf("start PgBouncer: %v", err)
	}
	w.t.Cleanup(func() {
		_ = cmd.Process.Signal(syscall.SIGTERM)
		_ = cmd.Wait()
		if w.t.Failed() {
			w.t.Logf("PgBouncer said:\n%s", log)
		}
	})
	dsn := "postgres://postgres@/postgres?sslmode=disable&port=6432&host=" + url.QueryEscape(dir)
	w.eventually("PgBouncer answers", func() error {
		conn, err := pgx.Connect(w.t.Context(), dsn+"&default_query_exec_mode=simple_protocol")
		if err != nil {
			return err
		}
		return conn.Close(w.t.Context())
	})
	return dsn
}

// The connection string leads to a transaction pooler, which refuses replication
// or answers in PostgreSQL's place. The report says that replication needs a
// direct connection, and nothing is begun.
func TestPoolerIsNoPostgres(t *testing.T) {
	t.Parallel()
	for name, settings := range map[string][]string{
		"refuses replication": nil,
		"ignores replication": {"ignore_startup_parameters = replication,extra_float_digits"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			w := newWorld(t, worldOptions{})
			w.insert("before", 2)
			p := w.startRelay("--postgres", w.pooler(settings...))
			p.becomes("critical, with the reason", func(code int, doc healthDocument) bool {
				return code == 503 && doc.reason("replication needs a direct connection", "--postgres", "PgBouncer") != ""
			})
			if found := w.query(`SELECT count(*) FROM (SELECT pubname FROM pg_publication UNION ALL SELECT slot_name FROM pg_replication_slots WHERE slot_name <> 'oracle') x`); found != "0" {
				t.Errorf("there are %s slots and publications", found)
			}
			if n, err := w.rdb().DBSize(t.Context()).Result(); err != nil || n != 0 {
				t.Errorf("%d keys, %v", n, err)
			}
			p.stop()
			w.startRelay().streams()
			w.insert("after", 2)
			w.verify(2)
		})
	}
}

// A slot of our name is somebody else's. The report says so, the slot is not
// touched, neither by a relay nor by teardown, and the relay begins when it is
// gone.
func TestSlotOfSomebodyElse(t *testing.T) {
	t.Parallel()
	for name, tt := range map[string]struct {
		reason string
		make   func(w *world) (drop func())
	}{
		"of another database": {
			`is of the database "test1"`,
			func(w *world) func() {
				other := w.pg.NewDatabase(w.t)
				w.execIn(other, `SELECT pg_create_logical_replication_slot('walrelay', 'pgoutput')`)
				return func() { w.execIn(other, `SELECT pg_drop_replication_slot('walrelay')`) }
			},
		},
		"of another plugin": {
			"uses the plugin test_decoding",
			func(w *world) func() {
				w.exec(`SELECT pg_create_logical_replication_slot('walrelay', 'test_decoding')`)
				return func() { w.exec(`SELECT pg_drop_replication_slot('walrelay')`) }
			},
		},
		"physical": {
			"is a physical slot",
			func(w *world) func() {
				w.exec(`SELECT pg_create_physical_replication_slot('walrelay', true)`)
				return func() { w.exec(`SELECT pg_drop_replication_slot('walrelay')`) }
			},
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			w := newWorld(t, worldOptions{})
			w.insert("before", 2)
			drop := tt.make(w)
			// Everything but how far its own reader is.
			slot := func() string {
				return w.query(`SELECT row(slot_name, plugin, slot_type, database, temporary, restart_lsn, confirmed_flush_lsn) FROM pg_replication_slots WHERE slot_name = 'walrelay'`)
			}
			before := slot()
			p := w.startRelay()
			p.saysInHealth("critical", `slot "walrelay" `+tt.reason, "--slot")
			code, _, stderr := walrelay(nil, "teardown", "--yes", "--postgres", w.dsn, "--redis", w.redis.URL())
			if code != exitFailure || !strings.Contains(stderr, `"walrelay"`) {
				t.Errorf("teardown ended with %d: %s", code, stderr)
			}
			if now := slot(); now != before {
				t.Errorf("the slot was %s and is %s", before, now)
			}
			if n := w.length(); n != 0 {
				t.Errorf("%d entries", n)
			}
			drop()
			p.streams()
			w.insert("after", 2)
			w.verify(2)
			w.allMarked()
			w.confirmedPast()
			p.becomes("ok", func(_ int, doc healthDocument) bool { return doc.Status == "ok" })
		})
	}
}
