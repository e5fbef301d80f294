package main

import (
	"bytes"
	"context"
	"encoding/binary"
	"fmt"
	"math/rand/v2"
	"regexp"
	"slices"
	"strings"
	"sync"
	"testing"

	"github.com/jackc/pgx/v5"
	"github.com/redis/go-redis/v9"

	"github.com/stagedoor/walrelay/cdc"
	"github.com/stagedoor/walrelay/internal/shop"
	"github.com/stagedoor/walrelay/internal/testservers"
)

// cluster is a primary and its standby, which applications and relays are given
// as one list of hosts. The world's PostgreSQL is whichever is the primary.
type cluster struct {
	*world
	standby *testservers.Postgres
	line    *testservers.Proxy // that WAL takes to the standby
	hosts   string             // both, of which it has to be the one that can be written to
	past    []shop.Row         // what former primaries committed, in their order
}

// newCluster starts both. The standby has no copies of logical slots, unless
// they are to be synced.
func newCluster(t *testing.T, sync bool) *cluster {
	t.Helper()
	c := &cluster{world: newWorld(t, worldOptions{})}
	c.line = testservers.StartProxy(t, c.pg.Addr())
	c.standby = testservers.StartStandby(t, c.pg, testservers.StandbyOptions{From: c.line.Addr(), Slot: "standby", SyncSlots: sync})
	c.hosts = hosts(c.pg.Addr(), c.standby.Addr())
	return c
}

// hosts is the connection string of several servers.
func hosts(addrs ...string) string {
	return "postgres://postgres@" + strings.Join(addrs, ",") + "/postgres?sslmode=disable&target_session_attrs=read-write"
}

// failOver kills the primary and promotes the standby.
func (c *cluster) failOver() {
	c.t.Helper()
	c.pg.Kill()
	c.standby.Promote()
	c.pg, c.standby = c.standby, c.pg
	c.dsn = c.pg.DSN("postgres")
	conn := c.connect()
	defer conn.Close(context.Background())
	if err := shop.CreateOracle(context.Background(), conn, "oracle"); err != nil {
		c.t.Fatal(err)
	}
}

// rebuild makes the former primary a standby of the new one.
func (c *cluster) rebuild() {
	c.t.Helper()
	c.line = testservers.StartProxy(c.t, c.pg.Addr())
	c.standby.Follow(c.pg, testservers.StandbyOptions{From: c.line.Addr(), Slot: "standby"})
}

// remember asks a former primary, which is started for that, what it committed.
func (c *cluster) remember() []shop.Row {
	c.t.Helper()
	c.standby.Start()
	defer c.standby.Kill()
	former := &world{t: c.t, reader: newReader(c.t), pg: c.standby, dsn: c.standby.DSN("postgres")}
	rows := former.committed()
	c.past = append(c.past, rows...)
	return rows
}

// writeLostTail commits what the standby does not get: WAL of several files, and
// more rows than a sequence leaves out after a failover, so that their ids are
// issued again. The relay publishes and confirms them. It returns what the slot
// is confirmed up to, and the length of the stream.
func (c *cluster) writeLostTail() (confirmed cdc.LSN, entries int) {
	c.t.Helper()
	c.line.Stall()
	c.exec(`INSERT INTO outbox (kind, payload) SELECT 'lost', to_jsonb(random()) FROM generate_series(1, 100)`)
	for range 3 {
		c.query(`pg_switch_wal()`)
		c.exec(`INSERT INTO outbox (kind, payload) SELECT 'lost', to_jsonb(random()) FROM generate_series(1, 10)`)
	}
	c.confirmedPast()
	confirmed, err := cdc.ParseLSN(c.query(`SELECT confirmed_flush_lsn FROM pg_replication_slots WHERE slot_name = 'walrelay'`))
	if err != nil {
		c.t.Fatal(err)
	}
	return confirmed, c.length()
}

// rowKey tells rows apart also where an id was issued twice.
func rowKey(id, kind, payload any) string { return fmt.Sprintf("%v %v %v", id, kind, payload) }

func entryKey(m redis.XMessage) string {
	return rowKey(m.Values["outbox_id"], m.Values["kind"], m.Values["payload"])
}

// lostWith compares the stream with the new primary's table: every row is there
// once, and every other entry once, of a row that a former primary committed. It
// returns the ids of the latter.
func (c *cluster) lostWith() []string {
	c.t.Helper()
	table := map[string]bool{}
	conn := c.connect()
	defer conn.Close(context.Background())
	rows, err := conn.Query(context.Background(), `SELECT id::text, kind, payload::text FROM outbox`)
	if err != nil {
		c.t.Fatal(err)
	}
	var id, kind, payload string
	if _, err := pgx.ForEachRow(rows, []any{&id, &kind, &payload}, func() error {
		table[rowKey(id, kind, payload)] = true
		return nil
	}); err != nil {
		c.t.Fatal(err)
	}
	var entries []redis.XMessage
	seen := map[string]int{}
	c.eventually("every row is on the stream", func() error {
		var err error
		if entries, err = c.entries(); err != nil {
			return err
		}
		clear(seen)
		for _, m := range entries {
			seen[entryKey(m)]++
		}
		for key := range table {
			if seen[key] == 0 {
				return fmt.Errorf("not the row %.80s", key)
			}
		}
		return nil
	})
	past := map[string]bool{}
	for _, r := range c.past {
		past[rowKey(r.OutboxID, r.Kind, r.Payload)] = true
	}
	var lost []string
	for _, m := range entries {
		key := entryKey(m)
		switch {
		case seen[key] > 1:
			c.t.Errorf("the row %.80s is on the stream %d times", key, seen[key])
		case table[key]:
		case past[key]:
			lost = append(lost, m.ID)
		default:
			c.t.Errorf("the row %.80s is on the stream and was never committed", key)
		}
	}
	return lost
}

// beginsWith expects the stream to begin with these rows, in their order, for at
// least so many entries.
func (c *cluster) beginsWith(rows []shop.Row, entries int) {
	c.t.Helper()
	got, err := c.entries()
	if err != nil {
		c.t.Fatal(err)
	}
	for i, m := range got[:entries] {
		if i >= len(rows) || entryKey(m) != rowKey(rows[i].OutboxID, rows[i].Kind, rows[i].Payload) {
			c.t.Fatalf("entry %d of the former primary's is %.80s, not in its order", i, entryKey(m))
		}
	}
}

// endsWith expects the stream to end with the primary's rows from a position on,
// in the order of their commits.
func (c *cluster) endsWith(from string) {
	c.t.Helper()
	all := c.committed()
	conn := c.connect()
	defer conn.Close(context.Background())
	var before int
	err := conn.QueryRow(context.Background(), `SELECT count(*) FROM pg_logical_slot_peek_changes('oracle', $1::pg_lsn, NULL, 'skip-empty-xacts', 'on')
		WHERE data LIKE 'table public.outbox: INSERT:%'`, from).Scan(&before)
	if err != nil {
		c.t.Fatal(err)
	}
	want := all[before:]
	got, err := c.entries()
	if err != nil {
		c.t.Fatal(err)
	}
	if len(want) == 0 || len(got) < len(want) {
		c.t.Fatalf("%d rows were streamed, there are %d entries", len(want), len(got))
	}
	for i, m := range got[len(got)-len(want):] {
		if r := want[i]; entryKey(m) != rowKey(r.OutboxID, r.Kind, r.Payload) {
			c.t.Fatalf("after the failover, row %d in commit order is %s, its entry %.80s", i, r.OutboxID, entryKey(m))
		}
	}
}

var lostEntries = regexp.MustCompile(`rows were lost with the database".* entries="?([0-9][0-9 -]*)`)

// reported expects relays to have said of exactly these entries that their rows
// are lost, each once, and to count them.
func (c *cluster) reported(lost []string, relays ...*relayProcess) {
	c.t.Helper()
	var said []string
	for _, p := range relays {
		var own []string
		for _, m := range lostEntries.FindAllStringSubmatch(p.log.String(), -1) {
			own = append(own, strings.Fields(m[1])...)
		}
		if isRunning(p) {
			if got := p.metric("walrelay_lost_entries_total"); got != fmt.Sprint(len(own)) {
				c.t.Errorf("%s lost entries are counted, and %d were named", got, len(own))
			}
		}
		said = append(said, own...)
	}
	slices.Sort(said)
	want := slices.Sorted(slices.Values(lost))
	if !slices.Equal(said, want) {
		c.t.Errorf("%d entries were reported as lost, %d are:\n%v\n%v", len(said), len(want), said, want)
	}
}

// issuedAgain expects that ids of lost rows were issued again.
func (c *cluster) issuedAgain() {
	c.t.Helper()
	seen := map[string]bool{}
	for _, id := range c.onStream("outbox_id") {
		if seen[id] {
			return
		}
		seen[id] = true
	}
	c.t.Error("no id was issued again: the test does not test")
}

// flushes watches what is reported as received and flushed over a proxy.
type flushes struct {
	mu       sync.Mutex
	updates  int
	furthest cdc.LSN
}

// watchFlushes reads the status updates: CopyData of 34 bytes that begins with
// an r, then three positions.
func watchFlushes(p *testservers.Proxy) *flushes {
	f := &flushes{}
	p.OnRequest(func(piece []byte) bool {
		head := []byte("d\x00\x00\x00\x26r")
		for {
			i := bytes.Index(piece, head)
			if i < 0 || len(piece) < i+len(head)+24 {
				return false
			}
			piece = piece[i+len(head):]
			f.mu.Lock()
			f.updates++
			for at := 0; at < 24; at += 8 {
				f.furthest = max(f.furthest, cdc.LSN(binary.BigEndian.Uint64(piece[at:])))
			}
			f.mu.Unlock()
		}
	})
	return f
}

// below expects that nothing as far as this was reported.
func (f *flushes) below(t *testing.T, limit cdc.LSN) {
	t.Helper()
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.updates == 0 || f.furthest >= limit {
		t.Errorf("%d status updates, the furthest position is %s, want one below %s", f.updates, f.furthest, limit)
	}
}

// write starts applications that go wherever can be written to. No two of their
// rows are equal.
func (c *cluster) write(seed uint64) *writers {
	c.t.Helper()
	kinds := map[string]transaction{
		"batch": func(ctx context.Context, conn *pgx.Conn, rng *rand.Rand) error {
			_, err := conn.Exec(ctx, `INSERT INTO outbox (kind, payload) SELECT 'batch', to_jsonb(random()) FROM generate_series(1, $1::int)`, 1+rng.IntN(40))
			return err
		},
	}
	for _, kind := range []string{"single", "rollback", "savepoint", "slow"} {
		kinds[kind] = outboxKinds[kind]
	}
	one := c.dsn
	c.dsn = c.hosts
	defer func() { c.dsn = one }()
	return c.startWritersOf(kinds, 3, seed)
}

// A primary dies before its standby has all of it, and the standby has no slot.
// The relay goes there by itself and heals: every row that the new primary has
// is on the stream once, also under ids that lost rows had, and the entries of
// lost rows are reported. Nothing of the old connection is told the new server.
func TestFailoverToAStandbyWithoutTheSlot(t *testing.T) {
	t.Parallel()
	c := newCluster(t, false)
	to := testservers.StartProxy(t, c.standby.Addr())
	told := watchFlushes(to)
	p := c.startRelay("--postgres", hosts(c.pg.Addr(), to.Addr()))
	p.streams()
	ws := c.write(1)
	ws.wrote(3)
	confirmed, entries := c.writeLostTail()
	ws.goOn(2)
	c.failOver()
	p.says("the slot is gone")
	p.streamed(2)
	ws.goOn(5)
	ws.end()
	c.allMarked()
	c.confirmedPast()
	if end := c.query(`SELECT pg_current_wal_lsn() < '` + confirmed.String() + `'`); end != "true" {
		t.Fatal("the new primary has written too much for this test")
	}
	told.below(t, confirmed)

	former := c.remember()
	lost := c.lostWith()
	c.beginsWith(former, entries)
	c.endsWith(lastField(p.log.String(), "the slot is made", "consistent"))
	c.issuedAgain()
	c.reported(lost, p)
	if got := p.metric(`walrelay_heals_total{reason="no_slot"}`); got != "1" {
		t.Errorf("%s heals", got)
	}
}

// lastField is field of the last such line.
func lastField(log, message, key string) string {
	i := strings.LastIndex(log, message)
	if i < 0 {
		return ""
	}
	return field(log[i:], message, key)
}

// One failover follows another, back to the rebuilt first server, each with a
// tail that is lost.
func TestTwoFailovers(t *testing.T) {
	t.Parallel()
	c := newCluster(t, false)
	p := c.startRelay("--postgres", c.hosts)
	p.streams()
	ws := c.write(2)
	for round := 1; round <= 2; round++ {
		ws.goOn(3)
		_, entries := c.writeLostTail()
		ws.goOn(1)
		c.failOver()
		p.streamed(1 + round)
		ws.goOn(3)
		c.allMarked()
		former := c.remember()
		if round == 1 {
			c.beginsWith(former, entries)
			c.rebuild()
		}
	}
	ws.end()
	c.allMarked()
	c.confirmedPast()
	lost := c.lostWith()
	c.endsWith(lastField(p.log.String(), "the slot is made", "consistent"))
	c.reported(lost, p)
	if got := p.metric(`walrelay_heals_total{reason="no_slot"}`); got != "2" {
		t.Errorf("%s heals", got)
	}
}

// Both happen while no relay is there: what it knows is of a timeline that the
// new server left long ago.
func TestTwoFailoversWhileTheRelayIsDown(t *testing.T) {
	t.Parallel()
	c := newCluster(t, false)
	p := c.startRelay("--postgres", c.hosts)
	p.streams()
	c.insert("before", 5)
	c.standby.CatchUp(c.pg)
	confirmed, entries := c.writeLostTail()
	p.stop()
	c.insert("lost, and not published", 3)
	c.failOver()
	c.insert("between", 150)
	c.rebuild()
	c.insert("lost, and not published", 3)
	c.line.Stall()
	c.insert("lost, and not published", 3)
	c.failOver()
	c.insert("behind", 3)
	p = c.startRelay("--postgres", c.hosts)
	p.streams()
	c.insert("after", 3)
	c.allMarked()
	c.confirmedPast()
	if c.query(`SELECT pg_current_wal_lsn() < '`+confirmed.String()+`'`) != "true" {
		t.Fatal("the new primary has written too much for this test")
	}
	got, err := c.entries()
	if err != nil {
		t.Fatal(err)
	}
	for _, m := range got[:entries] { // the first server is no more
		c.past = append(c.past, shop.Row{
			OutboxID: m.Values["outbox_id"].(string), Kind: m.Values["kind"].(string), Payload: m.Values["payload"].(string),
		})
	}
	lost := c.lostWith()
	if want := 130; len(lost) != want {
		t.Errorf("%d entries are of rows that are lost, want %d", len(lost), want)
	}
	c.endsWith(lastField(p.log.String(), "the slot is made", "consistent"))
	c.issuedAgain()
	c.reported(lost, p)
}

// onTimeline is the timeline of a server that takes writes.
func onTimeline(t *testing.T, server *testservers.Postgres) string {
	t.Helper()
	w := &world{t: t, reader: newReader(t), pg: server, dsn: server.DSN("postgres")}
	return w.query(`SELECT substring(pg_walfile_name(pg_current_wal_lsn()), 1, 8)::int`)
}

// The old primary comes back, writable, and is the first of the hosts. Relays
// that were started before and after go to the new one, read, mark and confirm
// there, and leave the old one alone. When only the old one can be reached they
// say so, append nothing, and go on when the new one is back.
func TestOldPrimaryComesBack(t *testing.T) {
	t.Parallel()
	c := newCluster(t, false)
	p := c.startRelay("--postgres", c.hosts)
	p.streams()
	c.insert("before", 3)
	c.allMarked()
	c.confirmedPast()
	c.standby.CatchUp(c.pg)
	c.failOver()
	p.streamed(2)
	c.insert("after", 3)
	c.allMarked()

	c.standby.Start()
	old := &world{t: t, reader: newReader(t), pg: c.standby, dsn: c.standby.DSN("postgres")}
	if was, is := onTimeline(t, c.standby), onTimeline(t, c.pg); was != "1" || is != "2" {
		t.Fatalf("the servers are on the timelines %s and %s", was, is)
	}
	old.insert("split brain", 3)
	untouched := func(when string) {
		t.Helper()
		if n := old.query(`SELECT count(*) FROM outbox WHERE kind = 'split brain' AND published_at IS NULL`); n != "3" {
			t.Errorf("%s: %s of 3 rows are not marked on the old primary", when, n)
		}
		for _, kind := range c.onStream("kind") {
			if kind == "split brain" {
				t.Fatalf("%s: a row of the old primary is on the stream", when)
			}
		}
	}
	goesOn := func(when string) {
		t.Helper()
		c.insert(when, 3)
		c.allMarked()
		c.confirmedPast()
		c.each("before", "after", when)
		untouched(when)
	}
	goesOn("the old primary is back")

	// The connections to the new one are lost: the old one is tried first.
	c.query(`SELECT count(pg_terminate_backend(pid)) FROM pg_stat_activity WHERE application_name = 'walrelay'`)
	p.streamed(3)
	goesOn("reconnected")
	p.stop()
	p = c.startRelay("--postgres", c.hosts)
	p.streams()
	p.says("looking for the new primary")
	goesOn("started anew")
	p.becomes("well, and the slot that it shows is the new primary's", func(code int, doc healthDocument) bool {
		return code == 200 && doc.Status == "ok" && doc.Slot != nil && doc.Slot.Active
	})

	c.pg.Stop("fast")
	entries := c.length()
	p.becomes("critical, with the reason", func(code int, doc healthDocument) bool {
		return code == 503 && doc.reason("older timeline than the checkpoint", "target_session_attrs=read-write") != ""
	})
	old.insert("split brain, alone", 3)
	p.startsOver()
	if n := c.length(); n != entries {
		t.Errorf("%d entries were appended from the old primary", n-entries)
	}
	untouched("alone")
	c.pg.Start()
	p.becomes("well", func(code int, doc healthDocument) bool { return code == 200 && doc.Role == "streaming" })
	goesOn("the new primary is back")
	if got := p.metric(`walrelay_heals_total{reason="no_slot"}`); got != "0" {
		t.Errorf("%s heals", got)
	}
}
