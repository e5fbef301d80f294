// Package health decides how the relay is doing. It is pure: what is known
// comes in as an Input, with the time, and a Document comes out. A Machine keeps
// what a single input cannot tell, and a Journal says what of it to log. It opens
// nothing, waits for nothing and has no clock, so that the answer is there
// whatever is away, and every rule can be tested as a line of a table.
//
// # Levels
//
// ok and warn are answered with 200, critical with 503.
//
//	what is known                                   level
//	a problem that stops the line                   critical at once
//	wal_status lost or unreserved                   critical at once
//	PostgreSQL refuses the marks                    critical at once
//	age of the oldest unpublished row >= threshold  warn, critical
//	unconfirmed or retained bytes >= threshold      warn, critical
//	runway <= threshold                             warn; critical when it has been so for a minute,
//	                                                or for a tenth of what is left
//	Redis, streaming or the monitor's connection    warn at once; critical when away for the
//	  is away                                       age threshold, or age or lag passed theirs
//	starting                                        as if streaming were away
//	standby, another relay is active                ok
//	standby, no other relay is active               as if streaming were away
//	no relay at work, seen from outside             as if streaming were away
//	backfill                                        ok
//	a backfill that waits for another transaction   warn
//	a row that stays locked, so not marked          warn
//	wal_status extended                             warn
//	what holds WAL back                             no level of its own: the bytes have one
//	consumer groups that are behind                 no level: entries that are on the stream are delivered
//
// A threshold is passed when it is reached, and its level is left when the value
// is below four fifths of it, so that one that swings around it does not ring
// each time. While the table cannot be looked at, the level of the age stays. Age
// and lag are about the system, not about this process: they count in every role.
// A backfill does not stream,
// which is no fault of it, so only a failed connection counts as away there.
// How a relay is set up colours nothing.
//
// # Ready
//
// A relay is ready that is at work: it streams, polls or backfills, with its
// connection up and its line not stopped. So is one that stands by for another and
// could take over, since it reaches PostgreSQL and Redis. The level is no part of
// it: who replaces one instance by another gains nothing while rows are late.
//
// # Cause
//
// The cause is a sentence that says why PostgreSQL keeps WAL, or nothing where
// none is kept for longer than usual. All of these that hold, in every role:
//
//	the line has stopped until somebody acts
//	Redis is unreachable
//	an open or prepared transaction, where it holds more than what is unconfirmed
//	no relay is connected, seen from outside or beside a poller
//
// Where none does, the first of these:
//
//	no relay is connected, or the one that is does not stream
//	a row is locked, so that it is not marked
//	the slot waits for a transaction in order to be created
//	an open or prepared transaction
//	a backfill
//	PostgreSQL sends nothing over the replication connection, where age or lag has a level
//	the relay is slower than the writers, where age or lag has a level: both rates
//
// A slot that is lost keeps no WAL: only a line that has stopped is named then.
// Another slot that keeps at least 64 MiB and twice as much as ours is named
// whatever ours does.
//
// # Runway
//
// The budget is what PostgreSQL may write before it removes WAL that the slot
// needs (safe_wal_size), and what all slots may keep by the operator's word. The
// runway is how long it lasts at the rate of the last two minutes, but for the
// full pages that PostgreSQL writes after a checkpoint: those are taken to come as
// in the last round of checkpoints (from 14 on, where it tells how many they were). It
// is nothing where what is kept does not grow, and while that is not known. While
// nothing is confirmed, for a known reason, all that is written grows, and only
// what was seen since then counts: a relay that works has rows marked, and so WAL
// written. Rates are those of one server that goes forward: they begin anew after
// a failover, a restore, or half a minute without a sample.
//
// A Redis that is restarted beside a small budget makes the runway short for a
// moment. That nobody should be woken for, unless there is no time to wait: with an
// hour left a minute is, with three minutes left eighteen seconds are, and with
// none left nothing is.
//
// # Reasons
//
// A reason is a sentence for somebody who was woken up. The most important
// comes first: by level, then cause before consequence. A level of ok can have
// reasons too, such as the progress of a backfill. Credentials that a driver's
// error text carries are taken out of every reason, see [Redact].
package health
