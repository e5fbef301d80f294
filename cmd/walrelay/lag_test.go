package main

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/stagedoor/walrelay/cdc"
)

// segment is the size of a WAL file.
const segment = 16 << 20

// load is SQL that sessions run again and again.
type load struct {
	t    *testing.T
	stop context.CancelFunc // no more is run
	kill context.CancelFunc // what runs is called off
	done sync.WaitGroup
	runs atomic.Int64
}

// startLoad has n sessions run the SQL, with a pause after each time, until end
// is called. After an error they connect again.
func (w *world) startLoad(dsn string, n int, pausing time.Duration, sql string) *load {
	w.t.Helper()
	running, kill := context.WithCancel(context.Background())
	ctx, stop := context.WithCancel(running)
	l := &load{t: w.t, stop: stop, kill: kill}
	w.t.Cleanup(l.end)
	for range n {
		l.done.Go(func() {
			for ctx.Err() == nil {
				l.session(ctx, running, dsn, pausing, sql)
				pause(ctx, 50*time.Millisecond)
			}
		})
	}
	return l
}

func (l *load) session(ctx, running context.Context, dsn string, pausing time.Duration, sql string) {
	conn, err := pgx.Connect(running, dsn)
	if err != nil {
		return
	}
	defer conn.Close(context.Background())
	for ctx.Err() == nil {
		if _, err := conn.Exec(running, sql, pgx.QueryExecModeSimpleProtocol); err != nil {
			return
		}
		l.runs.Add(1)
		pause(ctx, pausing)
	}
}

// end stops the load and waits for its sessions. A statement is run to its end,
// since one that is called off may commit all the same, and later; only one
// that hangs is called off.
func (l *load) end() {
	l.stop()
	defer time.AfterFunc(10*time.Second, l.kill).Stop()
	l.done.Wait()
	l.kill()
}

// goesOn waits until the SQL has run so many times from now on.
func (l *load) goesOn(times int64) {
	l.t.Helper()
	want := l.runs.Load() + times
	eventually(l.t, "the load goes on", func() error {
		if n := l.runs.Load(); n < want {
			return fmt.Errorf("%d more to come", want-n)
		}
		return nil
	})
}

// lag is how far the relay's slot is, as PostgreSQL has it.
type lag struct {
	written, confirmed, restart cdc.LSN
	pid                         int // of the process that streams; 0 for none
}

func (l lag) retained() int64 { return int64(l.written - l.restart) }

// lag reads over a connection of the caller's.
func (w *world) lag(conn *pgx.Conn) lag {
	w.t.Helper()
	var l lag
	var written, confirmed, restart string
	err := conn.QueryRow(context.Background(), `
		SELECT pg_current_wal_insert_lsn()::text, confirmed_flush_lsn::text, restart_lsn::text, coalesce(active_pid, 0)
		FROM pg_replication_slots WHERE slot_name = 'walrelay'`).Scan(&written, &confirmed, &restart, &l.pid)
	if err != nil {
		w.t.Fatal(err)
	}
	for text, to := range map[string]*cdc.LSN{written: &l.written, confirmed: &l.confirmed, restart: &l.restart} {
		if *to, err = cdc.ParseLSN(text); err != nil {
			w.t.Fatal(err)
		}
	}
	return l
}

// walsender is the PostgreSQL process that streams to the relay; empty for none.
func (w *world) walsender() string {
	w.t.Helper()
	return w.query(`SELECT active_pid FROM pg_replication_slots WHERE slot_name = 'walrelay'`)
}

// hearsFor waits until PostgreSQL has had a status update from the relay this
// long after now, over the connection of this walsender, and reports whether
// that connection was there all the time.
func (w *world) hearsFor(pid string, seconds float64) bool {
	w.t.Helper()
	conn := w.connect()
	defer conn.Close(context.Background())
	var since time.Time
	if err := conn.QueryRow(context.Background(), `SELECT clock_timestamp()`).Scan(&since); err != nil {
		w.t.Fatal(err)
	}
	until := since.Add(time.Duration(seconds * float64(time.Second)))
	there := true
	w.eventually("the relay sends status updates", func() error {
		// pg_stat_get_wal_senders tells when the reply arrived by the
		// relay's clock, which is ours and PostgreSQL's.
		var reply *time.Time
		err := conn.QueryRow(context.Background(), `SELECT reply_time FROM pg_stat_replication WHERE pid = $1::int`, pgx.QueryExecModeSimpleProtocol, pid).Scan(&reply)
		if errors.Is(err, pgx.ErrNoRows) {
			there = false
			return nil
		}
		if err != nil {
			w.t.Fatal(err)
		}
		if reply == nil || reply.Before(until) {
			return fmt.Errorf("the last one was sent at %v, want one from %s", reply, until)
		}
		return nil
	})
	return there
}

// reason returns the first reason of the document that holds all of these.
func (doc *healthDocument) reason(parts ...string) string {
	for _, r := range doc.Reasons {
		found := true
		for _, part := range parts {
			found = found && strings.Contains(r, part)
		}
		if found {
			return r
		}
	}
	return ""
}

// saysInHealth waits until a reason of the health document holds all of these.
func (p *relayProcess) saysInHealth(status string, parts ...string) {
	p.t.Helper()
	p.becomes(fmt.Sprintf("%s with %q", status, parts), func(_ int, doc healthDocument) bool {
		return doc.Status == status && doc.reason(parts...) != ""
	})
}
