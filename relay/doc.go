// Package relay is the life of the relay: start, backfill, stream, heal, stand
// by, stop. It decides when; package cdc decides what may be concluded, and the
// interfaces in ports.go do the work on either side.
//
// # The guarantee
//
// Every row committed to the outbox appears in its stream exactly once and in
// commit order, and no other row ever does, whatever crashes: the relay,
// PostgreSQL, Redis, or the network between them.
//
// Appending and then confirming the LSN gives less than that: a relay that dies
// in between appends the row again, and a Redis that forgets what it had
// acknowledged leaves a hole behind the confirmed LSN. Four ideas close both.
//
// # 1. The checkpoint lives where the entries live
//
// One script appends a batch and replaces the checkpoint, atomically, and only
// if the checkpoint is the one that this relay wrote last. So the stream and the
// position of its last row cannot disagree.
//
// Invariant: a checkpoint's version is never used twice. A write that is
// repeated because its reply was lost finds either the version before it, and is
// done now, or its own, and was done. Any other version means that somebody else
// wrote, or that Redis went back in time; then nothing is written, the session
// ends, and the next one judges anew (see writer).
//
// # 2. Covered before confirmed
//
// Confirming is the only step that cannot be undone: PostgreSQL forgets. It is
// done last and late, see [cdc.Progress].
//
// Invariant: a status update reports zero, or a position that was received over
// the same connection, is on the stream, was stamped at least the confirm delay
// ago, and whose rows are marked.
//
// A keepalive goes through the same queue as the rows, as an empty transaction:
// it counts when all that came before it is published. That is how an idle
// outbox beside busy tables lets WAL go, without a heartbeat table.
//
// # 3. Starting and healing are a backfill
//
// Where there is no slot, the relay makes a temporary one with a snapshot of the
// same moment, appends the rows of the snapshot that the stream lacks, marks
// them, writes a streaming checkpoint, and only then copies the temporary slot
// to the permanent one. Snapshot and slot together have every row once.
//
// Invariant: a slot beside a streaming checkpoint exists only after a finished
// backfill. A crash anywhere leads to doing it again, with the same since: the
// end of the stream tells which rows were appended (see tail).
//
// A gap is where rows may be missing: slot and checkpoint do not belong together
// ([cdc.Judge] names the kinds), or what was found while streaming says so
// ([GapError]). It is healed by the same backfill before anything is appended.
// Its candidates are the rows that nobody marked, and those that were marked
// since the checkpoint's covered time: Redis may have forgotten them, and the
// tail of the stream tells. So what is on the stream is not appended again, and
// what is missing is, whichever side lost it.
//
// An operator asks for a heal in the same way that a relay begins one: by
// replacing the checkpoint with one that says backfill. A relay that streams
// meets it with its next stamp. So there is one way into a backfill, and a
// request survives the death of whoever was to do it.
//
// What no heal can know is kept in the checkpoint as a doubt: after Redis lost
// the stream, which of the rows that were marked long before it had had.
//
// Entries that others appended while no relay streamed are read once at a start
// (see foreignEntries): a poller may have worked meanwhile.
//
// # 4. The table checks the stream
//
// Rows are marked after they are appended and before they are confirmed (see
// marks). So a row that is confirmed and not marked was missed, whatever the
// reason. The monitor looks at the oldest unmarked rows every few seconds, and
// again when what is confirmed has passed them ([Witness]); what is still
// unmarked then is a gap like any other.
//
// # Another database of the same name
//
// After a failover the WAL is another one from some position on, and a commit
// that the old primary had at a position is not the one that the new primary
// has there. The checkpoint holds its timeline and that one's history, and
// counts only up to where the histories part ([cdc.Checkpoint.On]). A restored
// volume shows neither: there the checkpoint's own transaction has to be met at
// its place ([cdc.Resume]). Entries whose rows were lost with a database are
// reported, with their ids; nobody can take them back from consumers.
//
// # Who does what
//
// While it streams, three goroutines share the work, and the data goes one way:
//
//	reader ──queue──▶ publisher ──marks──▶ marker
//	   ▲                  │
//	   └────confirmed─────┘
//
// The reader owns the replication connection: it receives, decodes and sends
// status, also while nothing can be published, so that the server does not hang
// up. The publisher owns the checkpoint: appends and stamps never compete. Both
// queues are bounded in bytes; a full one makes the one before it wait, and at
// the end the reader stops reading. All three end together: on an error the rest
// is thrown away, since the slot delivers it again.
//
// A row that comes alone is appended at once. While one batch is on its way the
// next gathers in the queue. After rows that are late anyway, those of a backlog,
// the reader sleeps until many have come, or for a few milliseconds: each of their
// messages would wake it, and an append costs as much as dozens of rows.
//
// # Who is authoritative
//
//	who may stream            PostgreSQL: a slot has one reader
//	who may backfill          PostgreSQL: the lock on the slot's name
//	who may append            Redis: the version of the checkpoint
//	which rows are appended   Redis: the checkpoint's position
//	which rows may be forgotten   PostgreSQL: the slot's confirmed_flush_lsn
//
// # States
//
//	             ┌────────────── failed: wait, try again ───────────────┐
//	             ▼                                                      │
//	starting ─ connect ─ judge ─┬─ slot in use ──────▶ standing by ─────┤
//	                            ├─ first start ──────▶ backfilling ─────┤
//	                            ├─ they agree ───────▶ streaming ───────┤
//	                            ├─ gap ──────────────▶ backfilling ─────┤
//	                            └─ gap, manual or the same one again ───┘
//	                                                   (critical)
//
// # What happens when
//
//	the relay dies                 the checkpoint tells the next one which rows to skip
//	a reply of Redis is lost       the same write is repeated, and finds its own version
//	PostgreSQL restarts            reconnect, judge, skip; the slot may have gone back
//	PostgreSQL shuts down          the monitor is told first, and the relay hangs up at once
//	Redis restarts, all kept       the write is repeated until it succeeds
//	Redis went back a little       the version shows it; the slot still has the rows
//	Redis went back too far        covered < confirmed_flush_lsn: a gap
//	the slot is gone, moved, lost  a gap
//	the database fails over        with its slot: skip what both histories share; without: a gap
//	a backup is restored           the WAL ends too early, the slot is from before the last backfill,
//	                               or the checkpoint's transaction is not met: a gap
//	rows were not delivered        the table's marks show it: a gap
//	a gap comes again and again    after two heals in a row an operator has to look
//	a row cannot be marked         publishing goes on, confirming waits
//	marking is refused             publishing and confirming go on; health is critical
//	a row cannot be published      everything before it is published, and the line stops
//	Redis refuses a batch          its halves are appended, down to the row that it is about
//	an operator has it skipped     the dead stream gets it, in the step that moves the position
//	two relays                     one streams, one stands by
//
// # The other way
//
// A [Poller] carries the same rows without the log: for databases where that is
// not allowed, and for the swap from a poller to a Relay and back. It gives less:
// see there.
package relay
