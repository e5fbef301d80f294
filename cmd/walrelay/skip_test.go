package main

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os/exec"
	"slices"
	"strings"
	"syscall"
	"testing"

	"github.com/redis/go-redis/v9"

	"github.com/stagedoor/walrelay/relay"
)

// smallRedis takes values of up to 1 MiB, the least that it can be told to, and
// hangs up on others.
var smallRedis = worldOptions{redisArgs: []string{"--proto-max-bulk-len", "1048576"}}

// insertLarge commits a transaction with rows around one that a small Redis does
// not take, and returns that one's id.
func (w *world) insertLarge() (id string) {
	w.t.Helper()
	w.exec(`BEGIN;
		INSERT INTO outbox (kind, payload) VALUES ('beside it', '{"n": 1}');
		INSERT INTO outbox (kind, payload) VALUES ('large', jsonb_build_object('filler', repeat('x', 2000000)));
		INSERT INTO outbox (kind, payload) VALUES ('beside it', '{"n": 2}');
		COMMIT`)
	return w.query(`SELECT max(id) FROM outbox WHERE kind = 'large'`)
}

// skipArgs are those of a skip of these rows, past the proxies.
func (w *world) skipArgs(ids ...string) []string {
	args := []string{"skip", "--postgres", w.dsn, "--redis", w.redis.URL()}
	for _, id := range ids {
		args = append(args, "--id", id)
	}
	return args
}

// skip runs `walrelay skip` in a process of its own.
func (w *world) skip(args ...string) (code int, out string) {
	w.t.Helper()
	cmd := self(w.t, args...)
	var b bytes.Buffer
	cmd.Stdout, cmd.Stderr = &b, &b
	err := cmd.Run()
	var exit *exec.ExitError
	if err != nil && !errors.As(err, &exit) {
		w.t.Fatal(err)
	}
	return cmd.ProcessState.ExitCode(), b.String()
}

// skips expects that a skip of these rows does as asked, and says so.
func (w *world) skips(args []string, parts ...string) {
	w.t.Helper()
	code, out := w.skip(args...)
	for _, part := range parts {
		if code != exitDone || !strings.Contains(out, part) {
			w.t.Fatalf("%q: exit code %d, want %q in:\n%s", args, code, part, out)
		}
	}
}

// skipRefused expects that nothing is asked for.
func (w *world) skipRefused(args []string, parts ...string) {
	w.t.Helper()
	before := w.requests()
	code, out := w.skip(args...)
	for _, part := range parts {
		if code != exitFailure || !strings.Contains(out, part) {
			w.t.Errorf("%q: exit code %d, want %q in:\n%s", args, code, part, out)
		}
	}
	if after := w.requests(); !slices.Equal(after, before) {
		w.t.Errorf("%q: the requests were %q and are %q", args, before, after)
	}
}

// requests are the fields of the checkpoint with requests to skip a row.
func (w *world) requests() []string {
	w.t.Helper()
	var fields []string
	keys, err := w.rdb().Keys(context.Background(), "walrelay:*").Result()
	if err != nil {
		w.t.Fatal(err)
	}
	for _, key := range keys {
		for _, field := range w.rdb().HKeys(context.Background(), key).Val() {
			if strings.HasPrefix(field, "skip:") {
				fields = append(fields, field)
			}
		}
	}
	return fields
}

// deadEntries are those of the dead stream.
func (w *world) deadEntries() []redis.XMessage {
	w.t.Helper()
	entries, err := w.rdb().XRange(context.Background(), "jobs:dead", "-", "+").Result()
	if err != nil {
		w.t.Fatal(err)
	}
	return entries
}

// dead expects the dead stream to have these rows, each with a reason.
func (w *world) dead(ids ...string) {
	w.t.Helper()
	var got []string
	for _, e := range w.deadEntries() {
		got = append(got, fmt.Sprint(e.Values["outbox_id"]))
		if reason, _ := e.Values["walrelay_reason"].(string); reason == "" {
			w.t.Errorf("the row %v has no reason", e.Values["outbox_id"])
		}
	}
	if !slices.Equal(got, ids) {
		w.t.Errorf("the dead stream has %q, want %q", got, ids)
	}
}

// verifyBut waits for all rows but these, and compares: each once, byte for
// byte; from the backfilled ones on in commit order.
func (w *world) verifyBut(backfilled int, ids ...string) {
	w.t.Helper()
	want := w.committed()
	n := len(want)
	kept := want[:0]
	for _, r := range want {
		if !slices.Contains(ids, r.OutboxID) {
			kept = append(kept, r)
		}
	}
	if n-len(kept) != len(ids) {
		w.t.Fatalf("of %q, %d were committed", ids, n-len(kept))
	}
	w.hasEntries(len(kept))
	got, err := w.entries()
	if err != nil {
		w.t.Fatal(err)
	}
	if err := compare(kept, got, backfilled); err != nil {
		w.t.Error(err)
	}
}

// stopsAt waits until health names the row and the command that has it skipped.
func (p *relayProcess) stopsAt(id string, parts ...string) {
	p.t.Helper()
	p.saysInHealth("critical", append(parts, "the row with id "+id, "walrelay skip --id "+id)...)
}

// A row that Redis does not take stops the line, by its name and with the
// command; everything before it is published, marked and confirmed. Another
// process has it skipped: it goes to the dead stream, is marked, and the rows
// behind it follow.
func TestRowThatRedisDoesNotTakeIsSkipped(t *testing.T) {
	t.Parallel()
	w := newWorld(t, smallRedis)
	p := w.startRelay()
	p.streams()
	w.insert("before", 3)
	id := w.insertLarge()
	w.insert("behind", 3)
	end := w.query(`pg_current_wal_insert_lsn()`)
	p.stopsAt(id, "row 1 of transaction", "Redis does not take it")
	w.hasEntries(4)
	w.eventually("what was published is marked", func() error {
		if n := w.query(`SELECT count(*) FROM outbox WHERE published_at IS NOT NULL`); n != "4" {
			return fmt.Errorf("%s rows are", n)
		}
		return nil
	})
	p.startsOver() // it tries again, and nothing moves
	if n := w.length(); n != 4 {
		t.Errorf("%d entries, want 4", n)
	}
	if w.query(`SELECT confirmed_flush_lsn < '`+end+`' FROM pg_replication_slots WHERE slot_name = 'walrelay'`) != "true" {
		t.Error("what is not published is confirmed")
	}

	other := w.query(`SELECT min(id) FROM outbox`)
	w.skipRefused(w.skipArgs(other), "stops at the row "+id, "nothing is skipped")
	w.skipRefused(append(w.skipArgs(id), "--slot", "another"), "there is no checkpoint", `"another"`, "--slot")
	w.dead()

	w.skips(w.skipArgs(id), "asked for", `the row `+id+` is on the stream "jobs:dead" as entry`, "Redis does not take it")
	w.verifyBut(0, id)
	w.dead(id)
	e := w.deadEntries()[0].Values
	if position, _ := e["walrelay_position"].(string); e["kind"] != "large" || e["payload"] != nil || !strings.HasSuffix(position, "/1") {
		t.Errorf("the dead entry is %v", e)
	}
	if left := w.requests(); len(left) > 0 {
		t.Errorf("the requests %q are left", left)
	}
	w.insert("after", 3)
	w.verifyBut(0, id)
	w.allMarked()
	w.confirmedPast()
	p.becomes("ok", func(_ int, doc healthDocument) bool { return doc.Status == "ok" })
	if n := p.metric("walrelay_dead_rows_total"); n != "1" {
		t.Errorf("counts %s skipped rows, want 1", n)
	}
	w.skipRefused(w.skipArgs(id), "does not stop at any row")

	// The next relay knows of it.
	p.stop()
	w.startRelay().streams()
	w.insert("last", 3)
	w.verifyBut(0, id)
	w.dead(id)
}

// Several rows are skipped with one command, in the order of the log.
func TestSeveralRowsAreSkippedAtOnce(t *testing.T) {
	t.Parallel()
	w := newWorld(t, smallRedis)
	p := w.startRelay()
	p.streams()
	ids := []string{w.insertLarge(), w.insertLarge(), w.insertLarge()}
	w.insert("behind", 3)
	p.stopsAt(ids[0])
	w.skips(append(w.skipArgs(ids...), "--no-wait"), "asked for the row "+ids[0])
	w.verifyBut(0, ids...)
	w.dead(ids...)
	w.allMarked()
	w.confirmedPast()
}

// A row without an id is skipped by its place. It cannot be marked, and holds
// nothing up.
func TestRowWithoutIDIsSkipped(t *testing.T) {
	t.Parallel()
	w := newWorld(t, worldOptions{})
	w.exec(`CREATE TABLE orders (seq bigserial PRIMARY KEY, ref text UNIQUE, kind text, payload jsonb, created_at timestamptz DEFAULT now(), published_at timestamptz)`)
	flags := []string{"--table", "public.orders", "--column-id", "ref"}
	p := w.startRelay(flags...)
	p.streams()
	w.exec(`INSERT INTO orders (ref, kind) VALUES ('a', 'before'), (NULL, 'none'), ('b', 'behind')`)
	w.exec(`INSERT INTO orders (ref, kind) VALUES ('c', 'behind')`)
	p.saysInHealth("critical", "row 1 of transaction", "the id is NULL", "walrelay skip --id 0/")
	_, doc, err := p.health()
	if err != nil {
		t.Fatal(err)
	}
	_, place, _ := strings.Cut(doc.reason("walrelay skip"), "walrelay skip --id ")
	place, _, _ = strings.Cut(place, " ")
	w.skips(append(w.skipArgs(place), flags...), `the row `+place+` is on the stream "jobs:dead"`, `UPDATE "public"."orders"`)
	w.expect("outbox_id", "a", "b", "c")
	check := func() {
		t.Helper()
		entries := w.deadEntries()
		if len(entries) != 1 || entries[0].Values["kind"] != "none" || entries[0].Values["walrelay_position"] != place || entries[0].Values["outbox_id"] != nil {
			t.Errorf("the dead stream has %v", entries)
		}
	}
	check()
	w.confirmedPast()

	// The slot delivers it again where the relay died before it was confirmed.
	w.exec(`INSERT INTO orders (ref, kind) VALUES ('d', 'before')`)
	w.expect("outbox_id", "a", "b", "c", "d")
	p.kill()
	w.startRelay(flags...).streams()
	w.exec(`INSERT INTO orders (ref, kind) VALUES ('e', 'after')`)
	w.expect("outbox_id", "a", "b", "c", "d", "e")
	check()
}

// The relay dies before the step that appends to the dead stream, and after it.
// There is one entry, and no row is lost or doubled.
func TestRelayKilledWhileItSkips(t *testing.T) {
	t.Parallel()
	for _, step := range []relay.Step{relay.StepAppend, relay.StepAppended, relay.StepMark, relay.StepMarked, relay.StepStamp, relay.StepStamped, relay.StepConfirm} {
		t.Run(string(step), func(t *testing.T) {
			t.Parallel()
			w := newWorld(t, smallRedis)
			p := w.startRelay()
			p.streams()
			w.insert("before", 3)
			id := w.insertLarge()
			p.stopsAt(id)
			p.kill()
			w.insert("behind", 3)
			w.skips(append(w.skipArgs(id), "--no-wait"), "asked for")
			p = w.startRelayEnv([]string{execEnv + "=crash", crashEnv + "=" + string(step) + ":1"})
			if err := p.killedItself(); err != nil {
				t.Fatal(err)
			}
			w.startRelay().streams()
			w.insert("after", 3)
			w.verifyBut(0, id)
			w.allMarked()
			w.confirmedPast()
			w.dead(id)
		})
	}
}

// A backfill stops at such a row as well, also after the relay died with the
// row on the dead stream, and does not ask again.
func TestRowIsSkippedInABackfill(t *testing.T) {
	t.Parallel()
	for _, step := range []relay.Step{"", relay.StepBackfillAppended, relay.StepBackfillMarked, relay.StepBackfillFinished} {
		t.Run(string(step), func(t *testing.T) {
			t.Parallel()
			w := newWorld(t, smallRedis)
			w.insert("before", 3)
			id := w.insertLarge()
			w.insert("behind", 3)
			p := w.startRelay()
			p.stopsAt(id, "Redis does not take it")
			w.eventually("what came before is published and marked", func() error {
				if n := w.query(`SELECT count(*) FROM outbox WHERE published_at IS NOT NULL`); n != "4" || w.length() != 4 {
					return fmt.Errorf("%s rows are marked, %d entries", n, w.length())
				}
				return nil
			})
			if step == "" {
				w.skips(w.skipArgs(id), `the row `+id+` is on the stream "jobs:dead"`)
			} else {
				p.kill()
				w.skips(append(w.skipArgs(id), "--no-wait"), "asked for")
				p = w.startRelayEnv([]string{execEnv + "=crash", crashEnv + "=" + string(step) + ":1"})
				if err := p.killedItself(); err != nil {
					t.Fatal(err)
				}
				w.dead(id)
				p = w.startRelay()
			}
			p.streams()
			w.insert("after", 3)
			w.verifyBut(9, id)
			w.allMarked()
			w.confirmedPast()
			w.dead(id)
		})
	}
}

// A row that was skipped is not published when a gap is healed, though it could
// be by then.
func TestHealLeavesSkippedRowsAlone(t *testing.T) {
	t.Parallel()
	w := newWorld(t, smallRedis)
	p := w.startRelay()
	p.streams()
	id := w.insertLarge()
	p.stopsAt(id)
	w.skips(w.skipArgs(id), "is on the stream")
	w.verifyBut(0, id)
	w.allMarked()
	p.stop()
	w.redisDo("CONFIG", "SET", "proto-max-bulk-len", "536870912")
	w.exec(`SELECT pg_drop_replication_slot('walrelay')`)
	w.insert("missed", 3)
	w.startRelay().streams()
	w.insert("after", 3)
	w.verifyBut(0, id)
	w.dead(id)
}

// A request never touches a row that can be published, and does not outlive it.
func TestStaleRequestSkipsNothing(t *testing.T) {
	t.Parallel()
	w := newWorld(t, smallRedis)
	p := w.startRelay()
	p.streams()
	w.insert("before", 3)
	id := w.insertLarge()
	p.stopsAt(id)
	p.kill()
	next := w.query(`SELECT max(id) + 1 FROM outbox`)
	wait := self(t, w.skipArgs(id, next)...)
	var out lockedBuffer
	wait.Stdout, wait.Stderr = &out, &out
	if err := wait.Start(); err != nil {
		t.Fatal(err)
	}
	w.eventually("both are asked for", func() error {
		if n := len(w.requests()); n != 2 {
			return fmt.Errorf("%d requests", n)
		}
		return nil
	})
	w.redisDo("CONFIG", "SET", "proto-max-bulk-len", "536870912")
	w.startRelay().streams()
	w.insert("after", 3)
	if err := wait.Wait(); err != nil || !strings.Contains(out.String(), "the row "+id+" was not skipped") {
		t.Errorf("%v:\n%s", err, out.String())
	}
	w.verify(0)
	w.dead()
	w.eventually("the requests are gone", func() error {
		if left := w.requests(); len(left) > 0 {
			return fmt.Errorf("%q", left)
		}
		return nil
	})
	w.allMarked()
	w.confirmedPast()
}

// A request without a checkpoint, without a Redis, or cut short changes nothing,
// or stays.
func TestSkipThatCannotBeDone(t *testing.T) {
	t.Parallel()
	w := newWorld(t, smallRedis)
	w.skipRefused(w.skipArgs("1"), "there is no checkpoint", "walrelay:", "database")
	if n := w.rdb().DBSize(t.Context()).Val(); n != 0 {
		t.Errorf("it left %d keys", n)
	}
	p := w.startRelay()
	p.streams()
	w.skipRefused(w.skipArgs("1"), "does not stop at any row")
	id := w.insertLarge()
	p.stopsAt(id)
	p.kill()
	if code, out := w.skip(append(w.skipArgs(id), "--redis", "redis://127.0.0.1:1")...); code != exitFailure || !strings.Contains(out, "no answer from Redis") {
		t.Errorf("without Redis: exit code %d\n%s", code, out)
	}
	if code, out := w.skip(w.skipArgs()...); code != exitUsage || !strings.Contains(out, "--id") {
		t.Errorf("without a row: exit code %d\n%s", code, out)
	}
	wait := self(t, w.skipArgs(id)...)
	var out lockedBuffer
	wait.Stdout, wait.Stderr = &out, &out
	if err := wait.Start(); err != nil {
		t.Fatal(err)
	}
	w.eventually("it waits", func() error {
		if !strings.Contains(out.String(), "asked for") {
			return errors.New(out.String())
		}
		return nil
	})
	_ = wait.Process.Signal(syscall.SIGINT)
	if err := wait.Wait(); wait.ProcessState.ExitCode() != exitFailure || !strings.Contains(out.String(), "what was asked for stays") {
		t.Errorf("%v:\n%s", err, out.String())
	}
	w.startRelay().streams()
	w.verifyBut(0, id)
	w.dead(id)
}
