// Package web is the relay's HTTP server: a status page, liveness, health and
// metrics. It only
// reads what others keep in memory, so that it answers while PostgreSQL and
// Redis are away, and it listens before anything slow starts.
//
// # Endpoints
//
// All take GET and HEAD; answers are not to be cached. A server on loopback answers
// to an address or localhost as Host, and with 421 to any other name.
//
// / is the status page, for people: HTML, CSS and JavaScript as they are in the
// directory page, with uPlot for the charts. It loads nothing from elsewhere, and
// its Content-Security-Policy sees to that.
//
// /events is what the page listens to: server-sent events, for at most 32 at a
// time; 503 for more. A connection ends after a quarter of an hour, and when the
// server stops; a browser connects again. Its events may change from one release
// to the next: programs ask /healthz and /metrics.
//
//	hour    the samples of the last hour, one every five seconds, by column; first of all
//	view    every second: the document of /healthz, with the stages and the last transitions
//	sample  every five seconds: one more sample
//
// /livez is for whoever restarts the process. 200 {"status":"ok"} while every
// loop of the program turned within 30 s; 503 {"status":"stuck","detail":"…"}
// with the names of the loops that did not. A database that is away is no
// reason to be restarted and does not show here.
//
// /readyz is for whoever replaces one instance by another. 200 {"ready":true,
// "role":"…"} while the relay streams, polls or backfills, and while it stands by
// for another one and reaches PostgreSQL and Redis, so that it could take over;
// else, such as while it starts or its line has stopped until somebody acts, 503
// with the reasons of /healthz. How far behind it is does not count, nor a Redis
// that is away while it is at work: another instance would fare no better.
//
// /healthz is for whoever alerts or takes an instance out of service. 200 for
// the levels ok and warn, 503 for critical, with the document of package health:
//
//	status                          ok, warn or critical
//	reasons                         sentences, the most important first
//	role                            starting, backfill, streaming, standby or polling
//	ready                           as in /readyz
//	cause                           a sentence: why PostgreSQL keeps WAL, or rows wait; null when nothing holds it
//	runway_seconds                  until max_slot_wal_keep_size or --disk-budget is used up, at the rate of the last
//	                                two minutes, for full pages as in the last round of checkpoints; null when it
//	                                is not, or not known yet
//	slot                            null where there is none, else
//	  name, active                  as in pg_replication_slots
//	  wal_status                    reserved, extended, unreserved or lost
//	  confirmed_flush_lsn           LSN, such as "0/16B3748"
//	  restart_lsn                   LSN
//	  unconfirmed_bytes             from confirmed_flush_lsn to the end of WAL
//	  retained_bytes                from restart_lsn to the end of WAL
//	  safe_wal_size                 bytes; null without max_slot_wal_keep_size
//	  inactive_since                time; null while it is active, and before PostgreSQL 17
//	  invalidation_reason           null while it is valid, and before PostgreSQL 17
//	  active_pid                    of the process of PostgreSQL that streams
//	  sender                        that process: started; last_reply, when its client sent its last status; null for none
//	  spill                         transactions, times, bytes that decoding put on disk; null before PostgreSQL 14
//	oldest_unpublished_age_seconds  0 when every row is published
//	published_total                 rows since the process started
//	at, started                     when all this was so, and since when the process runs
//	rates                           bytes per second over the last two minutes: written, confirmed, and by how much the
//	                                lags grow, below zero where they shrink: unconfirmed, retained
//	other_slot                      that keeps the most WAL beside ours: name, type, database, active, restart_lsn,
//	                                retained_bytes, inactive_since
//	connection                      the relay's own replication connection: since, last_receive, last_status_sent; null
//	                                while it does not stream
//	connections_total               that streamed, since the process started
//	postgresql, redis               seen_at, when it last answered (PostgreSQL: the monitor); away_since and last_error,
//	                                null while it answers
//	witness                         the oldest rows that are not marked: looked_at, unmarked_rows, and until_lsn, when
//	                                they are looked at again; null where the table has nothing to testify
//	stream                          as Redis last told of it; null where it has not, or the Redis user may not look, else
//	  name                          its key
//	  length                        entries that it holds
//	  last_id                       of the last entry it ever got; null before the first
//	  groups                        null where they are not known, else its consumer groups by name, the 100 that are
//	                                furthest behind where there are more
//	    name
//	    consumers                   number of them
//	    pending                     entries delivered and not acknowledged
//	    lag                         entries not delivered yet; null where Redis does not know: before 7.0, and after a
//	                                deletion of entries that were not delivered
//	    last_delivered_id           "0-0" before the first
//	    entries_read                entries delivered so far; null where Redis does not know
//	  group_count                   all groups; null where they are not known
//	  groups_error                  why they are not known; null where they are
//
// What is not known is null, never zero.
//
// /metrics is for Prometheus: README.md documents each metric. A metric whose value
// is not known is absent, never zero.
package web
