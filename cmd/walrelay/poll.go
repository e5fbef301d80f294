package main

import (
	"context"
	"time"

	"github.com/stagedoor/walrelay/internal/health"
	"github.com/stagedoor/walrelay/internal/web"
	"github.com/stagedoor/walrelay/outbox"
	"github.com/stagedoor/walrelay/publisher"
	"github.com/stagedoor/walrelay/relay"
	"github.com/stagedoor/walrelay/slot"
)

// pollCmd carries rows by polling until it is told to stop.
type pollCmd struct{}

// Help is printed by --help.
func (pollCmd) Help() string {
	return `poll is the polling relay: every --poll-interval it takes up to 100 unpublished rows in the order of their ids, passing over those that somebody has locked, appends them to the stream and marks them, in one transaction. It pauses only when fewer were there. It needs no replication slot, no REPLICATION privilege and no wal_level, and it writes the same entries as run.

What it cannot promise: a crash between the append and the mark sends those rows again, ids are not the order of the commits, and it is slower and costs the primary more. Several pollers share the work; then no order is kept.

With --listen it looks as soon as a row is inserted, and otherwise every --safety-interval: walrelay setup --create-notify-trigger adds the trigger for it.

To change from poll to run, stop poll and start run; the other way, stop run, start poll, and walrelay teardown drops the replication slot, which holds WAL while nobody reads it.

Example:

    walrelay poll --postgres 'postgres://walrelay@db.example.com:5432/shop' --stream jobs --listen new_outbox_event`
}

// Run is called by main.
func (pollCmd) Run(ctx context.Context, p *process) error {
	cfg := p.cfg
	if cfg.Mark == outbox.MarkNone {
		return usagef("--mark none: poll goes by the marks, and would send every row again and again: want published-at or delete")
	}
	client, err := publisher.Connect(cfg.Redis.URL())
	if err != nil {
		return err
	}
	defer client.Close()
	sink := publisher.New(client, cfg.MaxLen, cfg.Stream)
	rows := outbox.New(outbox.Config{Conn: cfg.Postgres, Table: cfg.Table, Mapping: cfg.Mapping(), Mark: cfg.Mark}, p.log)
	defer rows.Close()
	loops, timings := web.NewHeartbeats(), web.NewTimings()
	poller := relay.NewPoller(relay.PollConfig{
		Table:           rows.Claimer(),
		Sink:            sink,
		Listen:          listen(cfg, rows),
		Interval:        cfg.PollInterval,
		SafetyInterval:  cfg.SafetyInterval,
		ShutdownTimeout: cfg.ShutdownTimeout,
		ValueBytes:      publisher.MaxValueBytes,
		Loop:            registered(loops),
		OnStep:          p.onStep,
		Timings:         timings,
		Log:             p.log,
	})
	o := &observer{status: poller.Status, table: rows, timings: timings, log: p.log, stream: streamOf(sink, cfg.Stream), started: time.Now(), thresholds: health.Thresholds{AgeWarn: cfg.AgeWarn, AgeCritical: cfg.AgeCritical}}
	return serve(ctx, p, o, loops, slot.NewLeftoverMonitor(slotConfig(cfg), p.log), poller.Run)
}

// listen is how the poller learns of rows; nil where it only looks.
func listen(cfg *Config, rows *outbox.Table) func(context.Context, func()) error {
	if cfg.Listen == "" {
		return nil
	}
	return func(ctx context.Context, wake func()) error { return rows.Listen(ctx, cfg.Listen, wake) }
}
