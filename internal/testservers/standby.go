package testservers

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"net"
	"os"
	"path/filepath"

	"github.com/jackc/pgx/v5/pgconn"
)

// StandbyOptions says how a standby follows its primary.
type StandbyOptions struct {
	// Settings differ from those of the primary, which are the standby's too.
	Settings map[string]string
	// From is where WAL comes from, as host:port: the primary itself, unless a
	// proxy in front of it is named, whose stalling lets the standby fall
	// behind. What the primary commits meanwhile, a promotion loses.
	From string
	// Slot is a physical slot on the primary that keeps WAL for the standby.
	// It is made there if need be. Without one a standby that was cut off for
	// long may not catch up any more.
	Slot string
	// SyncSlots keeps copies of the primary's failover slots on the standby,
	// from PostgreSQL 17 on. It needs a Slot.
	SyncSlots bool
}

// StartStandby starts a streaming standby of a running primary and ends it when
// the test is over. It has the primary's programs, data and system identifier,
// but none of its slots, as after a base backup.
func StartStandby(t TB, primary *Postgres, opts StandbyOptions) *Postgres {
	t.Helper()
	return start(t, "PostgreSQL", func() *Postgres {
		standby := &Postgres{server: server{t: t}}
		standby.standby = func(ctx context.Context) error { return standby.copyFrom(ctx, primary, opts) }
		return standby
	})
}

// Follow makes a stopped or killed server a standby of a running one, with a
// fresh copy of that one's data, and starts it: after a failover the old
// primary comes back this way.
func (pg *Postgres) Follow(primary *Postgres, opts StandbyOptions) {
	pg.t.Helper()
	patient(pg.t, fmt.Sprintf("have %s follow %s", pg.name, primary.name), func(ctx context.Context) error {
		if err := pg.replaceData(func(string) error { return pg.copyFrom(ctx, primary, opts) }); err != nil {
			return err
		}
		return pg.TryStart(ctx)
	})
}

// copyFrom fills the data directory with the primary's, to be a standby.
func (pg *Postgres) copyFrom(ctx context.Context, primary *Postgres, opts StandbyOptions) error {
	if opts.Slot != "" {
		sql := fmt.Sprintf(`SELECT pg_create_physical_replication_slot('%s', true)
			WHERE NOT EXISTS (SELECT FROM pg_replication_slots WHERE slot_name = '%[1]s')`, opts.Slot)
		if err := primary.Exec(ctx, "postgres", sql); err != nil {
			return err
		}
	}
	if err := primary.copyData(ctx, pg.DataDir()); err != nil {
		return err
	}
	slots, err := filepath.Glob(filepath.Join(pg.DataDir(), "pg_replslot", "*"))
	if err != nil {
		return err
	}
	for _, slot := range slots {
		if err := os.RemoveAll(slot); err != nil {
			return err
		}
	}
	if opts.From == "" {
		opts.From = primary.Addr()
	}
	host, port, err := net.SplitHostPort(opts.From)
	if err != nil {
		return err
	}
	pg.opts.Settings = maps.Clone(primary.opts.Settings)
	if pg.opts.Settings == nil {
		pg.opts.Settings = map[string]string{}
	}
	maps.Copy(pg.opts.Settings, map[string]string{
		"primary_conninfo":  fmt.Sprintf("host=%s port=%s user=postgres dbname=postgres sslmode=disable", host, port),
		"primary_slot_name": opts.Slot,
		// A new connection is tried at once and not after five seconds.
		"wal_retrieve_retry_interval": "100ms",
	})
	if opts.SyncSlots {
		maps.Copy(pg.opts.Settings, map[string]string{"sync_replication_slots": "on", "hot_standby_feedback": "on"})
	}
	maps.Copy(pg.opts.Settings, opts.Settings)
	account, err := postgresOwner()
	if err != nil {
		return err
	}
	signal := filepath.Join(pg.DataDir(), "standby.signal")
	if err := os.WriteFile(signal, nil, 0o600); err != nil {
		return err
	}
	return account.chown(signal)
}

// CatchUp waits until a standby has replayed all that the primary has written.
func (pg *Postgres) CatchUp(primary *Postgres) {
	pg.t.Helper()
	patient(pg.t, pg.name+" catches up", func(ctx context.Context) error {
		lsn, err := primary.ask(ctx, "SELECT pg_current_wal_insert_lsn()")
		if err != nil {
			return err
		}
		return poll(ctx, func() bool {
			there, err := pg.ask(ctx, fmt.Sprintf("SELECT pg_last_wal_replay_lsn() >= '%s'", lsn))
			return err == nil && there == "t"
		})
	})
}

// Promote makes a standby a primary, and returns when it is one. What it did
// not receive of its old primary's WAL is lost.
func (pg *Postgres) Promote() {
	pg.t.Helper()
	patient(pg.t, "promote "+pg.name, pg.TryPromote)
}

// TryPromote is Promote with an error.
func (pg *Postgres) TryPromote(ctx context.Context) error {
	promoted, err := pg.ask(ctx, "SELECT pg_promote(true, 60)")
	if err == nil && promoted != "t" {
		err = fmt.Errorf("it was not promoted; the end of its log:\n%s", pg.logTail())
	}
	return err
}

// ask runs a query that yields one value, and returns it as text.
func (pg *Postgres) ask(ctx context.Context, sql string) (string, error) {
	conn, err := pgconn.Connect(ctx, pg.DSN("postgres"))
	if err != nil {
		return "", err
	}
	results, err := conn.Exec(ctx, sql).ReadAll()
	if err := errors.Join(err, conn.Close(ctx)); err != nil {
		return "", err
	}
	if len(results) != 1 || len(results[0].Rows) != 1 {
		return "", fmt.Errorf("%s: not one row", sql)
	}
	return string(results[0].Rows[0][0]), nil
}
