package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/stagedoor/walrelay/cdc"
	"github.com/stagedoor/walrelay/internal/relayprocess"
	"github.com/stagedoor/walrelay/internal/testservers"
	"github.com/stagedoor/walrelay/migrations"
)

// wal is where the WAL is, as PostgreSQL has it.
type wal struct {
	at       time.Time
	written  int64
	retained int64
	safe     int64 // safe_wal_size
	status   string
}

// looked is what both said at one time.
type looked struct {
	wal
	status string // of health
	runway *float64
}

// stage is the servers, the relay and the writers.
type stage struct {
	options
	progress io.Writer
	postgres *testservers.Postgres
	redis    *testservers.Redis
	relay    *relayprocess.Relay
	admin    *pgx.Conn
	out      io.Writer // of -wal; nil for none
}

// measure starts everything, and ends when the slot is lost.
func measure(ctx context.Context, o options, progress io.Writer) (r *report, err error) {
	if o.walrelay == "" {
		fmt.Fprintln(progress, "building walrelay")
		dir, err := os.MkdirTemp("", "walrelay-runway-")
		if err != nil {
			return nil, err
		}
		defer os.RemoveAll(dir)
		if o.walrelay, err = relayprocess.Build(ctx, dir); err != nil {
			return nil, err
		}
	}
	host := &testservers.Program{Log: func(text string) { fmt.Fprintln(progress, text) }}
	defer func() { err = errors.Join(err, host.Close()) }()
	s := &stage{options: o, progress: progress}
	if o.wal != "" {
		file, err := os.Create(o.wal)
		if err != nil {
			return nil, err
		}
		defer file.Close()
		s.out = file
	}
	if err := s.start(ctx, host); err != nil {
		return nil, err
	}
	return s.measure(ctx)
}

// start starts the servers and the relay.
func (s *stage) start(ctx context.Context, host *testservers.Program) error {
	fmt.Fprintln(s.progress, "starting PostgreSQL, Redis and walrelay")
	err := host.Try(func() {
		s.postgres = testservers.StartPostgres(host, testservers.PostgresOptions{Settings: map[string]string{
			"max_slot_wal_keep_size": fmt.Sprint(s.budget, "MB"),
			"checkpoint_timeout":     fmt.Sprint(s.round, "s"),
			"max_wal_size":           "4GB", // no other checkpoints
			"synchronous_commit":     "off", // it is not the disk that is measured
		}})
		s.redis = testservers.StartRedis(host, testservers.RedisOptions{})
	})
	if err != nil {
		return err
	}
	if s.admin, err = pgx.Connect(ctx, s.postgres.DSN("postgres")); err != nil {
		return err
	}
	host.Cleanup(func() { _ = s.admin.Close(context.WithoutCancel(ctx)) })
	sql := migrations.Table(cdc.Table{Schema: "public", Name: "outbox"}) + ";" + s.load.prepare
	if err := s.postgres.Exec(ctx, "postgres", sql); err != nil {
		return err
	}
	s.relay, err = relayprocess.New(relayprocess.Config{
		Binary: s.walrelay, Dir: s.redis.Dir(), Args: []string{"run"},
		Postgres: s.postgres.DSN("postgres"), Redis: s.redis.URL(),
	})
	if err != nil {
		return err
	}
	if err := s.relay.Start(); err != nil {
		return err
	}
	host.Cleanup(func() { _ = s.relay.Kill() })
	for began := time.Now(); s.relay.Role(ctx) != "streaming"; {
		if time.Since(began) > s.patience {
			return fmt.Errorf("walrelay does not stream%s", s.relay.LogTail())
		}
		if err := s.sleep(ctx, 100*time.Millisecond); err != nil {
			return err
		}
	}
	return nil
}

// measure has the writers write, stops Redis and looks.
func (s *stage) measure(ctx context.Context) (*report, error) {
	r := &report{options: s.options}
	if err := s.admin.QueryRow(ctx, `SELECT current_setting('server_version') || ', checkpoint_timeout ' || current_setting('checkpoint_timeout')`).Scan(&r.postgres); err != nil {
		return nil, err
	}
	within, stop := context.WithCancel(ctx)
	defer stop()
	w := &writers{
		connect: func(ctx context.Context) (*pgx.Conn, error) { return pgx.Connect(ctx, s.postgres.DSN("postgres")) },
		load:    s.load, rate: s.rate * 1000,
	}
	wrote := make(chan error, 1)
	go func() { wrote <- w.run(within) }()
	defer func() { stop(); <-wrote; close(wrote) }()
	failed := func() error {
		select {
		case err := <-wrote:
			wrote <- nil
			return err
		default:
			return nil
		}
	}

	fmt.Fprintf(s.progress, "writing for %d s\n", s.before)
	for began := time.Now(); time.Since(began) < time.Duration(s.before)*time.Second; {
		if _, err := s.look(ctx); err != nil {
			return nil, err
		}
		if err := errors.Join(failed(), s.sleep(ctx, time.Second)); err != nil {
			return nil, err
		}
	}
	fmt.Fprintln(s.progress, "Redis stops")
	s.redis.Kill()
	r.began = time.Now()
	for next, second := r.began, r.began; ; {
		now, err := s.look(ctx)
		if err != nil {
			return nil, err
		}
		if now.status == "lost" {
			r.lost = now.at
			return r, failed()
		}
		if r.ended.IsZero() && now.safe <= 0 {
			r.ended = now.at
			fmt.Fprintln(s.progress, "the budget is used up, and a checkpoint takes the WAL")
			if err := s.postgres.Exec(ctx, "postgres", "CHECKPOINT"); err != nil {
				return nil, err
			}
		}
		if !now.at.Before(next) {
			next = next.Add(time.Duration(s.every) * time.Second)
			l := looked{wal: now}
			if l.status, l.runway, err = s.health(ctx); err != nil {
				return nil, err
			}
			l.wal.at = time.Now()
			r.looks = append(r.looks, l)
			fmt.Fprintf(s.progress, "%3.0f s: %s\n", now.at.Sub(r.began).Seconds(), l.words())
		}
		second = second.Add(250 * time.Millisecond)
		if err := errors.Join(failed(), s.sleep(ctx, time.Until(second))); err != nil {
			return nil, err
		}
		r.late = max(r.late, w.late.Load())
	}
}

// look asks PostgreSQL.
func (s *stage) look(ctx context.Context) (wal, error) {
	var w wal
	var retained, safe *int64
	var full int64
	err := s.admin.QueryRow(ctx, `SELECT pg_current_wal_lsn() - '0/0', pg_current_wal_lsn() - restart_lsn, safe_wal_size, wal_status,
		(SELECT wal_fpi FROM pg_stat_wal) FROM pg_replication_slots WHERE slot_name = 'walrelay'`).
		Scan(&w.written, &retained, &safe, &w.status, &full)
	if err != nil {
		return w, err
	}
	w.at = time.Now()
	if retained != nil {
		w.retained = *retained
	}
	if safe != nil {
		w.safe = *safe
	}
	if s.out != nil {
		fmt.Fprintf(s.out, "%.3f %d %d %d %d\n", float64(w.at.UnixMilli())/1000, w.written, w.written-w.retained, full, w.safe)
	}
	return w, nil
}

// health asks walrelay.
func (s *stage) health(ctx context.Context) (status string, runway *float64, err error) {
	_, document, err := s.relay.Health(ctx)
	if err != nil {
		return "", nil, err
	}
	var doc struct {
		Status string   `json:"status"`
		Runway *float64 `json:"runway_seconds"`
	}
	err = json.Unmarshal(document, &doc)
	return doc.Status, doc.Runway, err
}

// sleep returns early, with an error, when there is no more reason to wait.
func (s *stage) sleep(ctx context.Context, d time.Duration) error {
	select {
	case <-ctx.Done():
		return ctx.Err()
	case <-time.After(d):
		return s.relay.Running()
	}
}
