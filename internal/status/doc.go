// Package status is what walrelay status says: how PostgreSQL and Redis are, seen
// by themselves, with or without a relay. It is pure: a Look comes in, a Report
// goes out, as text or as JSON.
//
// Level, cause and runway are those of package health, for which [Look.Input]
// makes out of a look what a relay knows of itself.
//
//	seen                                           counts as
//	the slot is active                             a relay that streams
//	the lock of the slot's name is held            a backfill; or a start, where there is a slot
//	neither, and there is a slot or a checkpoint   no relay, since when PostgreSQL or the checkpoint says
//	neither slot nor checkpoint                    no relay, and none is expected: perhaps a poller
//	a relay streams, and writes no checkpoint      Redis is away for the relay, whoever else reaches it
package status
