package web

import (
	"github.com/stagedoor/walrelay/cdc"
	"github.com/stagedoor/walrelay/internal/health"
)

// levels say how the relay is doing.
func levels() []family {
	return []family{
		gauge("health_status", "1 for the level of health that the relay is at, 0 for the others.",
			func(s snapshot, send emit) { one(send, health.Statuses(), s.Status) }, "status"),
		gauge("ready", "1 while it streams, polls or backfills, or stands by for a relay that does and could take over.",
			func(s snapshot, send emit) { send(oneIf(s.Ready)) }),
		gauge("role", "1 for what the relay does at the moment, 0 for the others.",
			func(s snapshot, send emit) { one(send, health.Roles(), s.Role) }, "role"),
		gauge("cause", "1 for why PostgreSQL keeps WAL for longer than usual, 0 for all else that could be why.",
			func(s snapshot, send emit) { one(send, health.CauseKinds(), s.Causes...) }, "cause"),
		gauge("runway_seconds", "Time until max_slot_wal_keep_size or --disk-budget is used up at the present rate; absent while it is not.",
			func(s snapshot, send emit) { known(send, s.Runway) }),
	}
}

// rows count rows on their way.
func rows() []family {
	return []family{
		total("published_rows_total", "Rows appended to a stream.", func(s Stats) uint64 { return s.Published }),
		total("dead_rows_total", "Rows that could not be published and were put on a dead stream, as an operator asked.",
			func(s Stats) uint64 { return s.Dead }),
		total("skipped_rows_total", "Rows received, found on the stream already and not appended again.",
			func(s Stats) uint64 { return s.Skipped }),
		total("marked_rows_total", "Rows marked as published in the table.", func(s Stats) uint64 { return s.Marked }),
		gauge("marks_waiting", "Rows published and not marked in the table yet.",
			func(s snapshot, send emit) { send(float64(s.stats.MarksWaiting)) }),
		total("purged_rows_total", "Published rows deleted from the table when they were old enough.",
			func(s Stats) uint64 { return s.Purged }),
		gauge("oldest_unpublished_age_seconds", "Age of the oldest row that is not published, 0 when all are; absent while it is not known.",
			func(s snapshot, send emit) { known(send, s.OldestAge) }),
		counter("retries_total", "Tries that failed and were made again, by what was tried.",
			func(s snapshot, send emit) {
				send(float64(s.stats.AppendRetries), "append")
				send(float64(s.stats.StampRetries), "stamp")
				send(float64(s.stats.Reconnects), "reconnect")
			}, "reason"),
		counter("heals_total", "Backfills begun because rows may have been missing, by what was wrong.",
			func(s snapshot, send emit) {
				for _, kind := range cdc.Kinds {
					send(float64(s.stats.Heals[kind]), string(kind))
				}
			}, "reason"),
		total("lost_entries_total", "Entries on a stream whose rows were lost with a database.",
			func(s Stats) uint64 { return s.LostEntries }),
		gauge("witness_unmarked_rows", "Rows that were not marked when the table was last held against the slot, of the oldest ones; absent while it is not.",
			func(s snapshot, send emit) {
				if s.Witness != nil && s.Witness.LookedAt != nil {
					send(float64(s.Witness.Unmarked))
				}
			}),
		gauge("witness_last_look_timestamp_seconds", "When the table was last held against the slot, since 1970.",
			func(s snapshot, send emit) {
				if s.Witness != nil {
					moment(send, s.Witness.LookedAt)
				}
			}),
	}
}

// connections say who answers.
func connections() []family {
	up := func(send emit, p health.Peer) {
		if p.SeenAt != nil || p.AwaySince != nil {
			send(oneIf(p.AwaySince == nil))
		}
	}
	streaming := func(read func(*health.Connection, emit)) func(snapshot, emit) {
		return func(s snapshot, send emit) {
			if s.Connection != nil {
				read(s.Connection, send)
			}
		}
	}
	return []family{
		gauge("postgres_up", "1 while PostgreSQL answers the monitor, 0 while it does not; absent before it was asked.",
			func(s snapshot, send emit) { up(send, s.Database) }),
		gauge("postgres_last_seen_timestamp_seconds", "When PostgreSQL last answered the monitor, since 1970: the slot is as it was then.",
			func(s snapshot, send emit) { moment(send, s.Database.SeenAt) }),
		gauge("redis_up", "1 while Redis does what it is asked, 0 while it does not; absent before it was asked.",
			func(s snapshot, send emit) { up(send, s.Redis) }),
		gauge("redis_last_seen_timestamp_seconds", "When Redis last did what it was asked, since 1970.",
			func(s snapshot, send emit) { moment(send, s.Redis.SeenAt) }),
		gauge("streaming_up", "1 while this relay has a replication connection to the slot, 0 while it has none; absent for a poller.",
			func(s snapshot, send emit) {
				if s.Role != health.RolePolling {
					send(oneIf(s.Connection != nil))
				}
			}),
		gauge("streaming_last_receive_timestamp_seconds", "When the last message came over the replication connection, since 1970; absent while there is none.",
			streaming(func(c *health.Connection, send emit) { moment(send, c.LastReceive) })),
		gauge("streaming_last_status_timestamp_seconds", "When PostgreSQL was last told how far the relay has come, since 1970; absent while there is no replication connection.",
			streaming(func(c *health.Connection, send emit) { moment(send, c.LastStatus) })),
	}
}
