package main

import (
	"context"
	"fmt"
	"strings"
	"testing"

	"github.com/redis/go-redis/v9"
)

// rdb is a client past the proxy.
func (w *world) rdb() *redis.Client { return w.redis.Client(w.t) }

// waitForRedis inserts rows while Redis does not take them, and expects that
// they wait: unmarked and unconfirmed.
func (w *world) waitForRedis(p *relayProcess, parts ...string) {
	w.t.Helper()
	unmarked := `SELECT count(*) FROM outbox WHERE published_at IS NULL`
	w.allMarked()
	w.insert("while Redis is away", 5)
	end := w.query(`pg_current_wal_insert_lsn()`)
	p.becomes(fmt.Sprintf("warn or critical with %q", parts), func(_ int, doc healthDocument) bool {
		return doc.Status != "ok" && doc.reason(parts...) != ""
	})
	if n := w.query(unmarked); n != "5" {
		w.t.Errorf("%s rows are unmarked, want the 5 that wait", n)
	}
	if w.query(`SELECT confirmed_flush_lsn < '`+end+`' FROM pg_replication_slots WHERE slot_name = 'walrelay'`) != "true" {
		w.t.Error("rows that wait are confirmed")
	}
}

// Redis restarts, forgets scripts, loads its data, or is a replica for a while:
// rows wait, health says why, and the relay continues without loss or doubles.
func TestRedisComesBack(t *testing.T) {
	t.Parallel()
	w := newWorld(t, worldOptions{})
	p := w.startRelay()
	p.streams()
	w.insert("before", 5)
	w.verify(0)
	recovered := 0
	over := func() {
		t.Helper()
		recovered++
		p.recovered("Redis", recovered)
		w.insert("after", 5)
		w.verify(0)
		p.becomes("ok", func(_ int, doc healthDocument) bool { return doc.Status == "ok" && len(doc.Reasons) == 0 })
	}

	w.redis.Kill()
	w.waitForRedis(p, "Redis", "connect")
	w.redis.Start()
	over()

	w.redis.Stop()
	w.waitForRedis(p, "Redis", "connect")
	w.redis.Start()
	over()

	for range 3 {
		if err := w.rdb().ScriptFlush(t.Context()).Err(); err != nil {
			t.Fatal(err)
		}
		w.insert("after its scripts are gone", 5)
		w.verify(0)
	}

	// A replica of a primary that is not there keeps its data.
	if err := w.rdb().ReplicaOf(t.Context(), "127.0.0.1", "1").Err(); err != nil {
		t.Fatal(err)
	}
	w.waitForRedis(p, "READONLY", "point --redis at the primary")
	if err := w.rdb().ReplicaOf(t.Context(), "NO", "ONE").Err(); err != nil {
		t.Fatal(err)
	}
	over()
	w.allMarked()
	w.confirmedPast()
	p.streamedOnce()
}

// streamedOnce expects that the relay kept its connection to a PostgreSQL that
// was there all the time.
func (p *relayProcess) streamedOnce() {
	p.t.Helper()
	if n := strings.Count(p.log.String(), "msg=streaming "); n != 1 {
		p.t.Errorf("the relay began to stream %d times", n)
	}
}

// Redis comes back and reads its data for a while before it answers.
func TestRedisLoadsItsData(t *testing.T) {
	t.Parallel()
	w := newWorld(t, worldOptions{redisArgs: []string{"--key-load-delay", "1000", "--aof-use-rdb-preamble", "no"}})
	p := w.startRelay()
	p.streams()
	w.insert("before", 5)
	w.verify(0)
	// Redis looks at its connections once in 1024 commands.
	pipe := w.rdb().Pipeline()
	for i := range 20_000 {
		pipe.Set(t.Context(), fmt.Sprint("filler ", i), "x", 0)
	}
	if _, err := pipe.Exec(t.Context()); err != nil {
		t.Fatal(err)
	}
	w.redis.Kill()
	started := make(chan error, 1)
	go func() {
		ctx, cancel := context.WithTimeout(context.Background(), patience)
		defer cancel()
		started <- w.redis.TryStart(ctx)
	}()
	w.waitForRedis(p, "LOADING")
	client := redis.NewClient(&redis.Options{Addr: w.redis.Addr()})
	defer client.Close()
	w.eventually("Redis loads fast", func() error {
		return client.ConfigSet(context.Background(), "key-load-delay", "0").Err()
	})
	if err := <-started; err != nil {
		t.Fatal(err)
	}
	p.recovered("Redis", 1)
	w.insert("after", 5)
	w.verify(0)
	w.allMarked()
	w.confirmedPast()
	p.streamedOnce()
}

// The stream's key holds something else: the relay says so and how to repair
// it, touches nothing, keeps the rows, and continues when it is repaired.
func TestStreamsKeyHoldsSomethingElse(t *testing.T) {
	t.Parallel()
	w := newWorld(t, worldOptions{})
	ctx := t.Context()
	ok := func(err error) {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
	}
	untouched := func() {
		t.Helper()
		if list, err := w.rdb().LRange(ctx, "jobs", 0, -1).Result(); err != nil || strings.Join(list, " ") != "somebody else's" {
			t.Errorf("the list is %q, %v", list, err)
		}
		ok(w.rdb().Del(ctx, "jobs").Err())
	}
	w.insert("before the first start", 5)
	ok(w.rdb().RPush(ctx, "jobs", "somebody else's").Err())
	p := w.startRelay()
	p.saysInHealth("critical", "WRONGTYPE", "RENAME", "--stream")
	if slots := w.query(`SELECT string_agg(slot_name, ' ') FROM pg_replication_slots`); slots != "oracle" {
		t.Errorf("there are the slots %s", slots)
	}
	untouched()
	p.streams()
	w.insert("streamed", 5)
	w.verify(5)

	ok(w.rdb().Rename(ctx, "jobs", "jobs-before").Err())
	ok(w.rdb().RPush(ctx, "jobs", "somebody else's").Err())
	w.waitForRedis(p, "WRONGTYPE", "RENAME", "--stream")
	code, doc, err := p.health()
	ok(err)
	if code != 503 || doc.Status != "critical" {
		t.Errorf("health is %d %s", code, doc.Status)
	}
	untouched()
	ok(w.rdb().Rename(ctx, "jobs-before", "jobs").Err())
	w.insert("repaired", 5)
	w.verify(5)
	w.allMarked()
	w.confirmedPast()
	p.becomes("ok", func(_ int, doc healthDocument) bool { return doc.Status == "ok" })
}
