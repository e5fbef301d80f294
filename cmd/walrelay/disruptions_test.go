package main

import (
	"context"
	"errors"
	"fmt"
	"net"
	"strings"
	"sync/atomic"
	"syscall"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/stagedoor/walrelay/cdc"
	"github.com/stagedoor/walrelay/internal/shop"
	"github.com/stagedoor/walrelay/internal/testservers"
)

// disruption breaks something and lets it work again. It reports whether it
// saw that it had broken.
type disruption struct {
	name string
	do   func(*stage) bool
}

// harmless are those after which nothing is missing, so that nothing may be
// taken for a gap.
var harmless = []disruption{
	{"relay killed", func(s *stage) bool {
		ok := s.end(s.any())
		s.start()
		return ok
	}},
	{"relay stopped", func(s *stage) bool {
		p := s.any()
		p.says("msg=\"listening for HTTP\"") // before that a signal just ends it
		p.stop()
		s.end(p)
		s.start()
		return true
	}},
	{"relay frozen", func(s *stage) bool {
		p := s.any()
		ok := s.freeze(p)
		s.moment()
		_ = p.cmd.Process.Signal(syscall.SIGCONT)
		return ok
	}},
	{"relay frozen until another streams", (*stage).overtaken},
	{"second relay takes over", func(s *stage) bool {
		first := s.streaming()
		second := s.start()
		s.moment()
		if first == nil {
			return false
		}
		s.end(first)
		return s.await(soon, func() bool { return s.role("streaming") == second })
	}},
	{"three relays", func(s *stage) bool {
		s.start()
		s.start()
		ok := true
		for len(s.running) > 1 {
			p := s.streaming()
			if p == nil {
				ok, p = false, s.any()
			}
			s.end(p)
			s.moment()
		}
		return ok
	}},
	{"postgres crashes", func(s *stage) bool { return s.anotherPostgres(func() { s.pg.Restart("immediate") }) }},
	{"postgres killed", func(s *stage) bool {
		return s.anotherPostgres(func() { s.pg.Kill(); s.moment(); s.pg.Start() })
	}},
	{"postgres restarts", func(s *stage) bool { return s.anotherPostgres(func() { s.pg.Restart("fast") }) }},
	{"postgres frozen", func(s *stage) bool {
		s.pg.Freeze()
		_, err := s.net().answers(300 * time.Millisecond)
		s.moment()
		s.pg.Thaw()
		return err != nil
	}},
	{"walsender terminated", func(s *stage) bool {
		return s.streaming() != nil &&
			s.query(`SELECT count(pg_terminate_backend(active_pid)) FROM pg_replication_slots WHERE slot_name = 'walrelay' AND active`) == "1"
	}},
	{"rows locked", (*stage).lock},
	{"redis killed", func(s *stage) bool { return s.anotherRedis(func() { s.redis.Kill(); s.moment(); s.redis.Start() }) }},
	{"redis restarts", func(s *stage) bool { return s.anotherRedis(s.redis.Restart) }},
	{"redis frozen", func(s *stage) bool {
		s.redis.Freeze()
		_, err := s.redisNet.answers(300 * time.Millisecond)
		s.moment()
		s.redis.Thaw()
		return err != nil
	}},
	{"redis loses less than the confirm delay", func(s *stage) bool { return s.older(false) }},
	{"replica promoted a moment behind", func(s *stage) bool { return s.failover(false) }},
	{"redis out of memory", func(s *stage) bool {
		before := s.info("errorstats", "errorstat_OOM")
		s.redisOK("CONFIG", "SET", "maxmemory", "1")
		s.rowsNow()
		ok := s.await(soon, func() bool { return s.info("errorstats", "errorstat_OOM") > before })
		s.redisOK("CONFIG", "SET", "maxmemory", "0")
		return ok
	}},
	{"redis forgets scripts", func(s *stage) bool {
		ok := s.await(soon, func() bool { return s.info("memory", "number_of_cached_scripts") > 0 })
		s.redisOK("SCRIPT", "FLUSH")
		return ok
	}},
	{"a reply of redis lost", func(s *stage) bool {
		var lost atomic.Bool
		s.toRedis.OnReply(func([]byte) bool { return lost.CompareAndSwap(false, true) })
		ok := s.await(soon, lost.Load)
		s.toRedis.OnReply(nil)
		return ok
	}},
	{"network to postgres cut", func(s *stage) bool { return s.cut(s.net()) }},
	{"network to redis cut", func(s *stage) bool { return s.cut(s.redisNet) }},
	{"network to postgres slow", func(s *stage) bool { return s.slow(s.net()) }},
	{"network to redis slow", func(s *stage) bool { return s.slow(s.redisNet) }},
	{"connections to postgres half open", func(s *stage) bool { return s.halfOpen(s.net()) }},
	{"connections to redis half open", func(s *stage) bool { return s.halfOpen(s.redisNet) }},
}

// losses are those that lose what one side has or knows.
var losses = []disruption{
	{"standby promoted", func(s *stage) bool { return s.promote(false) }},
	{"standby promoted without the last commits", func(s *stage) bool { return s.promote(true) }},
	{"volume restored", (*stage).rewind},
	{"slot dropped", func(s *stage) (ok bool) {
		s.unreached(func() {
			s.rowsNow()
			s.exec(`SELECT pg_drop_replication_slot('walrelay')`)
			ok = s.slotValue(`true`) == ""
		})
		return ok
	}},
	{"slot advanced", func(s *stage) (ok bool) {
		s.unreached(func() {
			before := s.slotValue(`confirmed_flush_lsn`)
			s.rowsNow()
			s.exec(`SELECT pg_replication_slot_advance('walrelay', pg_current_wal_flush_lsn())`)
			ok = s.slotValue(`confirmed_flush_lsn`) != before
		})
		return ok
	}},
	{"slot made anew", func(s *stage) (ok bool) {
		s.unreached(func() {
			before := s.slotValue(`confirmed_flush_lsn`)
			s.exec(`SELECT pg_drop_replication_slot('walrelay')`)
			s.rowsNow()
			s.exec(`SELECT pg_create_logical_replication_slot('walrelay', 'pgoutput')`)
			ok = s.slotValue(`confirmed_flush_lsn`) != before
		})
		return ok
	}},
	{"slot invalidated", (*stage).invalidate},
	{"publication dropped", func(s *stage) bool {
		return s.unpublished(`DROP PUBLICATION walrelay`,
			`CREATE PUBLICATION walrelay FOR TABLE outbox WITH (publish = 'insert', publish_via_partition_root = true)`)
	}},
	{"table taken out of the publication", func(s *stage) bool {
		return s.unpublished(`ALTER PUBLICATION walrelay DROP TABLE outbox`, `ALTER PUBLICATION walrelay ADD TABLE outbox`)
	}},
	{"publication without inserts", func(s *stage) bool {
		return s.unpublished(`ALTER PUBLICATION walrelay SET (publish = 'update')`, `ALTER PUBLICATION walrelay SET (publish = 'insert')`)
	}},
	{"older append-only file restored", func(s *stage) bool { return s.older(true) }},
	{"replica promoted far behind", func(s *stage) bool { return s.failover(true) }},
	{"redis flushed", func(s *stage) bool {
		had := s.redisInt("EXISTS", "jobs")
		s.forgetting(func() { s.redisOK("FLUSHALL") })
		return had == 1
	}},
	{"stream deleted", func(s *stage) (ok bool) {
		s.forgetting(func() { ok = s.redisInt("DEL", "jobs") == 1 })
		return ok
	}},
	{"checkpoint deleted", func(s *stage) (ok bool) {
		s.forgetting(func() {
			ok = s.redisInt("EVAL", `local n = 0; for _, k in ipairs(redis.call('KEYS', 'walrelay:*')) do n = n + redis.call('DEL', k) end; return n`, 0) > 0
		})
		return ok
	}},
	{"redis evicts", func(s *stage) (ok bool) {
		s.forgetting(func() {
			before := s.info("stats", "evicted_keys")
			s.redisOK("CONFIG", "SET", "maxmemory-policy", "allkeys-random")
			// Memory is counted in several ways, and it takes just a little too much
			// of it to evict one key, at random.
			used := s.info("memory", "used_memory")
			for part := used; part > 0 && !ok; part -= used / 20 {
				s.redisOK("CONFIG", "SET", "maxmemory", part)
				s.redisOK("PING")
				ok = s.info("stats", "evicted_keys") > before
			}
			s.redisOK("CONFIG", "SET", "maxmemory", "0")
			s.redisOK("CONFIG", "SET", "maxmemory-policy", "noeviction")
		})
		return ok
	}},
}

// any is one of the relays.
func (s *stage) any() *relayProcess { return s.running[s.rng.IntN(len(s.running))] }

// redisOK runs a command that must succeed.
func (s *stage) redisOK(args ...any) {
	s.t.Helper()
	client := s.client()
	defer client.Close()
	if err := client.Do(context.Background(), args...).Err(); err != nil {
		s.t.Fatalf("%v: %v", args, err)
	}
}

// anotherPostgres does something after which another process is PostgreSQL.
func (s *stage) anotherPostgres(do func()) bool {
	pid := s.pg.PID()
	do()
	return s.pg.PID() != pid
}

// anotherRedis does something after which another process is Redis.
func (s *stage) anotherRedis(do func()) bool {
	pid := s.redis.PID()
	do()
	return s.redis.PID() != pid
}

// overtaken freezes a relay for so long that PostgreSQL gives it up and another
// one streams, and then lets it go on: it must not append one more entry.
func (s *stage) overtaken() bool {
	first := s.streaming()
	second := s.start()
	if first == nil {
		return false
	}
	s.freeze(first)
	ok := s.await(soon, func() bool { _, doc, err := second.health(); return err == nil && doc.Role == "streaming" })
	_ = first.cmd.Process.Signal(syscall.SIGCONT)
	s.moment()
	s.end(first)
	return ok
}

// promote fails over to a standby, of which a stalled link may keep the last
// commits. The old primary does not come back; its oracle is asked beforehand.
func (s *stage) promote(tail bool) bool {
	s.t.Helper()
	s.gap = true
	old, next := s.pg, 1-s.primary
	link := testservers.StartProxy(s.t, old.Addr())
	defer link.Close()
	opts := testservers.StandbyOptions{
		From: link.Addr(), Slot: "standby",
		SyncSlots: s.rng.IntN(2) == 0 && s.query(`current_setting('server_version_num')::int >= 170000`) == "true",
	}
	if s.pgs[next] == nil {
		s.pgs[next] = testservers.StartStandby(s.t, old, opts)
	} else {
		s.pgs[next].Follow(old, opts)
	}
	standby := s.pgs[next]
	if opts.SyncSlots {
		s.await(soon, func() bool {
			return s.on(standby, `count(*) FILTER (WHERE synced AND NOT temporary) FROM pg_replication_slots`) == "1"
		})
	}
	rows := 0
	if tail {
		standby.CatchUp(old)
		link.Stall()
		rows = s.rowsNow()
		s.moment()
	} else {
		s.writers.end()
		standby.CatchUp(old)
	}
	s.net().cut()
	s.writers.end()
	old.Kill()
	// The old primary tells what it committed, to nobody but the ledger.
	old.Start()
	s.take()
	old.Stop("immediate")

	standby.Promote()
	s.pg, s.primary = standby, next
	s.dsn = standby.DSN("postgres")
	s.rollbackPrepared()
	fork, err := cdc.ParseLSN(s.fork())
	if err != nil {
		s.t.Fatal(err)
	}
	lost := s.ledger.promoted(fork)
	s.slotChanged()
	conn := s.connect()
	defer conn.Close(context.Background())
	if err := shop.CreateOracle(context.Background(), conn, "oracle"); err != nil {
		s.t.Fatal(err)
	}
	s.net().leadTo(standby.Addr())
	s.write()
	if !tail {
		return s.query(`SELECT pg_is_in_recovery()`) == "false" && lost == 0
	}
	return lost >= rows
}

// rewind gives PostgreSQL back what its volume had a moment ago, as restoring a
// snapshot of it does: on the same timeline, with its slots as they were.
func (s *stage) rewind() bool {
	s.t.Helper()
	s.gap = true
	s.writers.end()
	end, err := cdc.ParseLSN(s.query(`pg_current_wal_insert_lsn()`))
	if err != nil {
		s.t.Fatal(err)
	}
	snapshot := s.pg.Snapshot()
	s.write()
	rows := s.rowsNow()
	s.moment()
	s.net().cut()
	s.writers.end()
	s.take()
	s.pg.Kill()
	s.pg.Restore(snapshot)
	s.pg.Start()
	s.rollbackPrepared()
	lost := s.ledger.promoted(end)
	s.slotChanged()
	s.rewound = true
	s.net().restore()
	s.write()
	return lost >= rows
}

// rollbackPrepared ends the prepared transactions of which nobody knows any more
// how they were to end.
func (s *stage) rollbackPrepared() {
	s.t.Helper()
	for _, gid := range strings.Fields(s.query(`SELECT string_agg(gid, ' ') FROM pg_prepared_xacts`)) {
		s.exec(`ROLLBACK PREPARED '` + gid + `'`)
	}
}

// on reads one value from another server than the primary.
func (s *stage) on(pg *testservers.Postgres, sql string) string {
	s.t.Helper()
	other := *s.world
	other.dsn = pg.DSN("postgres")
	return other.query(`SELECT ` + sql)
}

// fork is where the current timeline left the one before.
func (s *stage) fork() string {
	s.t.Helper()
	conn, err := pgx.Connect(context.Background(), s.dsn+"&replication=database")
	if err != nil {
		s.t.Fatal(err)
	}
	defer conn.Close(context.Background())
	ask := func(sql string) [][]byte {
		results, err := conn.PgConn().Exec(context.Background(), sql).ReadAll()
		if err != nil || len(results) != 1 || len(results[0].Rows) != 1 {
			s.t.Fatalf("%s: %v", sql, err)
		}
		return results[0].Rows[0]
	}
	timeline := string(ask("IDENTIFY_SYSTEM")[1])
	lines := strings.Split(strings.TrimSpace(string(ask("TIMELINE_HISTORY " + timeline)[1])), "\n")
	return strings.Fields(lines[len(lines)-1])[1]
}

// invalidate has PostgreSQL remove WAL that the slot needs. The oracle keeps up
// meanwhile.
func (s *stage) invalidate() bool {
	lost := false
	s.writers.end() // a transaction that is left prepared would hold the oracle back
	s.endPrepared()
	defer s.write()
	s.unreached(func() {
		s.rowsNow()
		const behind = `SELECT coalesce(pg_current_wal_insert_lsn() - min(restart_lsn), 0) > %d FROM pg_replication_slots WHERE slot_name = '%s'`
		segment := 16 << 20
		for range 20 {
			s.exec(`INSERT INTO busy (filler) VALUES ('')`)
			s.exec(`SELECT pg_switch_wal()`)
			s.exec(`CHECKPOINT`)
			s.take()
			if s.query(fmt.Sprintf(behind, 5*segment, "walrelay")) == "true" && s.query(fmt.Sprintf(behind, 2*segment, "oracle")) == "false" {
				break
			}
		}
		s.exec(`ALTER SYSTEM SET max_slot_wal_keep_size = '48MB'`)
		s.exec(`SELECT pg_reload_conf()`)
		lost = s.await(soon, func() bool {
			s.exec(`CHECKPOINT`)
			return s.slotValue(`wal_status`) == "lost"
		})
		s.exec(`ALTER SYSTEM RESET max_slot_wal_keep_size`)
		s.exec(`SELECT pg_reload_conf()`)
		if s.query(`SELECT wal_status FROM pg_replication_slots WHERE slot_name = 'oracle'`) == "lost" {
			s.t.Fatal("the oracle was invalidated too")
		}
	})
	return lost
}

// unpublished has rows committed that the publication does not have.
func (s *stage) unpublished(begin, end string) bool {
	s.gap, s.blind = true, true
	s.exec(begin)
	n := s.rowsNow()
	s.moment()
	s.exec(end)
	return n > 0
}

// lock has an application lock rows that are published meanwhile.
func (s *stage) lock() bool {
	s.redisNet.cut()
	s.rowsNow()
	conn := s.connect()
	defer conn.Close(context.Background())
	ctx := context.Background()
	tx, err := conn.Begin(ctx)
	if err != nil {
		s.t.Fatal(err)
	}
	defer func() { _ = tx.Rollback(ctx) }()
	rows, err := tx.Query(ctx, `SELECT id::text FROM outbox WHERE published_at IS NULL ORDER BY id DESC LIMIT 3 FOR UPDATE SKIP LOCKED`)
	if err != nil {
		s.t.Fatal(err)
	}
	ids, err := pgx.CollectRows(rows, pgx.RowTo[string])
	if err != nil {
		s.t.Fatal(err)
	}
	s.redisNet.restore()
	if len(ids) == 0 {
		return false
	}
	return s.await(soon, func() bool {
		entries, err := s.entries()
		if err != nil {
			return false
		}
		for _, e := range entries {
			if e.Values["outbox_id"] == ids[0] {
				return s.query(`SELECT published_at IS NULL FROM outbox WHERE id = `+ids[0]) == "true"
			}
		}
		return false
	})
}

// forgetful is what Redis is going to lose: what it writes from now on, for a
// moment, or for so long that PostgreSQL was told to forget it too.
func (s *stage) forgetful(long bool) bool {
	if !long {
		// Long enough for a stamp of what is then lost, which comes once a second.
		had, enough := s.lastEntry(), time.After(confirmDelay*6/10)
		s.rowsNow()
		ok := s.await(confirmDelay/2, func() bool { return olderID(had, s.lastEntry()) })
		<-enough
		return ok
	}
	s.gap = true
	s.rowsNow()
	lsn := s.query(`pg_current_wal_insert_lsn()`)
	return s.await(soon, func() bool { return s.slotValue(`confirmed_flush_lsn >= '`+lsn+`'`) == "true" })
}

// older gives Redis back what it had on disk a moment ago, or longer: what a
// machine that stops loses, and what a restored backup does.
func (s *stage) older(long bool) bool {
	s.streaming()
	snapshot := s.redis.Snapshot() // Redis is frozen meanwhile
	began := time.Now()
	ok := s.forgetful(long)
	had := s.lastEntry()
	s.redis.Kill()
	s.tooLong(began)
	s.redis.Restore(snapshot)
	s.redis.Start()
	return ok && olderID(s.lastEntry(), had)
}

// failover promotes a replica whose link was stalled.
func (s *stage) failover(long bool) bool {
	next := 1 - s.master
	if s.redises[next] == nil {
		s.redises[next] = testservers.StartRedis(s.t, testservers.RedisOptions{Args: everySecond})
	} else {
		s.redises[next].Start()
	}
	old, replica := s.redis, s.redises[next]
	link := testservers.StartProxy(s.t, old.Addr())
	defer link.Close()
	replica.Follow(link.Addr())
	s.streaming()
	began := time.Now()
	link.Stall()
	ok := s.forgetful(long)
	had := s.lastEntry()
	s.redisNet.cut()
	old.Kill()
	s.tooLong(began)
	replica.Promote()
	s.toRedis.Close()
	s.redis, s.master = replica, next
	s.toRedis = testservers.StartProxy(s.t, replica.Addr())
	s.redisNet.leadTo(s.toRedis.Addr())
	return ok && olderID(s.lastEntry(), had)
}

// tooLong takes note that what began then took longer than the confirm delay on
// this machine, so that PostgreSQL may have forgotten what Redis has.
func (s *stage) tooLong(began time.Time) {
	if time.Since(began) >= confirmDelay {
		s.gap = true
	}
}

// olderID reports whether the entry id a is below b.
func olderID(a, b string) bool {
	var am, as, bm, bs int64
	_, _ = fmt.Sscanf(a, "%d-%d", &am, &as)
	_, _ = fmt.Sscanf(b, "%d-%d", &bm, &bs)
	return am < bm || am == bm && as < bs
}

// cut cuts a network for a moment, or just long enough to lose connections.
func (s *stage) cut(n *network) bool {
	n.cut()
	_, err := net.DialTimeout("tcp", n.addr(), time.Second)
	if s.rng.IntN(2) == 0 {
		s.moment()
	}
	n.restore()
	return err != nil
}

// slow has all that passes a network arrive late.
func (s *stage) slow(n *network) bool {
	d := time.Duration(50+s.rng.IntN(300)) * time.Millisecond
	n.delay(d)
	defer n.heal()
	took, err := n.answers(10 * time.Second)
	s.moment()
	s.moment()
	return err == nil && took >= d
}

// halfOpen has a network swallow what is sent, one way or both.
func (s *stage) halfOpen(n *network) bool {
	ways := [][]string{{"upstream"}, {"downstream"}, {"upstream", "downstream"}}
	n.swallow(ways[s.rng.IntN(len(ways))]...)
	defer n.heal()
	_, err := n.answers(500 * time.Millisecond)
	if s.rng.IntN(3) == 0 {
		time.Sleep(5 * time.Second) // until somebody notices
	}
	s.moment()
	var timeout net.Error
	return errors.As(err, &timeout) && timeout.Timeout()
}
