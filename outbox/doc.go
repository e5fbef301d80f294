// Package outbox is the table's side of the relay: which columns an entry is
// made of, which rows a backfill has to look at, and the marks.
//
// # Marks are the witness
//
// A row that is on its stream is marked: published_at is set, after the append
// and before the slot may forget the row. Stream, checkpoint and slot can all
// be lost or moved, each without the others noticing. The table cannot: it is
// where the rows came from. So the oldest unmarked rows tell of everything
// that was missed, whatever the reason, and a backfill finds in the table what
// to send again:
//
//	a row is        it is
//	not marked      perhaps not on the stream: a backfill looks for it there
//	marked lately   perhaps lost by Redis since: likewise
//	marked before   on the stream, or was
//
// Invariant: a row is marked only after its append, and a mark is never taken
// back. A mark too few costs a look at the stream, a mark too many costs a row.
//
// Without such marks something is lost:
//
//   - [MarkDelete] deletes published rows. Rows that were missed are still
//     found, since they are still there. Rows that Redis lost after it had them
//     are not: nothing is left to send again.
//   - [MarkNone] leaves the table alone. Nothing shows that a row was missed. A
//     backfill looks at all rows created since shortly before the relay went
//     away, and misses those of a transaction that was open for longer than that
//     margin. Without a creation time it has to look at the whole table each
//     time. Rows that the entries' own trimming removed are taken for missing.
//
// In all modes a row whose published_at is set by somebody else counts as
// published.
//
// # Claims
//
// A poller goes by the marks alone. It locks rows that are not marked
// ([Claimer]), and marks them, in one transaction with the append in between. So a
// row that it took is marked or unmarked, and never neither; what a poller
// appended before it died is not marked, and the next one appends it again.
//
// # Locks
//
// Marking never waits for a row that somebody else has locked, and waits at
// most [lockTimeout] for the table. Rows are locked in the order of their ids.
// Reading candidates holds an ACCESS SHARE lock on the table for as long as the
// backfill takes, so that an ALTER TABLE waits for it.
//
// A [Purger] skips rows that are locked. It waits [purgeLock] at most, for the
// table and for what a foreign key deletes along with a row, and holds the rows
// of one batch meanwhile. Nobody marks those: they are published.
package outbox
