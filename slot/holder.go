package slot

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
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

	xid string // tells it from the next transaction of the same process
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

// A transaction holds an exclusive lock on its own id, a prepared one without a
// process; who waits for it asks for a shared one. pg_locks shows them to every role and in every database,
// pg_stat_activity does not.
const holderColumns = `
	coalesce(holder.pid, 0) AS "PID", coalesce(p.gid, '') AS "GID",
	coalesce(a.usename::text, p.owner::text, '') AS "User", coalesce(a.datname::text, p.database::text, '') AS "Database",
	coalesce(a.xact_start, p.prepared) AS "Since", coalesce(holder.transactionid::text, '')`

// waitSQL reads what a process waits for.
const waitSQL = `
	SELECT waiter.locktype, ` + holderColumns + `
	FROM pg_locks waiter
	LEFT JOIN pg_locks holder ON holder.locktype = 'transactionid' AND holder.mode = 'ExclusiveLock'
		AND holder.transactionid = waiter.transactionid
	LEFT JOIN pg_stat_activity a ON a.pid = holder.pid
	LEFT JOIN pg_prepared_xacts p ON holder.pid IS NULL AND p.transaction = waiter.transactionid
	WHERE waiter.pid = $1 AND NOT waiter.granted LIMIT 1`

// oldSQL reads the transactions that have written something, the oldest first.
// One that is younger than the margin is no reason for anything.
const oldSQL = `
	SELECT holder.locktype, ` + holderColumns + `
	FROM pg_locks holder
	LEFT JOIN pg_stat_activity a ON a.pid = holder.pid
	LEFT JOIN pg_prepared_xacts p ON holder.pid IS NULL AND p.transaction = holder.transactionid
	WHERE holder.locktype = 'transactionid' AND holder.mode = 'ExclusiveLock'
		AND coalesce(a.xact_start, p.prepared, '-infinity') < clock_timestamp() - make_interval(secs => $1)
	ORDER BY age(holder.transactionid) DESC`

// oldestSQL is a query of the oldest of them as JSON. The margin in seconds is an
// expression.
func oldestSQL(margin string) string {
	return `SELECT row_to_json(holder)::text FROM (` + strings.ReplaceAll(oldSQL, "$1", margin) + ` LIMIT 1) holder`
}

// readWaitedFor reads what a process waits for. Nil is that it is no transaction;
// what is the kind of lock.
func readWaitedFor(ctx context.Context, conn *pgx.Conn, pid uint32) (h *Holder, what string, err error) {
	h, what, err = scanHolder(conn.QueryRow(ctx, waitSQL, int64(pid)))
	switch {
	case errors.Is(err, pgx.ErrNoRows):
		return nil, "", nil
	case err != nil:
		return nil, "", err
	case h.PID == 0 && h.GID == "":
		return nil, what, nil
	}
	return h, what, nil
}

// readHolders reads the transactions that are older than the margin, the oldest
// first.
func readHolders(ctx context.Context, conn *pgx.Conn, margin time.Duration) ([]Holder, error) {
	rows, err := conn.Query(ctx, oldSQL, margin.Seconds())
	if err != nil {
		return nil, err
	}
	all, err := pgx.CollectRows(rows, func(row pgx.CollectableRow) (Holder, error) {
		h, _, err := scanHolder(row)
		return *h, err
	})
	return slices.DeleteFunc(all, func(h Holder) bool { return h.PID == 0 && h.GID == "" }), err
}

func scanHolder(row pgx.Row) (h *Holder, what string, err error) {
	h = &Holder{}
	var since *time.Time
	err = row.Scan(&what, &h.PID, &h.GID, &h.User, &h.Database, &since, &h.xid)
	if since != nil {
		h.Since = *since
	}
	return h, what, err
}
