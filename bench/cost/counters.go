package main

import (
	"context"
	"encoding/json"
	"fmt"

	"github.com/jackc/pgx/v5"
)

// quantity is something of the primary that is counted.
type quantity int

// The quantities, in the order of the tables.
const (
	committed quantity = iota
	rolledBack
	inserted
	updated
	hotUpdated
	deleted
	dead
	returned
	fetched
	indexScans
	indexRead
	tableBytes
	indexBytes
	walBytes
	blocksHit
	blocksRead
	cpu

	quantities
)

// unit is how a number is printed.
type unit int

const (
	inPieces unit = iota
	inBytes
	inMilliseconds
)

// described says what a quantity is, for people and for programs.
func (q quantity) described() (name, key string, u unit) {
	switch q {
	case committed:
		return "transactions committed", "transactions_committed", inPieces
	case rolledBack:
		return "transactions rolled back", "transactions_rolled_back", inPieces
	case inserted:
		return "tuples inserted", "tuples_inserted", inPieces
	case updated:
		return "tuples updated", "tuples_updated", inPieces
	case hotUpdated:
		return "HOT updates", "tuples_hot_updated", inPieces
	case deleted:
		return "tuples deleted", "tuples_deleted", inPieces
	case dead:
		return "dead tuples left", "dead_tuples", inPieces
	case returned:
		return "tuples returned", "tuples_returned", inPieces
	case fetched:
		return "tuples fetched", "tuples_fetched", inPieces
	case indexScans:
		return "index scans", "index_scans", inPieces
	case indexRead:
		return "index entries read", "index_entries_read", inPieces
	case tableBytes:
		return "table growth", "table_bytes", inBytes
	case indexBytes:
		return "index growth", "index_bytes", inBytes
	case walBytes:
		return "WAL", "wal_bytes", inBytes
	case blocksHit:
		return "blocks found in cache", "blocks_hit", inPieces
	case blocksRead:
		return "blocks read", "blocks_read", inPieces
	case cpu:
		return "processor time of PostgreSQL", "cpu_milliseconds", inMilliseconds
	}
	panic(fmt.Sprintf("no quantity %d", q))
}

// counters holds a value of each quantity.
type counters [quantities]int64

// minus is what was added since earlier.
func (c counters) minus(earlier counters) counters {
	for q := range c {
		c[q] -= earlier[q]
	}
	return c
}

// MarshalJSON implements json.Marshaler.
func (c counters) MarshalJSON() ([]byte, error) {
	byKey := map[string]int64{}
	for q, n := range c {
		_, key, _ := quantity(q).described()
		byKey[key] = n
	}
	return json.Marshal(byKey)
}

// readDatabase reads what can be read from another database, so that reading it
// counts nowhere.
// https://www.postgresql.org/docs/current/monitoring-stats.html#MONITORING-PG-STAT-DATABASE-VIEW
func (c *counters) readDatabase(ctx context.Context, conn *pgx.Conn, database string) error {
	return conn.QueryRow(ctx, `
		SELECT xact_commit, xact_rollback, tup_returned, tup_fetched, blks_hit, blks_read,
		       pg_wal_lsn_diff(pg_current_wal_insert_lsn(), '0/0')::bigint
		FROM pg_stat_database WHERE datname = $1`, database).
		Scan(&c[committed], &c[rolledBack], &c[returned], &c[fetched], &c[blocksHit], &c[blocksRead], &c[walBytes])
}

// readTable reads what can only be read from the table's own database.
// https://www.postgresql.org/docs/current/monitoring-stats.html#MONITORING-PG-STAT-ALL-TABLES-VIEW
func (c *counters) readTable(ctx context.Context, conn *pgx.Conn) error {
	return conn.QueryRow(ctx, `
		SELECT n_tup_ins, n_tup_upd, n_tup_hot_upd, n_tup_del, n_dead_tup, pg_table_size(relid), pg_indexes_size(relid),
		       (SELECT sum(idx_scan)::bigint FROM pg_stat_user_indexes i WHERE i.relid = t.relid),
		       (SELECT sum(idx_tup_read)::bigint FROM pg_stat_user_indexes i WHERE i.relid = t.relid)
		FROM pg_stat_user_tables t WHERE schemaname = 'public' AND relname = 'outbox'`).
		Scan(&c[inserted], &c[updated], &c[hotUpdated], &c[deleted], &c[dead], &c[tableBytes], &c[indexBytes],
			&c[indexScans], &c[indexRead])
}
