package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"slices"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/redis/go-redis/v9"
	"golang.org/x/sys/unix"

	"github.com/stagedoor/walrelay/cdc"
	"github.com/stagedoor/walrelay/internal/relayprocess"
	"github.com/stagedoor/walrelay/internal/testservers"
	"github.com/stagedoor/walrelay/migrations"
)

// Names in the servers.
const (
	database    = "shop"
	stream      = "jobs"
	publication = "walrelay"
)

// patience is how long a step may take that nobody measures.
const patience = 5 * time.Minute

// settings are those of every PostgreSQL here. Nothing may come in one run and
// not in another: no vacuum, and no checkpoint but those that are asked for.
func settings() map[string]string {
	return map[string]string{
		"autovacuum":         "off",
		"checkpoint_timeout": "1h",
		"max_wal_size":       "64GB",
		"shared_buffers":     "256MB",
	}
}

// world is the servers of a part, and what else is to be cleaned up after it.
type world struct {
	*bench
	host  *testservers.Program
	dir   string // for logs
	redis *testservers.Redis
}

// newWorld starts a Redis. What there is goes with close, also after an error.
func (b *bench) newWorld(redisArgs ...string) (w *world, err error) {
	w = &world{bench: b, host: &testservers.Program{Log: b.progress.Line}}
	if w.dir, err = os.MkdirTemp("", "walrelay-bench-"); err != nil {
		return w, err
	}
	w.host.Cleanup(func() { _ = os.RemoveAll(w.dir) })
	return w, w.host.Try(func() {
		w.redis = testservers.StartRedis(w.host, testservers.RedisOptions{Args: redisArgs})
	})
}

func (w *world) close() error { return w.host.Close() }

// startPostgres starts a server that waits for its disk (fsync), and notes what
// the servers are.
func (w *world) startPostgres(ctx context.Context) (pg *testservers.Postgres, err error) {
	err = w.host.Try(func() {
		pg = testservers.StartPostgres(w.host, testservers.PostgresOptions{Durable: true, Settings: settings()})
	})
	if err != nil {
		return nil, err
	}
	conn, err := w.connect(ctx, pg, "postgres")
	if err != nil {
		return nil, err
	}
	defer conn.Close(context.WithoutCancel(ctx))
	var version string
	if err := conn.QueryRow(ctx, "SHOW server_version").Scan(&version); err != nil {
		return nil, err
	}
	return pg, w.versions(ctx, version)
}

// createDatabase makes a database with an outbox table and its publication.
func (w *world) createDatabase(ctx context.Context, pg *testservers.Postgres, name string) error {
	if err := pg.Exec(ctx, "postgres", "CREATE DATABASE "+name); err != nil {
		return err
	}
	sql := migrations.Table(cdc.Table{Schema: "public", Name: "outbox"}) +
		"\nCREATE PUBLICATION " + publication + " FOR TABLE outbox WITH (publish = 'insert', publish_via_partition_root = true)"
	return pg.Exec(ctx, name, sql)
}

// connect opens a session that lasts until it is closed or the server ends.
func (w *world) connect(ctx context.Context, pg *testservers.Postgres, db string) (*pgx.Conn, error) {
	config, err := pgx.ParseConfig(pg.DSN(db))
	if err != nil {
		return nil, err
	}
	config.RuntimeParams["application_name"] = "bench"
	return pgx.ConnectConfig(ctx, config)
}

// client is a library's connection to Redis, for what is not measured.
func (w *world) client() *redis.Client {
	return redis.NewClient(&redis.Options{Addr: w.redis.Addr()})
}

// freshRedis starts Redis anew, empty, so that no run finds the memory that
// another one has warmed.
func (w *world) freshRedis(ctx context.Context) error {
	if err := w.redis.TryKill(ctx); err != nil {
		return err
	}
	return w.redis.TryStart(ctx)
}

// relay prepares a walrelay between a database and a stream.
func (w *world) relay(pg *testservers.Postgres, db, stream string, args ...string) (*relayprocess.Relay, error) {
	dir, err := os.MkdirTemp(w.dir, "relay-") // for its log
	if err != nil {
		return nil, err
	}
	r, err := relayprocess.New(relayprocess.Config{
		Binary: w.walrelay, Dir: dir, Args: append(slices.Clone(args), "--stream", stream),
		Postgres: pg.DSN(db), Redis: w.redis.URL(),
	})
	if err != nil {
		return nil, err
	}
	w.host.Cleanup(func() {
		if err := r.Kill(); err != nil {
			w.host.Fatalf("end walrelay: %v", err)
		}
	})
	return r, nil
}

// works waits until a relay says that it does what it is there for.
func (w *world) works(ctx context.Context, r *relayprocess.Relay, role string) error {
	return w.await(ctx, "walrelay to say that it is "+role, 20*time.Millisecond, func() (bool, error) {
		return r.Role(ctx) == role, r.Running()
	})
}

// caughtUp waits until PostgreSQL has read, for all who stream, the log that there
// is. A relay that was started anew has it read what all the runs before wrote since
// the slot's restart_lsn, which a run of a few seconds hardly moves: rows that come
// then wait behind that.
func (w *world) caughtUp(ctx context.Context, pg *testservers.Postgres, db string) error {
	conn, err := w.connect(ctx, pg, db)
	if err != nil {
		return err
	}
	defer conn.Close(context.WithoutCancel(ctx))
	var end string
	if err := conn.QueryRow(ctx, "SELECT pg_current_wal_flush_lsn()::text").Scan(&end); err != nil {
		return err
	}
	return w.await(ctx, "PostgreSQL to read the log of earlier runs", 20*time.Millisecond, func() (ok bool, err error) {
		err = conn.QueryRow(ctx, "SELECT coalesce(bool_and(sent_lsn >= $1::text::pg_lsn), true) FROM pg_stat_replication", end).Scan(&ok)
		return ok, err
	})
}

// await waits until done says so.
func (w *world) await(ctx context.Context, what string, every time.Duration, done func() (bool, error)) error {
	deadline := time.Now().Add(patience)
	for {
		ok, err := done()
		if ok || err != nil {
			return err
		}
		if time.Now().After(deadline) {
			return fmt.Errorf("waited in vain for %s", what)
		}
		if err := pause(ctx, every); err != nil {
			return err
		}
	}
}

// pause lets time pass.
func pause(ctx context.Context, d time.Duration) error {
	select {
	case <-ctx.Done():
		return ctx.Err()
	case <-time.After(d):
		return nil
	}
}

// sync has the file system write all it holds, so that what one run left is not
// written during the next.
func (w *world) sync() error {
	dir, err := os.Open(w.dir)
	if err != nil {
		return err
	}
	return errors.Join(unix.Syncfs(int(dir.Fd())), dir.Close())
}
