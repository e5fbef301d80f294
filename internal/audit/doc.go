// Package audit proves that the stream has every row of the table, once, and
// nothing else, or says which rows and entries are wrong.
//
// # Which side first
//
// The two sides move while they are compared. So the order is:
//
//  1. the end of the stream, E0
//  2. a snapshot of the table, and after it the end of the write-ahead log, L
//  3. the rows of the snapshot
//  4. wait until a relay's checkpoint covers L
//  5. the end of the stream, E1, and all entries up to it
//  6. what Redis tells of entries that were removed
//
// Each row of the snapshot was committed before L, so that after 4 its entry is
// on the stream: a row without an entry is missing, however fast the relay runs.
// Each entry up to E0 was appended before the snapshot, so that its row is
// visible in it, or was deleted before. Entries between E0 and E1 may be of
// younger rows; they count for the rows of the snapshot and for nothing else.
//
// Where 4 takes too long, or no relay is at work, rows that are not marked are
// said to be waiting: whether they will be published is not known.
//
// An entry without a row is looked up once more as the table is now: with a
// synchronous standby a row is on the stream before it is visible, and with a
// lower bound the row may be older than that.
//
// # What cannot be known
//
// Once published, rows may be deleted. An entry is called foreign only if it is
// from a time of which the table should still have all rows: after the oldest
// mark that is in the table. Where there are signs that rows are purged from the
// beginning, an hour is added, for transactions that were open for long.
//
// Entries may be removed: by trimming, which takes the oldest, or by XDEL.
// Redis, from version 7 on, tells how many entries there ever were, and the
// last that was deleted by XDEL. A row that was marked and is as old as what was
// trimmed is counted as that; before version 7, one from before the oldest entry.
//
// # Cost
//
// The table is read once with a sequential scan, after one to count it; the
// snapshot keeps vacuum from removing rows meanwhile. The stream is read once,
// in pages of about a megabyte. Memory is bounded: both sides are kept as a
// hash of each field, apart by a hash of the id, in a temporary file where they
// are many.
package audit
