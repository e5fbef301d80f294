package main

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/stagedoor/walrelay/cdc"
	"github.com/stagedoor/walrelay/internal/fault"
	"github.com/stagedoor/walrelay/internal/pg"
	"github.com/stagedoor/walrelay/publisher"
)

const (
	// skipLook is how often it is looked whether the relay has done it.
	skipLook = 200 * time.Millisecond
	// skipReport is how often it is said that it has not.
	skipReport = 10 * time.Second
)

// skipCmd has the relay skip a row that it cannot publish.
type skipCmd struct {
	IDs    []string `name:"id" sep:"none" required:"" placeholder:"ID" help:"The row, as the relay names it: its id, or where that is NULL its place. May be repeated, for rows that the relay meets one after the other."`
	NoWait bool     `help:"Ask for it, and do not wait until the relay has done it."`
}

// Help is printed by --help.
func (skipCmd) Help() string {
	return `A row that cannot be published stops the relay, which says so in its log and in /healthz, with the command to have it skipped. skip does that: the relay puts the row on the stream STREAM:dead instead, with as much of it as fits, the reason (walrelay_reason) and its place in the log (walrelay_position), marks it, and goes on with the next one. It tries the row again every few seconds, so that is how long it takes.

Only the row that the relay stops at can be skipped. If it can be published by then after all, it is.

Example:

    walrelay skip --postgres 'postgres://walrelay@db.example.com:5432/shop' --id 4711`
}

// Run is called by main.
func (c *skipCmd) Run(ctx context.Context, p *process) error {
	key, database, err := checkpointKey(ctx, p.cfg)
	if err != nil {
		return err
	}
	client, err := publisher.Connect(p.cfg.Redis.URL())
	if err != nil {
		return err
	}
	defer client.Close()
	s := &skipping{process: p, sink: publisher.New(client, 0, p.cfg.Stream), key: key, database: database, rows: c.IDs}
	row, err := s.ask(ctx)
	if err != nil {
		return err
	}
	if c.NoWait {
		fmt.Fprintf(p.stdout, "asked for the row %s to be skipped: the relay does that when it tries it again, within seconds where it runs\n", row)
		return nil
	}
	return s.wait(ctx, row)
}

// checkpointKey is the key of the checkpoint, and the database that it is of.
func checkpointKey(ctx context.Context, cfg *Config) (key, database string, err error) {
	conn, err := pg.Connect(ctx, cfg.Postgres)
	if err != nil {
		return "", "", err
	}
	defer closeConn(conn)
	var systemID string
	err = conn.QueryRow(ctx, "SELECT current_database(), (SELECT system_identifier::text FROM pg_control_system())",
		pgx.QueryExecModeSimpleProtocol).Scan(&database, &systemID)
	if err != nil {
		return "", "", fmt.Errorf("look for the system's identifier: %w", err)
	}
	return publisher.Key(systemID, database, cfg.Slot), database, nil
}

// skipping is a request under way.
type skipping struct {
	*process
	sink     *publisher.Publisher
	key      string
	database string
	rows     []string
	since    time.Time // when it was asked for, on Redis' clock
}

// ask puts the requests beside the checkpoint, if the line stops at one of the
// rows, and says which.
func (s *skipping) ask(ctx context.Context) (row string, err error) {
	ctx, cancel := context.WithTimeout(ctx, redisPatience)
	defer cancel()
	if s.since, err = s.sink.Clock(ctx); err != nil {
		return "", fmt.Errorf("%s: %w", s.cfg.Redis, err)
	}
	for {
		cp, _, err := s.sink.Load(ctx, s.key)
		if err != nil {
			return "", fmt.Errorf("%s: %w", s.cfg.Redis, err)
		}
		if err := s.mayAsk(cp); err != nil {
			return "", err
		}
		asked, err := s.sink.AskSkip(ctx, s.key, cp.Version, s.since, s.rows...)
		if err != nil {
			return "", err
		}
		if asked {
			return cp.Blocked.Row, nil
		}
		// The relay has written meanwhile.
	}
}

// mayAsk refuses what would not do anything, or not what was meant.
func (s *skipping) mayAsk(cp *cdc.Checkpoint) error {
	switch {
	case cp == nil:
		return &fault.Error{
			Problem: fmt.Sprintf("there is no checkpoint %q in %s: no relay has worked with the slot %q of the database %s", s.key, s.cfg.Redis, s.cfg.Slot, cdc.QuoteIdent(s.database)),
			Fix:     "correct --slot, --redis, or the database in --postgres",
		}
	case cp.Blocked == nil:
		return &fault.Error{
			Problem: "the relay does not stop at any row, so nothing is skipped",
			Fix:     "run this when the relay names a row that it cannot publish, in its log or in /healthz",
		}
	case !slices.Contains(s.rows, cp.Blocked.Row):
		return &fault.Error{
			Problem: fmt.Sprintf("the relay stops at the row %s (%s), and not at %s, so nothing is skipped", cp.Blocked.Row, cp.Blocked.Reason, strings.Join(s.rows, ", ")),
			Fix:     "name that row with --id",
		}
	}
	return nil
}

// wait waits until the relay has done it, and tells what became of the rows.
func (s *skipping) wait(ctx context.Context, row string) error {
	fmt.Fprintf(s.stdout, "asked for the row %s to be skipped; the relay does that when it tries it again\n", row)
	reported := time.Now()
	look := time.NewTicker(skipLook)
	defer look.Stop()
	for {
		select {
		case <-look.C:
		case <-ctx.Done():
			return errors.New("stopped waiting; what was asked for stays, and the relay does it when it runs")
		}
		cp, _, err := s.sink.Load(ctx, s.key)
		switch {
		case err != nil:
			// Redis may be away for a while, like the relay.
		case cp == nil:
			return fmt.Errorf("the checkpoint %q is gone, and with it what was asked for: Redis lost its data, or somebody ran teardown", s.key)
		case !cp.Skips[row] && cp.Blocked != nil && cp.Blocked.Row == row:
			return errors.New("what was asked for is lost, since Redis went back in time, and the relay still stops at the row: run this again")
		case !cp.Skips[row]:
			return s.tell(ctx, row, cp)
		case cp.Blocked == nil || cp.Blocked.Row != row:
			// The relay had begun to publish it when this was asked for.
			if err := s.sink.WithdrawSkip(ctx, s.key, row); err != nil {
				return err
			}
			return s.tell(ctx, row, cp)
		}
		if time.Since(reported) >= skipReport {
			reported = time.Now()
			state := "no relay has done it yet; one has to run"
			if err != nil {
				state = err.Error()
			}
			fmt.Fprintf(s.stdout, "waiting: %s\n", state)
		}
	}
}

// tell says what became of the rows: the first one is settled.
func (s *skipping) tell(ctx context.Context, first string, cp *cdc.Checkpoint) error {
	entries, err := s.entries(ctx)
	if err != nil {
		return err
	}
	for _, row := range s.rows {
		entry, skipped := entries[row]
		switch {
		case skipped:
			fmt.Fprintf(s.stdout, "the row %s is on the stream %q as entry %s: %s\n", row, cdc.DeadStream(s.cfg.Stream), entry.ID, entry.Values[cdc.DeadReason])
			if s.idOf(entry) == "" {
				s.adviseWithoutID()
			}
		case row == first || !cp.Skips[row]:
			fmt.Fprintf(s.stdout, "the row %s was not skipped: the relay could publish it after all\n", row)
		default:
			fmt.Fprintf(s.stdout, "the relay has not met the row %s yet: it is skipped if it cannot be published\n", row)
		}
	}
	if b := cp.Blocked; b != nil {
		fmt.Fprintf(s.stdout, "the relay now stops at the row %s: %s\n", b.Row, b.Reason)
	}
	return nil
}

// entries are those of the dead stream since this was asked for, by what names
// their rows.
func (s *skipping) entries(ctx context.Context) (map[string]cdc.Entry, error) {
	found := map[string]cdc.Entry{}
	first := fmt.Sprintf("%d-0", s.since.UnixMilli())
	err := s.sink.Entries(ctx, cdc.DeadStream(s.cfg.Stream), first, "+", func(e cdc.Entry) error {
		name := s.idOf(e)
		if name == "" {
			name = e.Values[cdc.DeadPosition]
		}
		found[name] = e
		return nil
	})
	return found, err
}

// idOf is the outbox id in an entry, empty for none.
func (s *skipping) idOf(e cdc.Entry) string {
	for _, f := range s.cfg.Mapping().EntryFields() {
		if id, ok := e.Values[f.Name]; ok && f.Column == s.cfg.ColumnID {
			return id
		}
	}
	return ""
}

// adviseWithoutID says that a row without an id cannot be marked.
func (s *skipping) adviseWithoutID() {
	id := cdc.QuoteIdent(s.cfg.ColumnID)
	fmt.Fprintf(s.stdout, "it has no id, so the relay cannot mark it; where rows are marked: ")
	if s.cfg.ColumnPublishedAt == "" {
		fmt.Fprintf(s.stdout, "DELETE FROM %s WHERE %s IS NULL;\n", s.cfg.Table, id)
		return
	}
	at := cdc.QuoteIdent(s.cfg.ColumnPublishedAt)
	fmt.Fprintf(s.stdout, "UPDATE %s SET %s = now() WHERE %s IS NULL AND %s IS NULL;\n", s.cfg.Table, at, id, at)
}
