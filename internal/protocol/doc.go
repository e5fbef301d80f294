// Package protocol holds no code, only a test: it explores what package cdc
// decides, in every order in which things can happen, up to a bound.
//
// The test has models of PostgreSQL (its log, the outbox table, the slot), of
// Redis (a stream and the checkpoint) and of the relay, which goes step by step
// through what package relay does and leaves all that is to be concluded to the
// real types of package cdc: Judge, JudgeConflict, SinceOf, LostStream,
// Checkpoint.On, Progress, Resume and Witness. From a start it takes every step
// that anybody can take next, faults among them, and does the same from each
// state that it gets to, once. In every state the guarantee has to hold as far as
// it can be seen there; and from every state the world has to come to rest,
// without more faults, with every committed row on the stream once, in order, and
// marked.
//
// A table of planted bugs shows that the exploration would notice: each has to be
// found. With -v the shortest way to it is told.
//
// # Which step stands for what
//
//	readSlot, act          Relay.judgeAndAct and the two halves of Relay.judge
//	send, arrive, replied  writer.write, append.lua, the rest of writer.write
//	attach                 Relay.resumeStream, Relay.stream, Session.Start
//	receive, endOf         decoding.frame, decoding.insert, decoding.end
//	publish, appended      streaming.publish and streaming.append around the write
//	stamp, stamped         streaming.stamp around the write
//	mark                   streaming.mark, Table.Mark
//	report                 streaming.report, and the server's taking note
//	look                   the observer's look for the Witness
//	backfill               Relay.backfill, backfillSince, doubt, backfilling.begin
//	create, readTail       createSlot, Candidates, tail, backfilling.row
//	appendRows, settle     backfilling.flush, backfilling.settle, markDue
//	finish, keep           backfilling.finish, Session.Keep
//
// Whoever changes one of these changes its step here, too.
//
// # What is left out
//
// Entries that others append (a poller), rows that are visible later than their
// commit, rows that cannot be published, a stream that is trimmed, servers on an
// older timeline, a standby as the server, and what bounds memory.
package protocol
