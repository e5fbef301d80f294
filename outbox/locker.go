package outbox

import (
	"context"
	"fmt"
	"strconv"
	"strings"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/stagedoor/walrelay/cdc"
	"github.com/stagedoor/walrelay/internal/pg"
)

// lockSQL reads what a row says of its locker, and tries the lock that a mark
// takes. Where that succeeds nobody holds the row.
const lockSQL = `
WITH probe AS MATERIALIZED (
  SELECT t.{id} FROM {table} t WHERE t.{id} = $1::{type} {lock} OF t SKIP LOCKED
)
SELECT t.xmax::text, t.tableoid, EXISTS (SELECT FROM probe) FROM {table} t WHERE t.{id} = $1::{type}`

// holderSQL finds the sessions and prepared transactions that run one of these
// transactions and have locked something in this table. The second condition
// tells them from those that only have the number of a multixact.
const holderSQL = `
SELECT DISTINCT coalesce(l.pid, 0), coalesce(a.usename::text, ''), coalesce(a.state, ''), a.xact_start, coalesce(p.gid, '')
FROM pg_locks l
LEFT JOIN pg_stat_activity a ON a.pid = l.pid
LEFT JOIN pg_prepared_xacts p ON p.transaction = l.transactionid
WHERE l.locktype = 'transactionid' AND l.mode = 'ExclusiveLock' AND l.granted
  AND l.transactionid::text = ANY ($1::text[])
  AND EXISTS (SELECT FROM pg_locks r
    WHERE r.locktype = 'relation' AND r.relation = $2::oid AND r.virtualtransaction = l.virtualtransaction)
ORDER BY 4, 1`

// tableSQL finds those that hold a lock on the table or one of its partitions.
const tableSQL = `
SELECT DISTINCT coalesce(l.pid, 0), coalesce(a.usename::text, ''), coalesce(a.state, ''), a.xact_start, coalesce(p.gid, '')
FROM pg_locks l
LEFT JOIN pg_stat_activity a ON a.pid = l.pid
LEFT JOIN pg_prepared_xacts p ON l.virtualtransaction = '-1/' || p.transaction::text
WHERE l.locktype = 'relation' AND l.granted
  AND l.database = (SELECT oid FROM pg_database WHERE datname = current_database())
  AND l.relation IN (SELECT $1::oid UNION ALL SELECT relid FROM pg_partition_tree($1::oid))
  AND l.mode = ANY ($2::text[])
ORDER BY 4, 1`

// holder is a session or a prepared transaction that holds a lock.
type holder struct {
	pid      int // 0 for a prepared transaction
	user     string
	state    string // "" where the role may not see it
	since    *time.Time
	prepared string // its name
}

func (h holder) String() string {
	if h.prepared != "" {
		return "prepared transaction " + cdc.QuoteLiteral(h.prepared)
	}
	s := fmt.Sprintf("pid %d", h.pid)
	if h.user != "" {
		s += " of user " + h.user
	}
	if h.state != "" {
		s += ", " + h.state
	}
	if h.since != nil {
		s += ", transaction open since " + h.since.UTC().Format(time.RFC3339)
	}
	return s
}

// end is the SQL that makes it let go.
func (h holder) end() string {
	if h.prepared != "" {
		return fmt.Sprintf("COMMIT PREPARED %s or ROLLBACK PREPARED %[1]s", cdc.QuoteLiteral(h.prepared))
	}
	return fmt.Sprintf("SELECT pg_terminate_backend(%d)", h.pid)
}

// Locker says who holds a row that Mark found locked, and how to end it. The
// text is empty if nobody does (any more); pid is 0 where it is not one session.
func (t *Table) Locker(ctx context.Context, id string) (text string, pid int, err error) {
	t.markerMu.Lock()
	defer t.markerMu.Unlock()
	ctx, cancel := context.WithTimeout(ctx, markTimeout)
	defer cancel()
	if err := t.openMarker(ctx); err != nil {
		return "", 0, err
	}
	text, pid, err = t.locker(ctx, id)
	if err != nil {
		t.closeMarker()
	}
	return text, pid, err
}

func (t *Table) locker(ctx context.Context, id string) (string, int, error) {
	conn := t.marker.conn
	lock := "FOR NO KEY UPDATE"
	if t.Marks() == MarkDelete {
		lock = "FOR UPDATE"
	}
	var xmax, oid string
	held := false
	sql := strings.Replace(t.fill(lockSQL, t.marker.idType), "{lock}", lock, 1)
	err := rows(ctx, conn, sql, [][]byte{[]byte(id)}, func(row [][]byte) error {
		xmax, oid, held = string(row[0]), string(row[1]), string(row[2]) == "f"
		return nil
	})
	if pg.Code(err) == "55P03" {
		return t.tableLocker(ctx)
	}
	if err != nil {
		return "", 0, err
	}
	if !held {
		// Some locks of a table keep rows from being changed, and let them be locked.
		return t.tableLocker(ctx)
	}
	what := fmt.Sprintf("the row with id %s of %s is locked by ", id, t.table)
	found, err := holders(ctx, conn, holderSQL, []string{xmax}, oid)
	if err == nil && len(found) == 0 {
		// Several lockers: xmax is the number of their group.
		var xids []string
		if xids, err = members(ctx, conn, xmax); err == nil {
			found, err = holders(ctx, conn, holderSQL, xids, oid)
		}
	}
	if err != nil {
		return "", 0, err
	}
	if len(found) > 0 {
		return name(what, found)
	}
	// A savepoint that was released has no lock on its own number any more.
	found, err = holders(ctx, conn, tableSQL, oid, []string{"RowShareLock", "RowExclusiveLock"})
	if err != nil || len(found) == 0 {
		return what + "a transaction that is not in pg_locks", 0, err
	}
	return name(what+"one of: ", found)
}

// tableLocker names who keeps the relay from the table as a whole.
func (t *Table) tableLocker(ctx context.Context) (string, int, error) {
	conn := t.marker.conn
	l, err := t.read(ctx, conn)
	if err != nil {
		return "", 0, err
	}
	found, err := holders(ctx, conn, tableSQL, strconv.FormatUint(uint64(l.oid), 10),
		[]string{"ShareLock", "ShareRowExclusiveLock", "ExclusiveLock", "AccessExclusiveLock"})
	if err != nil || len(found) == 0 {
		return "", 0, err
	}
	return name(fmt.Sprintf("the table %s is locked by ", t.table), found)
}

// name puts lockers into a sentence.
func name(what string, found []holder) (string, int, error) {
	who := make([]string, len(found))
	end := make([]string, len(found))
	for i, h := range found {
		who[i], end[i] = h.String(), h.end()
	}
	pid := 0
	if len(found) == 1 {
		pid = found[0].pid
	}
	return what + strings.Join(who, "; ") + "; to end it: " + strings.Join(end, "; "), pid, nil
}

func holders(ctx context.Context, conn *pgx.Conn, sql string, args ...any) ([]holder, error) {
	found, err := conn.Query(ctx, sql, args...)
	if err != nil {
		return nil, err
	}
	return pgx.CollectRows(found, func(row pgx.CollectableRow) (h holder, err error) {
		err = row.Scan(&h.pid, &h.user, &h.state, &h.since, &h.prepared)
		return h, err
	})
}

// members are the transactions behind a multixact. There are none where the
// number is not that of one, which the server reports as an error.
func members(ctx context.Context, conn *pgx.Conn, multixact string) ([]string, error) {
	var xids []string
	err := rows(ctx, conn, "SELECT xid::text FROM pg_get_multixact_members($1::xid)", [][]byte{[]byte(multixact)},
		func(row [][]byte) error {
			xids = append(xids, string(row[0]))
			return nil
		})
	if pg.Code(err) != "" {
		return nil, nil
	}
	return xids, err
}
