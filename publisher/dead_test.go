package publisher

import (
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/stagedoor/walrelay/cdc"
	"github.com/stagedoor/walrelay/internal/testservers"
)

// asked has the row of an event skipped.
func asked(ev cdc.Event) cdc.Event {
	ev.Dead, ev.SkipAsked = true, true
	ev.Fields = append(ev.Fields, cdc.Field{Name: cdc.DeadReason, Value: "too wide"})
	return ev
}

// wantDead compares the outbox ids on the dead stream.
func (f *fixture) wantDead(want ...string) {
	f.t.Helper()
	var got []string
	for _, m := range f.admin.XRange(f.t.Context(), "jobs:dead", "-", "+").Val() {
		got = append(got, fmt.Sprint(m.Values["outbox_id"]))
	}
	if !slices.Equal(got, want) {
		f.t.Errorf("the dead stream has %v, want %v", got, want)
	}
}

// wantSkips compares the requests in the checkpoint.
func (f *fixture) wantSkips(want ...string) {
	f.t.Helper()
	cp, _, err := f.pub.Load(f.t.Context(), key)
	if err != nil {
		f.t.Fatal(err)
	}
	for _, row := range want {
		if !cp.Skips[row] {
			f.t.Errorf("the request for %q is gone", row)
		}
	}
	if len(cp.Skips) != len(want) {
		f.t.Errorf("the requests are %v, want %v", cp.Skips, want)
	}
}

func (f *fixture) askSkip(rows ...string) {
	f.t.Helper()
	cp, _, err := f.pub.Load(f.t.Context(), key)
	if err != nil {
		f.t.Fatal(err)
	}
	if ok, err := f.pub.AskSkip(f.t.Context(), key, cp.Version, time.Now(), rows...); err != nil || !ok {
		f.t.Fatalf("asking to skip %v: %v, %v", rows, ok, err)
	}
}

// A request goes in the step that appends its row, to the dead stream or not;
// other requests stay. The dead stream's entries are not the stream's.
func TestSkippedRowGoesToTheDeadStream(t *testing.T) {
	f := setUp(t, testservers.RedisOptions{}, 0)
	if ok, err := f.pub.AskSkip(t.Context(), key, version(1), time.Now(), "2"); err != nil || ok || f.admin.Exists(t.Context(), key).Val() != 0 {
		t.Fatalf("without a checkpoint: %v, %v", ok, err)
	}
	f.append(0, state(1, 10), rows(1))
	if ok, err := f.pub.AskSkip(t.Context(), key, version(9), time.Now(), "2"); err != nil || ok {
		t.Fatalf("over another checkpoint: %v, %v", ok, err)
	}
	f.wantSkips()
	f.askSkip("2", "odd:id: 3", "4")
	f.wantSkips("2", "odd:id: 3", "4")
	f.append(1, state(2, 20), nil) // a stamp settles nothing
	f.wantSkips("2", "odd:id: 3", "4")

	events := rows(2, 4, 5)
	events[0] = asked(events[0])
	events[1].SkipAsked = true // it can be published after all
	f.append(2, state(3, 30), events)
	f.wantIDs("1", "4", "5")
	f.wantDead("2")
	f.wantSkips("odd:id: 3")
	cp, streams, err := f.pub.Load(t.Context(), key)
	if err != nil || len(cp.LastIDs) != 1 || cp.LastIDs["jobs"] != streams["jobs"].LastID {
		t.Errorf("the checkpoint follows %v: %v", cp.LastIDs, err)
	}

	if err := f.pub.WithdrawSkip(t.Context(), key, "odd:id: 3", "unknown"); err != nil {
		t.Error(err)
	}
	f.wantSkips()

	// The dead stream may be deleted at any time.
	f.admin.Del(t.Context(), "jobs:dead")
	f.append(3, state(4, 40), rows(6))
	f.append(4, state(5, 50), []cdc.Event{asked(rows(7)[0])})
	f.wantDead("7")
	f.wantIDs("1", "4", "5", "6")
}

// The dead stream is not trimmed with the other.
func TestDeadStreamIsNotTrimmed(t *testing.T) {
	f := setUp(t, testservers.RedisOptions{Args: []string{"--stream-node-max-entries", "1"}}, 1)
	events := rows(1, 2, 3, 4)
	events[0], events[1], events[2] = asked(events[0]), asked(events[1]), asked(events[2])
	f.append(0, state(1, 10), events)
	f.wantDead("1", "2", "3")
	f.wantIDs("4")
}

// What is refused after the dead entry was added takes that back too, and the
// request stays.
func TestAppendTakesDeadEntriesBack(t *testing.T) {
	f := setUp(t, testservers.RedisOptions{}, 0)
	f.append(0, state(1, 10), rows(1))
	f.askSkip("2")
	events := []cdc.Event{asked(rows(2)[0]), rows(3)[0], rows(4)[0]}
	events[2].Fields = nil // XADD needs a field
	if _, err := f.pub.Append(t.Context(), key, version(1), state(2, 20), events); err == nil {
		t.Fatal("an entry without fields was taken")
	}
	check := func() {
		t.Helper()
		f.wantVersion(1)
		f.wantIDs("1")
		f.wantDead()
		f.wantSkips("2")
	}
	check()
	events = events[:2]
	for cause, rules := range map[string][]any{
		"while running HDEL": {"-hdel"},
		"key":                {"resetkeys", "~walrelay:*", "~jobs"},
	} {
		do := func(rules ...any) {
			if err := f.redis.Client(t).Do(t.Context(), append([]any{"acl", "setuser", "relay", "on", "nopass", "allcommands", "allkeys", "allchannels"}, rules...)...).Err(); err != nil {
				t.Fatal(err)
			}
		}
		do(rules...)
		client, err := Connect(strings.Replace(f.redis.URL(), "://", "://relay:x@", 1))
		if err != nil {
			t.Fatal(err)
		}
		defer client.Close()
		limited := New(client, 0, "jobs")
		if _, err := limited.Append(t.Context(), key, version(1), state(2, 20), events); err == nil || !strings.Contains(err.Error(), cause) {
			t.Errorf("got %v, want %q", err, cause)
		}
		check()
	}
	f.admin.Set(t.Context(), "jobs:dead", "x", 0)
	if _, err := f.pub.Append(t.Context(), key, version(1), state(2, 20), events); err == nil || !strings.Contains(err.Error(), "WRONGTYPE") {
		t.Errorf("got %v", err)
	}
	f.admin.Del(t.Context(), "jobs:dead")
	check()
	f.append(1, state(2, 20), events)
	f.wantIDs("1", "3")
	f.wantDead("2")
	f.wantSkips()
}

// An entry that Redis never takes is told from a Redis that is away, where it
// says so, and changes nothing.
func TestEntryThatRedisNeverTakes(t *testing.T) {
	f := setUp(t, testservers.RedisOptions{}, 0)
	f.append(0, state(1, 10), rows(1))
	wide := rows(2, 3)
	for i := range 5000 {
		wide[1].Fields = append(wide[1].Fields, cdc.Field{Name: fmt.Sprint(i), Value: "x"})
	}
	res, err := f.pub.Append(t.Context(), key, version(1), state(2, 20), wide)
	if err != nil || res.Done || res.Refused == "" {
		t.Errorf("5000 fields: %+v, %v", res, err)
	}
	f.wantVersion(1)
	f.wantIDs("1")

	if err := f.admin.ConfigSet(t.Context(), "proto-max-bulk-len", "1048576").Err(); err != nil {
		t.Fatal(err)
	}
	large := rows(2)
	large[0].Fields[1].Value = string(make([]byte, 4<<20))
	res, err = f.pub.Append(t.Context(), key, version(1), state(2, 20), large)
	if res.Done || res.Refused == "" && !errors.Is(err, cdc.ErrNoAnswer) {
		t.Errorf("a value that is too large: %+v, %v", res, err)
	}
	f.wantVersion(1)
	f.wantIDs("1")
	large[0].Fields[1].Value = string(make([]byte, 1<<20))
	f.append(1, state(2, 20), large)
}

// A value that takes longer than Redis may take to answer still arrives.
func TestLargeValueOverASlowNetwork(t *testing.T) {
	f := setUp(t, testservers.RedisOptions{}, 0)
	f.append(0, state(1, 10), rows(1)) // Redis knows the script now
	proxy := testservers.StartProxy(t, f.redis.Addr())
	client, err := Connect("redis://" + proxy.Addr())
	if err != nil {
		t.Fatal(err)
	}
	defer client.Close()
	large := rows(2)
	large[0].Fields[1].Value = string(make([]byte, 64<<20))
	if err := client.Ping(t.Context()).Err(); err != nil { // it is connected now
		t.Fatal(err)
	}
	proxy.Stall()
	defer time.AfterFunc(ioTimeout+time.Second, proxy.Resume).Stop()
	res, err := New(client, 0, "jobs").Append(t.Context(), key, version(1), state(2, 20), large)
	if err != nil || !res.Done {
		t.Errorf("%+v, %v", res, err)
	}
}
