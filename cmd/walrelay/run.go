package main

import (
	"context"
	"log/slog"
	"runtime/debug"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"golang.org/x/sync/errgroup"

	"github.com/stagedoor/walrelay/cdc"
	"github.com/stagedoor/walrelay/internal/health"
	"github.com/stagedoor/walrelay/internal/pg"
	"github.com/stagedoor/walrelay/internal/web"
	"github.com/stagedoor/walrelay/outbox"
	"github.com/stagedoor/walrelay/publisher"
	"github.com/stagedoor/walrelay/relay"
	"github.com/stagedoor/walrelay/slot"
)

// runCmd carries rows until it is told to stop.
type runCmd struct{}

// Help is printed by --help.
func (runCmd) Help() string {
	return `run ensures the publication, and where there is no slot yet it publishes what the table holds unpublished and creates the slot. Then it streams: each row that commits goes to the stream, is marked, and only then may PostgreSQL forget its part of the log.

While PostgreSQL or Redis are away it tries again for as long as it takes; rows wait in the log. SIGTERM or SIGINT finish what is in flight.

Example:

    walrelay run --postgres 'postgres://walrelay@db.example.com:5432/shop' --stream jobs
    curl http://127.0.0.1:9476/healthz`
}

// Run is called by main.
func (runCmd) Run(ctx context.Context, p *process) error {
	cfg := p.cfg
	client, err := publisher.Connect(cfg.Redis.URL())
	if err != nil {
		return err
	}
	defer client.Close()
	sink := publisher.New(client, cfg.MaxLen, cfg.Stream)
	rows := outbox.New(outbox.Config{Conn: cfg.Postgres, Table: cfg.Table, Mapping: cfg.Mapping(), Mark: cfg.Mark}, p.log)
	defer rows.Close()
	where := slotConfig(cfg)
	where.Newest = &pg.Newest{}
	loops, timings := web.NewHeartbeats(), web.NewTimings()

	r := relay.New(relay.Config{
		Source:          source{slot.New(where, p.log), where.Newest, rows},
		Table:           table{Table: rows, id: cfg.ColumnID, healMargin: cfg.HealMargin},
		Sink:            sink,
		Stream:          cfg.Stream,
		Key:             func(s cdc.Server) string { return publisher.Key(s.SystemID, s.Database, cfg.Slot) },
		ManualHeal:      cfg.Heal == "manual",
		ConfirmDelay:    cfg.ConfirmDelay,
		ShutdownTimeout: cfg.ShutdownTimeout,
		ValueBytes:      publisher.MaxValueBytes,
		Loop:            registered(loops),
		OnStep:          p.onStep,
		Timings:         timings,
		Log:             p.log,
	})
	o := &observer{status: r.Status, relay: r, table: rows, timings: timings, log: p.log, stream: streamOf(sink, cfg.Stream), started: time.Now(), thresholds: limits(cfg)}
	return serve(ctx, p, o, loops, slot.NewMonitor(where, p.log), r.Run)
}

// serve works until ctx ends, with the monitor and the pages, which stay until
// that has stopped.
func serve(ctx context.Context, p *process, o *observer, loops *web.Heartbeats, m *slot.Monitor, work func(context.Context) error) error {
	o.purger = newPurger(p, o.table)
	server, err := pages(p.cfg, p.log, o, loops)
	if err != nil {
		return err
	}
	if err := server.Listen(ctx); err != nil { // before anything slow
		return err
	}
	group, running := errgroup.WithContext(context.WithoutCancel(ctx))
	watching, end := context.WithCancel(running)
	defer end()
	group.Go(func() error {
		defer end()
		return work(ctx)
	})
	group.Go(func() error {
		loop := loops.Register("monitor")
		defer loop.Done()
		return o.watch(watching, m, loop.Beat)
	})
	group.Go(func() error {
		loop := loops.Register("stream monitor")
		defer loop.Done()
		o.watchStream(watching, loop.Beat)
		return nil
	})
	group.Go(func() error {
		o.tell(watching)
		return nil
	})
	group.Go(func() error {
		// Until told to stop, as the relay: what is in flight is not a purge.
		purging, stop := context.WithCancel(watching)
		defer stop()
		defer context.AfterFunc(ctx, stop)()
		return o.purger.Run(purging, func() bool {
			role := o.status().Role
			return role == relay.RoleStreaming || role == relay.RolePolling
		})
	})
	group.Go(func() error { return server.Run(watching) })
	return group.Wait()
}

// pages is the HTTP server with all that it shows.
func pages(cfg *Config, log *slog.Logger, o *observer, loops *web.Heartbeats) (*web.Server, error) {
	info, _ := debug.ReadBuildInfo()
	v, c := buildVersion(version, commit, info)
	registry := prometheus.NewRegistry()
	if err := web.RegisterProcess(registry, web.Build{Version: v, Commit: c}); err != nil {
		return nil, err
	}
	for _, c := range []prometheus.Collector{web.NewCollector(o.health, o.stats), o.timings} {
		if err := registry.Register(c); err != nil {
			return nil, err
		}
	}
	return web.New(web.Config{
		Addr:     cfg.HTTP,
		Registry: registry,
		Health:   func(context.Context) health.Document { return o.health() },
		Live:     loops.Live,

		Version:     v,
		Names:       web.Names{Table: cfg.Table.Schema + "." + cfg.Table.Name, Stream: cfg.Stream, Slot: cfg.Slot},
		Latency:     o.timings.Latency,
		Transitions: o.transitions,
	}, log), nil
}

// registered registers a loop that has to turn.
func registered(loops *web.Heartbeats) func(name string) (beat, done func()) {
	return func(name string) (beat, done func()) {
		loop := loops.Register(name)
		return loop.Beat, loop.Done
	}
}
