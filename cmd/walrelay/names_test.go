package main

import (
	"fmt"
	"strings"
	"testing"

	"github.com/stagedoor/walrelay/cdc"
)

// Names with quotes, spaces, dots, backslashes and capitals are quoted right all
// the way: by setup, by a relay that backfills, streams, marks and restarts, and
// by teardown.
func TestOddNames(t *testing.T) {
	t.Parallel()
	const stream = `Jobs: "é" {x}`
	w := newWorld(t, worldOptions{})
	table := cdc.Table{Schema: `My "Shop"`, Name: `Out.box's \ Table`}
	w.exec(fmt.Sprintf(`CREATE SCHEMA "My ""Shop""";
		CREATE TABLE %s ("Order ""Id""" bigserial PRIMARY KEY, "kind of" text, "Pay.load" jsonb, "created's At" timestamptz DEFAULT now(), "Publ\ished" timestamptz)`, table))
	insert := func(n int) {
		t.Helper()
		w.exec(fmt.Sprintf(`INSERT INTO %s ("kind of", "Pay.load") SELECT 'k', '{}' FROM generate_series(1, %d)`, table, n))
	}
	settings := []string{
		"--table", `"My ""Shop"""."Out.box's \ Table"`, "--stream", stream, "--slot", "0_odd", "--publication", `Wal"Relay's, \pub`,
		"--column-id", `Order "Id"`, "--column-kind", "kind of", "--column-payload", "Pay.load",
		"--column-created-at", "created's At", "--column-published-at", `Publ\ished`,
	}
	command := func(name string, more ...string) string {
		t.Helper()
		args := append([]string{name, "--postgres", w.dsn, "--redis", w.redis.URL()}, append(more, settings...)...)
		code, stdout, stderr := walrelay(nil, args...)
		if code != 0 {
			t.Fatalf("%s ended with %d: %s", name, code, stderr)
		}
		return stdout
	}
	there := func() string {
		t.Helper()
		keys, err := w.rdb().Keys(t.Context(), "walrelay:*:0_odd").Result()
		if err != nil {
			t.Fatal(err)
		}
		return w.query(`SELECT (SELECT count(*) FROM pg_publication WHERE pubname = E'Wal"Relay''s, \\pub') || ' publication, ' ||
			(SELECT count(*) FROM pg_replication_slots WHERE slot_name = '0_odd') || ' slot'`) + fmt.Sprintf(", %d checkpoint", len(keys))
	}
	entries := func(n int) {
		t.Helper()
		var want []map[string]string
		for i := range n {
			want = append(want, entry("kind", "k", "outbox_id", fmt.Sprint(i+1), "payload", "{}"))
		}
		w.streamHas(stream, want)
		w.eventually("all rows are marked", func() error {
			if left := w.query(fmt.Sprintf(`SELECT count(*) FROM %s WHERE "Publ\ished" IS NULL`, table)); left != "0" {
				return fmt.Errorf("%s are not", left)
			}
			return nil
		})
	}
	if out := command("setup"); !strings.Contains(out, `"Wal""Relay's, \pub"`) {
		t.Errorf("setup says %q", out)
	}
	if got := there(); got != "1 publication, 0 slot, 0 checkpoint" {
		t.Errorf("after setup there are %s", got)
	}
	insert(2)
	p := w.startRelay(settings...)
	p.streams()
	insert(3)
	entries(5)
	p.kill()
	insert(2)
	p = w.startRelay(settings...)
	p.streams()
	insert(1)
	entries(8)
	p.becomes("ok", func(_ int, doc healthDocument) bool { return doc.Status == "ok" && len(doc.Reasons) == 0 })
	p.stop()
	if got := there(); got != "1 publication, 1 slot, 1 checkpoint" {
		t.Errorf("after run there are %s", got)
	}
	command("teardown", "--yes")
	if got := there(); got != "0 publication, 0 slot, 0 checkpoint" {
		t.Errorf("after teardown there are %s", got)
	}
	insert(1)
	p = w.startRelay(settings...)
	p.streams()
	entries(9)
	p.stop()

	// And the table that setup makes itself.
	command("teardown", "--yes")
	made := cdc.Table{Schema: table.Schema, Name: `Made "here"`}
	settings = []string{"--table", `"My ""Shop"""."Made ""here"""`, "--slot", "0_odd", "--publication", `Wal"Relay's, \pub`, "--stream", stream}
	command("setup", "--create-table")
	p = w.startRelay(settings...)
	p.streams()
	w.exec(fmt.Sprintf(`INSERT INTO %s (id, kind, payload) VALUES (10, 'k', '{}')`, made))
	var want []map[string]string
	for i := range 10 {
		want = append(want, entry("kind", "k", "outbox_id", fmt.Sprint(i+1), "payload", "{}"))
	}
	w.streamHas(stream, want)
	p.stop()
}
