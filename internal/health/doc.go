// Package health decides how the relay is doing. It is pure: what is known
// comes in as an Input, with the time, and a Document comes out. It opens
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
//	age of the oldest unpublished row >= threshold  critical
//	unconfirmed or retained bytes >= threshold      critical
//	Redis, streaming or the monitor's connection    warn at once; critical when away for the
//	  is away                                       age threshold, or age or lag passed theirs
//	starting                                        as if streaming were away
//	standby, another relay is active                ok
//	standby, no other relay is active               as if streaming were away
//	backfill                                        ok
//	a backfill that waits for another transaction   warn
//	a row that stays locked, so not marked          warn
//	wal_status extended                             warn
//	what holds WAL back                             no level of its own: the bytes have one
//
// A threshold is passed when it is reached. Age and lag are about the system,
// not about this process: they count in every role. A backfill does not stream,
// which is no fault of it, so only a failed connection counts as away there.
// How a relay is set up colours nothing.
//
// # Reasons
//
// A reason is a sentence for somebody who was woken up. The most important
// comes first: by level, then cause before consequence. A level of ok can have
// reasons too, such as the progress of a backfill. Credentials that a driver's
// error text carries are taken out of every reason, see [Redact].
package health
