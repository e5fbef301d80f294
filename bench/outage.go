package main

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/stagedoor/walrelay/bench/internal/proc"
)

// outage is what a relay holds while Redis is stopped and log piles up, and when
// it has carried all of it.
type outage struct {
	Rows         int     `json:"rows"`
	WAL          int64   `json:"wal_bytes"` // written meanwhile
	PeakIdle     int64   `json:"peak_rss_bytes_idle"`
	PeakAway     int64   `json:"peak_rss_bytes_redis_stopped"`
	PeakCarried  int64   `json:"peak_rss_bytes_carried"`
	DrainSeconds float64 `json:"seconds_to_drain"` // from when Redis was back
	RelaySeconds float64 `json:"cpu_seconds_relay"`
}

// outageWAL is how much log piles up, at full scale.
const outageWAL = 1 << 30

// measureCost is what the relay costs: processor time in a drain, and memory
// while Redis is stopped. The drain may have been measured already.
func (b *bench) measureCost(ctx context.Context) error {
	single := shapes()[0]
	if !slices.ContainsFunc(b.report.Drains, func(d *drain) bool { return d.Shape.Name == single.Name }) {
		d, err := b.measureDrain(ctx, single.scaled(b.scale))
		if err != nil {
			return err
		}
		b.report.Drains = append(b.report.Drains, d)
	}
	o, err := b.measureOutage(ctx)
	if err == nil {
		b.report.Outage = o
	}
	return err
}

// appendOnly has Redis keep what it has over a stop, and never rewrite it, which
// would take a processor at some time.
func appendOnly() []string {
	return []string{"--appendonly", "yes", "--appendfsync", "everysec", "--auto-aof-rewrite-percentage", "0"}
}

// measureOutage stops Redis under a relay that streams and marks.
func (b *bench) measureOutage(ctx context.Context) (o *outage, err error) {
	b.step = "cost, Redis stopped"
	b.progress.Show(b.step, "starting servers")
	w, err := b.newWorld(appendOnly()...)
	defer func() { err = errors.Join(err, w.close()) }()
	if err != nil {
		return nil, err
	}
	pg, err := w.startPostgres(ctx)
	if err != nil {
		return nil, err
	}
	if err := w.createDatabase(ctx, pg, database); err != nil {
		return nil, err
	}
	r, err := w.relay(pg, database, stream, "run")
	if err != nil {
		return nil, err
	}
	if err := r.Start(); err != nil {
		return nil, err
	}
	if err := w.works(ctx, r, "streaming"); err != nil {
		return nil, err
	}
	conn, err := w.connect(ctx, pg, database)
	if err != nil {
		return nil, err
	}
	defer conn.Close(context.WithoutCancel(ctx))

	// One row before, so that the relay knows the stream.
	s := shape{Rows: 1, Transaction: 1, Body: 1000}
	if err := load(ctx, conn, s, 1, 1, func(int) {}); err != nil {
		return nil, err
	}
	if err := w.carried(ctx, stream, 1); err != nil {
		return nil, err
	}
	o = &outage{}
	if o.PeakIdle, err = proc.Peak(r.PID()); err != nil {
		return nil, err
	}
	if err := w.redis.TryStop(ctx); err != nil {
		return nil, err
	}
	var began string
	if err := conn.QueryRow(ctx, "SELECT pg_current_wal_insert_lsn()::text").Scan(&began); err != nil {
		return nil, err
	}
	target := int64(outageWAL * b.scale)
	portion := max(10, min(10_000, int(target/20_000)))
	for o.WAL < target {
		first := s.Rows + 1
		s.Rows += portion
		if err := load(ctx, conn, s, first, s.Rows, func(int) {}); err != nil {
			return nil, err
		}
		err := conn.QueryRow(ctx, "SELECT pg_wal_lsn_diff(pg_current_wal_insert_lsn(), $1::text::pg_lsn)::bigint", began).Scan(&o.WAL)
		if err != nil {
			return nil, err
		}
		b.progress.Show(b.step, fmt.Sprintf("%s of %s of log", mebibytes(float64(o.WAL)), mebibytes(float64(target))))
	}
	o.Rows = s.Rows
	// Until the relay has heard of all that it is going to hold.
	if err := pause(ctx, 2*time.Second); err != nil {
		return nil, err
	}
	if err := r.Running(); err != nil {
		return nil, err
	}
	if o.PeakAway, err = proc.Peak(r.PID()); err != nil {
		return nil, err
	}
	if err := w.redis.TryStart(ctx); err != nil {
		return nil, err
	}
	back := time.Now()
	if err := w.carried(ctx, stream, o.Rows); err != nil {
		return nil, err
	}
	o.DrainSeconds = time.Since(back).Seconds()
	if o.PeakCarried, err = proc.Peak(r.PID()); err != nil {
		return nil, err
	}
	used, err := proc.CPU(r.PID())
	if err != nil {
		return nil, err
	}
	o.RelaySeconds = used.Seconds()
	if err := r.Stop(); err != nil {
		return nil, err
	}
	_, err = check(w.redis.Addr(), stream, s, false)
	return o, err
}

// carried waits until a stream has so many entries.
func (w *world) carried(ctx context.Context, stream string, rows int) error {
	client := w.client()
	defer client.Close()
	shown := time.Now()
	return w.await(ctx, fmt.Sprintf("%d rows to be on the stream", rows), lookEvery, func() (bool, error) {
		n, err := client.XLen(ctx, stream).Result()
		if time.Since(shown) > showEvery {
			shown = time.Now()
			w.progress.Show(w.step, fmt.Sprintf("%s of %s rows carried", grouped(n), grouped(int64(rows))))
		}
		return int(n) >= rows, err
	})
}
