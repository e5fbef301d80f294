package main

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/stagedoor/walrelay/bench/internal/proc"
	"github.com/stagedoor/walrelay/internal/relayprocess"
)

// lap is a run while it is measured.
type lap struct {
	*drainStage
	conn      *pgx.Conn // to the run's server
	run       *drainRun
	process   process
	began     time.Time
	walsender int // its process id; 0 while it is not known
	sender    time.Duration
	sampled   time.Time
}

// measure runs the contender until it has all rows, or is cut off.
func (l *lap) measure(ctx context.Context) error {
	redis, err := dialRedis(l.redis.Addr())
	if err != nil {
		return err
	}
	defer redis.Close()
	postgresBefore, err := proc.ServerCPU(l.server.PID())
	if err != nil {
		return err
	}
	redisBefore, err := proc.CPU(l.redis.PID())
	if err != nil {
		return err
	}

	l.began = time.Now()
	if l.process, err = l.contender.start(l.drainStage); err != nil {
		return err
	}
	err = l.watch(ctx, redis)
	took := time.Since(l.began)
	if err != nil {
		return errors.Join(err, l.process.Kill())
	}

	// Everything that was used by now is the run's; what follows is not.
	redisAfter, err := proc.CPU(l.redis.PID())
	if err != nil {
		return errors.Join(err, l.process.Kill())
	}
	postgresAfter, err := proc.ServerCPU(l.server.PID())
	if err != nil {
		return errors.Join(err, l.process.Kill())
	}
	used, err := l.processCPU()
	if err := errors.Join(err, l.readTheLog(), l.process.Kill()); err != nil {
		return err
	}
	l.run.Process = used.Seconds()
	l.run.Redis = (redisAfter - redisBefore).Seconds()
	l.run.Walsender = l.sender.Seconds()
	l.run.Others = max(0, (postgresAfter - postgresBefore - l.sender).Seconds())
	switch {
	case l.contender.marks:
		l.run.MarkedSeconds = took.Seconds()
	case !l.contender.appends:
		l.run.Seconds = took.Seconds()
	}
	return nil
}

// readTheLog is an error where a relay published what it read from the table: the
// stream has the same entries then, and the drain is none.
func (l *lap) readTheLog() error {
	relay, ok := l.process.(*relayprocess.Relay)
	if !ok || !l.contender.follows {
		return nil
	}
	raw, err := os.ReadFile(relay.Log())
	if err != nil {
		return err
	}
	if bytes.Contains(raw, []byte("backfilling")) || bytes.Contains(raw, []byte("healing")) {
		return fmt.Errorf("the relay took slot and checkpoint for something else than an outage%s", relay.LogTail())
	}
	return nil
}

// processCPU is the processor time of the contender's own process.
func (l *lap) processCPU() (time.Duration, error) {
	if p, ok := l.process.(*program); ok && isClosed(p.Done()) {
		return p.ended()
	}
	return proc.CPU(l.process.PID())
}

// How often is looked. Seldom enough to count for nothing, often enough for the
// processor time that has passed when a look finds that all is done.
const (
	lookEvery = 20 * time.Millisecond
	showEvery = time.Second
	// firstEvery finds the first row of a contender that appends nothing.
	firstEvery = 2 * time.Millisecond
	// markEvery is for the relay's own metrics, which cost it more.
	markEvery = 50 * time.Millisecond
)

// watch returns when the contender has all rows, or is to be cut off.
func (l *lap) watch(ctx context.Context, redis *respConn) error {
	c := l.contender
	deadline := l.began.Add(l.cut + patience)
	shown := l.began
	every := lookEvery
	if !c.appends {
		every = firstEvery
	}
	for {
		if isClosed(l.process.Done()) {
			return l.ended(redis)
		}
		if !c.appends && l.run.FirstSeconds == 0 {
			// It writes nothing but rows.
			if n, err := proc.Written(l.process.PID()); err == nil && n > 0 {
				l.run.FirstSeconds = time.Since(l.began).Seconds()
				every = lookEvery
			}
		}
		if time.Since(l.sampled) > lookEvery || l.walsender == 0 {
			l.sampled = time.Now()
			l.sample(ctx)
		}
		rows := 0
		if c.appends {
			var err error
			if rows, err = length(redis); err != nil {
				return err
			}
			if rows >= l.shape.Rows {
				every = markEvery
				if done, err := l.done(ctx); done || err != nil {
					return err
				}
			}
		}
		now := time.Now()
		if c.slow && now.Sub(l.began) > l.cut {
			l.run.Cut = true
			return nil
		}
		if now.After(deadline) {
			return fmt.Errorf("after %s it has %d of %d rows%s", now.Sub(l.began).Round(time.Second), rows, l.shape.Rows, l.process.LogTail())
		}
		if now.Sub(shown) > showEvery {
			shown = now
			so := fmt.Sprintf("%.0f s", now.Sub(l.began).Seconds())
			if c.appends {
				so += fmt.Sprintf(", %s of %s rows", grouped(int64(rows)), grouped(int64(l.shape.Rows)))
			}
			l.progress.Show(l.step, so)
		}
		if err := l.pause(ctx, every); err != nil {
			return err
		}
	}
}

// pause waits, but not for a process that is gone.
func (l *lap) pause(ctx context.Context, d time.Duration) error {
	select {
	case <-ctx.Done():
		return ctx.Err()
	case <-l.process.Done():
	case <-time.After(d):
	}
	return nil
}

// sample notes what is not there any more when the run is over.
func (l *lap) sample(ctx context.Context) {
	if peak, err := proc.Peak(l.process.PID()); err == nil {
		l.run.Peak = max(l.run.Peak, peak)
	}
	if l.contender.follows && l.walsender == 0 {
		var pid *int
		err := l.conn.QueryRow(ctx, "SELECT active_pid FROM pg_replication_slots WHERE slot_name = $1", benchSlot).Scan(&pid)
		if err == nil && pid != nil {
			l.walsender = *pid
		}
	}
	if l.walsender != 0 {
		if used, err := proc.CPU(l.walsender); err == nil {
			l.sender = used
		}
	}
}

// done reports whether a contender with all rows on the stream is done.
func (l *lap) done(ctx context.Context) (bool, error) {
	relay, ok := l.process.(*relayprocess.Relay)
	if !ok || !l.contender.marks {
		return true, nil
	}
	marked, err := relay.Metric(ctx, "walrelay_marked_rows_total")
	if errors.Is(err, relayprocess.ErrNoMetric) {
		return false, err
	}
	if err != nil {
		return false, ctx.Err() // it is busy; that it has ended is noticed elsewhere
	}
	return int(marked) >= l.shape.Rows, nil
}

// ended judges a process that has ended: only some do when they have all rows.
func (l *lap) ended(redis *respConn) error {
	if p, ok := l.process.(*program); ok && l.contender.key != keyLeast {
		_, err := p.ended()
		return err
	}
	rows, _ := length(redis)
	return fmt.Errorf("it ended with %d of %d rows%s", rows, l.shape.Rows, l.process.LogTail())
}

// length asks how many entries the stream has.
func length(redis *respConn) (int, error) {
	if err := redis.do("XLEN", stream); err != nil {
		return 0, err
	}
	_, n, err := redis.header()
	return n, err
}

func isClosed(c <-chan struct{}) bool {
	select {
	case <-c:
		return true
	default:
		return false
	}
}
