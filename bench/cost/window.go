package main

import (
	"context"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/stagedoor/walrelay/bench/internal/proc"
)

// window is what the primary did in some time.
type window struct {
	Seconds  float64  `json:"seconds"`
	Counters counters `json:"counters"`
}

// loadWindow is a window in which rows were written.
type loadWindow struct {
	window
	Rows          int     `json:"rows"`
	RowsPerSecond float64 `json:"rows_per_second"` // that the writers achieved
	Entries       int64   `json:"entries"`         // on the stream
	Marked        int64   `json:"marked"`          // in the table
}

// reading is the counters at a time.
type reading struct {
	at time.Time
	counters
}

func between(began, ended reading) window {
	return window{Seconds: ended.at.Sub(began.at).Seconds(), Counters: ended.minus(began.counters)}
}

// order says when the table is looked at, which takes a session in its database:
// before a window that begins, and after one that ends, so that it is in none.
type order bool

const (
	tableFirst order = true
	tableLast  order = false
)

// read reads all counters.
func (s *stage) read(ctx context.Context, o order) (r reading, err error) {
	if o == tableFirst {
		if err := s.readTable(ctx, &r); err != nil {
			return r, err
		}
	}
	r.at = time.Now()
	if err := r.readDatabase(ctx, s.admin, database); err != nil {
		return r, err
	}
	used, err := proc.ServerCPU(s.postgres.PID())
	if err != nil {
		return r, err
	}
	r.counters[cpu] = used.Milliseconds()
	if o == tableLast {
		return r, s.readTable(ctx, &r)
	}
	return r, nil
}

// readTable reads the table's counters in a session of its own.
func (s *stage) readTable(ctx context.Context, r *reading) error {
	return s.visit(ctx, func(conn *pgx.Conn) error { return r.counters.readTable(ctx, conn) })
}
