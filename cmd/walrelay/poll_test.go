package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"slices"
	"strings"
	"testing"

	"github.com/stagedoor/walrelay/cdc"
	"github.com/stagedoor/walrelay/internal/testservers"
	"github.com/stagedoor/walrelay/migrations"
	"github.com/stagedoor/walrelay/relay"
)

// startPoll runs a poller behind the proxies. Later flags win.
func (w *world) startPoll(flags ...string) *relayProcess {
	w.t.Helper()
	return w.startPollEnv([]string{execEnv + "=walrelay"}, flags...)
}

func (w *world) startPollEnv(env []string, flags ...string) *relayProcess {
	w.t.Helper()
	path, err := os.Executable()
	if err != nil {
		w.t.Fatal(err)
	}
	args := append([]string{
		"poll", "--postgres", w.relayDSN(), "--redis", "redis://" + w.toRedis.Addr() + "/0", "--http", "127.0.0.1:0", "--log-level", "debug",
	}, flags...)
	return w.startProgram(path, env, args...)
}

// polls waits until the poller has looked at the table.
func (p *relayProcess) polls() {
	p.t.Helper()
	p.becomes("polling", func(_ int, doc healthDocument) bool { return doc.Role == "polling" })
}

// times counts the entries of each value of a field, such as the id of a row.
func (w *world) times(field string) map[string]int {
	w.t.Helper()
	entries, err := w.entries()
	if err != nil {
		w.t.Fatal(err)
	}
	n := map[string]int{}
	for _, m := range entries {
		n[fmt.Sprint(m.Values[field])]++
	}
	return n
}

// A poller publishes the same entries as a relay, in the order of the ids, and
// says of itself that all is well, without a slot.
func TestPollPublishes(t *testing.T) {
	t.Parallel()
	w := newWorld(t, worldOptions{})
	w.insert("before", 3)
	p := w.startPoll()
	p.polls()
	w.exec(`INSERT INTO outbox (kind, payload) SELECT 'many', to_jsonb(i) FROM generate_series(1, 1100) i`)
	w.insert("after", 3)
	w.allMarked()
	w.verify(0)
	p.becomes("ok", func(code int, doc healthDocument) bool {
		return code == 200 && doc.Status == "ok" && doc.Slot == nil && doc.Published == 1106 && doc.Age != nil && *doc.Age < 0.1
	})
	for name, want := range map[string]string{"walrelay_publish_latency_seconds_count": "1106", "walrelay_slot_present": "0"} {
		if got := p.metric(name); got != want {
			t.Errorf("%s is %s, want %s", name, got, want)
		}
	}
	p.stop()
	if slots := w.query(`SELECT count(*) FROM pg_replication_slots WHERE slot_name <> 'oracle'`); slots != "0" {
		t.Errorf("there are %s slots", slots)
	}
}

// The poller dies at each step of a drain. Every row arrives; only those that
// were appended and not marked arrive again, from the next poller.
func TestCrashInMidDrainLosesNothing(t *testing.T) {
	for step, again := range map[relay.Step]int{relay.StepAppend: 0, relay.StepAppended: 100, relay.StepMark: 100, relay.StepMarked: 0} {
		t.Run(string(step), func(t *testing.T) {
			t.Parallel()
			w := newWorld(t, worldOptions{})
			w.exec(`INSERT INTO outbox (kind, payload) SELECT 'old', to_jsonb(i) FROM generate_series(1, 450) i`)
			p := w.startPollEnv([]string{execEnv + "=crash", crashEnv + "=" + string(step) + ":3"})
			if err := p.killedItself(); err != nil {
				t.Fatal(err)
			}
			w.startPoll()
			w.insert("after", 3)
			w.allMarked()
			twice := 0
			times := w.times("outbox_id")
			for id, n := range times {
				if n > 1 {
					twice++
				}
				if n > 2 {
					t.Errorf("the row %s is on the stream %d times", id, n)
				}
			}
			if len(times) != 453 || twice != again {
				t.Errorf("%d rows are on the stream, %d of them twice; want 453 and %d", len(times), twice, again)
			}
		})
	}
}

// A poller dies with rows that it has claimed. Another one, which was told of them
// and found them locked, takes them, although nobody tells it again.
func TestRowsLeftHalfWayAreTakenAgain(t *testing.T) {
	t.Parallel()
	w := newWorld(t, worldOptions{})
	w.exec(migrations.Notify(cdc.Table{Schema: "public", Name: "outbox"}, "new_outbox_event"))
	flags := []string{"--listen", "new_outbox_event", "--safety-interval", "1h"}
	dying := w.startPollEnv([]string{execEnv + "=crash", crashEnv + "=appended:1"}, flags...)
	w.startPoll(flags...).polls()
	w.eventually("one of two pollers claims rows and dies", func() error {
		w.insert("row", 1)
		select {
		case <-dying.done:
			return dying.killedItself()
		default:
			return errors.New("the other one was faster")
		}
	})
	w.allMarked()
	times := w.times("outbox_id")
	for id := range strings.FieldsSeq(w.query(`SELECT string_agg(id::text, ' ') FROM outbox`)) {
		if n := times[id]; n < 1 || n > 2 {
			t.Errorf("the row %s is on the stream %d times", id, n)
		}
	}
}

// Pollers beside one another never take the same row.
func TestThreePollersClaimNoRowTwice(t *testing.T) {
	t.Parallel()
	w := newWorld(t, worldOptions{})
	for range 3 {
		w.startPoll("--poll-interval", "1ms").polls()
	}
	for range 10 {
		w.exec(`INSERT INTO outbox (kind, payload) SELECT 'many', to_jsonb(i) FROM generate_series(1, 350) i`)
	}
	w.allMarked()
	times := w.times("outbox_id")
	for id, n := range times {
		if n != 1 {
			t.Errorf("the row %s is on the stream %d times", id, n)
		}
	}
	if len(times) != 3500 {
		t.Errorf("%d rows of 3500 are on the stream", len(times))
	}
}

// The poller looks when it is told to. A notification that is lost, since the
// poller did not listen at that moment or nobody sent one, loses nothing.
func TestLostNotificationLosesNothing(t *testing.T) {
	t.Parallel()
	w := newWorld(t, worldOptions{})
	w.exec(migrations.Notify(cdc.Table{Schema: "public", Name: "outbox"}, "rows of shop"))
	p := w.startPoll("--listen", "rows of shop", "--safety-interval", "1h")
	p.polls()
	listening := `FROM pg_stat_activity WHERE application_name = 'walrelay' AND query IN ('LISTEN "rows of shop"', 'SELECT')`
	w.eventually("the poller listens", func() error {
		if n := w.query(`SELECT count(*) ` + listening); n != "1" {
			return fmt.Errorf("%s sessions do", n)
		}
		return nil
	})
	w.insert("with a notification", 3)
	w.allMarked()

	w.query(`SELECT count(pg_terminate_backend(pid)) ` + listening)
	w.insert("while it does not listen", 3)
	w.allMarked()
	p.stop()

	w.exec(`ALTER TABLE outbox DISABLE TRIGGER ALL`)
	w.startPoll("--listen", "rows of shop", "--safety-interval", "500ms").polls()
	w.insert("without a notification", 3)
	w.allMarked()
	w.verify(0)
	w.relays[len(w.relays)-1].says("rows were found that nobody has notified of")
}

// Ten thousand notifications are no ten thousand queries.
func TestStormOfNotificationsIsDrainedInBatches(t *testing.T) {
	t.Parallel()
	w := newWorld(t, worldOptions{settings: map[string]string{"log_statement": "all"}})
	p := w.startPoll("--listen", "new_outbox_event", "--safety-interval", "1h")
	p.polls()
	w.insert("before", 1)
	w.exec(`NOTIFY new_outbox_event`)
	w.allMarked()
	w.toRedis.Cut()
	w.insert("before", 1)
	w.exec(`NOTIFY new_outbox_event`)
	p.becomes("warn", func(_ int, doc healthDocument) bool { return doc.reason("Redis has been away") != "" })
	claims := func() int { return strings.Count(w.pg.Log(), "FOR NO KEY UPDATE OF t SKIP LOCKED") }
	before := claims()
	w.exec(`INSERT INTO outbox (kind, payload) SELECT 'storm', to_jsonb(i) FROM generate_series(1, 10000) i`)
	w.exec(`SELECT pg_notify('new_outbox_event', i::text) FROM generate_series(1, 10000) i`)
	w.toRedis.Restore()
	w.allMarked()
	w.verify(0)
	// 10001 rows are 101 claims; then it looks once more where a notification
	// came after the last one, which can be more than once.
	if n := claims() - before; n < 101 || n > 150 {
		t.Errorf("10000 notifications and 10001 rows made %d queries", n)
	}
	if n, err := w.rdb().XLen(t.Context(), "jobs").Result(); err != nil || n != 10002 {
		t.Errorf("%d entries, %v", n, err)
	}
}

// The age of the oldest row climbs while Redis is away, a second per second, for
// a poller as for a relay, and is nothing when they are drained, in order.
func TestAgeClimbsWhileRedisIsAway(t *testing.T) {
	for name, start := range map[string]func(w *world) *relayProcess{
		"run":  func(w *world) *relayProcess { p := w.startRelay(); p.streams(); return p },
		"poll": func(w *world) *relayProcess { p := w.startPoll(); p.polls(); return p },
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			w := newWorld(t, worldOptions{})
			p := start(w)
			w.insert("before", 3)
			w.allMarked()
			p.becomes("ok", func(_ int, doc healthDocument) bool { return doc.Status == "ok" && doc.Age != nil && *doc.Age < 0.1 })
			w.toRedis.Cut()
			w.insert("while Redis is away", 250)
			oldest := func() float64 {
				var age float64
				text := w.query(`SELECT extract(epoch FROM clock_timestamp() - min(created_at)) FROM outbox WHERE published_at IS NULL`)
				if _, err := fmt.Sscan(text, &age); err != nil {
					t.Fatal(err)
				}
				return age
			}
			for _, atLeast := range []float64{1, 3, 6} {
				before := 0.0
				p.becomes("warn, with the age that the table has", func(_ int, doc healthDocument) bool {
					ok := doc.Status == "warn" && doc.Age != nil && *doc.Age >= atLeast && *doc.Age >= before-1 && *doc.Age <= oldest()+0.1
					before = oldest()
					return ok
				})
			}
			w.toRedis.Restore()
			p.becomes("ok again", func(_ int, doc healthDocument) bool { return doc.Status == "ok" && doc.Age != nil && *doc.Age < 0.1 })
			w.allMarked()
			times := w.times("outbox_id")
			for id, n := range times {
				if n != 1 && (name == "run" || n > 2) {
					t.Errorf("the row %s is on the stream %d times", id, n)
				}
			}
			if len(times) != 253 {
				t.Errorf("%d rows of 253 are on the stream", len(times))
			}
			w.inOrder()
		})
	}
}

// inOrder compares the first entries of each row with the order of the ids,
// which is that of the commits where one session wrote them.
func (w *world) inOrder() {
	w.t.Helper()
	entries, err := w.entries()
	if err != nil {
		w.t.Fatal(err)
	}
	var ids []int
	seen := map[int]bool{}
	for _, m := range entries {
		var id int
		if _, err := fmt.Sscan(fmt.Sprint(m.Values["outbox_id"]), &id); err != nil {
			w.t.Fatal(err)
		}
		if !seen[id] {
			seen[id] = true
			ids = append(ids, id)
		}
	}
	if !slices.IsSorted(ids) {
		w.t.Errorf("the rows are not in the order of their ids: %v", ids)
	}
}

// What a poller cannot mark, it does not append: it would again and again.
func TestPollAppendsNothingThatItCannotMark(t *testing.T) {
	for name, tt := range map[string]struct {
		prepare, repair, reason string
	}{
		"without the privilege": {
			`CREATE ROLE relay LOGIN; GRANT USAGE ON SCHEMA public TO relay; GRANT SELECT ON outbox TO relay`,
			`GRANT UPDATE (published_at) ON outbox TO relay`,
			`GRANT UPDATE ("published_at") ON "public"."outbox" TO relay`,
		},
		"against a trigger that takes the mark back": {
			`CREATE ROLE relay LOGIN SUPERUSER; CREATE FUNCTION back() RETURNS trigger LANGUAGE plpgsql AS 'BEGIN NEW.published_at = NULL; RETURN NEW; END';
				CREATE TRIGGER back BEFORE UPDATE ON outbox FOR EACH ROW EXECUTE FUNCTION back()`,
			`DROP TRIGGER back ON outbox`,
			`undoes the marks`,
		},
		"against a constraint that a row in the middle breaks": {
			`CREATE ROLE relay LOGIN SUPERUSER; ALTER TABLE outbox ADD CHECK (id <> 50 OR published_at IS NULL)`,
			`ALTER TABLE outbox DROP CONSTRAINT outbox_check`,
			`outbox_check`,
		},
		"against a trigger": {
			`CREATE ROLE relay LOGIN SUPERUSER; CREATE FUNCTION never() RETURNS trigger LANGUAGE plpgsql AS 'BEGIN RETURN NULL; END';
				CREATE TRIGGER never BEFORE UPDATE ON outbox FOR EACH ROW EXECUTE FUNCTION never()`,
			`DROP TRIGGER never ON outbox`,
			`undoes the marks`,
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			w := newWorld(t, worldOptions{})
			w.exec(tt.prepare)
			w.insert("before", 150)
			p := w.startPoll("--postgres", strings.Replace(w.relayDSN(), "postgres@", "relay@", 1))
			p.saysInHealth("critical", tt.reason)
			if n := w.length(); n != 0 {
				t.Errorf("%d entries", n)
			}
			w.exec(tt.repair)
			w.allMarked()
			w.verify(0)
		})
	}
}

// PostgreSQL and Redis fail at the same time, with rows of megabytes on their way.
func TestPollWhileBothAreAway(t *testing.T) {
	t.Parallel()
	w := newWorld(t, worldOptions{})
	p := w.startPoll()
	p.polls()
	w.toRedis.Stall()
	w.exec(`INSERT INTO outbox (kind, payload) SELECT 'large', to_jsonb(repeat('x', 2000000) || i) FROM generate_series(1, 30) i`)
	p.becomes("one with a row on its way", func(_ int, doc healthDocument) bool { return doc.Age != nil && *doc.Age > 0.5 })
	w.toPG.Stall()
	w.toRedis.Cut()
	w.toPG.Cut()
	p.becomes("warn of both", func(_ int, doc healthDocument) bool {
		return doc.reason("Redis has been away") != "" && doc.reason("PostgreSQL has not answered") != ""
	})
	for _, proxy := range []*testservers.Proxy{w.toPG, w.toRedis} {
		proxy.Restore()
		proxy.Resume()
	}
	w.allMarked()
	p.becomes("ok", func(_ int, doc healthDocument) bool { return doc.Status == "ok" && doc.Age != nil && *doc.Age < 0.1 })
	if n := len(w.times("outbox_id")); n != 30 {
		t.Errorf("%d rows of 30 are on the stream", n)
	}
}

// An idle poller knows that Redis is away, and that it is back.
func TestIdlePollNoticesThatRedisIsAway(t *testing.T) {
	t.Parallel()
	w := newWorld(t, worldOptions{})
	p := w.startPoll("--listen", "nothing", "--safety-interval", "1h")
	p.becomes("ok", func(_ int, doc healthDocument) bool { return doc.Role == "polling" && doc.Status == "ok" })
	w.toRedis.Cut()
	p.saysInHealth("warn", "Redis has been away", "rows wait in the table")
	w.toRedis.Restore()
	p.becomes("ok", func(_ int, doc healthDocument) bool { return doc.Status == "ok" })
}

// A Redis that answers, and does not take rows, is not well: health says so all the
// time, not only in the moment of a try.
func TestPollSaysThatRedisTakesNoRows(t *testing.T) {
	t.Parallel()
	w := newWorld(t, worldOptions{})
	w.redisDo("SET", "jobs", "somebody else's")
	w.insert("before", 3)
	p := w.startPoll()
	p.saysInHealth("critical", "WRONGTYPE", "--stream")
	const retries = `walrelay_retries_total{reason="append"}`
	for before, changes := p.metric(retries), 0; changes < 2; {
		if _, doc, err := p.health(); err != nil || doc.Status != "critical" || doc.reason("WRONGTYPE") == "" {
			t.Fatalf("between two tries health is %+v, %v", doc, err)
		}
		if now := p.metric(retries); now != before {
			before = now
			changes++
		}
	}
	w.redisDo("DEL", "jobs")
	w.allMarked()
	w.verify(0)
	p.becomes("ok", func(_ int, doc healthDocument) bool { return doc.Status == "ok" })
}

// A row that was locked when it was notified of is not left until the safety look.
func TestListeningPollTakesARowThatWasLocked(t *testing.T) {
	t.Parallel()
	w := newWorld(t, worldOptions{})
	p := w.startPoll("--listen", "nothing", "--safety-interval", "1h")
	p.polls()
	app := w.connect()
	defer app.Close(context.Background())
	if _, err := app.Exec(t.Context(), `BEGIN; INSERT INTO outbox (kind, payload) VALUES ('locked', '{}')`); err != nil {
		t.Fatal(err)
	}
	if _, err := app.Exec(t.Context(), `COMMIT; BEGIN; UPDATE outbox SET kind = kind WHERE published_at IS NULL`); err != nil {
		t.Fatal(err)
	}
	w.insert("free", 1)
	w.exec(`NOTIFY nothing`)
	w.eventually("the free row is marked", func() error {
		if n := w.query(`SELECT count(*) FROM outbox WHERE kind = 'free' AND published_at IS NULL`); n != "0" {
			return errors.New("not yet")
		}
		return nil
	})
	if _, err := app.Exec(t.Context(), `ROLLBACK`); err != nil {
		t.Fatal(err)
	}
	w.allMarked()
	w.each("locked", "free")
}

// A slot that a relay left behind holds WAL, and the poller says how much.
func TestPollWarnsOfASlotThatNobodyReads(t *testing.T) {
	t.Parallel()
	w := newWorld(t, worldOptions{})
	run := w.startRelay()
	run.streams()
	run.stop()
	w.exec(`CREATE TABLE filler AS SELECT repeat('x', 2000) FROM generate_series(1, 2000)`)
	p := w.startPoll()
	p.polls()
	w.execIn(w.pg.NewDatabase(t), migrations.Table(cdc.Table{Schema: "public", Name: "outbox"}))
	elsewhere := w.startPoll("--postgres", strings.Replace(w.relayDSN(), "/postgres?", "/test1?", 1))
	elsewhere.becomes("ok: that is another database's slot", func(_ int, doc healthDocument) bool { return doc.Role == "polling" && doc.Status == "ok" })
	elsewhere.stop()
	p.saysInHealth("warn", "MiB of WAL", `slot "walrelay", which nobody reads`, "walrelay teardown")
	p.says("level=WARN msg=\"PostgreSQL keeps")
	p.causes(`No relay is connected to slot "walrelay" since 20`, "a poller does not read from it")
	run = w.startRelay()
	run.streams()
	p.saysInHealth("warn", "beside this poller")
	run.stop()
	code, out, errOut := walrelay(nil, "teardown", "--yes", "--postgres", w.dsn, "--redis", "redis://"+w.redis.Addr()+"/0")
	if code != exitDone {
		t.Fatalf("teardown: %d %s %s", code, out, errOut)
	}
	p.becomes("ok", func(_ int, doc healthDocument) bool { return doc.Status == "ok" })
	if slots := w.query(`SELECT count(*) FROM pg_replication_slots WHERE slot_name <> 'oracle'`); slots != "0" {
		t.Errorf("there are %s slots", slots)
	}
}

// A row that Redis does not take stops a poller's line; what comes before it is
// published, health names it, and how it is left out.
func TestPollStopsAtARowThatRedisRefuses(t *testing.T) {
	t.Parallel()
	w := newWorld(t, worldOptions{redisArgs: []string{"--proto-max-bulk-len", "1mb"}})
	w.insert("before", 3)
	w.exec(`INSERT INTO outbox (kind, payload) VALUES ('large', to_jsonb(repeat('x', 2 << 20)))`)
	w.insert("after", 3)
	p := w.startPoll()
	p.saysInHealth("critical", "the row with id 4 cannot be published", `UPDATE "public"."outbox" SET "published_at" = now() WHERE "id" = '4'`)
	if n := w.length(); n != 3 {
		t.Errorf("%d entries, want 3", n)
	}
	w.exec(`UPDATE "public"."outbox" SET "published_at" = now() WHERE "id" = '4'`)
	w.allMarked()
	p.becomes("ok", func(_ int, doc healthDocument) bool { return doc.Status == "ok" })
	if n := w.length(); n != 6 {
		t.Errorf("%d entries, want 6", n)
	}
}

// Rows are deleted instead of marked, and rows that the application has locked
// are passed over until it lets go.
func TestPollDeletes(t *testing.T) {
	t.Parallel()
	w := newWorld(t, worldOptions{})
	w.insert("before", 3)
	app := w.connect()
	defer app.Close(context.Background())
	if _, err := app.Exec(t.Context(), `BEGIN; SELECT * FROM outbox WHERE id = 2 FOR UPDATE`); err != nil {
		t.Fatal(err)
	}
	w.startPoll("--mark", "delete").polls()
	left := func(want string) {
		t.Helper()
		w.eventually("the rows are "+want, func() error {
			if got := w.query(`SELECT coalesce(string_agg(id::text, ' ' ORDER BY id), '') FROM outbox`); got != want {
				return errors.New(got)
			}
			return nil
		})
	}
	left("2")
	if _, err := app.Exec(t.Context(), `COMMIT`); err != nil {
		t.Fatal(err)
	}
	left("")
	if n := w.length(); n != 3 {
		t.Errorf("%d entries, want 3", n)
	}
}

// SIGTERM lets a poller finish what it has claimed.
func TestPollStops(t *testing.T) {
	t.Parallel()
	w := newWorld(t, worldOptions{})
	w.exec(`INSERT INTO outbox (kind, payload) SELECT 'many', to_jsonb(i) FROM generate_series(1, 5000) i`)
	p := w.startPoll()
	w.eventually("some rows are on the stream", func() error {
		if w.length() == 0 {
			return errors.New("none")
		}
		return nil
	})
	p.stop()
	if unmarked := w.appendedUnmarked(); len(unmarked) > 0 {
		t.Errorf("%d rows were appended and not marked", len(unmarked))
	}
	w.startPoll()
	w.allMarked()
	w.verify(0)
}
