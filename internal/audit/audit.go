package audit

import (
	"context"
	"fmt"
	"log/slog"
	"strconv"
	"time"

	"github.com/stagedoor/walrelay/cdc"
	"github.com/stagedoor/walrelay/internal/fault"
	"github.com/stagedoor/walrelay/internal/match"
)

// Row is a row of the table.
type Row struct {
	Event   cdc.Event
	Marked  bool
	Created time.Time // not later than the row was written; zero where unknown
}

// Table is the outbox.
type Table interface {
	Fields() match.Fields
	// Marks says how published rows show: they are marked, they are deleted, or
	// neither.
	Marks() (marked, deleted bool)
	// Open takes a snapshot of the rows that were created at since or later.
	Open(ctx context.Context, since time.Time) (Rows, error)
}

// Rows are the table's as a snapshot sees them.
type Rows interface {
	// LSN is a position that all rows were committed before, Taken the server's
	// time of the snapshot, Clock that of now.
	LSN() cdc.LSN
	Taken() time.Time
	Clock(ctx context.Context) (time.Time, error)
	// Count is how many rows there are, and the time since when the table may be
	// whole, with no rows deleted; zero where that is not known.
	Count(ctx context.Context) (n int64, whole time.Time, err error)
	Each(ctx context.Context, fn func(Row) error) error
	// Again reads rows by their ids, as they are now.
	Again(ctx context.Context, ids []string, fn func(Row) error) error
	// IndexedID reports whether Again uses an index.
	IndexedID() bool
	Close()
}

// Sink is Redis. Package publisher provides it.
type Sink interface {
	Load(ctx context.Context, key string) (*cdc.Checkpoint, map[string]cdc.StreamState, error)
	Entries(ctx context.Context, stream, first, last string, fn func(cdc.Entry) error) error
	Clock(ctx context.Context) (time.Time, error)
}

// Config is what Run needs.
type Config struct {
	Table  Table
	Sink   Sink
	Name   string // of the table, for the report
	Stream string
	Dead   string // the stream of dead rows
	Key    string // of the checkpoint

	Since time.Time     // rows created at this time or later, PostgreSQL's clock; zero for all
	Wait  time.Duration // for a relay to come to rows that are not published yet; a third of it for one that does nothing
	Show  int           // findings of each kind to list

	Log *slog.Logger // progress
}

const (
	// margin is by how much the clocks may differ that made a row's time and its
	// entry's.
	margin = 10 * time.Second
	// purgeMargin is how long a transaction may have been open at a time when
	// older rows were deleted: its rows are older than their entries by that.
	purgeMargin = time.Hour
	// lookUp is how many rows are looked up at once.
	lookUp = 500
	// lookUnindexed is how many are looked up at most where each time takes a
	// scan of the table.
	lookUnindexed = 20 * lookUp
	progressEvery = 5 * time.Second
)

// auditing is one audit.
type auditing struct {
	Config
	fields match.Fields
	rows   Rows
	report Report

	ahead time.Duration // Redis' clock of PostgreSQL's, at least
	whole time.Time     // since when the table may have all rows, by Redis' clock

	table, stream *spill

	unmarked int64     // rows that the snapshot sees without a mark
	lookedUp int       // rows, where there is no index
	oldest   string    // the id of the oldest entry that was read
	part     bool      // older ones were not
	covered  time.Time // up to when a relay has published all rows, PostgreSQL's clock
	remains  remains

	missingOldest  time.Time
	missingUnknown bool // of a missing row it is not known when it was created

	// Entries without rows, by when they were appended.
	before int64    // before the table may be whole
	edge   Findings // less than purgeMargin after that
}

// Run compares the table with the stream.
func Run(ctx context.Context, cfg Config) (*Report, error) {
	a := &auditing{Config: cfg, fields: cfg.Table.Fields()}
	a.report.Table, a.report.Stream = cfg.Name, cfg.Stream
	if !cfg.Since.IsZero() {
		since := cfg.Since.UTC()
		a.report.Since = &since
	}
	_, streams, err := cfg.Sink.Load(ctx, cfg.Key)
	if err != nil {
		return nil, err
	}
	end := streams[cfg.Stream].LastID // whose row the snapshot sees
	if a.rows, err = cfg.Table.Open(ctx, cfg.Since); err != nil {
		return nil, err
	}
	defer a.rows.Close()
	a.report.LSN, a.report.Taken = a.rows.LSN(), a.rows.Taken()
	asked := time.Now()
	ours, err := a.rows.Clock(ctx)
	if err != nil {
		return nil, err
	}
	theirs, err := cfg.Sink.Clock(ctx)
	if err != nil {
		return nil, err
	}
	blur := time.Since(asked)
	a.ahead = theirs.Sub(ours) - blur

	n, whole, err := a.rows.Count(ctx)
	if err != nil {
		return nil, err
	}
	if !whole.IsZero() {
		a.whole = whole.Add(a.ahead + blur)
	}
	parts := parts(max(n, streams[cfg.Stream].Length))
	a.table, a.stream = newSpill(parts), newSpill(parts)
	defer a.table.close()
	defer a.stream.close()

	if err := a.readTable(ctx, n); err != nil {
		return nil, err
	}
	if err := a.waitForRelay(ctx); err != nil {
		return nil, err
	}
	if err := a.readStream(ctx, end); err != nil {
		return nil, err
	}
	if err := a.compare(ctx, parts); err != nil {
		return nil, err
	}
	a.settlePurged()
	if a.report.Missing.Count > 0 && !a.missingUnknown {
		a.report.Missing.Oldest = &a.missingOldest
	}
	a.report.settle()
	return &a.report, nil
}

// progress returns a function that logs now and then.
func (a *auditing) progress(msg string) func(args ...any) {
	last := time.Now()
	return func(args ...any) {
		if time.Since(last) >= progressEvery {
			last = time.Now()
			a.Log.Info(msg, args...)
		}
	}
}

func (a *auditing) readTable(ctx context.Context, n int64) error {
	say := a.progress("reading the table")
	return a.rows.Each(ctx, func(row Row) error {
		if row.Event.NoID {
			a.report.Rows++
			a.report.NoID++
			return nil
		}
		r, err := a.record(row)
		if err != nil {
			return err
		}
		if !row.Marked {
			a.unmarked++
		}
		a.report.Rows++
		say("rows", a.report.Rows, "of", n)
		return a.table.add(r)
	})
}

// record is what is kept of a row.
func (a *auditing) record(row Row) (*record, error) {
	v, ok := a.fields.OfRow(row.Event)
	if !ok {
		return nil, fmt.Errorf("the row with id %s has other fields than an entry", row.Event.ID)
	}
	r := &record{id: []byte(row.Event.ID), has: v.Has, hashes: hashes(a.fields, v)}
	if row.Marked {
		r.flags |= flagMarked
	}
	if !row.Created.IsZero() {
		r.time = row.Created.UnixMicro()
	}
	return r, nil
}

// waitForRelay waits until a relay has covered the rows of the snapshot. There
// is nothing to wait for where all of them are marked: that is done after the
// append.
func (a *auditing) waitForRelay(ctx context.Context) error {
	if marked, _ := a.Table.Marks(); marked && a.unmarked == 0 {
		a.report.Covered = true
		return nil
	}
	say := a.progress("waiting for the relay")
	started := time.Now()
	moved, version := started, cdc.Version{}
	for {
		cp, _, err := a.Sink.Load(ctx, a.Key)
		if err != nil {
			return err
		}
		if cp != nil {
			a.covered = cp.CoveredTime
		}
		now := time.Now()
		switch {
		case cp == nil:
		case cp.Phase == cdc.PhaseStreaming && cp.Covered >= a.rows.LSN():
			a.report.Covered = true
			return nil
		case cp.Version != version:
			moved, version = now, cp.Version
		}
		if now.Sub(moved) > a.Wait/3 || now.Sub(started) > a.Wait {
			return nil
		}
		if cp != nil {
			say("covered", cp.Covered, "wanted", a.rows.LSN())
		}
		select {
		case <-time.After(100 * time.Millisecond):
		case <-ctx.Done():
			return context.Cause(ctx)
		}
	}
}

// readStream reads the entries of both streams. Those after end may be of rows
// that the snapshot does not see.
func (a *auditing) readStream(ctx context.Context, end string) error {
	_, streams, err := a.Sink.Load(ctx, a.Key)
	if err != nil {
		return err
	}
	state := streams[a.Stream]
	if end == "" {
		end = "0-0"
	}
	first := "-"
	if _, ok := entryTime(state.LastID); ok && !a.Since.IsZero() {
		first = strconv.FormatInt(max(0, a.Since.Add(a.ahead-margin).UnixMilli()), 10) + "-0"
		a.part = true
	}
	say := a.progress("reading the stream")
	read := int64(0)
	if state.Exists && state.Length > 0 && !after(first, state.LastID) {
		err := a.Sink.Entries(ctx, a.Stream, first, state.LastID, func(e cdc.Entry) error {
			read++
			say("entries", read, "of", state.Length)
			if a.oldest == "" {
				a.oldest = e.ID
			}
			v, ok := a.fields.OfEntry(e)
			if !ok {
				a.report.OtherEntries++
				return ctx.Err()
			}
			a.report.Entries++
			var flags byte
			if after(e.ID, end) {
				flags = flagLate
			}
			return a.keep(e.ID, v, flags)
		})
		if err != nil {
			return err
		}
	}
	skipped := int64(0) // rows without an id
	err = a.Sink.Entries(ctx, a.Dead, first, "+", func(e cdc.Entry) error {
		if v, ok := a.fields.OfEntry(e); ok {
			return a.keep(e.ID, v, flagDead)
		}
		if _, ok := e.Values[cdc.DeadReason]; ok {
			skipped++
		}
		return ctx.Err()
	})
	a.report.NoID = max(0, a.report.NoID-skipped)
	switch {
	case fault.As(err) != nil: // it may be there and not be ours to read
		a.Log.Warn("rows that were skipped count as missing: their stream cannot be read", "stream", a.Dead, "err", err)
	case err != nil:
		return fmt.Errorf("read the stream %q: %w", a.Dead, err)
	}
	return a.readRemains(ctx)
}

// keep keeps an entry.
func (a *auditing) keep(id string, v match.Values, flags byte) error {
	ms, seq := splitID(id)
	return a.stream.add(&record{
		id: []byte(a.fields.ID(v)), flags: flags, time: int64(ms), seq: seq, has: v.Has, hashes: hashes(a.fields, v),
	})
}

// readRemains asks Redis what was removed, and finds the row of the oldest entry.
func (a *auditing) readRemains(ctx context.Context) error {
	_, streams, err := a.Sink.Load(ctx, a.Key)
	if err != nil {
		return err
	}
	a.remains = remains{state: streams[a.Stream], ahead: a.ahead}
	first := a.remains.state.FirstID
	if first == "" {
		return nil
	}
	return a.Sink.Entries(ctx, a.Stream, first, first, func(e cdc.Entry) error {
		v, ok := a.fields.OfEntry(e)
		if !ok {
			return nil
		}
		id := a.fields.ID(v)
		return a.rows.Again(ctx, []string{id}, func(row Row) error {
			a.remains.first, a.remains.firstCreated = id, row.Created
			return nil
		})
	})
}

// compare joins both sides, a part at a time.
func (a *auditing) compare(ctx context.Context, parts int) error {
	say := a.progress("comparing")
	var rows, entries []byte
	for p := range parts {
		say("part", p, "of", parts)
		var err error
		if rows, err = a.table.load(rows[:0], p); err != nil {
			return err
		}
		if entries, err = a.stream.load(entries[:0], p); err != nil {
			return err
		}
		j := join(rows, entries)
		if err := a.judgeRows(ctx, j.rows); err != nil {
			return err
		}
		if err := a.judgeStrangers(ctx, j.strangers); err != nil {
			return err
		}
		if ctx.Err() != nil {
			return context.Cause(ctx)
		}
	}
	return nil
}
