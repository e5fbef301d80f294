// Package shop is the pattern that walrelay serves, seen whole: an application
// that writes an outbox row in the transaction of its work, and a worker that
// does the job when the row has arrived on the stream.
//
// [PlaceOrder] writes an order, its tickets and one outbox row, or nothing at
// all: an order that meets a sold-out show or a refused payment rolls back, and
// its row was never there. [Refund] does the same for money that goes back.
// Neither talks to Redis: what a transaction committed, the relay carries.
//
// [Worker] reads the stream in a consumer group. The relay appends each row
// once, but a worker that dies between its work and its XACK is given the entry
// again, or another worker is. So the worker writes the outbox id into jobs_done
// in the transaction of its work: the second time there is a row, and nothing
// happens but the XACK.
//
// Entries arrive in commit order; the workers of a group do not finish in it.
// A refund's entry always comes after that of its tickets, but another worker
// may still be at those. The refund then stays pending and is claimed a moment
// later. This ends only because its tickets are known to be ahead of it: commit
// order is what makes "not yet" safe to wait for.
//
// An entry can also be early: the relay reads a commit from the write-ahead log,
// which PostgreSQL writes a moment before it shows the commit to other sessions.
// A worker that is quick looks for an order that is committed and cannot be seen
// yet. It looks again; it does not take the order for missing.
//
// [Reconcile] compares a stream with what PostgreSQL's own test_decoding says
// was committed ([ReadOracle]), so that no code of the relay judges the relay.
package shop
