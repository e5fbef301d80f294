package main

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/stagedoor/walrelay/cdc"
	"github.com/stagedoor/walrelay/internal/shop"
	"github.com/stagedoor/walrelay/internal/testservers"
)

// stage is a world in which everything may break: a second PostgreSQL and a
// second Redis to fail over to, networks between them and the relays, several
// relays, applications that write, and an operator who does what health asks.
type stage struct {
	*world
	rng    *rand.Rand // of the current disruption
	ledger *ledger

	nets     [2]*network // to the two PostgreSQLs
	pgs      [2]*testservers.Postgres
	primary  int // which of them is
	redisNet *network
	redises  [2]*testservers.Redis
	master   int

	running []*relayProcess
	writers *writers

	// gap: this schedule may have opened one. In any other nothing is healed.
	gap   bool
	heals int // so far
	// blind: the slot may not tell what it has, so that after Redis lost all it
	// knew only rows that are not marked can be put back.
	blind bool
	// unknown: the checkpoint was lost, so entries that were lost with a primary
	// are not reported.
	unknown bool

	// rewound: PostgreSQL was given an older volume, which only its slot can tell.
	rewound bool
	// unhealed: the stream and the checkpoint were lost together, and there may
	// be no checkpoint again yet.
	unhealed bool

	operated time.Time
	operator map[string]int // what the operator did
}

// confirmDelay is that of the relays of a stage: short, so that schedules are,
// and longer than the second between two stamps.
const confirmDelay = 2 * time.Second

// everySecond is a Redis as most have it.
var everySecond = []string{"--appendonly", "yes", "--appendfsync", "everysec"}

func newStage(t *testing.T) *stage {
	t.Helper()
	settings := map[string]string{
		"logical_decoding_work_mem": "64kB",
		"wal_sender_timeout":        "4s",
		"max_wal_size":              "512MB",
		"wal_keep_size":             "0",
	}
	s := &stage{
		world:    newWorld(t, worldOptions{settings: settings, volatile: true, redisArgs: everySecond}),
		ledger:   newLedger(),
		nets:     [2]*network{newNetwork(t, probePostgres), newNetwork(t, probePostgres)},
		redisNet: newNetwork(t, probeRedis),
		operator: map[string]int{},
	}
	s.pace = 400 * time.Millisecond
	s.pgs[0], s.redises[0] = s.pg, s.redis
	s.nets[0].leadTo(s.pg.Addr())
	s.redisNet.leadTo(s.toRedis.Addr())
	return s
}

// net leads to the primary.
func (s *stage) net() *network { return s.nets[s.primary] }

// hosts is the connection string that names both PostgreSQLs.
func (s *stage) hosts() string {
	return fmt.Sprintf("postgres://postgres@%s,%s/postgres?sslmode=disable&target_session_attrs=read-write&connect_timeout=5", s.nets[0].addr(), s.nets[1].addr())
}

// start starts one more relay.
func (s *stage) start() *relayProcess {
	s.t.Helper()
	// As it is used, and with more goroutines at once than that has.
	processors := 1 + len(s.relays)%2
	env := []string{execEnv + "=walrelay", fmt.Sprintf("GOMAXPROCS=%d", processors)}
	p := s.startRelayEnv(env, "--confirm-delay", confirmDelay.String(), "--postgres", s.hosts(), "--redis", "redis://"+s.redisNet.addr()+"/0")
	s.running = append(s.running, p)
	return p
}

// end kills a relay, and reports whether that is how it ended.
func (s *stage) end(p *relayProcess) bool {
	p.kill()
	s.running = slices.DeleteFunc(s.running, func(o *relayProcess) bool { return o == p })
	return p.killedItself() == nil
}

// write lets the applications write again.
func (s *stage) write() {
	s.t.Helper()
	s.writers = s.startWriters(2, s.rng.Uint64())
}

// moment is how long something stays broken.
func (s *stage) moment() { time.Sleep(time.Duration(50+s.rng.IntN(800)) * time.Millisecond) }

// soon bounds what a disruption waits for. When it is over the disruption has
// just not taken effect.
const soon = 20 * time.Second

// await waits for a condition while the operator looks after the relays.
func (s *stage) await(limit time.Duration, check func() bool) bool {
	s.t.Helper()
	for end := time.Now().Add(limit); !check(); {
		if time.Now().After(end) {
			return false
		}
		s.operate()
		time.Sleep(20 * time.Millisecond)
	}
	return true
}

// operate does what health asks an operator to do, now and then.
func (s *stage) operate() {
	s.t.Helper()
	if time.Since(s.operated) < time.Second {
		return
	}
	s.operated = time.Now()
	for _, p := range s.running {
		if frozen(p) {
			continue
		}
		code, doc, err := p.health()
		if err != nil || code != 503 {
			continue
		}
		for _, reason := range doc.Reasons {
			if strings.Contains(reason, "`walrelay heal`") {
				s.command("heal")
				return
			}
		}
	}
}

// command runs walrelay as the operator does.
func (s *stage) command(args ...string) {
	s.t.Helper()
	name := strings.Join(args, " ")
	var out bytes.Buffer
	cmd := self(s.t, append(args, "--postgres", s.hosts(), "--redis", "redis://"+s.redisNet.addr()+"/0")...)
	cmd.Stdout, cmd.Stderr = &out, &out
	if err := cmd.Start(); err != nil {
		s.t.Fatal(err)
	}
	patient := time.AfterFunc(soon, func() { _ = cmd.Process.Kill() })
	defer patient.Stop()
	err := cmd.Wait()
	s.operator[name]++
	s.t.Logf("the operator ran walrelay %s: %v: %s", name, err, tail(out.String(), 3))
}

// role returns a relay that plays this role, or nil.
func (s *stage) role(names ...string) *relayProcess {
	for _, p := range s.running {
		if frozen(p) {
			continue
		}
		if _, doc, err := p.health(); err == nil && slices.Contains(names, doc.Role) {
			return p
		}
	}
	return nil
}

// streaming waits for a relay that streams, and returns it, or nil.
func (s *stage) streaming() (p *relayProcess) {
	s.t.Helper()
	s.await(soon, func() bool { p = s.role("streaming"); return p != nil })
	return p
}

// take has the ledger know what was committed.
func (s *stage) take() {
	s.t.Helper()
	conn := s.connect()
	defer conn.Close(context.Background())
	rows, err := shop.TakeOracle(context.Background(), conn, "oracle")
	if err == nil {
		err = s.ledger.add(rows)
	}
	if err != nil {
		s.t.Fatal(err)
	}
}

// slotValue reads a value of the relay's slot; empty where there is none.
func (s *stage) slotValue(expression string) string {
	s.t.Helper()
	return s.query(`SELECT (` + expression + `)::text FROM pg_replication_slots WHERE slot_name = 'walrelay' AND NOT temporary`)
}

// rowsNow commits a few rows and returns how many.
func (s *stage) rowsNow() int {
	s.t.Helper()
	n := 3 + s.rng.IntN(20)
	s.exec(fmt.Sprintf(`INSERT INTO outbox (kind, payload) SELECT 'now', jsonb_build_object('i', i, 'n', %d) FROM generate_series(1, %d) i`, s.rng.Int64(), n))
	return n
}

// unreached does something while no relay reaches PostgreSQL and no connection
// of theirs is left there. It reports whether there was a slot.
func (s *stage) unreached(do func()) bool {
	s.t.Helper()
	s.gap = true
	if !s.await(soon, func() bool { return s.slotValue(`wal_status`) != "" && s.slotValue(`wal_status`) != "lost" }) {
		return false
	}
	s.net().cut()
	defer s.net().restore()
	s.query(`SELECT count(pg_terminate_backend(active_pid)) FROM pg_replication_slots WHERE slot_name = 'walrelay'`)
	if !s.await(soon, func() bool { return s.slotValue(`active`) != "true" }) {
		return false
	}
	if s.slotValue(`true`) != "true" {
		return false
	}
	do()
	s.slotChanged()
	return true
}

// forgetting does something to Redis' memory while the relays stand still, so
// that what they know is known exactly, and takes note of what nobody can know
// any more.
func (s *stage) forgetting(do func()) {
	s.t.Helper()
	s.gap = true
	for _, p := range s.running {
		s.freeze(p)
	}
	time.Sleep(100 * time.Millisecond) // for what they sent to arrive
	do()
	s.forgotten(s.redisInt("EXISTS", "jobs") == 0)
	for _, p := range s.running {
		_ = p.cmd.Process.Signal(syscall.SIGCONT)
	}
}

// forgotten takes note of what nobody can know any more after Redis lost the
// stream or the checkpoint, and again when the slot is changed before that was
// healed: of the rows that were marked, those that the slot has are put back.
func (s *stage) forgotten(streamGone bool) {
	s.t.Helper()
	if s.checkpoints() == 0 {
		s.unknown = true
	}
	s.unhealed = s.unhealed || streamGone
	if !streamGone && !s.unhealed {
		return
	}
	s.take()
	before := s.ledger.last
	if at := s.slotValue(`CASE WHEN wal_status <> 'lost' THEN confirmed_flush_lsn END`); at != "" && !s.blind {
		lsn, err := cdc.ParseLSN(at)
		if err != nil {
			s.t.Fatal(err)
		}
		before = lsn
	}
	s.ledger.forget(before, s.ids(`published_at IS NULL`))
}

// slotChanged takes note that the slot does not have any more what it had.
func (s *stage) slotChanged() {
	s.t.Helper()
	if s.unhealed && s.checkpoints() == 0 {
		s.forgotten(false)
	}
	if s.rewound {
		s.ledger.hush()
	}
}

// freeze stops a relay with SIGSTOP.
func (s *stage) freeze(p *relayProcess) bool {
	s.t.Helper()
	_ = p.cmd.Process.Signal(syscall.SIGSTOP)
	return s.await(soon, func() bool { return frozen(p) })
}

// frozen reports whether a relay is stopped by SIGSTOP.
func frozen(p *relayProcess) bool {
	raw, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", p.cmd.Process.Pid))
	if err != nil {
		return false
	}
	_, after, _ := strings.Cut(string(raw), ") ")
	return strings.HasPrefix(after, "T")
}

// ids are those of the rows of the table for which a condition holds.
func (s *stage) ids(where string) map[string]bool {
	s.t.Helper()
	ids := map[string]bool{}
	for _, id := range strings.Fields(s.query(`SELECT string_agg(id::text, ' ') FROM outbox WHERE ` + where)) {
		ids[id] = true
	}
	return ids
}

// client returns a client of the Redis that is written to, past all networks.
func (s *stage) client() *redis.Client {
	return redis.NewClient(&redis.Options{Addr: s.redis.Addr(), ReadTimeout: 10 * time.Second})
}

// redisInt runs a command that returns a number.
func (s *stage) redisInt(args ...any) int64 {
	s.t.Helper()
	client := s.client()
	defer client.Close()
	n, err := client.Do(context.Background(), args...).Int64()
	if err != nil {
		s.t.Fatalf("%v: %v", args, err)
	}
	return n
}

// checkpoints is how many checkpoints there are.
func (s *stage) checkpoints() int {
	s.t.Helper()
	client := s.client()
	defer client.Close()
	keys, err := client.Keys(context.Background(), "walrelay:*").Result()
	if err != nil {
		s.t.Fatal(err)
	}
	return len(keys)
}

// info reads a number of INFO.
func (s *stage) info(section, name string) int64 {
	s.t.Helper()
	client := s.client()
	defer client.Close()
	text, err := client.Info(context.Background(), section).Result()
	if err != nil {
		s.t.Fatal(err)
	}
	var n int64
	_, rest, _ := strings.Cut(text, "\n"+name)
	_, _ = fmt.Sscanf(strings.TrimPrefix(strings.TrimPrefix(rest, ":"), "count="), "%d", &n)
	return n
}

// lastEntry is the id of the last entry, 0-0 where there is none.
func (s *stage) lastEntry() string {
	s.t.Helper()
	client := s.client()
	defer client.Close()
	info, err := client.XInfoStream(context.Background(), "jobs").Result()
	if err != nil {
		return "0-0"
	}
	return info.LastGeneratedID
}

// logs are those of all relays.
func (s *stage) logs() (logs []string) {
	for _, p := range s.relays {
		logs = append(logs, p.log.String())
	}
	return logs
}

// balance lets all that was broken work again, waits until the relays have
// carried all rows, and compares.
func (s *stage) balance() error {
	s.t.Helper()
	s.writers.end()
	s.endPrepared()
	s.take()
	if len(s.running) == 0 {
		s.start()
	}
	lsn := s.query(`pg_current_wal_insert_lsn()`)
	var v verdict
	var heals map[string]int
	unsettled := errors.New("it has not begun")
	settled := s.await(patience, func() bool {
		if n := s.query(`SELECT count(*) FROM outbox WHERE published_at IS NULL`); n != "0" {
			unsettled = fmt.Errorf("%s rows are not marked", n)
			return false
		}
		if at := s.slotValue(`confirmed_flush_lsn`); s.slotValue(`confirmed_flush_lsn >= '`+lsn+`'`) != "true" {
			unsettled = fmt.Errorf("the slot is confirmed up to %q, not %s", at, lsn)
			return false
		}
		var windows []window
		windows, heals = backfills(s.logs())
		entries, err := s.entries()
		if err != nil {
			unsettled = err
			return false
		}
		v = s.ledger.compare(entries, s.ids(`true`), windows)
		unsettled = errors.New(v.String())
		return len(v.missing) == 0 || len(v.wrong) > 0
	})
	if !settled || len(v.wrong) > 0 {
		return unsettled
	}
	reported := reportedLost(s.logs())
	for _, id := range v.lost {
		if !s.unknown && !reported[id] {
			return fmt.Errorf("entry %s is of a row that was lost with the old primary, and no relay reports it", id)
		}
	}
	healed := 0
	for _, n := range heals {
		healed += n
	}
	if healed > s.heals && !s.gap {
		return fmt.Errorf("nothing was lost, and a gap was healed all the same: %v", heals)
	}
	s.heals = healed
	s.gap, s.blind, s.unhealed, s.rewound = false, false, false, false
	s.doubts()
	return nil
}

// doubts has the operator accept what cannot be known.
func (s *stage) doubts() {
	s.t.Helper()
	for _, p := range s.running {
		_, doc, err := p.health()
		if err == nil && strings.Contains(strings.Join(doc.Reasons, " "), "--accept-gap") {
			s.command("heal", "--accept-gap")
			return
		}
	}
}
