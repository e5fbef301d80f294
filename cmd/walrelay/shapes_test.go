package main

import (
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/redis/go-redis/v9"
)

// values waits until the stream has so many entries, and returns a field of
// each.
func (w *world) values(n int, field string) []string {
	w.t.Helper()
	w.hasEntries(n)
	entries, err := w.entries()
	if err != nil {
		w.t.Fatal(err)
	}
	var values []string
	for _, e := range entries {
		values = append(values, fmt.Sprint(e.Values[field]))
	}
	return values
}

func (w *world) expect(field string, want ...string) {
	w.t.Helper()
	if got := w.values(len(want), field); !slices.Equal(got, want) {
		w.t.Errorf("the entries have %s %q, want %q", field, got, want)
	}
}

// An outbox of the application's own: partitioned, with names that need quotes,
// ids that are no numbers, columns that consumers know by other names, and rows
// that are deleted once they are on the stream. Partitions come and go, and do
// not show.
func TestOutboxOfOnesOwn(t *testing.T) {
	t.Parallel()
	w := newWorld(t, worldOptions{})
	w.exec(`CREATE SCHEMA "My App";
		CREATE TABLE "My App"."Out.Box" ("Key" uuid DEFAULT gen_random_uuid(), "Event Type" text, body bytea, part int, PRIMARY KEY ("Key", part)) PARTITION BY LIST (part);
		CREATE TABLE "My App".one PARTITION OF "My App"."Out.Box" FOR VALUES IN (1)`)
	insert := func(part int, kind string) {
		t.Helper()
		w.exec(fmt.Sprintf(`INSERT INTO "My App"."Out.Box" ("Event Type", body, part) VALUES (%s, '\x00ff', %d)`, kind, part))
	}
	insert(1, "'before'")
	p := w.startRelay("--table", `"My App"."Out.Box"`, "--column-id", "Key", "--column-created-at", "", "--column-published-at", "",
		"--mark", "delete", "--field", "type=Event Type", "--field", "data=body", "--field", "outbox_id=Key")
	p.streams()
	insert(1, "'first'")
	w.exec(`CREATE TABLE "My App".two PARTITION OF "My App"."Out.Box" FOR VALUES IN (2)`)
	insert(2, "'second'")
	insert(1, "NULL")
	w.expect("type", "before", "first", "second", "<nil>")
	w.expect("data", `\x00ff`, `\x00ff`, `\x00ff`, `\x00ff`)
	w.eventually("published rows are deleted", func() error {
		if n := w.query(`SELECT count(*) FROM "My App"."Out.Box"`); n != "0" {
			return errors.New(n + " are left")
		}
		return nil
	})
	w.exec(`ALTER TABLE "My App"."Out.Box" DETACH PARTITION "My App".one; DROP TABLE "My App".one`)
	insert(2, "'last'")
	w.expect("type", "before", "first", "second", "<nil>", "last")
	w.confirmedPast()
}

// The table is changed under the relay. What it needs is found by name, what it
// does not need does not matter, and what is missing is said, until it is back.
func TestTableIsAltered(t *testing.T) {
	t.Parallel()
	w := newWorld(t, worldOptions{})
	p := w.startRelay("--confirm-delay", "10m") // so that all of it is read again
	p.streams()
	for i, alter := range []string{
		`SELECT 1`,
		`ADD COLUMN extra text DEFAULT 'x'`,
		`DROP COLUMN extra`,
		`ALTER COLUMN kind TYPE varchar(20)`,
		`ALTER COLUMN payload TYPE text`,
		`ALTER COLUMN id TYPE integer`,
	} {
		if i > 0 {
			w.exec(`ALTER TABLE outbox ` + alter)
		}
		w.exec(fmt.Sprintf(`INSERT INTO outbox (kind, payload) VALUES ('%d', '{}')`, i))
	}
	w.expect("kind", "0", "1", "2", "3", "4", "5")
	w.allMarked()
	w.exec(`TRUNCATE outbox`)
	w.exec(`ALTER TABLE outbox RENAME COLUMN kind TO sort`)
	w.exec(`INSERT INTO outbox (sort, payload) VALUES ('renamed', '{}')`)
	p.saysInHealth("critical", `no column "kind"`, "--column-kind")
	w.expect("kind", "0", "1", "2", "3", "4", "5")
	p.stop()
	w.startRelay("--column-kind", "sort")
	w.expect("kind", "0", "1", "2", "3", "4", "5", "renamed")
	w.allMarked()
	w.confirmedPast()
}

// The stream's key holds something else. Rows are kept, and follow in order
// when the key is free.
func TestStreamIsOfAnotherType(t *testing.T) {
	t.Parallel()
	w := newWorld(t, worldOptions{})
	client := w.redis.Client(t)
	if err := client.Set(t.Context(), "jobs", "a string", 0).Err(); err != nil {
		t.Fatal(err)
	}
	w.insert("before", 2)
	p := w.startRelay()
	p.saysInHealth("critical", "WRONGTYPE", "--stream")
	w.insert("meanwhile", 2)
	if err := client.Rename(t.Context(), "jobs", "elsewhere").Err(); err != nil {
		t.Fatal(err)
	}
	p.streams()
	w.insert("after", 2)
	w.verify(4)
	w.allMarked()
	p.becomes("ok", func(_ int, doc healthDocument) bool { return doc.Status == "ok" })
}

// Two relays start at once, on a fresh database and an empty Redis. One works,
// the other waits without holding back vacuum; when the first dies the second
// takes over.
func TestTwoRelaysStartAtOnce(t *testing.T) {
	t.Parallel()
	w := newWorld(t, worldOptions{})
	w.insert("before", 50)
	a, b := w.startRelay(), w.startRelay()
	var works, waits *relayProcess
	w.eventually("one streams, the other stands by", func() error {
		works, waits = a, b
		_, first, err1 := a.health()
		_, second, err2 := b.health()
		if second.Role == "streaming" {
			works, waits, first, second = b, a, second, first
		}
		if first.Role != "streaming" || second.Role != "standby" {
			return fmt.Errorf("%s and %s, %w", first.Role, second.Role, errors.Join(err1, err2))
		}
		return nil
	})
	if n := w.query(`SELECT count(*) FROM pg_stat_activity WHERE application_name = 'walrelay' AND backend_xmin IS NOT NULL AND state <> 'active'`); n != "0" {
		t.Errorf("%s sessions hold back vacuum", n)
	}
	w.insert("between", 5)
	works.kill()
	w.insert("after", 5)
	waits.streams()
	w.verify(50)
	w.allMarked()
	w.confirmedPast()
	if strings.Contains(waits.log.String(), "verdict=gap") {
		t.Error("the one that waited judged a pair that was in use")
	}
}

// A Redis user may not run one of the commands. Nothing is half appended, and
// the report names the command.
func TestRedisUserMayNotAppend(t *testing.T) {
	t.Parallel()
	w := newWorld(t, worldOptions{})
	client := w.redis.Client(t)
	acl := func(rules ...any) {
		t.Helper()
		if err := client.Do(t.Context(), append([]any{"ACL", "SETUSER", "relay", "on", ">secret", "~jobs", "~jobs:dead", "~walrelay:*"}, rules...)...).Err(); err != nil {
			t.Fatal(err)
		}
	}
	all := strings.Fields("+eval +evalsha +hmget +hgetall +hset +hdel +del +type +xadd +xdel +xinfo|stream +xrange +time +exists +client|setname +hello +select")
	var rules []any
	for _, rule := range all {
		rules = append(rules, rule)
	}
	acl(rules...)
	p := w.startRelay("--redis", "redis://relay:secret@"+w.toRedis.Addr()+"/0")
	p.streams()
	w.insert("before", 2)
	w.verify(0)
	acl("-xadd")
	w.insert("meanwhile", 2)
	p.saysInHealth("critical", "xadd")
	if n, err := client.XLen(t.Context(), "jobs").Result(); n != 2 || err != nil {
		t.Errorf("%d entries, %v", n, err)
	}
	acl("+xadd")
	w.verify(0)
	w.allMarked()
	w.confirmedPast()
	if strings.Contains(p.log.String(), "secret") {
		t.Error("the password is in the log")
	}
}

// A row that nobody marks is read, and the stream is trimmed to about a number.
func TestRowsAreLeftAloneAndTheStreamIsTrimmed(t *testing.T) {
	t.Parallel()
	w := newWorld(t, worldOptions{})
	p := w.startRelay("--mark", "none", "--maxlen", "100")
	p.streams()
	w.exec(`INSERT INTO outbox (kind, payload) SELECT 'many', to_jsonb(i) FROM generate_series(1, 3000) i`)
	client := w.redis.Client(t)
	w.eventually("the last entry is there", func() error {
		last, err := client.XRevRangeN(t.Context(), "jobs", "+", "-", 1).Result()
		if err == nil && !isRow(last, "3000") {
			err = errors.New("not yet")
		}
		return err
	})
	if n, err := client.XLen(t.Context(), "jobs").Result(); n < 100 || n > 1000 || err != nil {
		t.Errorf("%d entries, %v", n, err)
	}
	w.confirmedPast()
	if n := w.query(`SELECT count(*) FROM outbox WHERE published_at IS NOT NULL`); n != "0" {
		t.Errorf("%s rows are marked", n)
	}
	p.becomes("ok, with no age", func(_ int, doc healthDocument) bool {
		return doc.Status == "ok" && doc.Age != nil && *doc.Age == 0 && doc.Published == 3000
	})
}

func isRow(entries []redis.XMessage, id string) bool {
	return len(entries) == 1 && entries[0].Values["outbox_id"] == id
}
