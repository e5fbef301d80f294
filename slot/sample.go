package slot

import (
	"cmp"
	"context"
	"encoding/json"
	"fmt"
	"strconv"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/stagedoor/walrelay/cdc"
	"github.com/stagedoor/walrelay/internal/pg"
)

// Sample is what one look at the server saw.
type Sample struct {
	At     time.Time // of this process, with its monotonic clock
	WALEnd cdc.LSN   // written by the server so far

	Recovery  bool    // the server is a standby, or was just promoted; it has none of the next two
	Timeline  uint32  // that the server writes to
	InsertLSN cdc.LSN // the end of the WAL that it has in memory

	// FullPages is how many full pages the server has put into WAL, since its
	// statistics were reset; nil before PostgreSQL 14.
	FullPages       *int64
	CheckpointEvery time.Duration // checkpoint_timeout

	Slot    *SlotLag // nil where there is none
	Foreign bool     // it is another program's, or of another database
	// Other is the other slot that the server keeps the most WAL for; nil where
	// there is none.
	Other *OtherSlot

	// Problem is a fault that was seen: a slot that is somebody else's, commits
	// that would wait for us, a publication that would lose rows.
	Problem error
	// Holder is the oldest transaction that has written something, where it has
	// been that for a while and the slot keeps much more WAL than is unconfirmed:
	// PostgreSQL keeps it from where the oldest open transaction began, in any
	// database.
	Holder *Holder
	// Unseen says why the table could not be looked at.
	Unseen error
	// Err says that there was no look; all else is empty but At.
	Err error
}

// SlotLag is how far a slot is behind. The two lags are different things:
// unconfirmed is what the relay has yet to confirm, retained is the WAL on the
// server's disk.
// https://www.postgresql.org/docs/current/view-pg-replication-slots.html
type SlotLag struct {
	Name             string
	Plugin           string
	Database         string // empty for a physical slot
	Active           bool
	ActivePID        int
	WALStatus        string // reserved, extended, unreserved or lost
	ConfirmedFlush   cdc.LSN
	RestartLSN       cdc.LSN // zero when the slot is lost
	UnconfirmedBytes int64
	RetainedBytes    int64
	SafeWALSize      *int64 // bytes until the slot may be lost; nil without a limit

	InactiveSince      time.Time // from PostgreSQL 17 on
	InvalidationReason string    // from PostgreSQL 17 on

	Sender *Sender // nil while nobody streams
	Spill  *Spill  // nil before PostgreSQL 14
}

// Sender is the server's end of the connection that streams.
// https://www.postgresql.org/docs/current/monitoring-stats.html#MONITORING-PG-STAT-REPLICATION-VIEW
type Sender struct {
	Started   time.Time // of its process; zero where the role may not see it
	LastReply time.Time // when the relay sent its last status, by the relay's clock; zero before the first, and where the role may not see it
}

// Spill is what the decoding for a slot put on disk, since the slot was made or
// its statistics were reset. Known from PostgreSQL 14 on.
// https://www.postgresql.org/docs/current/monitoring-stats.html#MONITORING-PG-STAT-REPLICATION-SLOTS-VIEW
type Spill struct {
	Transactions int64 // that did not fit into logical_decoding_work_mem
	Times        int64
	Bytes        int64
}

// OtherSlot is a slot that is not the relay's, of any kind and in any database.
type OtherSlot struct {
	Name          string
	Kind          string // physical or logical
	Database      string // empty for a physical one
	Active        bool
	RestartLSN    cdc.LSN
	RetainedBytes int64
	InactiveSince time.Time // zero while it is active, and before PostgreSQL 17
}

// sampleParameters is how many sampleSQL has without the question's.
const sampleParameters = 6

// sampleSQL is the one statement of a look. But for the table's part it reads
// shared memory and a few rows of the catalogue, so that it is as cheap for a
// large database as for a small one, and waits for no lock that an application
// takes. Columns of later versions are read by name. A name of a WAL file begins
// with the timeline.
//
// The other slot is the one that PostgreSQL keeps WAL for from the earliest
// position on. A relay's own, temporary one is not another: it is a backfill's.
// None is kept for a slot that is lost, which from PostgreSQL 16 on may still tell
// a position.
//
// The oldest transaction is looked for only where the slot keeps much more WAL
// than is unconfirmed: that reads all locks of the server.
func sampleSQL(version int, question string) string {
	spill, spills, pages := `NULL::bigint, NULL::bigint, NULL::bigint`, ``, `NULL::bigint`
	if version >= 140000 {
		spill = `t.spill_txns, t.spill_count, t.spill_bytes`
		spills = `LEFT JOIN pg_stat_replication_slots t ON t.slot_name = s.slot_name::text`
		pages = `(SELECT wal_fpi FROM pg_stat_wal)`
	}
	return `
	WITH slots AS MATERIALIZED (
		SELECT *, CASE WHEN wal_status IS DISTINCT FROM 'lost' THEN restart_lsn END AS kept FROM pg_replication_slots
	)
	SELECT w.recovery, w.wal_end::text, w.insert_end::text, w.timeline, current_setting('synchronous_standby_names'), current_setting('application_name'),
		current_database(), coalesce(s.slot_name, ''), coalesce(s.slot_type, ''), coalesce(s.plugin, ''), coalesce(s.database, ''),
		coalesce(s.active, false), coalesce(s.active_pid, 0), coalesce(s.wal_status, ''),
		s.confirmed_flush_lsn::text, s.kept::text, s.safe_wal_size,
		(to_jsonb(s) ->> 'inactive_since')::timestamptz, coalesce(to_jsonb(s) ->> 'invalidation_reason', ''),
		r.pid IS NOT NULL, r.backend_start, r.reply_time,
		` + spill + `,
		` + pages + `, extract(epoch FROM current_setting('checkpoint_timeout')::interval)::bigint,
		o.slot_name, coalesce(o.slot_type, ''), coalesce(o.database, ''), coalesce(o.active, false), o.kept::text,
		(to_jsonb(o) ->> 'inactive_since')::timestamptz,
		(` + publicationSQL(version) + `),
		CASE WHEN pg_wal_lsn_diff(s.confirmed_flush_lsn, s.kept) > $5::bigint THEN (` + oldSQL("$6::float8") + ` LIMIT 1) END,
		(` + cmp.Or(question, `SELECT NULL::text`) + `)
	FROM (
		SELECT r.recovery,
			CASE WHEN r.recovery THEN pg_last_wal_replay_lsn() ELSE pg_current_wal_lsn() END AS wal_end,
			CASE WHEN NOT r.recovery THEN pg_current_wal_insert_lsn() END AS insert_end,
			CASE WHEN NOT r.recovery THEN substring(pg_walfile_name(pg_current_wal_insert_lsn()), 1, 8) END AS timeline
		FROM (SELECT pg_is_in_recovery() AS recovery) r
	) w
	LEFT JOIN slots s ON s.slot_name = $4
	LEFT JOIN pg_stat_replication r ON r.pid = s.active_pid
	` + spills + `
	LEFT JOIN LATERAL (
		SELECT * FROM slots WHERE slot_name <> $4 AND kept IS NOT NULL AND NOT starts_with(slot_name::text, '` + backfillPrefix + `')
		ORDER BY kept LIMIT 1
	) o ON true`
}

// holderLimits say which transaction is the reason why WAL is kept.
type holderLimits struct {
	bytes int64         // that the slot keeps beside what is unconfirmed
	age   time.Duration // of the transaction, at least, where that can be seen
	lasts time.Duration // for which looks have seen it as the oldest, at least
}

// readSample reads the slot, and whether commits would wait for us. The question
// is another query of one text or none, with parameters behind ours, and the answer
// is what it gave. What it sees was committed before InsertLSN: a statement takes its
// snapshot first.
func (c Config) readSample(ctx context.Context, conn *pgx.Conn, limits holderLimits, question string, args ...any) (sample Sample, answer string, err error) {
	sample.At = time.Now()
	name := c.Slot
	var (
		slot                                 SlotLag
		end, insert, confirmed, restart      lsn
		timeline                             *string
		names, application                   string
		database, kind, plugin, slotDatabase string
		inactive, started, reply             *time.Time
		sends                                bool
		spilled                              [3]*int64
		round                                int64 // seconds
		otherName                            *string
		other                                OtherSlot
		otherRestart                         lsn
		otherInactive                        *time.Time
		publicationState                     string
		answered                             *string
	)
	args = append([]any{c.Publication, c.Table.Schema, c.Table.Name, name, limits.bytes, limits.age.Seconds()}, args...)
	err = conn.QueryRow(ctx, sampleSQL(pg.ServerVersion(conn.PgConn()), question), args...).Scan(
		&sample.Recovery, &end, &insert, &timeline, &names, &application,
		&database, &slot.Name, &kind, &plugin, &slotDatabase,
		&slot.Active, &slot.ActivePID, &slot.WALStatus,
		&confirmed, &restart, &slot.SafeWALSize,
		&inactive, &slot.InvalidationReason,
		&sends, &started, &reply,
		&spilled[0], &spilled[1], &spilled[2],
		&sample.FullPages, &round,
		&otherName, &other.Kind, &other.Database, &other.Active, &otherRestart, &otherInactive,
		&publicationState, &sample.Holder, &answered)
	if err != nil {
		return sample, "", fmt.Errorf("read slot %q: %w", name, err)
	}
	if answered != nil {
		answer = *answered
	}
	sample.CheckpointEvery = time.Duration(round) * time.Second
	sample.WALEnd, sample.InsertLSN = cdc.LSN(end), cdc.LSN(insert)
	if timeline != nil {
		n, err := strconv.ParseUint(*timeline, 16, 32)
		if err != nil {
			return sample, "", fmt.Errorf("read the timeline: %w", err)
		}
		sample.Timeline = uint32(n)
	}
	if otherName != nil {
		other.Name, other.RestartLSN = *otherName, cdc.LSN(otherRestart)
		other.RetainedBytes = behind(sample.WALEnd, other.RestartLSN)
		other.InactiveSince = timeOrZero(otherInactive)
		sample.Other = &other
	}
	var problems []error
	if !sample.Recovery {
		problems = append(problems, synchronousFault(names, application))
	}
	if slot.Name != "" {
		err := foreign(slot.Name, kind, plugin, slotDatabase, database)
		sample.Foreign = err != nil
		problems = append(problems, err)
		slot.Plugin, slot.Database = plugin, slotDatabase
		slot.InactiveSince = timeOrZero(inactive)
		if sends {
			slot.Sender = &Sender{Started: timeOrZero(started), LastReply: timeOrZero(reply)}
		}
		if spilled[0] != nil && spilled[1] != nil && spilled[2] != nil {
			slot.Spill = &Spill{Transactions: *spilled[0], Times: *spilled[1], Bytes: *spilled[2]}
		}
		slot.ConfirmedFlush, slot.RestartLSN = cdc.LSN(confirmed), cdc.LSN(restart)
		slot.UnconfirmedBytes = behind(sample.WALEnd, slot.ConfirmedFlush)
		slot.RetainedBytes = behind(sample.WALEnd, slot.RestartLSN)
		sample.Slot = &slot
	}
	var published publication
	if err := json.Unmarshal([]byte(publicationState), &published); err != nil {
		return sample, "", fmt.Errorf("read the publication %q: %w", c.Publication, err)
	}
	problems = append(problems, published.verify(c))
	sample.Problem = cmp.Or(problems...)
	return sample, answer, nil
}

// behind is the distance from a position to the end: 0 for no position, and for
// one that was reported ahead of what is written.
func behind(end, position cdc.LSN) int64 {
	if position == 0 || position > end {
		return 0
	}
	return int64(end - position)
}

// timeOrZero is a time, zero for NULL.
func timeOrZero(t *time.Time) time.Time {
	if t == nil {
		return time.Time{}
	}
	return *t
}
