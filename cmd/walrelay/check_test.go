package main

import (
	"bytes"
	"encoding/json"
	"maps"
	"net"
	"slices"
	"strings"
	"testing"

	"github.com/stagedoor/walrelay/cdc"
	"github.com/stagedoor/walrelay/internal/finding"
)

// check runs walrelay check with the settings of startRelay, and returns its exit
// code and findings by name.
func (w *world) check(flags ...string) (code int, found map[string]finding.Finding) {
	w.t.Helper()
	args := append([]string{"check", "--json", "--postgres", w.relayDSN(), "--redis", "redis://" + w.toRedis.Addr() + "/0", "--http", "127.0.0.1:0"}, flags...)
	code, stdout, stderr := walrelay(nil, args...)
	var doc struct {
		OK       bool              `json:"ok"`
		Findings []finding.Finding `json:"findings"`
	}
	if err := json.Unmarshal([]byte(stdout), &doc); err != nil {
		w.t.Fatalf("%v: exit code %d, %v:\n%s%s", args, code, err, stdout, stderr)
	}
	if doc.OK != (code == exitDone) || !doc.OK && code != exitFailure {
		w.t.Errorf("ok is %v and the exit code %d", doc.OK, code)
	}
	found = map[string]finding.Finding{}
	for _, f := range doc.Findings {
		found[f.Name] = f
		if doc.OK && f.Level == finding.Fail {
			w.t.Errorf("it is ok and has %+v", f)
		}
	}
	return code, found
}

// failing are the names of the findings that keep run from working.
func failing(found map[string]finding.Finding) (names []string) {
	for _, name := range slices.Sorted(maps.Keys(found)) {
		if found[name].Level == finding.Fail {
			names = append(names, name)
		}
	}
	return names
}

// For a first start and for a later one: where check names a failure run does
// not stream, and where that is repaired check is content and run streams.
func TestCheckSaysWhetherRunStreams(t *testing.T) {
	t.Parallel()
	w := newWorld(t, worldOptions{})
	w.exec(`CREATE ROLE relay LOGIN; GRANT SELECT, UPDATE (published_at) ON outbox TO relay;
		CREATE PUBLICATION walrelay FOR TABLE outbox WITH (publish = 'insert', publish_via_partition_root = true)`)
	w.acl("on", ">secret", "resetkeys", "~jobs", "~jobs:dead", "~walrelay:*", "-@all")
	for _, command := range allowedCommands {
		w.acl("+" + command)
	}
	flags := append(w.asRedisUser(), "--postgres", strings.Replace(w.relayDSN(), "postgres@", "relay@", 1))
	for _, tt := range []struct {
		finding      string
		says         string // in health, of a relay that runs nevertheless
		breaks, mend func()
	}{
		{
			"replication", "may not use replication",
			func() {},
			func() { w.exec(`ALTER ROLE relay REPLICATION`) },
		},
		{
			"publication", "does not exist",
			func() { w.exec(`DROP PUBLICATION walrelay`) },
			func() {
				w.exec(`CREATE PUBLICATION walrelay FOR TABLE outbox WITH (publish = 'insert', publish_via_partition_root = true)`)
			},
		},
		{
			"columns", `no column "payload"`,
			func() { w.exec(`ALTER TABLE outbox RENAME payload TO body`) },
			func() { w.exec(`ALTER TABLE outbox RENAME body TO payload`) },
		},
		{
			"redis_commands", "+xinfo",
			func() { w.acl("-xinfo") },
			func() { w.acl("+xinfo") },
		},
		{
			"synchronous_standby_names", "synchronous_standby_names",
			func() { w.setStandbyNames("*") },
			func() { w.setStandbyNames("") },
		},
	} {
		tt.breaks()
		if code, found := w.check(flags...); code != exitFailure || !slices.Contains(failing(found), tt.finding) || found[tt.finding].Fix == "" {
			t.Errorf("%s: exit code %d: %+v", tt.finding, code, found)
		}
		p := w.startRelay(flags...)
		p.saysInHealth("critical", tt.says)
		p.kill() // sooner than it tries again
		tt.mend()
		if code, found := w.check(flags...); code != exitDone {
			t.Errorf("%s: repaired, and still %v", tt.finding, failing(found))
		}
		p = w.startRelay(flags...)
		p.streams()
		code, found := w.check(flags...)
		if code != exitDone || !strings.Contains(found["slot"].Text, "in use") {
			t.Errorf("beside a relay that works: exit code %d: %+v", code, found)
		}
		p.stop()
	}

	// What only both sides together tell.
	if _, found := w.check(flags...); found["checkpoint"].Level != finding.OK {
		t.Errorf("a healthy pair: %+v", found["checkpoint"])
	}
	w.redisDo("FLUSHALL")
	if code, found := w.check(flags...); code != exitDone || found["checkpoint"].Level != finding.Warn {
		t.Errorf("a gap that run heals: exit code %d, %+v", code, found["checkpoint"])
	}
	if code, found := w.check(append(flags, "--heal", "manual")...); code != exitFailure || !strings.Contains(found["checkpoint"].Fix, "walrelay heal") {
		t.Errorf("a gap that waits: exit code %d, %+v", code, found["checkpoint"])
	}

	// Each side is looked at without the other.
	w.toRedis.Cut()
	code, found := w.check(flags...)
	if !slices.Equal(failing(found), []string{"redis"}) || code != exitFailure || found["publication"].Level != finding.OK {
		t.Errorf("without Redis: exit code %d: %+v", code, found)
	}
	w.toRedis.Restore()
	w.toPG.Cut()
	code, found = w.check(flags...)
	if !slices.Equal(failing(found), []string{"connection", "table"}) || code != exitFailure || found["redis_commands"].Level != finding.OK {
		t.Errorf("without PostgreSQL: exit code %d: %+v", code, found)
	}
}

// An address that is taken is a failure, unless it may be the relay that works
// with the slot who has it.
func TestCheckOfTheHTTPAddress(t *testing.T) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	addr := l.Addr().String()
	for slot, want := range map[*cdc.Slot]finding.Level{nil: finding.Fail, {}: finding.Fail, {Active: true}: finding.Warn} {
		if got := checkHTTP(t.Context(), addr, slot); got.Level != want {
			t.Errorf("taken, with the slot %+v: %+v, want %s", slot, got, want)
		}
	}
	l.Close()
	for _, addr := range []string{addr, ""} {
		if got := checkHTTP(t.Context(), addr, nil); got.Level != finding.OK {
			t.Errorf("%q is free: %+v", addr, got)
		}
	}
}

// A finding is one line, whatever a server or a name in SQL has in it.
func TestFindingsAreOneLineEach(t *testing.T) {
	found := []finding.Finding{
		finding.Good("wal_level", "it is logical"),
		finding.Warning("max_slot_wal_keep_size", "there is\nno limit", "ALTER SYSTEM …;"),
		finding.Failure("publication", "it does not exist", "CREATE PUBLICATION \"a\r\nb\";"),
	}
	var text, document bytes.Buffer
	if err := writeFindings(&text, found); err != nil {
		t.Fatal(err)
	}
	const want = `ok    wal_level: it is logical
warn  max_slot_wal_keep_size: there is no limit; to repair: ALTER SYSTEM …;
fail  publication: it does not exist; to repair: CREATE PUBLICATION "a b";
`
	if text.String() != want {
		t.Errorf("printed:\n%swant:\n%s", text.String(), want)
	}
	if err := writeFindingsJSON(&document, found[2:]); err != nil {
		t.Fatal(err)
	}
	const wantDocument = `{
  "ok": false,
  "findings": [
    {
      "name": "publication",
      "level": "fail",
      "text": "it does not exist",
      "fix": "CREATE PUBLICATION \"a\r\nb\";"
    }
  ]
}
`
	if document.String() != wantDocument {
		t.Errorf("printed:\n%swant:\n%s", document.String(), wantDocument)
	}
}
