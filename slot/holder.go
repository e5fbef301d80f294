package slot

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/stagedoor/walrelay/cdc"
)

// Holder is an open transaction that others wait for: a slot that is being
// created, or the WAL that a slot keeps. It can be of any database.
type Holder struct {
	PID      int    // 0 for a prepared transaction
	GID      string // of a prepared transaction
	User     string
	Database string
	Since    time.Time // zero where the role may not see it
	XID      string    // tells it from the next transaction of the same process
}

// String says whose transaction it is.
func (h Holder) String() string {
	what := fmt.Sprintf("the transaction of PID %d", h.PID)
	if h.PID == 0 {
		what = fmt.Sprintf("the prepared transaction %q", h.GID)
	}
	since := "open since a time that only a member of pg_read_all_stats sees"
	if !h.Since.IsZero() {
		since = "open since " + h.Since.UTC().Format("2006-01-02 15:04:05 MST")
	}
	return fmt.Sprintf("%s (user %s, database %s, %s)", what, cdc.QuoteIdent(h.User), cdc.QuoteIdent(h.Database), since)
}

// Command is the SQL that ends the transaction.
func (h Holder) Command() string {
	if h.PID == 0 {
		gid := cdc.QuoteLiteral(h.GID)
		return fmt.Sprintf("in database %s: COMMIT PREPARED %s; or ROLLBACK PREPARED %s;", cdc.QuoteIdent(h.Database), gid, gid)
	}
	return fmt.Sprintf("SELECT pg_terminate_backend(%d);", h.PID)
}

// lasting remembers since which look a transaction is the oldest. On a busy server
// there is an oldest one at every look, and each time it is another: whoever ends
// that ends somebody's work, and no WAL is released sooner. Since when it is open a
// role may not see, and does not say that it had written all that time.
type lasting struct {
	xid   string
	since time.Time // of the look
}

// step takes the oldest transaction of a look, and is for how long it is known to
// be the oldest. A look that did not ask is left out: an id does not come again.
func (l *lasting) step(h *Holder, at time.Time) time.Duration {
	if l.xid != h.XID {
		l.xid, l.since = h.XID, at
	}
	return at.Sub(l.since)
}

// A transaction holds an exclusive lock on its own id, a prepared one without a
// process; who waits for it asks for a shared one. pg_locks shows them to every role and in every database,
// pg_stat_activity does not.
const (
	holderSQL = `json_build_object('PID', coalesce(holder.pid, 0), 'GID', coalesce(p.gid, ''),
		'User', coalesce(a.usename::text, p.owner::text, ''), 'Database', coalesce(a.datname::text, p.database::text, ''),
		'Since', coalesce(a.xact_start, p.prepared), 'XID', holder.transactionid::text)`
	isHolder = `(holder.pid IS NOT NULL OR p.gid IS NOT NULL)`
)

// waitSQL reads what a process waits for.
const waitSQL = `
	SELECT waiter.locktype, CASE WHEN ` + isHolder + ` THEN ` + holderSQL + ` END
	FROM pg_locks waiter
	LEFT JOIN pg_locks holder ON holder.locktype = 'transactionid' AND holder.mode = 'ExclusiveLock'
		AND holder.transactionid = waiter.transactionid
	LEFT JOIN pg_stat_activity a ON a.pid = holder.pid
	LEFT JOIN pg_prepared_xacts p ON holder.pid IS NULL AND p.transaction = waiter.transactionid
	WHERE waiter.pid = $1 AND NOT waiter.granted LIMIT 1`

// oldSQL reads the transactions that have written something, the oldest first,
// without those that are known to be younger than a margin in seconds, which is
// an expression.
func oldSQL(margin string) string {
	return `
	SELECT ` + holderSQL + `
	FROM pg_locks holder
	LEFT JOIN pg_stat_activity a ON a.pid = holder.pid
	LEFT JOIN pg_prepared_xacts p ON holder.pid IS NULL AND p.transaction = holder.transactionid
	WHERE holder.locktype = 'transactionid' AND holder.mode = 'ExclusiveLock' AND ` + isHolder + `
		AND coalesce(a.xact_start, p.prepared, '-infinity') <= clock_timestamp() - make_interval(secs => ` + margin + `)
	ORDER BY age(holder.transactionid) DESC`
}

// readWaitedFor reads what a process waits for. Nil is that it is no transaction;
// what is the kind of lock.
func readWaitedFor(ctx context.Context, conn *pgx.Conn, pid uint32) (h *Holder, what string, err error) {
	err = conn.QueryRow(ctx, waitSQL, int64(pid)).Scan(&what, &h)
	if errors.Is(err, pgx.ErrNoRows) {
		return nil, "", nil
	}
	return h, what, err
}

// readHolders reads the transactions that have written something, the oldest
// first, without those that are known to be younger than the margin.
func readHolders(ctx context.Context, conn *pgx.Conn, margin time.Duration) ([]Holder, error) {
	rows, err := conn.Query(ctx, oldSQL("$1::float8"), margin.Seconds())
	if err != nil {
		return nil, err
	}
	return pgx.CollectRows(rows, pgx.RowTo[Holder])
}
