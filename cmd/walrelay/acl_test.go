package main

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"maps"
	"net/http"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/redis/go-redis/v9"
)

// acl changes what the Redis user of the relay may do.
func (w *world) acl(rules ...any) {
	w.t.Helper()
	args := append([]any{"ACL", "SETUSER", "relay"}, rules...)
	if err := w.rdb().Do(w.t.Context(), args...).Err(); err != nil {
		w.t.Fatalf("%v: %v", args, err)
	}
}

// asRedisUser are the flags for a relay that connects as that user.
func (w *world) asRedisUser() []string {
	return []string{"--redis", "redis://relay:secret@" + w.toRedis.Addr() + "/0"}
}

// The commands that a relay needs of Redis: always, where rows are there before
// it, and where a backfill begins anew without its stream, an append has to be
// taken back in the middle, a key is no stream or a row goes to the dead stream, or
// a database failed over.
var (
	leastCommands   = []string{"client", "eval", "evalsha", "hgetall", "hmget", "hset", "xadd", "xinfo"}
	foundRows       = []string{"time", "xrange"}
	takingBack      = []string{"del", "hdel", "xdel"}
	otherKeys       = []string{"type"}
	afterAFailover  = []string{"xrevrange"}
	allowedCommands = slices.Concat(leastCommands, foundRows, takingBack, otherKeys, afterAFailover)
)

// forbidden finds the command in what Redis says, or in what the script adds.
var forbidden = regexp.MustCompile(`(?i)(?:while running |run the ')([a-z]+)`)

// A relay that may do nothing in Redis says what it lacks, command by command,
// and appends nothing until it has all. So what it asks for is what it needs.
func TestLeastRedisPrivileges(t *testing.T) {
	t.Parallel()
	for name, tt := range map[string]struct {
		entries int // of somebody else's
		want    []string
	}{
		"the stream is there": {1, slices.Sorted(slices.Values(slices.Concat(leastCommands, foundRows)))},
		// It begins anew after it was refused, and forgets the last id.
		"there is no stream": {0, slices.Sorted(slices.Values(slices.Concat(leastCommands, foundRows, []string{"hdel"})))},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			w := newWorld(t, worldOptions{})
			w.insert("before", 3)
			for range tt.entries {
				if err := w.rdb().XAdd(t.Context(), &redis.XAddArgs{Stream: "jobs", Values: []string{"outbox_id", "another's"}}).Err(); err != nil {
					t.Fatal(err)
				}
			}
			w.acl("on", ">secret", "resetkeys", "~jobs", "~jobs:dead", "~walrelay:*", "-@all")
			p := w.startRelay(w.asRedisUser()...)
			granted := map[string]bool{}
			for {
				missing := p.asksFor(granted)
				if missing == "" {
					break
				}
				if n := w.length(); n != tt.entries {
					t.Fatalf("%d entries without %s", n, missing)
				}
				granted[missing] = true
				w.acl("+" + missing)
			}
			if got := slices.Sorted(maps.Keys(granted)); !slices.Equal(got, tt.want) {
				t.Errorf("a relay needs %v, want %v", got, tt.want)
			}
			w.insert("after", 3)
			w.hasEntries(tt.entries + 6)
			w.allMarked()
			w.confirmedPast()
			p.stop()
			p = w.startRelay(w.asRedisUser()...)
			p.streams()
			w.insert("after a restart", 3)
			w.hasEntries(tt.entries + 9)
			p.becomes("ok", func(_ int, doc healthDocument) bool { return doc.Status == "ok" })
		})
	}
}

// asksFor waits until health names a command that Redis does not allow, beside
// those that were granted, and how to allow it. It is empty when the relay
// streams.
func (p *relayProcess) asksFor(granted map[string]bool) (missing string) {
	p.t.Helper()
	eventually(p.t, fmt.Sprintf("the relay asks for more than %v, or streams", granted), func() error {
		if p.streaming() {
			return nil
		}
		_, doc, err := p.health()
		if err != nil {
			return err
		}
		reason := doc.reason("ACL SETUSER")
		m := forbidden.FindStringSubmatch(reason)
		if m == nil || granted[strings.ToLower(m[1])] {
			return fmt.Errorf("%+v", doc)
		}
		missing = strings.ToLower(m[1])
		if !strings.Contains(reason, "+"+missing) || doc.Status != "critical" {
			p.t.Errorf("without %s health is %s and says: %s", missing, doc.Status, reason)
		}
		return nil
	})
	return missing
}

// A command of the script is forbidden while the relay streams. Nothing is half
// appended, health names it, and the relay continues when it is allowed again,
// or the next one does.
func TestCommandOfTheScriptIsForbidden(t *testing.T) {
	t.Parallel()
	w := newWorld(t, worldOptions{})
	w.acl("on", ">secret", "resetkeys", "~jobs", "~jobs:dead", "~walrelay:*", "-@all")
	for _, command := range allowedCommands {
		w.acl("+" + command)
	}
	p := w.startRelay(w.asRedisUser()...)
	p.streams()
	w.insert("before", 3)
	w.verify(0)
	for i, command := range []string{"xinfo", "hmget", "hset", "xadd", "evalsha", "eval"} {
		// By the script, or else by Redis itself.
		named := "while running " + strings.ToUpper(command)
		fix := "+" + command + " "
		switch command {
		case "eval", "evalsha":
			named = "'" + command + "'"
		case "xinfo":
			fix = "+xinfo|stream"
		}
		w.allMarked()
		before := w.length()
		w.acl("-" + command)
		if command == "eval" { // the script is sent where Redis does not know it
			if err := w.rdb().ScriptFlush(t.Context()).Err(); err != nil {
				t.Fatal(err)
			}
		}
		w.waitForRedis(p, named, fix)
		checkpoint := w.appended()
		p.triesAgain()
		if now := w.appended(); w.length() != before || now != checkpoint {
			t.Errorf("without %s: %d entries became %d, the checkpoint's last row %s became %s", command, before, w.length(), checkpoint, now)
		}
		if i%2 == 1 {
			p.kill()
			p = w.startRelay(w.asRedisUser()...)
			p.saysInHealth("critical", named)
		}
		w.acl("+" + command)
		w.insert("with "+command, 2)
		w.verify(0)
		p.becomes("ok", func(_ int, doc healthDocument) bool { return doc.Status == "ok" })
	}
	w.allMarked()
	w.confirmedPast()
}

var lastRow = regexp.MustCompile(`"last":\{[^}]*\}`)

// appended is the last row that the checkpoint has.
func (w *world) appended() string {
	w.t.Helper()
	keys, err := w.rdb().Keys(w.t.Context(), "walrelay:*").Result()
	if err != nil || len(keys) != 1 {
		w.t.Fatalf("the checkpoints are %q, %v", keys, err)
	}
	document, err := w.rdb().HGet(w.t.Context(), keys[0], "checkpoint").Result()
	if err != nil {
		w.t.Fatal(err)
	}
	return lastRow.FindString(document)
}

var writeRetries = regexp.MustCompile(`walrelay_retries_total\{reason="(?:append|stamp)"\} (\d+)`)

// triesAgain waits until the relay has tried a write again: an append, or the
// stamp that came before it.
func (p *relayProcess) triesAgain() {
	p.t.Helper()
	first := ""
	eventually(p.t, "the relay tries again", func() error {
		if _, _, err := p.health(); err != nil { // finds the address
			return err
		}
		res, err := http.Get("http://" + p.http + "/metrics")
		if err != nil {
			return err
		}
		defer res.Body.Close()
		body, err := io.ReadAll(res.Body)
		if err != nil {
			return err
		}
		now := string(bytes.Join(writeRetries.FindAll(body, -1), []byte(", ")))
		if now == "" {
			return errors.New("there is no such metric")
		}
		if first == "" {
			first = now
		}
		if first == now {
			return fmt.Errorf("%s, as before", now)
		}
		return nil
	})
}
