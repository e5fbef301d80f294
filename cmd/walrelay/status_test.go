package main

import (
	"bufio"
	"bytes"
	"encoding/json"
	"fmt"
	"io"
	"os"
	"strings"
	"syscall"
	"testing"

	"github.com/stagedoor/walrelay/internal/health"
	"github.com/stagedoor/walrelay/internal/status"
)

// statusArgs are those of walrelay status in this world, as a role that may
// neither replicate nor change the schema, and the user of a relay.
func (w *world) statusArgs(flags ...string) []string {
	return append([]string{
		"status", "--postgres", strings.Replace(w.relayDSN(), "postgres@", "viewer@", 1),
		"--redis", "redis://relay:secret@" + w.toRedis.Addr() + "/0",
	}, flags...)
}

// status looks once, and returns what it prints, its words with one space between
// them.
func (w *world) status(code int, flags ...string) string {
	w.t.Helper()
	got, stdout, stderr := walrelay(nil, w.statusArgs(flags...)...)
	if got != code {
		w.t.Errorf("%v: exit code %d, want %d:\n%s%s", flags, got, code, stdout, stderr)
	}
	if strings.Contains(stdout+stderr, "\x1b") || strings.Contains(stdout+stderr, "secret") {
		w.t.Errorf("it shows:\n%s%s", stdout, stderr)
	}
	return strings.Join(strings.Fields(stdout), " ")
}

// statusJSON is the same as a document.
func (w *world) statusJSON(code int, flags ...string) (r status.Report) {
	w.t.Helper()
	text := w.status(code, append(flags, "--json")...)
	if err := json.Unmarshal([]byte(text), &r); err != nil {
		w.t.Fatalf("%v: %s", err, text)
	}
	return r
}

// statusBecomes looks until what is seen is as wanted.
func (w *world) statusBecomes(what string, is func(status.Report) bool) status.Report {
	w.t.Helper()
	var r status.Report
	w.eventually("status shows "+what, func() error {
		_, stdout, _ := walrelay(nil, w.statusArgs("--json")...)
		r = status.Report{}
		if err := json.Unmarshal([]byte(stdout), &r); err != nil {
			return err
		}
		if !is(r) {
			return fmt.Errorf("%s", stdout)
		}
		return nil
	})
	return r
}

func wantParts(t *testing.T, text string, parts ...string) {
	t.Helper()
	for _, part := range parts {
		if !strings.Contains(text, part) {
			t.Errorf("it does not say %q:\n%s", part, text)
		}
	}
}

// One outbox from before its first relay to after its slot is gone, seen by a
// role that may neither replicate nor change anything.
func TestStatusFromTheFirstRowOn(t *testing.T) {
	t.Parallel()
	w := newWorld(t, worldOptions{})
	w.exec(`CREATE ROLE viewer LOGIN; GRANT SELECT, UPDATE (published_at) ON outbox TO viewer`)
	w.acl("on", ">secret", "resetkeys", "~jobs", "~jobs:dead", "~walrelay:*", "-@all")
	for _, command := range allowedCommands {
		w.acl("+" + command)
	}

	text := w.status(exitDone)
	wantParts(t, text, `OK No relay has worked here with a slot "walrelay".`, "none has worked here", "no row waits", "Checkpoint there is none", "jobs: no entry yet")
	w.insert("first", 3)
	text = w.status(exitFailure, "--age-critical", "1us")
	wantParts(t, text, "CRITICAL", "3 rows wait since", "walrelay check")

	p := w.startRelay(w.asRedisUser()...)
	p.streams()
	w.allMarked()
	w.redisDo("XGROUP", "CREATE", "jobs", "mail", "0")
	w.redisDo("XREADGROUP", "GROUP", "mail", "one", "COUNT", "1", "STREAMS", "jobs", ">")
	r := w.statusBecomes("a relay that streams", func(r status.Report) bool {
		return r.Status == health.StatusOK && r.Relay.Role == health.RoleStreaming && r.Checkpoint.Phase == "streaming" && r.Checkpoint.Age != nil
	})
	if fmt.Sprint(*r.Relay.PID) != w.walsender() || *r.Slot.UnconfirmedBytes > 1<<20 || r.Checkpoint.Verdict != nil || r.Cause != nil || *r.Waiting != 0 {
		t.Errorf("while a relay streams: %+v", r)
	}
	text = w.status(exitDone)
	wantParts(t, text, "OK A relay streams", "pgoutput, of database", "no row waits", "jobs: 3 entries", "mail 1 1 2", `walrelay: the inserts of "public"."outbox"`)
	// The relay tells of the stream, too.
	p.becomes("one that has the stream", func(_ int, doc healthDocument) bool {
		return doc.Stream != nil && doc.Stream.Length == 3 && len(doc.Stream.Groups) == 1 && doc.Stream.Groups[0].Pending == 1
	})

	// Looks follow one another, each on its line, and a signal ends that well.
	exe, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	watch := w.startProgram(exe, []string{execEnv + "=walrelay"}, w.statusArgs("--watch", "--json", "--interval", "50ms")...)
	w.eventually("there were three looks", func() error {
		if n := strings.Count(watch.log.String(), "\n"); n < 3 {
			return fmt.Errorf("%d lines", n)
		}
		return nil
	})
	_ = watch.cmd.Process.Signal(syscall.SIGINT)
	watch.ends()
	lines := bufio.NewScanner(strings.NewReader(watch.log.String()))
	for n := 0; n < 3 && lines.Scan(); n++ {
		var r status.Report
		if err := json.Unmarshal(lines.Bytes(), &r); err != nil || r.Slot == nil {
			t.Errorf("%v: %s", err, lines.Text())
		}
	}

	// A relay that does not reach Redis is told from one whose clock is off, by who
	// reaches it.
	_, cfg, _, err := parse(w.statusArgs("--redis", "redis://relay:secret@"+w.redis.Addr()+"/0"), nil, io.Discard, io.Discard)
	if err != nil {
		t.Fatal(err)
	}
	o, err := newOutside(&process{cfg: cfg})
	if err != nil {
		t.Fatal(err)
	}
	defer o.close()
	o.stampsLate = 0
	if l := o.look(t.Context()); !l.Redis.StillSince.IsZero() || l.Redis.Checkpoint == nil {
		t.Errorf("a relay that writes: %+v", l.Redis)
	}

	// Redis is away: the other half is there.
	w.toRedis.Cut()
	if l := o.look(t.Context()); l.Redis.StillSince.IsZero() || !l.Redis.AwaySince.IsZero() {
		t.Errorf("a relay that does not: %+v", l.Redis)
	}
	text = w.status(exitFailure)
	wantParts(t, text, "Redis does not answer", "Relay streams", "redis-cli -h 127.0.0.1 -p "+fmt.Sprint(w.toRedis.Port())+" --user relay --askpass time", "Checkpoint not known")
	w.toRedis.Restore()

	// No relay, and rows wait.
	p.stop()
	w.insert("later", 2)
	changes := func() string {
		t.Helper()
		info, err := w.rdb().Info(t.Context(), "persistence").Result()
		if err != nil {
			t.Fatal(err)
		}
		_, rest, _ := strings.Cut(info, "rdb_changes_since_last_save:")
		n, _, _ := strings.Cut(rest, "\r")
		return n
	}
	before := changes()
	text = w.status(exitFailure, "--age-critical", "1us")
	wantParts(t, text, "CRITICAL No relay is connected since 20", "2 rows wait since 20", `No relay is connected to slot "walrelay" since 20`, "To do", "walrelay run", "walrelay teardown", "no limit is set")
	r = w.statusJSON(exitFailure, "--age-critical", "1us")
	if r.Relay.Role != health.RoleNone || r.Relay.Since == nil || r.Slot.Active || *r.Checkpoint.Verdict != "stream" || *r.OldestAge <= 0 || *r.Waiting != 2 {
		t.Errorf("without a relay: %+v", r)
	}

	if after := changes(); after != before {
		t.Errorf("looking changed something in Redis: %s changes became %s", before, after)
	}

	// PostgreSQL is frozen: the other half is there.
	w.toPG.Stall()
	text = w.status(exitFailure)
	wantParts(t, text, "PostgreSQL does not answer: no answer in time", "jobs: 3 entries", "psql -h 127.0.0.1 -p "+fmt.Sprint(w.toPG.Port())+" -U viewer", "Redis answers")
	w.toPG.Resume()

	// The slot is gone.
	w.exec(`SELECT pg_drop_replication_slot('walrelay')`)
	text = w.status(exitDone, "--age-warn", "1h", "--age-critical", "1h")
	wantParts(t, text, "WARN No relay is connected", "the slot is gone", "there is none named walrelay", "A relay that starts heals that", "walrelay run")
	text = w.status(exitFailure, "--heal", "manual")
	wantParts(t, text, "CRITICAL", "walrelay heal")
	p = w.startRelay()
	p.streams()
	w.verify(3)

	// A poller takes over.
	p.stop()
	if code, _, stderr := walrelay(nil, "teardown", "--yes", "--postgres", w.dsn, "--redis", w.redis.URL()); code != exitDone {
		t.Fatalf("teardown ended with %d: %s", code, stderr)
	}
	poller := w.startPoll()
	w.insert("polled", 1)
	w.allMarked()
	text = w.status(exitDone)
	wantParts(t, text, "OK No relay has worked here", "no row waits", "jobs: 6 entries")
	poller.stop()
	w.insert("not polled", 1)
	text = w.status(exitFailure, "--age-critical", "1us")
	wantParts(t, text, "CRITICAL", "A row waits since 20")
}

// On a terminal a look is drawn over the last one, elsewhere below it.
func TestScreenOfLooks(t *testing.T) {
	t.Parallel()
	report := status.NewReport(&status.Look{}, health.Judge(health.Input{}))
	for name, c := range map[string]struct {
		screen screen
		want   string
	}{
		"text":     {screen{}, "T\n\nT\n"},
		"terminal": {screen{watch: true, terminal: true}, "\x1b[H\x1b[2J\x1b[3JT\n\x1b[H\x1b[2J\x1b[3JT\n"},
		"JSON":     {screen{json: true, watch: true, terminal: true}, "J\nJ\n"},
	} {
		var out, text, doc bytes.Buffer
		if err := report.WriteText(&text, false); err != nil {
			t.Fatal(err)
		}
		if err := json.NewEncoder(&doc).Encode(report); err != nil {
			t.Fatal(err)
		}
		c.screen.out = &out
		for range 2 {
			if err := c.screen.show(report); err != nil {
				t.Fatal(err)
			}
		}
		got := strings.NewReplacer(text.String(), "T\n", doc.String(), "J\n").Replace(out.String())
		if got != c.want {
			t.Errorf("%s: %q, want %q", name, got, c.want)
		}
	}
	for _, c := range []struct {
		terminal bool
		environ  map[string]string
		want     bool
	}{
		{true, nil, true},
		{false, nil, false},
		{true, map[string]string{"NO_COLOR": "1"}, false},
		{true, map[string]string{"TERM": "dumb"}, false},
	} {
		if got := colours(c.terminal, func(name string) string { return c.environ[name] }); got != c.want {
			t.Errorf("%+v: %t", c, got)
		}
	}
}
