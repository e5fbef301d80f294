// Package slot is PostgreSQL's side of the relay: the publication, the
// replication slot, the connection that streams from it, and a monitor that
// keeps watching when streaming does not work.
//
// # What a slot promises, and what not
//
// A logical slot delivers every transaction that committed after its
// consistent point, whole and in the order of the commits, and after a restart
// the same ones again from the confirmed position on. PostgreSQL keeps the WAL
// that this needs until the client confirms it (or until
// max_slot_wal_keep_size, after which the slot is lost).
//
//   - The confirmed position is written to disk by checkpoints only. After a
//     crash of PostgreSQL it may be an older one, and what followed is
//     delivered again.
//   - A confirmed position is believed without a look: a server that is told of
//     a flush beyond the end of its own WAL skips what it writes next. What was
//     confirmed over one connection must therefore never be reported over
//     another; the new one may lead to a server that was promoted or restored.
//     [Stream.Status] takes 0 until there is something of this connection.
//   - A slot does not follow a failover by itself, and a dropped slot that is
//     made again starts at another place.
//   - Changes are decoded with the catalogue as it was when they were written.
//     A publication that is repaired now does not bring back rows that were
//     written while it was wrong.
//   - The consistent point of a new slot can be the very LSN of the first
//     commit that it delivers.
//
// # A session
//
// [Source.Open] makes two connections to one server: one that speaks the
// replication protocol, and an ordinary one beside it for questions. The order
// of a first start is
//
//	TryLock, CreateTemporary, (the caller reads the snapshot), Keep, Close
//
// and then, in a fresh session, Start. The advisory lock and the temporary slot
// die with the session. A slot of our name in another database, with another
// plugin, or a physical one is never touched.
//
// A session belongs to one goroutine. Only [Stream.Interrupt] and
// [Stream.Close] may be called from others.
//
// # The pages behind it
//
//   - https://www.postgresql.org/docs/current/logicaldecoding-explanation.html
//   - https://www.postgresql.org/docs/current/protocol-replication.html
//   - https://www.postgresql.org/docs/current/protocol-logical-replication.html
//   - https://www.postgresql.org/docs/current/sql-createpublication.html
//   - https://www.postgresql.org/docs/current/view-pg-replication-slots.html
//   - https://www.postgresql.org/docs/current/runtime-config-replication.html
package slot
