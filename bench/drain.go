package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"maps"
	"strings"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/stagedoor/walrelay/internal/testservers"
)

const (
	baseSlot  = "base"  // stays where the rows begin
	benchSlot = "bench" // a copy of it for each run
)

// drain is how a backlog of one shape was drained.
type drain struct {
	Shape shape       `json:"shape"`
	WAL   int64       `json:"wal_bytes"`
	Runs  []*drainRun `json:"runs"` // as they were made
}

// drainRun is one contender's run. Times are from the start of its process.
type drainRun struct {
	Pair         int     `json:"pair"`
	Contender    string  `json:"contender"`
	Rows         int     `json:"rows"`
	Cut          bool    `json:"cut"` // stopped before it had all rows
	Seconds      float64 `json:"seconds"`
	FirstSeconds float64 `json:"seconds_to_first_row"`

	Marked        int     `json:"rows_marked,omitempty"`
	MarkedSeconds float64 `json:"seconds_to_last_mark,omitempty"`

	Process   float64 `json:"cpu_seconds_process"`
	Walsender float64 `json:"cpu_seconds_walsender"`
	Others    float64 `json:"cpu_seconds_postgres_others"` // of PostgreSQL's processes
	Redis     float64 `json:"cpu_seconds_redis"`
	Peak      int64   `json:"peak_rss_bytes"`
}

// rate is rows a second from the start of the process.
func (r *drainRun) rate() float64 { return float64(r.Rows) / r.Seconds }

// steady is rows a second from the first row.
func (r *drainRun) steady() float64 { return float64(r.Rows) / (r.Seconds - r.FirstSeconds) }

// markRate is rows a second that were appended and marked.
func (r *drainRun) markRate() float64 { return float64(r.Marked) / r.MarkedSeconds }

// drainStage is the servers of one shape, and the run that is being made.
type drainStage struct {
	*world
	shape    shape
	still    *testservers.Postgres // holds the backlog; no run changes its table
	fresh    *testservers.Postgres // gets the same data anew before each run that does
	backlog  *testservers.Snapshot
	end      string            // LSN behind the last row
	key      string            // of the checkpoint of the slot that runs use
	document map[string]string // the checkpoint as it was before the rows were written

	contender contender
	server    *testservers.Postgres
}

// measureDrain drains a shape by all contenders, pair by pair.
func (b *bench) measureDrain(ctx context.Context, sh shape) (d *drain, err error) {
	w, err := b.newWorld()
	defer func() { err = errors.Join(err, w.close()) }()
	if err != nil {
		return nil, err
	}
	s := &drainStage{world: w, shape: sh}
	d = &drain{Shape: sh}
	if d.WAL, err = s.prepare(ctx); err != nil {
		return nil, fmt.Errorf("drain %s: %w", sh.Name, err)
	}
	chosen := b.chosen()
	for pair := range b.pairs {
		for i := range chosen {
			// Nobody is always the first, or always behind the same one.
			c := chosen[(i+pair)%len(chosen)]
			b.step = fmt.Sprintf("drain %s, pair %d of %d, %s", sh.Name, pair+1, b.pairs, c.Name)
			b.progress.Show(b.step, "")
			r, err := s.run(ctx, c)
			if err != nil {
				return nil, fmt.Errorf("%s: %w", b.step, err)
			}
			r.Pair = pair + 1
			d.Runs = append(d.Runs, r)
		}
	}
	return d, nil
}

// prepare makes the backlog, in front of which slot and checkpoint stand as a
// relay left them.
func (s *drainStage) prepare(ctx context.Context) (wal int64, err error) {
	what := "drain " + s.shape.Name
	s.progress.Show(what, "starting servers")
	if s.still, err = s.startPostgres(ctx); err != nil {
		return 0, err
	}
	if err := s.createDatabase(ctx, s.still, database); err != nil {
		return 0, err
	}
	if err := s.firstStart(ctx); err != nil {
		return 0, err
	}
	conn, err := s.connect(ctx, s.still, database)
	if err != nil {
		return 0, err
	}
	defer conn.Close(context.WithoutCancel(ctx))
	var began string
	if err := conn.QueryRow(ctx, "SELECT pg_current_wal_insert_lsn()::text").Scan(&began); err != nil {
		return 0, err
	}
	err = load(ctx, conn, s.shape, 1, s.shape.Rows, func(rows int) {
		s.progress.Show(what, fmt.Sprintf("%s of %s rows written", grouped(int64(rows)), grouped(int64(s.shape.Rows))))
	})
	if err != nil {
		return 0, err
	}
	err = conn.QueryRow(ctx, "SELECT pg_current_wal_insert_lsn()::text, pg_wal_lsn_diff(pg_current_wal_insert_lsn(), $1::text::pg_lsn)::bigint", began).
		Scan(&s.end, &wal)
	if err != nil {
		return 0, err
	}
	if err := conn.Close(ctx); err != nil {
		return 0, err
	}
	if err := s.keep(ctx); err != nil {
		return 0, err
	}
	return wal, s.warm(ctx)
}

// firstStart has a relay make slot and checkpoint, over the empty table.
func (s *drainStage) firstStart(ctx context.Context) error {
	r, err := s.relay(s.still, database, stream, "run", "--slot", baseSlot, "--mark", "none")
	if err != nil {
		return err
	}
	if err := r.Start(); err != nil {
		return err
	}
	if err := s.works(ctx, r, "streaming"); err != nil {
		return err
	}
	if err := r.Stop(); err != nil {
		return err
	}
	client := s.client()
	defer client.Close()
	keys, err := client.Keys(ctx, "walrelay:*:"+baseSlot).Result()
	if err != nil {
		return err
	}
	if len(keys) != 1 {
		return fmt.Errorf("the relay left the checkpoints %q, not one", keys)
	}
	s.key = strings.TrimSuffix(keys[0], baseSlot) + benchSlot
	s.document, err = client.HGetAll(ctx, keys[0]).Result()
	return err
}

// keep copies the backlog where contenders change it, while the server is down.
func (s *drainStage) keep(ctx context.Context) error {
	writes := false
	for _, c := range s.chosen() {
		writes = writes || c.writes
	}
	s.progress.Show("drain "+s.shape.Name, "keeping a copy of the backlog")
	if err := s.still.TryStop(ctx, "fast"); err != nil {
		return err
	}
	if writes {
		var err error
		if s.backlog, err = s.still.TrySnapshot(ctx); err != nil {
			return err
		}
		if s.fresh, err = s.startPostgres(ctx); err != nil {
			return err
		}
	}
	if err := s.still.TryStart(ctx); err != nil {
		return err
	}
	return s.sync()
}

// warm reads the log once, so that the first contender does not have to fetch it
// from the disk, and counts what PostgreSQL delivers: what is thrown away later
// cannot be.
func (s *drainStage) warm(ctx context.Context) error {
	s.progress.Show("drain "+s.shape.Name, "reading the log once")
	s.server = s.still
	conn, err := s.copySlot(ctx)
	if err != nil {
		return err
	}
	defer conn.Close(context.WithoutCancel(ctx))
	cmd := s.recvlogical("-")
	out := &counter{}
	cmd.Stdout = out
	p, err := startProgram(cmd, s.dir)
	if err != nil {
		return err
	}
	select {
	case <-p.Done():
	case <-ctx.Done():
		return errors.Join(ctx.Err(), p.Kill())
	}
	if _, err := p.ended(); err != nil {
		return err
	}
	least := int64(0)
	for i := 1; i <= s.shape.Rows; i++ {
		least += int64(len(s.shape.payload(i)))
	}
	if out.n < least {
		return fmt.Errorf("pg_recvlogical received %d bytes, and the payloads alone have %d", out.n, least)
	}
	return s.dropSlot(ctx, conn)
}

// counter counts what is written to it.
type counter struct{ n int64 }

// Write implements io.Writer.
func (c *counter) Write(b []byte) (int, error) {
	c.n += int64(len(b))
	return len(b), nil
}

var _ io.Writer = (*counter)(nil)

// copySlot gives a run its own slot, where the rows begin.
func (s *drainStage) copySlot(ctx context.Context) (*pgx.Conn, error) {
	conn, err := s.connect(ctx, s.server, database)
	if err != nil {
		return nil, err
	}
	_, err = conn.Exec(ctx, "SELECT pg_copy_logical_replication_slot($1, $2, false)", baseSlot, benchSlot)
	if err != nil {
		return nil, errors.Join(err, conn.Close(ctx))
	}
	return conn, nil
}

// dropSlot drops a run's slot, once its walsender has left.
func (s *drainStage) dropSlot(ctx context.Context, conn *pgx.Conn) error {
	err := s.await(ctx, "the walsender to leave", 10*time.Millisecond, func() (free bool, err error) {
		err = conn.QueryRow(ctx, "SELECT NOT active FROM pg_replication_slots WHERE slot_name = $1", benchSlot).Scan(&free)
		return free, err
	})
	if err != nil {
		return err
	}
	_, err = conn.Exec(ctx, "SELECT pg_drop_replication_slot($1)", benchSlot)
	return err
}

// run measures one contender.
func (s *drainStage) run(ctx context.Context, c contender) (r *drainRun, err error) {
	s.contender, s.server = c, s.still
	if c.writes {
		s.server = s.fresh
		if err := s.restore(ctx); err != nil {
			return nil, err
		}
	}
	if err := s.freshRedis(ctx); err != nil {
		return nil, err
	}
	conn, err := s.copySlot(ctx)
	if err != nil {
		return nil, err
	}
	defer conn.Close(context.WithoutCancel(ctx))
	if err := s.restoreCheckpoint(ctx); err != nil {
		return nil, err
	}
	l := &lap{drainStage: s, conn: conn, run: &drainRun{Contender: c.key}}
	if err := l.measure(ctx); err != nil {
		return nil, err
	}
	r = l.run
	if c.appends {
		e, err := check(s.redis.Addr(), stream, s.shape, r.Cut)
		if err != nil {
			return nil, fmt.Errorf("a run that lost a row is no result: %w", err)
		}
		if e.n == 0 {
			return nil, fmt.Errorf("it had not appended a row when it was cut off after %s", s.cut)
		}
		r.Rows = e.n
		r.Seconds, r.FirstSeconds = e.last.Sub(l.began).Seconds(), e.first.Sub(l.began).Seconds()
	} else {
		r.Rows = s.shape.Rows
	}
	if c.marks {
		if err := conn.QueryRow(ctx, "SELECT count(published_at) FROM outbox").Scan(&r.Marked); err != nil {
			return nil, err
		}
		if r.Marked != s.shape.Rows && !r.Cut {
			return nil, fmt.Errorf("%d of %d rows are marked", r.Marked, s.shape.Rows)
		}
	}
	return r, s.dropSlot(ctx, conn)
}

// restore gives the server that is written to the backlog as it was.
func (s *drainStage) restore(ctx context.Context) error {
	if err := s.fresh.TryKill(ctx); err != nil {
		return err
	}
	if err := s.fresh.TryRestore(ctx, s.backlog); err != nil {
		return err
	}
	if err := s.sync(); err != nil {
		return err
	}
	return s.fresh.TryStart(ctx)
}

// restoreCheckpoint puts the checkpoint back, under the name of the run's slot.
func (s *drainStage) restoreCheckpoint(ctx context.Context) error {
	client := s.client()
	defer client.Close()
	return client.HSet(ctx, s.key, maps.Clone(s.document)).Err()
}
