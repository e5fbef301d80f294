package main

import (
	"context"
	"errors"
	"fmt"
	"runtime/debug"
	"slices"
	"strconv"
	"strings"
	"sync/atomic"
	"time"

	"github.com/jackc/pgx/v5"
	"golang.org/x/sync/errgroup"

	"github.com/stagedoor/walrelay/internal/relayprocess"
	"github.com/stagedoor/walrelay/internal/testservers"
)

// latency is how long rows took from their commit to a consumer.
type latency struct {
	Seconds int           `json:"seconds"` // of writing, in each run
	Runs    []*latencyRun `json:"runs"`    // as they were made
	Pooled  []*latencyRun `json:"pooled"`  // of all pairs together: pair 0
}

// latencyRun is one contender's at one rate. Latencies are in microseconds: from
// when the commit had returned to the writer, to when a consumer that blocks had
// read the entry. One can be below zero: a relay sees a commit as soon as the
// writer does.
type latencyRun struct {
	Pair      int     `json:"pair"`
	Contender string  `json:"contender"`
	Rate      int     `json:"rate"`
	Rows      int     `json:"rows"`
	Achieved  float64 `json:"achieved_rate"`
	P50       float64 `json:"p50_us"`
	P99       float64 `json:"p99_us"`
	P999      float64 `json:"p99_9_us"`
	Max       float64 `json:"max_us"`
}

const keyDirect = "direct"

// carrier is a contender of the latency: it has a database and a stream of its
// own, and works only while it is measured, so that it costs the others nothing.
type carrier struct {
	key  string
	name string
	args []string // of walrelay; none for the writer's own XADD
	role string

	relay *relayprocess.Relay
	next  int // id of the next row
}

func carriers() []*carrier {
	return []*carrier{
		{key: keyDirect, name: "XADD by the writer"},
		{key: keyRun, name: nameOf(keyRun), args: []string{"run", "--mark", "none", "--slot", "run", "--confirm-delay", confirmDelay}, role: "streaming"},
		{key: keyMarks, name: nameOf(keyMarks), args: []string{"run", "--mark", "published-at", "--slot", "run_marks", "--confirm-delay", confirmDelay}, role: "streaming"},
		{key: keyPoll, name: nameOf(keyPoll), args: []string{"poll"}, role: "polling"},
	}
}

// db is the name of the contender's database, and of its slot.
func (c *carrier) db() string { return strings.ReplaceAll(c.key, "-", "_") }

// confirmDelay is shorter than a run. With the usual five seconds no run confirms
// its slot, and each start is given all rows of the runs before once more.
const confirmDelay = "1s"

// measureLatency measures all contenders at all rates, pair by pair.
func (b *bench) measureLatency(ctx context.Context) (l *latency, err error) {
	w, err := b.newWorld()
	defer func() { err = errors.Join(err, w.close()) }()
	if err != nil {
		return nil, err
	}
	pg, err := w.startPostgres(ctx)
	if err != nil {
		return nil, err
	}
	all := slices.DeleteFunc(carriers(), func(c *carrier) bool { return !b.wants(c.key) })
	for _, c := range all {
		if err := w.createDatabase(ctx, pg, c.db()); err != nil {
			return nil, err
		}
		c.next = 1
		if len(c.args) == 0 {
			continue
		}
		c.relay, err = w.relay(pg, c.db(), c.key, c.args...)
		if err != nil {
			return nil, err
		}
	}
	// Writers and consumer are this program. What it collects would delay both, and
	// flatter whoever is compared with the faster of the contenders.
	defer debug.SetGCPercent(debug.SetGCPercent(1000))
	l = &latency{Seconds: max(1, int(float64(b.seconds)*b.scale))}
	for _, rate := range b.rates {
		pooled := map[string][]time.Duration{}
		for pair := range b.pairs {
			for i := range all {
				c := all[(i+pair)%len(all)]
				b.step = fmt.Sprintf("latency, %d tx/s, pair %d of %d, %s", rate, pair+1, b.pairs, c.name)
				b.progress.Show(b.step, "")
				r, samples, err := w.latencyRun(ctx, pg, c, rate, l.Seconds)
				if err != nil {
					return nil, fmt.Errorf("%s: %w", b.step, err)
				}
				r.Pair = pair + 1
				l.Runs = append(l.Runs, r)
				pooled[c.key] = append(pooled[c.key], samples...)
			}
		}
		for _, c := range all {
			r := &latencyRun{Contender: c.key, Rate: rate}
			r.summarise(pooled[c.key])
			l.Pooled = append(l.Pooled, r)
		}
	}
	return l, nil
}

// warmSeconds of rows come before those that count: connections are made, plans
// cached and heaps grown by then.
const warmSeconds = 1

// latencyRun has rows written at a steady rate while a consumer reads.
func (w *world) latencyRun(ctx context.Context, pg *testservers.Postgres, c *carrier, rate, seconds int) (r *latencyRun, samples []time.Duration, err error) {
	// What marks have left of earlier runs is no part of this one.
	if err := pg.Exec(ctx, c.db(), "VACUUM outbox"); err != nil {
		return nil, nil, err
	}
	if c.relay != nil {
		if err := c.relay.Start(); err != nil {
			return nil, nil, err
		}
		if err := w.works(ctx, c.relay, c.role); err != nil {
			return nil, nil, errors.Join(err, c.relay.Kill())
		}
		if err := w.caughtUp(ctx, pg, c.db()); err != nil {
			return nil, nil, errors.Join(err, c.relay.Kill())
		}
	}
	f := &flow{carrier: c, rate: rate, rows: rate * (warmSeconds + seconds), addr: w.redis.Addr()}
	if err := f.run(ctx, func(ctx context.Context) (*pgx.Conn, error) { return w.connect(ctx, pg, c.db()) }); err != nil {
		if c.relay != nil {
			err = errors.Join(err, c.relay.Running(), c.relay.Kill())
		}
		return nil, nil, err
	}
	if c.relay != nil {
		if err := c.relay.Stop(); err != nil {
			return nil, nil, err
		}
	}
	c.next += f.rows
	first := rate * warmSeconds
	for i := first; i < f.rows; i++ {
		samples = append(samples, f.read[i]-f.committed[i])
	}
	r = &latencyRun{
		Contender: c.key, Rate: rate,
		Achieved: float64(f.rows-first) / (slices.Max(f.committed[first:]) + f.due(1) - f.due(first)).Seconds(),
	}
	r.summarise(samples)
	return r, samples, nil
}

// summarise sorts the samples.
func (r *latencyRun) summarise(samples []time.Duration) {
	slices.Sort(samples)
	microseconds := func(share float64) float64 { return float64(percentile(samples, share).Nanoseconds()) / 1000 }
	r.Rows = len(samples)
	r.P50, r.P99, r.P999, r.Max = microseconds(0.5), microseconds(0.99), microseconds(0.999), microseconds(1)
}

// flow is rows on their way from writers to a consumer.
type flow struct {
	*carrier
	rate, rows int
	addr       string // of Redis

	texts     []string // payloads, made before they are needed
	began     time.Time
	handed    atomic.Int64
	committed []time.Duration // since began; one a row
	read      []time.Duration
}

// due is when a row is to be written.
func (f *flow) due(i int) time.Duration {
	return time.Duration(i) * time.Second / time.Duration(f.rate)
}

// run writes and reads all rows.
func (f *flow) run(ctx context.Context, connect func(context.Context) (*pgx.Conn, error)) error {
	f.committed, f.read = make([]time.Duration, f.rows), make([]time.Duration, f.rows)
	for i := range f.rows {
		f.texts = append(f.texts, shape{}.payload(f.next+i))
	}
	reader, err := dialRedis(f.addr)
	if err != nil {
		return err
	}
	defer reader.Close()
	after, err := lastID(reader, f.key)
	if err != nil {
		return err
	}
	// One writer manages as many commits a second as the disk syncs; together
	// they share syncs.
	conns := make([]*pgx.Conn, min(20, 2+f.rate/50))
	defer func() {
		for _, conn := range conns {
			if conn != nil {
				_ = conn.Close(context.WithoutCancel(ctx))
			}
		}
	}()
	for i := range conns {
		if conns[i], err = connect(ctx); err != nil {
			return err
		}
	}
	group, ctx := errgroup.WithContext(ctx)
	// A reader that blocks hears of an end only by its connection.
	defer context.AfterFunc(ctx, func() { reader.Close() })()
	f.began = time.Now()
	for _, conn := range conns {
		group.Go(func() error { return f.write(ctx, conn) })
	}
	group.Go(func() error {
		err := f.consume(reader, after)
		if err != nil && ctx.Err() != nil {
			return ctx.Err()
		}
		return err
	})
	// Not for ever: a row that was lost never comes.
	patient := time.AfterFunc(f.due(f.rows)+patience, func() { reader.Close() })
	defer patient.Stop()
	return group.Wait()
}

// write is one writer's work.
func (f *flow) write(ctx context.Context, conn *pgx.Conn) error {
	var redis *respConn
	if len(f.args) == 0 {
		var err error
		if redis, err = dialRedis(f.addr); err != nil {
			return err
		}
		defer redis.Close()
	}
	var buf []byte
	for {
		i := int(f.handed.Add(1)) - 1
		if i >= f.rows {
			return nil
		}
		if err := pause(ctx, time.Until(f.began.Add(f.due(i)))); err != nil {
			return err
		}
		id, text := f.next+i, f.texts[i]
		if _, err := conn.Exec(ctx, "INSERT INTO outbox (id, kind, payload) VALUES ($1, $2, $3)", id, kind, text); err != nil {
			return err
		}
		f.committed[i] = time.Since(f.began)
		if redis == nil {
			continue
		}
		if err := redis.do("XADD", f.key, "*", "kind", kind, "outbox_id", strconv.Itoa(id), "payload", text); err != nil {
			return err
		}
		var err error
		if buf, err = redis.bulk(buf); err != nil {
			return err
		}
	}
}

// consume reads all rows with a blocking XREAD, and wants each of them once.
func (f *flow) consume(conn *respConn, after string) error {
	var buf []byte
	for n := 0; n < f.rows; {
		if err := conn.do("XREAD", "COUNT", "1000", "BLOCK", "0", "STREAMS", f.key, after); err != nil {
			return fmt.Errorf("after %d of %d rows: %w", n, f.rows, err)
		}
		if _, err := conn.array(); err != nil { // of streams
			return fmt.Errorf("after %d of %d rows: %w", n, f.rows, err)
		}
		at := time.Since(f.began)
		if _, err := conn.array(); err != nil { // of name and entries
			return err
		}
		var err error
		if buf, err = conn.bulk(buf); err != nil {
			return err
		}
		entries, err := conn.array()
		if err != nil {
			return err
		}
		for range entries {
			if _, err := conn.array(); err != nil {
				return err
			}
			if buf, err = conn.bulk(buf); err != nil {
				return err
			}
			after = string(buf)
			row, err := outboxID(conn)
			if err != nil {
				return err
			}
			i := row - f.next
			if i < 0 || i >= f.rows {
				return fmt.Errorf("the stream has row %d, which was not written now", row)
			}
			if f.read[i] != 0 {
				return fmt.Errorf("the stream has row %d twice", row)
			}
			f.read[i] = at
			n++
		}
	}
	return nil
}

// outboxID reads the fields of an entry, and returns the row's id.
func outboxID(conn *respConn) (id int, err error) {
	fields, err := conn.array()
	if err != nil {
		return 0, err
	}
	var name, value []byte
	for range fields / 2 {
		if name, err = conn.bulk(name); err != nil {
			return 0, err
		}
		if value, err = conn.bulk(value); err != nil {
			return 0, err
		}
		if string(name) == "outbox_id" {
			if id, err = strconv.Atoi(string(value)); err != nil {
				return 0, err
			}
		}
	}
	return id, nil
}

// lastID is the id of a stream's last entry.
func lastID(conn *respConn, stream string) (string, error) {
	if err := conn.do("XREVRANGE", stream, "+", "-", "COUNT", "1"); err != nil {
		return "", err
	}
	n, err := conn.array()
	if err != nil || n == 0 {
		return "0-0", err
	}
	if _, err := conn.array(); err != nil {
		return "", err
	}
	id, err := conn.bulk(nil)
	if err != nil {
		return "", err
	}
	_, err = outboxID(conn)
	return string(id), err
}
