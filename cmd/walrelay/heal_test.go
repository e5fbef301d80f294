package main

import (
	"encoding/json"
	"errors"
	"fmt"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/stagedoor/walrelay/cdc"
)

// healed runs heal past the proxies, and expects exit code 0.
func (w *world) healed(flags ...string) (stdout string) {
	w.t.Helper()
	code, stdout, stderr := walrelay(nil, w.healArgs(flags...)...)
	if code != exitDone {
		w.t.Fatalf("heal %v ended with %d: %s%s", flags, code, stdout, stderr)
	}
	return stdout
}

func (w *world) healArgs(flags ...string) []string {
	return append([]string{"heal", "--postgres", w.dsn, "--redis", w.redis.URL()}, flags...)
}

// held is the checkpoint in Redis.
func (w *world) held() (cp cdc.Checkpoint) {
	w.t.Helper()
	text, err := w.rdb().HGet(w.t.Context(), w.checkpoint(), "checkpoint").Result()
	if err != nil {
		w.t.Fatal(err)
	}
	if err := json.Unmarshal([]byte(text), &cp); err != nil {
		w.t.Fatal(err)
	}
	return cp
}

// A relay that works heals when it is asked to, and nothing comes twice.
func TestHealBesideARelay(t *testing.T) {
	t.Parallel()
	w := newWorld(t, worldOptions{})
	p := w.startRelay()
	p.streams()
	w.insert("before", 10)
	w.allMarked()
	w.redisDo("XDEL", "jobs", w.entryOf("4").ID)
	// The relay cannot know, and Redis tells that entries were deleted: of a
	// marked row nothing is sent again.
	out := w.healed()
	if !strings.Contains(out, "asked for a heal") || !strings.Contains(out, "healed:") {
		t.Errorf("heal said %q", out)
	}
	if w.held().Phase != cdc.PhaseStreaming {
		t.Errorf("the checkpoint is %+v", w.held())
	}
	p.says("backfilling")
	w.insert("after", 5)
	w.allMarked()
	w.finds("missing 4")
	// What a person knows to be missing is unmarked.
	w.exec(`UPDATE outbox SET published_at = NULL WHERE id = 4`)
	w.healed()
	w.allMarked()
	w.finds("")
	w.verifyKinds("before", 10, "after", 5)
}

// verifyKinds expects each row of these kinds once, in no particular order.
func (w *world) verifyKinds(pairs ...any) {
	w.t.Helper()
	entries, err := w.entries()
	if err != nil {
		w.t.Fatal(err)
	}
	seen, kinds := map[string]int{}, map[string]int{}
	for _, e := range entries {
		seen[e.Values["outbox_id"].(string)]++
		kinds[e.Values["kind"].(string)]++
	}
	for id, n := range seen {
		if n != 1 {
			w.t.Errorf("row %s is on the stream %d times", id, n)
		}
	}
	for i := 0; i < len(pairs); i += 2 {
		if n := kinds[pairs[i].(string)]; n != pairs[i+1] {
			w.t.Errorf("%d rows of the kind %s, want %d", n, pairs[i], pairs[i+1])
		}
	}
}

// Without a relay the request waits for the next one, also when nobody waits for
// it any more; a relay that was told to leave gaps alone does it, too.
func TestHealWithoutARelay(t *testing.T) {
	t.Parallel()
	w := newWorld(t, worldOptions{})
	p := w.startRelay()
	p.streams()
	w.insert("before", 10)
	w.allMarked()
	p.stop()
	w.exec(`SELECT pg_drop_replication_slot('walrelay')`)
	w.insert("missed", 3)
	p = w.startRelay("--heal", "manual")
	p.says("walrelay heal")
	p.stop()

	cmd := self(t, w.healArgs()...)
	said := &lockedBuffer{}
	cmd.Stdout, cmd.Stderr = said, said
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	w.eventually("heal says that there is no relay", func() error {
		if !strings.Contains(said.String(), "no relay is at work") {
			return errors.New(said.String())
		}
		return nil
	})
	_ = cmd.Process.Signal(syscall.SIGINT)
	if err := cmd.Wait(); err == nil || cmd.ProcessState.ExitCode() != exitFailure || !strings.Contains(said.String(), "the request stands") {
		t.Errorf("interrupted, heal ended with %v: %s", err, said)
	}
	if cp := w.held(); cp.Phase != cdc.PhaseBackfill || cp.Since == nil || cp.Since.Time.IsZero() || cp.Since.First {
		t.Errorf("the request is %+v", cp)
	}

	healed := make(chan string)
	go func() {
		_, out, stderr := walrelay(nil, w.healArgs()...)
		healed <- out + stderr
	}()
	p = w.startRelay("--heal", "manual")
	p.streams()
	if out := <-healed; !strings.Contains(out, "healed:") {
		t.Errorf("heal said %q", out)
	}
	w.insert("after", 2)
	w.allMarked()
	w.finds("")
	w.verifyKinds("before", 10, "missed", 3, "after", 2)
}

// After Redis lost everything, what was marked since a time that only a person
// knows is put back; then nothing is in doubt.
func TestHealSinceATime(t *testing.T) {
	t.Parallel()
	w := newWorld(t, worldOptions{volatile: true})
	p := w.startRelay()
	p.streams()
	w.insert("old", 5)
	w.allMarked()
	w.exec(`UPDATE outbox SET published_at = published_at - interval '2 days', created_at = created_at - interval '2 days'`)
	w.insert("known", 5)
	w.allMarked()
	w.exec(`UPDATE outbox SET published_at = published_at - interval '2 hours', created_at = created_at - interval '2 hours' WHERE kind = 'known'`)
	w.insert("new", 5)
	w.allMarked()
	w.confirmedPast()
	w.redisDo("FLUSHALL")
	p.becomes("in doubt", func(_ int, doc healthDocument) bool {
		return doc.Status == "warn" && strings.Contains(strings.Join(doc.Reasons, " "), "walrelay heal --since")
	})
	if w.held().Doubt == nil {
		t.Fatal("the checkpoint has no doubt")
	}
	w.healed("--since", "24h")
	w.verifyKinds("old", 0, "known", 5, "new", 5)
	w.finds("missing 1 2 3 4 5")
	if d := w.held().Doubt; d != nil {
		t.Errorf("still in doubt: %+v", d)
	}
	w.healed("--since", w.query(`SELECT min(created_at) AT TIME ZONE 'UTC' FROM outbox`))
	w.verifyKinds("old", 5, "known", 5, "new", 5)
	w.finds("")
	p.becomes("well", func(_ int, doc healthDocument) bool { return doc.Status == "ok" })
}

// Or it is accepted that they are gone.
func TestHealAcceptsAGap(t *testing.T) {
	t.Parallel()
	w := newWorld(t, worldOptions{volatile: true})
	p := w.startRelay()
	p.streams()
	w.insert("old", 5)
	w.allMarked()
	if out := w.healed("--accept-gap"); !strings.Contains(out, "nothing to accept") {
		t.Errorf("without a doubt: %q", out)
	}
	w.confirmedPast()
	key := w.checkpoint()
	w.redisDo("FLUSHALL")
	w.eventually("the checkpoint is in doubt", func() error {
		if n, err := w.rdb().Exists(t.Context(), key).Result(); err != nil || n == 0 {
			return errors.New("there is no checkpoint")
		}
		if cp := w.held(); cp.Doubt == nil || cp.Phase != cdc.PhaseStreaming {
			return fmt.Errorf("%+v", cp)
		}
		return nil
	})
	if out := w.healed("--accept-gap"); !strings.Contains(out, "accepted") {
		t.Errorf("in doubt: %q", out)
	}
	if d := w.held().Doubt; d != nil {
		t.Errorf("still in doubt: %+v", d)
	}
	w.insert("new", 5)
	w.allMarked()
	p.becomes("well", func(_ int, doc healthDocument) bool { return doc.Status == "ok" })
	w.verifyKinds("new", 5)
	if out := w.healed("--accept-gap"); !strings.Contains(out, "nothing to accept") {
		t.Errorf("accepted: %q", out)
	}
}

// A heal that is asked for after Redis lost everything leaves the same in doubt
// as one that the relay does by itself.
func TestHealByHandLeavesADoubt(t *testing.T) {
	t.Parallel()
	w := newWorld(t, worldOptions{volatile: true})
	p := w.startRelay("--heal", "manual")
	p.streams()
	w.insert("old", 5)
	w.allMarked()
	w.confirmedPast()
	w.redisDo("FLUSHALL")
	p.says("walrelay heal")
	w.healed()
	if d := w.held().Doubt; d == nil || d.Before.IsZero() || !strings.Contains(d.Reason, "no checkpoint") {
		t.Errorf("the doubt is %+v", d)
	}
	w.insert("new", 5)
	w.allMarked()
	w.healed("--accept-gap")
	w.verifyKinds("new", 5)
}

// What cannot be asked for says why, and leaves the checkpoint as it is.
func TestHealThatCannotBeAskedFor(t *testing.T) {
	t.Parallel()
	w := newWorld(t, worldOptions{volatile: true})
	fails := func(want string, flags ...string) {
		t.Helper()
		code, out, stderr := walrelay(nil, w.healArgs(flags...)...)
		if code != exitFailure || out != "" || !strings.Contains(stderr, want) {
			t.Errorf("%v ended with %d: %s%s, want %q", flags, code, out, stderr, want)
		}
	}
	fails("neither a slot")
	w.exec(`SELECT pg_create_logical_replication_slot('other', 'test_decoding')`)
	fails("other", "--slot", "other")
	if code, _, stderr := walrelay(nil, w.healArgs("--accept-gap", "--since", "1h")...); code != exitUsage {
		t.Errorf("two orders at once ended with %d: %s", code, stderr)
	}
	p := w.startRelay()
	p.streams()
	p.stop()
	w.redisDo("HSET", w.checkpoint(), "checkpoint", `{"format":99,"phase":"streaming"}`)
	fails("format 99")
	fails("format 99", "--accept-gap")
	w.redis.Kill()
	fails("no answer from Redis")
	fails("connect", "--postgres", "postgres://postgres@127.0.0.1:1/postgres")
}

// A request asks for all that is in question, whatever it was asked for, and
// keeps what the relay can make use of.
func TestRequestForAHeal(t *testing.T) {
	server := cdc.Server{Timeline: 3, History: cdc.History{{Timeline: 2, LSN: 9}}}
	now := time.Date(2026, 7, 31, 18, 0, 0, 0, time.UTC)
	hour := func(n int) time.Time { return now.Add(time.Duration(n) * time.Hour) }
	streaming := &cdc.Checkpoint{Timeline: 3, Phase: cdc.PhaseStreaming, Covered: 7, CoveredTime: now, Last: cdc.Position{LSN: 5}, Doubt: &cdc.Doubt{Reason: "x"}}
	first := &cdc.Checkpoint{Timeline: 3, Phase: cdc.PhaseBackfill, Token: "t", Since: &cdc.Since{Time: now, First: true}}
	open := &cdc.Checkpoint{Timeline: 3, Phase: cdc.PhaseBackfill, Token: "t"}
	newer := &cdc.Checkpoint{Timeline: 4, Phase: cdc.PhaseStreaming, CoveredTime: now}
	for name, tt := range map[string]struct {
		cp    *cdc.Checkpoint
		since time.Time
		want  *cdc.Since
	}{
		"no checkpoint":               {nil, time.Time{}, nil},
		"no checkpoint, since a time": {nil, now, &cdc.Since{Time: now}},
		"streaming":                   {streaming, time.Time{}, &cdc.Since{Time: now, Position: cdc.Position{LSN: 5}}},
		"streaming, since before":     {streaming, hour(-1), &cdc.Since{Time: hour(-1)}},
		"streaming, since later":      {streaming, hour(1), &cdc.Since{Time: now, Position: cdc.Position{LSN: 5}}},
		"a first start":               {first, time.Time{}, &cdc.Since{Time: now, First: true}},
		"a first start, since before": {first, hour(-1), &cdc.Since{Time: hour(-1)}},
		"a first start, since later":  {first, hour(1), &cdc.Since{Time: now, First: true}},
		"asked before":                {open, time.Time{}, nil},
		"asked before, since a time":  {open, now, &cdc.Since{Time: now}},
		"an older timeline":           {newer, time.Time{}, &cdc.Since{Time: now}},
	} {
		t.Run(name, func(t *testing.T) {
			got := request(server, tt.cp, tt.since)
			if (got.Since == nil) != (tt.want == nil) || got.Since != nil && *got.Since != *tt.want {
				t.Errorf("since %+v, want %+v", got.Since, tt.want)
			}
			if got.Phase != cdc.PhaseBackfill || got.Token == "" || tt.cp != nil && got.Token == tt.cp.Token {
				t.Errorf("the phase is %s, the token %q", got.Phase, got.Token)
			}
			if got.Timeline != 3 || tt.cp == streaming && (got.Covered != 7 || got.Doubt == nil) {
				t.Errorf("the request is %+v", got)
			}
		})
	}
}

// An audit that is to repair has the relay put back what is missing, and is done
// when a second one finds nothing.
func TestAuditRepairs(t *testing.T) {
	t.Parallel()
	w := newWorld(t, worldOptions{})
	p := w.startRelay("--heal", "manual")
	p.streams()
	w.insert("before", 5)
	w.allMarked()
	p.stop()
	w.exec(`ALTER PUBLICATION walrelay DROP TABLE outbox`)
	w.insert("missed", 5)
	w.exec(`ALTER PUBLICATION walrelay ADD TABLE outbox`)
	p = w.startRelay("--heal", "manual", "--mark", "none") // which does not notice, and goes on
	p.streams()
	w.exec(`CREATE TABLE busy (filler text)`)
	w.confirmedPast()
	w.finds("missing 6 7 8 9 10", "--wait", "3s")
	code, r, stderr := w.audit("--repair")
	if code != exitDone || r.Rows != 10 || found(r) != "" {
		t.Errorf("after the repair: %d, %q: %s", code, found(r), stderr)
	}
	if !strings.Contains(stderr, "asked for a heal") {
		t.Errorf("the repair said nothing: %s", stderr)
	}
	// What a heal cannot put right is left over.
	w.xadd("jobs", w.entryOf("3").Values)
	if code, r, _ := w.audit("--repair"); code != exitFailure || found(r) != "duplicated 3" {
		t.Errorf("%d, %q", code, found(r))
	}
}
