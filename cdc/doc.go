// Package cdc says what a change is, where it stands in the order of commits,
// and what may be concluded from the positions that PostgreSQL and Redis hold.
// It is pure: no I/O, no clock, no goroutine. What is decided here can be
// tested without a server, and is decided nowhere else.
//
// # Positions
//
// A row's [Position] is the LSN at which its transaction's commit record starts
// and the row's number among the transaction's inserts. A slot delivers
// positions in growing order, and after a restart the same ones again; so a
// position says which rows a stream has. Row ids do not: sequences are drawn
// from before a commit, and two sessions commit in either order.
//
// # Decoding
//
// [Decoder] reads pgoutput of protocol version 1, in which a transaction comes
// whole and after its commit. What it does not know stops it: a message that is
// skipped could be a row.
//
// # Progress
//
// [Progress] is how far one connection has come:
//
//	received >= published >= covered >= confirmed
//
// published is the end of the last transaction whose rows are all on the stream.
// covered is what a checkpoint in Redis says of it, stamped once a second.
// confirmed is what PostgreSQL is told, and may forget: a covered position whose
// stamp is as old as the confirm delay, at a moment when another stamp has just
// succeeded, and whose rows are marked in the table. So a Redis that lost its
// last seconds is noticed before anything of them is confirmed, and refilled
// from the slot.
//
// # Judging
//
// [Judge] compares a slot and a [Checkpoint]. Invariant of every healthy pair,
// whatever crashed and in whatever order:
//
//	end of the WAL >= covered >= confirmed_flush_lsn >= consistent point
//
// since a confirm follows its stamp by the delay, and the last backfill made the
// slot at its consistent point. Then nothing is missing: the slot delivers
// everything from confirmed_flush_lsn on, and [Resume] leaves out what the
// checkpoint has; what the backfill appended, which has no position, is not
// delivered. The last row, too, lies before the end of the WAL. Everything else is
// a [Gap], or a start. [JudgeConflict] reads the one other sign: that a checkpoint
// is not the one the relay wrote last.
//
// What is concluded here is explored in every order of events, up to a bound, in
// package internal/protocol.
package cdc
