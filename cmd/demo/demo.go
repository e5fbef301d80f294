package main

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync/atomic"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/redis/go-redis/v9"
	"golang.org/x/sync/errgroup"

	"github.com/stagedoor/walrelay/internal/relayprocess"
	"github.com/stagedoor/walrelay/internal/shop"
	"github.com/stagedoor/walrelay/internal/testservers"
)

const (
	database = "shop"
	oracle   = "oracle"
	group    = "workers"
	before   = 20              // orders before any relay has run
	claim    = 2 * time.Second // how long a worker may hold an entry
)

// demo is everything that runs.
type demo struct {
	options
	screen *screen
	host   *testservers.Program
	dir    string // goes with the servers, however this program ends

	postgres *testservers.Postgres
	redis    *redis.Client
	redisURL string
	relay    *relayprocess.Relay

	buyers   *shop.Buyers
	arrivals *arrivals
	dying    atomic.Bool  // the second worker is to die at its next XACK
	again    atomic.Int64 // deliveries of what was done before
	early    atomic.Int64 // deliveries of what could not be seen yet
	notYet   atomic.Int64 // refunds that were put off

	opened   time.Time // when the buyers were let in
	killed   time.Time // the restart window: from here
	caughtUp time.Time // to here
}

// play runs the demo and reports whether the stream is exact.
func play(ctx context.Context, o options, s *screen) (exact bool, err error) {
	d := &demo{options: o, screen: s, host: &testservers.Program{Log: s.line}, arrivals: newArrivals()}
	defer func() {
		s.status("")
		if failed := d.host.Close(); failed != nil {
			s.line(s.red(fmt.Sprintf("could not clean up: %v", failed)))
			err = errors.Join(err, failed)
		}
	}()

	s.line(s.bold("walrelay demo: the outbox of a ticket shop travels to Redis") + "\n")
	if err := d.prepare(ctx); err != nil {
		return false, err
	}
	if err := d.act(ctx); err != nil {
		return false, err
	}
	return d.close(ctx)
}

// prepare starts the servers and builds the relay.
func (d *demo) prepare(ctx context.Context) error {
	d.screen.status("starting PostgreSQL and Redis")
	var server *testservers.Redis
	err := d.host.Try(func() {
		d.postgres = testservers.StartPostgres(d.host, testservers.PostgresOptions{Durable: true})
		server = testservers.StartRedis(d.host, testservers.RedisOptions{Durable: true})
		d.redis = server.Client(d.host)
	})
	if err != nil {
		return err
	}
	d.dir, d.redisURL = server.Dir(), server.URL()
	if err := d.postgres.Exec(ctx, "postgres", "CREATE DATABASE "+database); err != nil {
		return err
	}
	conn, err := d.connect(ctx, "demo")
	if err != nil {
		return err
	}
	defer conn.Close(context.WithoutCancel(ctx))
	var version string
	if err := conn.QueryRow(ctx, "SHOW server_version").Scan(&version); err != nil {
		return err
	}
	version, _, _ = strings.Cut(version, " ") // without the packager's
	d.screen.say("servers", "PostgreSQL %s on port %d, Redis on port %d", version, d.postgres.Port(), server.Port())

	binary := d.walrelay
	if binary == "" {
		d.screen.status("building walrelay; the first time takes a while")
		if binary, err = relayprocess.Build(ctx, d.dir); err != nil {
			return err
		}
		d.screen.say("build", "walrelay, by go build ./cmd/walrelay")
	}
	d.relay, err = relayprocess.New(relayprocess.Config{
		Binary: binary, Dir: d.dir, Args: []string{"run", "--stream", shop.Stream},
		Postgres: d.postgres.DSN(database), Redis: d.redisURL,
	})
	if err != nil {
		return err
	}

	if err := shop.Migrate(ctx, conn); err != nil {
		return err
	}
	return shop.CreateOracle(ctx, conn, oracle)
}

// connect opens a connection to the shop's database.
func (d *demo) connect(ctx context.Context, name string) (*pgx.Conn, error) {
	config, err := pgx.ParseConfig(d.postgres.DSN(database))
	if err != nil {
		return nil, err
	}
	config.RuntimeParams["application_name"] = name
	return pgx.ConnectConfig(ctx, config)
}

// act runs shop, relay and workers until the last job is done.
func (d *demo) act(ctx context.Context) error {
	ctx, stop := context.WithCancel(ctx)
	defer stop()
	cast, ctx := errgroup.WithContext(ctx)
	d.buyers = &shop.Buyers{
		Connect: func(ctx context.Context) (*pgx.Conn, error) { return d.connect(ctx, "buyer") },
		Count:   min(8, 1+d.rate/5), Rate: d.rate, Seed: uint64(d.screen.started.UnixNano()),
	}
	cast.Go(func() error {
		return shop.Follow(ctx, d.redis, shop.Stream, d.arrivals.add)
	})
	err := d.script(ctx, cast)
	stop()
	if failed := cast.Wait(); failed != nil {
		return failed // the script only saw that its context ended
	}
	return err
}

// script is what happens, in its order.
func (d *demo) script(ctx context.Context, cast *errgroup.Group) error {
	if err := d.firstStart(ctx); err != nil {
		return err
	}

	shopping, home := context.WithCancel(ctx)
	defer home()
	left := make(chan struct{})
	d.opened = time.Now()
	d.screen.say("shop", "opens for %d s: %d buyers, %d orders a second", d.seconds, d.buyers.Count, d.rate)
	cast.Go(func() error { defer close(left); return d.buyers.Run(shopping) })
	cast.Go(func() error { return d.watch(ctx) })
	for _, name := range []string{"worker-1", "worker-2"} {
		cast.Go(func() error { return d.work(ctx, name) })
	}

	if err := d.until(ctx, d.opened.Add(d.open()/4)); err != nil {
		return err
	}
	if err := d.loseWorker(ctx); err != nil {
		return err
	}
	if err := d.until(ctx, d.opened.Add(d.open()/2)); err != nil {
		return err
	}
	if err := d.restartRelay(ctx); err != nil {
		return err
	}
	if err := d.until(ctx, d.opened.Add(d.open())); err != nil {
		return err
	}
	home()
	<-left
	d.screen.say("shop", "closes; the last rows and jobs are under way")
	return d.drain(ctx)
}

// firstStart has the relay find rows that were there before it.
func (d *demo) firstStart(ctx context.Context) error {
	conn, err := d.connect(ctx, "buyer")
	if err != nil {
		return err
	}
	defer conn.Close(context.WithoutCancel(ctx))
	// One after the other, since a backfill goes by created_at and id: only of
	// such orders is that certain to be the order of their commits, too.
	for range before {
		_, err := shop.PlaceOrder(ctx, conn, shop.Order{Show: 2, Customer: 1, Seats: 1, Request: shop.NewRequest()})
		if err != nil {
			return err
		}
	}
	d.screen.say("shop", "%d orders placed while there is no relay yet", before)

	if err := d.relay.Start(); err != nil {
		return err
	}
	d.host.Cleanup(func() {
		if err := d.relay.Kill(); err != nil {
			d.host.Fatalf("end walrelay: %v", err)
		}
	})
	d.screen.say("relay", "started, pid %d: walrelay run --stream %s", d.relay.PID(), shop.Stream)
	d.screen.status("first backfill; rows are marked when they are a confirm delay (5 s) old")
	err = d.await(ctx, "stream", func() (bool, error) {
		return d.arrivals.distinct() >= before && d.relay.Role(ctx) == "streaming", nil
	})
	if err != nil {
		return err
	}
	d.screen.say("relay", "streams; a backfill brought the %d rows", before)
	return nil
}

// loseWorker has the second worker die with entries in hand, and waits until the
// first one has taken them over.
func (d *demo) loseWorker(ctx context.Context) error {
	d.dying.Store(true)
	return d.await(ctx, "take over what the dead worker held", func() (bool, error) {
		consumers, err := d.redis.XInfoConsumers(ctx, shop.Stream, group).Result()
		if err != nil {
			return false, err
		}
		for _, c := range consumers {
			if c.Name == "worker-2" {
				return !d.dying.Load() && c.Pending == 0, nil
			}
		}
		return false, nil
	})
}

// restartRelay kills the relay, lets rows pile up, and starts it again.
func (d *demo) restartRelay(ctx context.Context) error {
	pid := d.relay.PID()
	d.killed = time.Now()
	if err := d.relay.Kill(); err != nil {
		return err
	}
	d.screen.say("relay", "%s", d.screen.red(fmt.Sprintf("killed with -9 (pid %d); the shop goes on", pid)))
	select {
	case <-ctx.Done():
		return ctx.Err()
	case <-time.After(min(2*time.Second, d.open()/10)):
	}
	rows := d.rows()
	if err := d.relay.Start(); err != nil {
		return err
	}
	d.screen.say("relay", "started again, pid %d; %d rows are waiting", d.relay.PID(), rows-d.arrivals.distinct())
	err := d.await(ctx, "catch up", func() (bool, error) {
		return d.arrivals.distinct() >= rows && d.relay.Role(ctx) == "streaming", nil
	})
	if err != nil {
		return err
	}
	d.caughtUp = time.Now()
	d.screen.say("relay", "%s", d.screen.green("has caught up and streams again"))
	return nil
}

// drain waits for the last row and the last job. What is not there in time is
// for the account to tell.
func (d *demo) drain(ctx context.Context) error {
	conn, err := d.connect(ctx, "demo")
	if err != nil {
		return err
	}
	defer conn.Close(context.WithoutCancel(ctx))
	var books shop.Books
	err = d.await(ctx, "finish", func() (bool, error) {
		if books, err = shop.ReadBooks(ctx, conn); err != nil {
			return false, err
		}
		pending, err := d.redis.XPending(ctx, shop.Stream, group).Result()
		return err == nil && books.Unmarked == 0 && pending.Count == 0 &&
			books.JobsDone >= books.Outbox && d.arrivals.distinct() >= books.Outbox, err
	})
	if errors.Is(err, errImpatient) {
		d.screen.say("demo", "%s", d.screen.red(fmt.Sprintf("in %v not all rows arrived, were marked and became done jobs", d.patience)))
		return nil
	}
	return err
}

// errImpatient says that something took longer than patience.
var errImpatient = errors.New("gave up waiting")

// await waits until done says so, while the relay runs.
func (d *demo) await(ctx context.Context, what string, done func() (bool, error)) error {
	deadline := time.Now().Add(d.patience)
	for {
		ok, err := done()
		if ok || err != nil {
			return err
		}
		if time.Now().After(deadline) {
			return fmt.Errorf("%w: it took longer than %v to %s%s", errImpatient, d.patience, what, d.relay.LogTail())
		}
		if err := d.until(ctx, time.Now().Add(50*time.Millisecond)); err != nil {
			return err
		}
	}
}

// until waits for a time, while the relay runs.
func (d *demo) until(ctx context.Context, t time.Time) error {
	select {
	case <-ctx.Done():
		return ctx.Err()
	case <-d.relay.Done():
		return d.relay.Running()
	case <-time.After(time.Until(t)):
		return nil
	}
}

// rows is the number of outbox rows that are committed, as far as the buyers
// know.
func (d *demo) rows() int {
	tally := d.buyers.Tally()
	return before + tally.Committed + tally.Refunds
}
