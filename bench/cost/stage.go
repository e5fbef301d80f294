package main

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/redis/go-redis/v9"

	"github.com/stagedoor/walrelay/bench/internal/progress"
	"github.com/stagedoor/walrelay/cdc"
	"github.com/stagedoor/walrelay/internal/relayprocess"
	"github.com/stagedoor/walrelay/internal/testservers"
	"github.com/stagedoor/walrelay/migrations"
)

const (
	database = "shop"
	stream   = "jobs"
)

// stage is the servers, the table and the relay of one mode. It is for one
// goroutine.
type stage struct {
	options
	mode     mode
	host     *testservers.Program
	progress *progress.Progress

	postgres *testservers.Postgres
	redis    *redis.Client
	admin    *pgx.Conn           // to another database, so that it counts nowhere
	relay    *relayprocess.Relay // nil without one
}

// newStage starts the servers and makes the table. What there is of them goes
// with host, also after an error.
func newStage(ctx context.Context, o options, m mode, host *testservers.Program, p *progress.Progress) (*stage, error) {
	s := &stage{options: o, mode: m, host: host, progress: p}
	p.Show(m.name, "starting PostgreSQL and Redis")
	var server *testservers.Redis
	err := host.Try(func() {
		s.postgres = testservers.StartPostgres(host, testservers.PostgresOptions{
			Durable: true,
			// Autovacuum would come in one mode and not in another. What it
			// would have to do is counted as dead tuples.
			Settings: map[string]string{"autovacuum": "off", "wal_level": m.walLevel},
		})
		server = testservers.StartRedis(host, testservers.RedisOptions{Durable: true})
		s.redis = server.Client(host)
	})
	if err != nil {
		return nil, err
	}
	if s.admin, err = s.connect(ctx, "postgres"); err != nil {
		return nil, err
	}
	host.Cleanup(func() { _ = s.admin.Close(context.WithoutCancel(ctx)) })
	if _, err := s.admin.Exec(ctx, "CREATE DATABASE "+database); err != nil {
		return nil, err
	}
	table := cdc.Table{Schema: "public", Name: "outbox"}
	sql := migrations.Table(table)
	if m.trigger {
		sql += "\n" + migrations.Notify(table, channel)
	}
	if m.walLevel == "logical" {
		sql += "\nCREATE PUBLICATION walrelay FOR TABLE outbox WITH (publish = 'insert', publish_via_partition_root = true)"
	}
	if err := s.postgres.Exec(ctx, database, sql); err != nil {
		return nil, err
	}
	if len(m.args) == 0 {
		return s, nil
	}
	s.relay, err = relayprocess.New(relayprocess.Config{
		Binary: o.walrelay, Dir: server.Dir(), Args: append(m.args, "--stream", stream),
		Postgres: s.postgres.DSN(database), Redis: server.URL(),
	})
	return s, err
}

// connect opens a session that pg_stat_activity shows as cost's.
func (s *stage) connect(ctx context.Context, db string) (*pgx.Conn, error) {
	config, err := pgx.ParseConfig(s.postgres.DSN(db))
	if err != nil {
		return nil, err
	}
	config.RuntimeParams["application_name"] = "cost"
	return pgx.ConnectConfig(ctx, config)
}

// open starts the relay and has it carry a first row, so that it has prepared
// what it needs, and reported it.
func (s *stage) open(ctx context.Context) error {
	if s.relay != nil {
		if err := s.relay.Start(); err != nil {
			return err
		}
		s.host.Cleanup(func() {
			if err := s.relay.Kill(); err != nil {
				s.host.Fatalf("end walrelay: %v", err)
			}
		})
		err := s.await(ctx, "walrelay to say that it is "+s.mode.role, func() (bool, int64, error) {
			return s.relay.Role(ctx) == s.mode.role, 0, nil
		})
		if err != nil {
			return err
		}
	}
	err := s.visit(ctx, func(conn *pgx.Conn) error {
		_, err := conn.Exec(ctx, insert, "first", payload(0))
		return err
	})
	if err != nil {
		return err
	}
	if err := s.counted(ctx, 1); err != nil || s.relay == nil {
		return err
	}
	if err := s.carried(ctx, 1); err != nil {
		return err
	}
	return s.wait(ctx, "settling", s.settle)
}

// counted waits until PostgreSQL has counted so many inserted rows.
func (s *stage) counted(ctx context.Context, rows int64) error {
	return s.await(ctx, "PostgreSQL to count the rows", func() (bool, int64, error) {
		var c counters
		err := s.visit(ctx, func(conn *pgx.Conn) error { return c.readTable(ctx, conn) })
		return c[inserted] >= rows, c[inserted], err
	})
}

// visit calls f with a session in the outbox's database, and returns when that
// has left and reported itself.
func (s *stage) visit(ctx context.Context, f func(*pgx.Conn) error) error {
	conn, err := s.connect(ctx, database)
	if err != nil {
		return err
	}
	err = f(conn)
	_ = conn.Close(context.WithoutCancel(ctx)) // gone looks
	if err != nil {
		return err
	}
	return s.gone(ctx, "the measuring session to leave", "application_name = 'cost'")
}

// idleWindow measures while nothing is written.
func (s *stage) idleWindow(ctx context.Context) (window, error) {
	began, err := s.read(ctx, tableFirst)
	if err != nil {
		return window{}, err
	}
	if err := s.wait(ctx, "idle", s.idle); err != nil {
		return window{}, err
	}
	ended, err := s.read(ctx, tableLast)
	if err != nil {
		return window{}, err
	}
	w := between(began, ended)
	if n := w.Counters[inserted]; n != 0 {
		return w, fmt.Errorf("%s: PostgreSQL counts %d inserted rows while nothing was written", s.mode.name, n)
	}
	return w, nil
}

// loadWindow measures while rows are written, until all are carried and writers
// and relay have left. After it there is no relay.
func (s *stage) loadWindow(ctx context.Context) (loadWindow, error) {
	began, err := s.read(ctx, tableFirst)
	if err != nil {
		return loadWindow{}, err
	}
	took, err := s.write(ctx)
	if err != nil {
		return loadWindow{}, err
	}
	if err := s.carried(ctx, int64(1+s.rows())); err != nil {
		return loadWindow{}, err
	}
	if s.relay != nil {
		if err := s.relay.Stop(); err != nil {
			return loadWindow{}, err
		}
	}
	if err := s.alone(ctx); err != nil {
		return loadWindow{}, err
	}
	if err := s.reported(ctx); err != nil {
		return loadWindow{}, err
	}
	ended, err := s.read(ctx, tableLast)
	if err != nil {
		return loadWindow{}, err
	}
	w := loadWindow{window: between(began, ended), Rows: s.rows(), RowsPerSecond: float64(s.rows()) / took.Seconds()}
	return w, s.verify(ctx, &w)
}

// write has the writers write all rows.
func (s *stage) write(ctx context.Context) (took time.Duration, err error) {
	w := &writers{
		connect: func(ctx context.Context) (*pgx.Conn, error) { return s.connect(ctx, database) },
		rate:    s.rate, rows: s.rows(),
	}
	ctx, stop := context.WithCancel(ctx)
	defer stop()
	done := make(chan struct{})
	began := time.Now()
	go func() {
		defer close(done)
		took, err = w.run(ctx)
	}()
	for {
		select {
		case <-done:
			return took, err
		case <-time.After(time.Second):
			s.progress.Show(fmt.Sprintf("%s, %s rows/s", s.mode.name, grouped(int64(s.rate))),
				fmt.Sprintf("%.0f of %d s, %s rows written", time.Since(began).Seconds(), s.seconds, grouped(w.written.Load())))
			if gone := s.running(); gone != nil {
				stop()
				<-done
				return 0, gone
			}
		}
	}
}

// carried waits until so many rows are on the stream and, if they are to be,
// marked.
func (s *stage) carried(ctx context.Context, rows int64) error {
	if s.relay == nil {
		return nil
	}
	return s.await(ctx, fmt.Sprintf("row %s to be carried", grouped(rows)), func() (bool, int64, error) {
		entries, err := s.redis.XLen(ctx, stream).Result()
		if err != nil || entries < rows {
			return false, entries, err
		}
		if !s.mode.marks {
			return true, entries, nil
		}
		marked, err := s.relay.Metric(ctx, "walrelay_marked_rows_total")
		return int64(marked) >= rows, entries + int64(marked), err
	})
}

// await waits until done says so, for as long as the relay runs and what done
// counts grows.
func (s *stage) await(ctx context.Context, what string, done func() (ok bool, progress int64, err error)) error {
	best, last := int64(-1), time.Now()
	for {
		ok, n, err := done()
		if ok || err != nil {
			return err
		}
		if n > best {
			best, last = n, time.Now()
		}
		if time.Since(last) > s.patience {
			tail := ""
			if s.relay != nil {
				tail = s.relay.LogTail()
			}
			return fmt.Errorf("%s: waited in vain for %s%s", s.mode.name, what, tail)
		}
		s.progress.Show(s.mode.name+", waiting for "+what, "")
		if err := s.sleep(ctx, 50*time.Millisecond); err != nil {
			return err
		}
	}
}

// wait lets seconds pass, while the relay runs.
func (s *stage) wait(ctx context.Context, what string, seconds int) error {
	for n := range seconds {
		s.progress.Show(s.mode.name+", "+what, fmt.Sprintf("%d of %d s", n, seconds))
		if err := s.sleep(ctx, time.Second); err != nil {
			return err
		}
	}
	return nil
}

// sleep returns early, with an error, when there is no more reason to wait.
func (s *stage) sleep(ctx context.Context, d time.Duration) error {
	select {
	case <-ctx.Done():
		return ctx.Err()
	case <-time.After(d):
		return s.running()
	}
}

// running is an error once the relay has ended by itself.
func (s *stage) running() error {
	if s.relay == nil || s.relay.Done() == nil {
		return nil
	}
	return s.relay.Running()
}

// alone waits until no session is left in the outbox's database. A session
// leaves this view after it has reported what it did.
func (s *stage) alone(ctx context.Context) error {
	return s.gone(ctx, "all sessions to leave the database", "true")
}

func (s *stage) gone(ctx context.Context, what, whose string) error {
	deadline := time.Now().Add(s.patience)
	for {
		var n int
		err := s.admin.QueryRow(ctx, "SELECT count(*) FROM pg_stat_activity WHERE datname = $1 AND "+whose, database).Scan(&n)
		if err != nil || n == 0 {
			return err
		}
		if time.Now().After(deadline) {
			return fmt.Errorf("%s: waited in vain for %s: %d are left", s.mode.name, what, n)
		}
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-time.After(10 * time.Millisecond):
		}
	}
}

// reported waits until the counters stand still. Up to PostgreSQL 14 a process
// of its own collects them, half a second later.
func (s *stage) reported(ctx context.Context) error {
	deadline := time.Now().Add(s.patience)
	var before counters
	for {
		var c counters
		if err := c.readDatabase(ctx, s.admin, database); err != nil {
			return err
		}
		c[walBytes] = 0 // the server itself writes some now and then
		if c == before {
			return nil
		}
		before = c
		if time.Now().After(deadline) {
			return fmt.Errorf("%s: the counters go on though no session is left", s.mode.name)
		}
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-time.After(700 * time.Millisecond):
		}
	}
}

// verify compares the counters, the stream and the table with what was written.
func (s *stage) verify(ctx context.Context, w *loadWindow) error {
	entries, err := s.redis.XLen(ctx, stream).Result()
	if err != nil {
		return err
	}
	var rows, marked int64
	err = s.visit(ctx, func(conn *pgx.Conn) error {
		return conn.QueryRow(ctx, "SELECT count(*), count(published_at) FROM outbox WHERE kind <> 'first'").Scan(&rows, &marked)
	})
	if err != nil {
		return err
	}
	want := int64(s.rows())
	wantEntries, wantMarked := want, want
	if s.relay == nil {
		wantEntries = 0
	} else {
		entries-- // the first
	}
	if !s.mode.marks {
		wantMarked = 0
	}
	w.Entries, w.Marked = entries, marked
	var errs []error
	expect := func(what string, got, want int64) {
		if got != want {
			errs = append(errs, fmt.Errorf("%s: %s: %d, not %d", s.mode.name, what, got, want))
		}
	}
	expect("rows in the table", rows, want)
	expect("rows that PostgreSQL counts as inserted", w.Counters[inserted], want)
	expect("entries on the stream", entries, wantEntries)
	expect("marked rows", marked, wantMarked)
	if w.Counters[updated] < wantMarked || (wantMarked == 0 && w.Counters[updated] != 0) {
		expect("rows that PostgreSQL counts as updated", w.Counters[updated], wantMarked)
	}
	if w.Counters[committed] < want {
		expect("transactions that PostgreSQL counts", w.Counters[committed], want)
	}
	return errors.Join(errs...)
}
