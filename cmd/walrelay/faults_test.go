package main

import (
	"context"
	"fmt"
	"math/rand/v2"
	"os"
	"sort"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"
)

// decodingMemory has large transactions spill to disk in a test of its size.
var decodingMemory = map[string]string{"logical_decoding_work_mem": "64kB"}

// With concurrent writers the stream is what was committed, in commit order,
// each once, as PostgreSQL prints it.
func TestStreamEqualsCommittedRows(t *testing.T) {
	w := newWorld(t, worldOptions{settings: decodingMemory})
	w.startRelay().streams()
	ws := w.startWriters(6, 1)
	ws.wrote(15)
	ws.end()
	w.endPrepared()
	w.verify(0)
	w.allMarked()
	w.confirmedPast()
}

// Started while they write, with rows already there: every row, once; those
// from before the slot's consistent point first, in the backfill's order.
func TestRelayStartedWhileWriting(t *testing.T) {
	w := newWorld(t, worldOptions{settings: decodingMemory})
	ws := w.startWriters(6, 2, "delete published") // else what was there before could not be told afterwards
	ws.wrote(5)
	p := w.startRelay()
	p.streams()
	ws.wrote(15)
	ws.end()
	w.endPrepared()

	consistent := field(p.log.String(), "the slot is made", "consistent")
	before, err := strconv.Atoi(w.query(`SELECT count(*) FROM pg_logical_slot_peek_changes('oracle', '` + consistent + `', NULL, 'skip-empty-xacts', 'on')
		WHERE data LIKE 'table public.outbox: INSERT:%'`))
	if err != nil {
		t.Fatal(err)
	}
	if before < 50 {
		t.Fatalf("only %d rows were there before", before)
	}
	w.verifyBackfill(before)
	w.allMarked()
	w.confirmedPast()
}

// verifyBackfill is verify with the backfill's order: by creation time and id.
// Rows that were changed before the snapshot have their later values.
func (w *world) verifyBackfill(before int) {
	w.t.Helper()
	want := w.committed()
	alive := map[string]string{} // payload by id
	conn := w.connect()
	defer conn.Close(context.Background())
	rows, err := conn.Query(context.Background(), `SELECT o.id::text, o.payload::text FROM outbox o ORDER BY o.created_at, o.id`)
	if err != nil {
		w.t.Fatal(err)
	}
	var order []string
	for rows.Next() {
		var id, payload string
		if err := rows.Scan(&id, &payload); err != nil {
			w.t.Fatal(err)
		}
		alive[id] = payload
		order = append(order, id)
	}
	if rows.Err() != nil {
		w.t.Fatal(rows.Err())
	}
	first := map[string]bool{}
	kept := want[:0:0]
	n := 0
	for i, r := range want {
		payload, ok := alive[r.OutboxID]
		if i < before {
			if !ok {
				continue // inserted and deleted in one transaction
			}
			r.Payload = payload
			first[r.OutboxID] = true
			n++
		}
		kept = append(kept, r)
	}
	var sorted []string
	for _, id := range order {
		if first[id] {
			sorted = append(sorted, id)
		}
	}
	rank := map[string]int{}
	for i, id := range sorted {
		rank[id] = i
	}
	sort.SliceStable(kept[:n], func(i, j int) bool { return rank[kept[i].OutboxID] < rank[kept[j].OutboxID] })
	got, err := w.entries()
	if err != nil {
		w.t.Fatal(err)
	}
	w.eventually("all entries", func() error {
		if got, err = w.entries(); err != nil || len(got) < len(kept) {
			return fmt.Errorf("%d of %d, %v", len(got), len(kept), err)
		}
		return nil
	})
	if err := compare(kept, got, 0); err != nil {
		w.t.Error(err)
	}
}

// field is the value of a key in the log line with this message.
func field(log, message, key string) string {
	for line := range strings.Lines(log) {
		if strings.Contains(line, message) {
			if _, rest, ok := strings.Cut(line, " "+key+"="); ok {
				value, _, _ := strings.Cut(strings.TrimSpace(rest), " ")
				return value
			}
		}
	}
	return ""
}

// breakage breaks something and lets it work again.
type breakage struct {
	name string
	do   func(*faultRun)
}

type faultRun struct {
	*world
	rng   *rand.Rand
	relay *relayProcess
}

// moment is how long something stays broken.
func (f *faultRun) moment() { time.Sleep(time.Duration(100+f.rng.IntN(1500)) * time.Millisecond) }

var faults = []breakage{
	{"relay killed", func(f *faultRun) {
		f.relay.kill()
		f.relay = f.startRelay()
	}},
	{"relay stopped", func(f *faultRun) {
		f.relay.stop()
		f.relay = f.startRelay()
	}},
	{"relay frozen", func(f *faultRun) {
		_ = f.relay.cmd.Process.Signal(syscall.SIGSTOP)
		f.moment()
		_ = f.relay.cmd.Process.Signal(syscall.SIGCONT)
	}},
	{"second relay takes over", func(f *faultRun) {
		second := f.startRelay()
		f.moment()
		f.relay.kill()
		f.relay = second
	}},
	{"postgres crashes", func(f *faultRun) { f.pg.Restart("immediate") }},
	{"postgres restarts", func(f *faultRun) { f.pg.Restart("fast") }},
	{"walsender terminated", func(f *faultRun) {
		f.query(`SELECT count(pg_terminate_backend(pid)) FROM pg_stat_activity WHERE backend_type = 'walsender'`)
	}},
	{"connections to postgres dropped", func(f *faultRun) { f.toPG.Drop() }},
	{"postgres unreachable", func(f *faultRun) {
		f.toPG.Cut()
		f.moment()
		f.toPG.Restore()
	}},
	{"connections to postgres stall", func(f *faultRun) {
		f.toPG.Stall()
		f.moment()
		f.toPG.Resume()
	}},
	{"redis killed", func(f *faultRun) {
		f.redis.Kill()
		f.moment()
		f.redis.Start()
	}},
	{"redis restarts", func(f *faultRun) { f.redis.Restart() }},
	{"redis frozen", func(f *faultRun) {
		f.redis.Freeze()
		f.moment()
		f.redis.Thaw()
	}},
	{"redis out of memory", func(f *faultRun) {
		client := f.redis.Client(f.t)
		if err := client.ConfigSet(context.Background(), "maxmemory", "1").Err(); err != nil {
			f.t.Fatal(err)
		}
		f.moment()
		if err := client.ConfigSet(context.Background(), "maxmemory", "0").Err(); err != nil {
			f.t.Fatal(err)
		}
	}},
	{"redis forgets scripts", func(f *faultRun) { f.redis.Client(f.t).ScriptFlush(context.Background()) }},
	{"connections to redis dropped", func(f *faultRun) { f.toRedis.Drop() }},
	{"redis unreachable", func(f *faultRun) {
		f.toRedis.Cut()
		f.moment()
		f.toRedis.Restore()
	}},
	{"a reply of redis lost", func(f *faultRun) {
		lost := false
		f.toRedis.OnReply(func([]byte) bool {
			was := lost
			lost = true
			return !was
		})
		f.moment()
		f.toRedis.OnReply(nil)
	}},
}

// Whatever crashes, in whatever order: the stream is what was committed, in
// commit order, each once. WALRELAY_TEST_SEED repeats a run, WALRELAY_TEST_SECONDS makes it
// longer.
func TestNothingLostWhateverCrashes(t *testing.T) {
	seed := uint64(time.Now().UnixNano())
	if s := os.Getenv("WALRELAY_TEST_SEED"); s != "" {
		var err error
		if seed, err = strconv.ParseUint(s, 10, 64); err != nil {
			t.Fatal(err)
		}
	}
	length := 45 * time.Second
	if os.Getenv("WALRELAY_TEST_LONG") != "" {
		length = 20 * time.Minute
	}
	if s := os.Getenv("WALRELAY_TEST_SECONDS"); s != "" {
		n, err := strconv.Atoi(s)
		if err != nil {
			t.Fatal(err)
		}
		length = time.Duration(n) * time.Second
	}
	t.Logf("repeat with WALRELAY_TEST_SEED=%d WALRELAY_TEST_SECONDS=%d", seed, int(length.Seconds()))

	w := newWorld(t, worldOptions{settings: decodingMemory})
	f := &faultRun{world: w, rng: rand.New(rand.NewPCG(seed, 0))}
	f.relay = w.startRelay()
	f.relay.streams()
	ws := w.startWriters(4, seed)

	// Every fault once, in a random order, and then any.
	plan := f.rng.Perm(len(faults))
	counts := map[string]int{}
	for i, end := 0, time.Now().Add(length); i < len(plan) || time.Now().Before(end); i++ {
		next := f.rng.IntN(len(faults))
		if i < len(plan) {
			next = plan[i]
		}
		t.Logf("%s: %s", time.Now().Format("15:04:05.000"), faults[next].name)
		faults[next].do(f)
		counts[faults[next].name]++
		f.moment()
	}
	ws.end()
	w.endPrepared()
	w.verify(0)
	w.allMarked()
	w.confirmedPast()
	t.Logf("%d rows, faults: %v", len(w.committed()), counts)
}
