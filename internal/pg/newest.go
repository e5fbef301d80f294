package pg

import (
	"context"
	"errors"
	"fmt"
	"strconv"
	"sync/atomic"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
)

// ErrOlder says that a server was failed over from: it is on an older timeline
// than one that is known.
var ErrOlder = errors.New("the server is on an older timeline than one that is known")

// Newest remembers the newest timeline that is known of a database. A primary
// that was failed over from may come back, and then it takes writes as the new
// one does: target_session_attrs cannot tell them apart. Nil knows of none. Its
// methods may be called from any goroutine.
type Newest struct{ timeline atomic.Uint32 }

// Know takes note of a timeline, and reports whether that is news. An older one
// than before counts, too: an operator may have given up the newer.
func (n *Newest) Know(timeline uint32) (news bool) { return n.timeline.Swap(timeline) != timeline }

// Older reports whether a timeline is older; 0 is that of nobody knows.
func (n *Newest) Older(timeline uint32) bool {
	return n != nil && timeline != 0 && timeline < n.timeline.Load()
}

// Only is cfg for servers that are not older. For others connecting fails with
// ErrOlder, after all hosts were tried. A standby is not asked.
func (n *Newest) Only(cfg *pgx.ConnConfig) *pgx.ConnConfig {
	if n == nil || n.timeline.Load() == 0 {
		return cfg
	}
	c := cfg.Copy()
	c.ValidateConnect = func(ctx context.Context, conn *pgconn.PgConn) error {
		if cfg.ValidateConnect != nil {
			if err := cfg.ValidateConnect(ctx, conn); err != nil {
				return err
			}
		}
		timeline, err := Timeline(ctx, conn)
		if err == nil && n.Older(timeline) {
			err = fmt.Errorf("%w: %d", ErrOlder, timeline)
		}
		return err
	}
	return c
}

// Timeline is the timeline that a server writes to; 0 for a standby, which
// writes none.
func Timeline(ctx context.Context, conn *pgconn.PgConn) (uint32, error) {
	// A name of a WAL file begins with the timeline.
	results, err := conn.Exec(ctx, `SELECT CASE WHEN NOT pg_is_in_recovery()
		THEN substring(pg_walfile_name(pg_current_wal_insert_lsn()), 1, 8) END`).ReadAll()
	if err != nil {
		return 0, fmt.Errorf("read the timeline: %w", err)
	}
	if len(results) != 1 || len(results[0].Rows) != 1 || len(results[0].Rows[0]) != 1 {
		return 0, errors.New("read the timeline: the server answered something else")
	}
	name := results[0].Rows[0][0]
	if name == nil {
		return 0, nil
	}
	timeline, err := strconv.ParseUint(string(name), 16, 32)
	if err != nil {
		return 0, fmt.Errorf("read the timeline: %w", err)
	}
	return uint32(timeline), nil
}
