package slot

import (
	"bytes"
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

	"github.com/stagedoor/walrelay/internal/pg"
	"github.com/stagedoor/walrelay/internal/testservers"
)

// pooler starts PgBouncer in transaction mode before the server, and returns
// the connection string of the same database through it.
func (w *world) pooler(settings ...string) string {
	w.t.Helper()
	dir, err := os.MkdirTemp("", "walrelay-bouncer-")
	if err != nil {
		w.t.Fatal(err)
	}
	w.t.Cleanup(func() { os.RemoveAll(dir) })
	ini := filepath.Join(dir, "pgbouncer.ini")
	conf := fmt.Sprintf("[databases]\n* = host=127.0.0.1 port=%d user=postgres\n[pgbouncer]\npool_mode = transaction\n"+
		"listen_addr =\nunix_socket_dir = %s\nlisten_port = 6432\nauth_type = any\n%s\n",
		w.Port(), dir, strings.Join(settings, "\n"))
	if err := os.WriteFile(ini, []byte(conf), 0o644); err != nil {
		w.t.Fatal(err)
	}
	// timeout ends it if this process is killed and cannot.
	cmd := exec.Command("timeout", "300", "pgbouncer", ini)
	if os.Getuid() == 0 { // PgBouncer does not run as root
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
	var log strings.Builder
	cmd.Stdout, cmd.Stderr = &log, &log
	if err := cmd.Start(); err != nil {
		w.t.Fatalf("start PgBouncer: %v; as root: apt-get install -y --no-install-recommends pgbouncer", err)
	}
	w.t.Cleanup(func() {
		cmd.Process.Signal(syscall.SIGTERM)
		cmd.Wait()
		if w.t.Failed() {
			w.t.Logf("PgBouncer's log:\n%s", log.String())
		}
	})
	u, err := url.Parse(w.dsn)
	if err != nil {
		w.t.Fatal(err)
	}
	u.Host = ""
	q := u.Query()
	q.Set("host", dir)
	q.Set("port", "6432")
	u.RawQuery = q.Encode()
	dsn := u.String()
	eventually(w.t, "PgBouncer answers", func() bool {
		conn, err := pgx.Connect(w.ctx(), dsn)
		if err != nil {
			return false
		}
		closeQuietly(conn)
		return true
	})
	return dsn
}

// A pooler answers in three ways, and each has to be told apart from
// PostgreSQL.
func TestPoolerIsRefused(t *testing.T) {
	w := onCommon(t)
	t.Run("refuses the parameter", func(t *testing.T) {
		w := w.fresh(t, w.cfg)
		w.cfg.Conn = w.parse(w.pooler())
		_, err := w.source().Open(w.ctx())
		wantFault(t, err, pg.ErrPooler, "--postgres")
	})
	t.Run("drops the parameter", func(t *testing.T) {
		w := w.fresh(t, w.cfg)
		w.cfg.Conn = w.parse(w.pooler("ignore_startup_parameters = replication"))
		_, err := w.source().Open(w.ctx())
		wantFault(t, err, pg.ErrPooler, "--postgres")
	})
	t.Run("lets replication through", func(t *testing.T) {
		// As PgBouncer does from 1.23 on: it introduces itself with a process
		// id of its own.
		w := w.fresh(t, w.cfg)
		proxy := testservers.StartProxy(t, w.Addr())
		w.cfg.Conn = w.parse(strings.Replace(w.dsn, w.Addr(), proxy.Addr(), 1))
		proxy.OnReply(func(piece []byte) bool {
			if i := bytes.Index(piece, []byte{'K', 0, 0, 0, 12}); i >= 0 {
				piece[i+5] ^= 1
			}
			return false
		})
		_, err := w.source().Open(w.ctx())
		wantFault(t, err, pg.ErrPooler, "--postgres")
		if !strings.Contains(err.Error(), "replication connection") {
			t.Errorf("it was noticed too late: %v", err)
		}
	})
	t.Run("stands before the ordinary connection only", func(t *testing.T) {
		w := w.fresh(t, w.cfg)
		s := w.open()
		s.ordinary.close()
		var err error
		if s.ordinary, err = dial(w.ctx(), w.parse(w.pooler())); err != nil {
			t.Fatal(err)
		}
		wantFault(t, s.preflight(w.ctx()), pg.ErrPooler, "--postgres")
	})
	t.Run("leads to two servers", func(t *testing.T) {
		w := w.fresh(t, w.cfg)
		other := newWorld(t, nil)
		s := w.open()
		s.ordinary.close()
		var err error
		if s.ordinary, err = dial(w.ctx(), other.cfg.Conn); err != nil {
			t.Fatal(err)
		}
		wantFault(t, s.preflight(w.ctx()), pg.ErrPooler, "--postgres")
	})
}
