package publisher

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/redis/go-redis/v9"
	"go.uber.org/goleak"

	"github.com/stagedoor/walrelay/cdc"
	"github.com/stagedoor/walrelay/internal/fault"
	"github.com/stagedoor/walrelay/internal/testservers"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

const key = "walrelay:1:app:walrelay"

func version(n uint64) cdc.Version { return cdc.Version{Instance: "a", Counter: n} }

func state(n uint64, covered cdc.LSN) cdc.Checkpoint {
	return cdc.Checkpoint{Version: version(n), Format: 1, Timeline: 1, Phase: cdc.PhaseStreaming, Covered: covered}
}

// rows makes events with these ids.
func rows(ids ...int) []cdc.Event {
	var events []cdc.Event
	for _, id := range ids {
		events = append(events, cdc.Event{ID: fmt.Sprint(id), Fields: []cdc.Field{
			{Name: "outbox_id", Value: fmt.Sprint(id)}, {Name: "payload", Value: `{"a": "\n` + "\x00\xff" + `"}`},
		}})
	}
	return events
}

type fixture struct {
	t     *testing.T
	redis *testservers.Redis
	admin *redis.Client
	pub   *Publisher
}

func setUp(t *testing.T, opts testservers.RedisOptions, maxLen int64) *fixture {
	r := testservers.StartRedis(t, opts)
	client, err := Connect(r.URL())
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { client.Close() })
	return &fixture{t: t, redis: r, admin: r.Client(t), pub: New(client, maxLen, "jobs")}
}

// append expects success.
func (f *fixture) append(expected uint64, next cdc.Checkpoint, events []cdc.Event) {
	f.t.Helper()
	var v cdc.Version
	if expected != 0 {
		v = version(expected)
	}
	res, err := f.pub.Append(f.t.Context(), key, v, next, events)
	if err != nil || !res.Done {
		f.t.Fatalf("append: %+v, %v", res, err)
	}
}

// ids are the outbox ids on the stream.
func (f *fixture) ids() []string {
	f.t.Helper()
	messages, err := f.admin.XRange(context.Background(), "jobs", "-", "+").Result()
	if err != nil && !strings.HasPrefix(err.Error(), "WRONGTYPE") {
		f.t.Fatal(err)
	}
	var ids []string
	for _, m := range messages {
		ids = append(ids, m.Values["outbox_id"].(string))
	}
	return ids
}

func (f *fixture) wantIDs(want ...string) {
	f.t.Helper()
	if got := f.ids(); !slices.Equal(got, want) {
		f.t.Errorf("the stream has %v, want %v", got, want)
	}
}

func (f *fixture) wantVersion(n uint64) {
	f.t.Helper()
	got, err := f.admin.HGet(context.Background(), key, "version").Result()
	if n == 0 && errors.Is(err, redis.Nil) {
		return
	}
	if err != nil || got != version(n).String() {
		f.t.Errorf("the checkpoint has version %q, %v; want %d", got, err, n)
	}
}

func TestAppendAndLoad(t *testing.T) {
	f := setUp(t, testservers.RedisOptions{}, 0)
	cp, streams, err := f.pub.Load(t.Context(), key)
	if err != nil || cp != nil || streams["jobs"].Exists {
		t.Fatalf("an empty Redis: %+v %+v %v", cp, streams, err)
	}
	f.append(0, state(1, 10), rows(1, 2))
	f.append(1, state(2, 20), nil)
	f.append(2, state(3, 30), rows(3))
	f.wantIDs("1", "2", "3")

	cp, streams, err = f.pub.Load(t.Context(), key)
	if err != nil {
		t.Fatal(err)
	}
	last := f.admin.XRevRangeN(t.Context(), "jobs", "+", "-", 1).Val()[0]
	if cp.Version != version(3) || cp.Covered != 30 || cp.LastIDs["jobs"] != last.ID || streams["jobs"].LastID != last.ID || !streams["jobs"].Exists {
		t.Errorf("loaded %+v %+v, the last entry is %s", cp, streams, last.ID)
	}
	if got := last.Values["payload"]; got != `{"a": "\n`+"\x00\xff"+`"}` {
		t.Errorf("the payload arrived as %q", got)
	}
}

func TestAppendOnlyOverTheExpectedVersion(t *testing.T) {
	f := setUp(t, testservers.RedisOptions{}, 0)
	f.append(0, state(1, 10), rows(1))
	for _, expected := range []cdc.Version{{}, version(2), {Instance: "b", Counter: 1}} {
		res, err := f.pub.Append(t.Context(), key, expected, state(9, 90), rows(9))
		if err != nil || res.Done || res.Held == nil || res.Held.Version != version(1) || res.Held.Covered != 10 {
			t.Errorf("expecting %v: %+v, %v", expected, res, err)
		}
	}
	f.admin.Del(t.Context(), key)
	res, err := f.pub.Append(t.Context(), key, version(1), state(2, 20), rows(2))
	if err != nil || res.Done || res.Held != nil {
		t.Errorf("over a checkpoint that is gone: %+v, %v", res, err)
	}
	f.wantIDs("1")
}

// The reply of an append is lost. The client library sends it again by itself,
// or the relay does: there is one entry, and the conflict shows our version.
func TestAppendRepeatedAfterLostReply(t *testing.T) {
	for name, retries := range map[string]int{"by the relay": -1, "by the client": 3} {
		t.Run(name, func(t *testing.T) {
			f := setUp(t, testservers.RedisOptions{}, 0)
			proxy := testservers.StartProxy(t, f.redis.Addr())
			client, err := Connect("redis://" + proxy.Addr())
			if err != nil {
				t.Fatal(err)
			}
			opts := client.Options()
			client.Close()
			opts.MaxRetries = retries
			client = redis.NewClient(opts)
			defer client.Close()
			pub := New(client, 0, "jobs")
			f.append(0, state(1, 10), rows(1)) // Redis knows the script now

			lost := 0
			proxy.OnReply(func(piece []byte) bool {
				if lost == 0 && strings.HasPrefix(string(piece), "*1\r\n:1\r\n") {
					lost++
					return true
				}
				return false
			})
			res, err := pub.Append(t.Context(), key, version(1), state(2, 20), rows(2))
			if retries < 0 {
				if err == nil {
					t.Fatalf("the reply was lost, and append says %+v", res)
				}
				res, err = pub.Append(t.Context(), key, version(1), state(2, 20), rows(2))
			}
			if err != nil || res.Done || cdc.JudgeConflict(version(2), res.Held) != cdc.OwnSuccess {
				t.Errorf("%+v, %v", res, err)
			}
			if lost != 1 {
				t.Error("no reply was lost")
			}
			f.wantIDs("1", "2")
		})
	}
}

// Each refusal leaves the checkpoint and the stream as they were, says why, and
// what was refused goes through once the cause is gone.
func TestAppendRefusedChangesNothing(t *testing.T) {
	big := func(events []cdc.Event) []cdc.Event {
		for i := range events {
			events[i].Fields[1].Value = string(make([]byte, 1<<20))
		}
		return events
	}
	type refusal struct {
		opts           []string
		cause, mend    func(*fixture)
		want           string
		permanent      bool
		streamReplaced bool
	}
	do := func(args ...any) func(*fixture) {
		return func(f *fixture) {
			f.t.Helper()
			if err := f.admin.Do(context.Background(), args...).Err(); err != nil {
				f.t.Fatal(args, err)
			}
		}
	}
	refusals := map[string]refusal{
		"stream of another type": {
			cause: func(f *fixture) {
				do("rename", "jobs", "kept")(f)
				do("set", "jobs", "x")(f)
			},
			mend: func(f *fixture) { do("rename", "kept", "jobs")(f) },
			want: "WRONGTYPE the key jobs holds a string", permanent: true, streamReplaced: true,
		},
		"checkpoint of another type": {
			cause: func(f *fixture) {
				do("rename", key, "kept")(f)
				do("set", key, "x")(f)
			},
			mend: func(f *fixture) { do("rename", "kept", key)(f) },
			want: "WRONGTYPE", permanent: true,
		},
		"out of memory": {
			cause: do("config", "set", "maxmemory", "1"),
			mend:  do("config", "set", "maxmemory", "0"),
			want:  "OOM",
		},
		"a replica": {
			cause: do("replicaof", "127.0.0.1", "1"),
			mend:  do("replicaof", "no", "one"),
			want:  "READONLY",
		},
		"too few replicas": {
			cause: do("config", "set", "min-replicas-to-write", "1"),
			mend:  do("config", "set", "min-replicas-to-write", "0"),
			want:  "NOREPLICAS",
		},
	}
	for _, command := range []string{"hmget", "xinfo", "hset", "xadd"} {
		refusals["no permission for "+command] = refusal{
			cause: do("acl", "setuser", "default", "-"+command),
			mend:  do("acl", "setuser", "default", "+"+command),
			want:  strings.ToUpper(command), permanent: true,
		}
	}
	refusals["no permission for the stream"] = refusal{
		cause: do("acl", "setuser", "default", "resetkeys", "~walrelay:*"),
		mend:  do("acl", "setuser", "default", "allkeys"),
		want:  "key", permanent: true,
	}
	for name, r := range refusals {
		t.Run(name, func(t *testing.T) {
			f := setUp(t, testservers.RedisOptions{Args: r.opts}, 0)
			// An administrator whose rights stay.
			do("acl", "setuser", "admin", "on", ">secret", "allcommands", "allkeys")(f)
			opts := *f.admin.Options()
			opts.Username, opts.Password = "admin", "secret"
			f.admin = redis.NewClient(&opts)
			defer f.admin.Close()
			f.append(0, state(1, 10), rows(1))

			r.cause(f)
			for range 2 {
				_, err := f.pub.Append(t.Context(), key, version(1), state(2, 20), big(rows(2, 3)))
				if err == nil || !strings.Contains(err.Error(), r.want) {
					t.Fatalf("got %v, want %s", err, r.want)
				}
				if (fault.As(err) != nil) != r.permanent {
					t.Errorf("an operator is needed: %v; %v", fault.As(err) != nil, err)
				}
			}
			r.mend(f)
			f.wantVersion(1)
			f.wantIDs("1")
			f.append(1, state(2, 20), rows(2, 3))
			f.wantIDs("1", "2", "3")
		})
	}
}

// An entry in the middle of a batch is refused: the ones before it are taken
// back, unseen by anybody.
func TestAppendRefusedInTheMiddleTakesBack(t *testing.T) {
	f := setUp(t, testservers.RedisOptions{}, 0)
	events := rows(1, 2)
	events[1].Fields = nil // XADD needs a field
	if _, err := f.pub.Append(t.Context(), key, cdc.Version{}, state(1, 10), events); err == nil {
		t.Fatal("an entry without fields was taken")
	}
	f.wantVersion(0)
	f.wantIDs()
	f.append(0, state(1, 10), rows(1))
	if _, err := f.pub.Append(t.Context(), key, version(1), state(2, 20), events); err == nil {
		t.Fatal("an entry without fields was taken")
	}
	f.wantVersion(1)
	f.wantIDs("1")
}

func TestAppendNoticesThatTheStreamIsGone(t *testing.T) {
	f := setUp(t, testservers.RedisOptions{}, 0)
	f.append(0, state(1, 10), rows(1))
	f.admin.Del(t.Context(), "jobs")
	for _, events := range [][]cdc.Event{nil, rows(2)} {
		res, err := f.pub.Append(t.Context(), key, version(1), state(2, 20), events)
		if err != nil || res.Done || res.MissingStream != "jobs" {
			t.Errorf("%+v, %v", res, err)
		}
	}
	f.wantVersion(1)
	next := state(2, 20)
	next.LastIDs = map[string]string{"jobs": ""}
	f.append(1, next, nil)
	f.append(2, state(3, 30), rows(2))
	f.wantIDs("2")
}

// A user that may not delete makes a first checkpoint, which has nothing to
// forget; later on what is refused changes nothing.
func TestAppendThatMayNotForget(t *testing.T) {
	f := setUp(t, testservers.RedisOptions{}, 0)
	next := state(1, 10)
	next.LastIDs = map[string]string{"jobs": ""}
	if err := f.admin.Do(t.Context(), "acl", "setuser", "default", "-hdel", "-del").Err(); err != nil {
		t.Fatal(err)
	}
	f.append(0, next, rows(1))
	next.Version = version(2)
	if _, err := f.pub.Append(t.Context(), key, version(1), next, rows(2)); err == nil || !strings.Contains(err.Error(), "while running HDEL") {
		t.Errorf("got %v, want the command that is forbidden", err)
	}
	f.wantVersion(1)
	f.wantIDs("1")
}

func TestAppendTrims(t *testing.T) {
	f := setUp(t, testservers.RedisOptions{Args: []string{"--stream-node-max-entries", "10"}}, 20)
	var ids []int
	for i := range 100 {
		ids = append(ids, i)
	}
	f.append(0, state(1, 10), rows(ids...))
	if n := len(f.ids()); n < 20 || n > 30 {
		t.Errorf("%d entries are left of 100, want about 20", n)
	}
}

// Redis is killed while appends go on: with appendfsync always, what was
// acknowledged is there, and no batch is there in part.
func TestAppendIsAtomicOverCrashOfRedis(t *testing.T) {
	f := setUp(t, testservers.RedisOptions{Args: []string{"--appendonly", "yes", "--appendfsync", "always"}}, 0)
	acknowledged, n := uint64(0), uint64(0)
	for round := range 3 {
		crash := make(chan struct{})
		go func() {
			defer close(crash)
			for range 50 { // some appends, whatever they take
				f.redis.Client(t).Ping(context.Background())
			}
			f.redis.Kill()
		}()
		for {
			n++
			res, err := f.pub.Append(t.Context(), key, version0(acknowledged), state(n, 0), rows(int(n)*10, int(n)*10+1, int(n)*10+2))
			if err != nil {
				break
			}
			if !res.Done {
				t.Fatalf("round %d: conflict with %+v", round, res.Held)
			}
			acknowledged = n
		}
		<-crash
		f.redis.Start()
		cp, _, err := f.pub.Load(t.Context(), key)
		if err != nil {
			t.Fatal(err)
		}
		if cp.Version.Counter < acknowledged || cp.Version.Counter > n {
			t.Fatalf("acknowledged %d, tried %d, Redis has %d", acknowledged, n, cp.Version.Counter)
		}
		acknowledged = cp.Version.Counter
	}
	ids := f.ids()
	if len(ids) == 0 || len(ids)%3 != 0 {
		t.Errorf("%d entries: a batch of three is there in part", len(ids))
	}
	if last := fmt.Sprint(acknowledged*10 + 2); ids[len(ids)-1] != last {
		t.Errorf("the last entry is %s, the checkpoint says %s", ids[len(ids)-1], last)
	}
}

func version0(n uint64) cdc.Version {
	if n == 0 {
		return cdc.Version{}
	}
	return version(n)
}

func TestEntriesReadsPages(t *testing.T) {
	f := setUp(t, testservers.RedisOptions{}, 0)
	var ids []int
	for i := range 3000 {
		ids = append(ids, i)
	}
	f.append(0, state(1, 10), rows(ids...))
	all := f.admin.XRange(t.Context(), "jobs", "-", "+").Val()
	for name, tc := range map[string]struct {
		first, last string
		want        []redis.XMessage
	}{
		"all":    {"-", "+", all},
		"part":   {all[10].ID, all[2500].ID, all[10:2501]},
		"one":    {all[5].ID, all[5].ID, all[5:6]},
		"beyond": {"99999999999999-0", "+", nil},
	} {
		i := 0
		err := f.pub.Entries(t.Context(), "jobs", tc.first, tc.last, func(e cdc.Entry) error {
			if i >= len(tc.want) || e.ID != tc.want[i].ID || e.Values["outbox_id"] != tc.want[i].Values["outbox_id"] {
				return fmt.Errorf("entry %d is %+v", i, e)
			}
			i++
			return nil
		})
		if err != nil || i != len(tc.want) {
			t.Errorf("%s: %d of %d entries, %v", name, i, len(tc.want), err)
		}
	}
}

// A stream is read back from any place, only as far as is wanted.
func TestEntriesBackReadsPages(t *testing.T) {
	f := setUp(t, testservers.RedisOptions{}, 0)
	nothing := func(e cdc.Entry) (bool, error) { return false, fmt.Errorf("there is an entry %+v", e) }
	if err := f.pub.EntriesBack(t.Context(), "jobs", "+", nothing); err != nil {
		t.Errorf("no stream: %v", err)
	}
	var ids []int
	for i := range 3000 {
		ids = append(ids, i)
	}
	f.append(0, state(1, 10), rows(ids...))
	all := f.admin.XRevRange(t.Context(), "jobs", "+", "-").Val()
	failed := errors.New("enough of it")
	for name, tc := range map[string]struct {
		last string
		stop int // wants no more after so many
		err  error
		want []redis.XMessage
	}{
		"all":             {"+", 0, nil, all},
		"from an entry":   {all[40].ID, 0, nil, all[40:]},
		"the first entry": {all[2999].ID, 0, nil, all[2999:]},
		"before all":      {"1-0", 0, nil, nil},
		"beyond all":      {"99999999999999-0", 0, nil, all},
		"one":             {"+", 1, nil, all[:1]},
		"a page":          {"+", 16, nil, all[:16]},
		"some":            {all[3].ID, 1500, nil, all[3:1503]},
		"until it fails":  {"+", 20, failed, all[:20]},
	} {
		i := 0
		err := f.pub.EntriesBack(t.Context(), "jobs", tc.last, func(e cdc.Entry) (bool, error) {
			if i >= len(tc.want) || e.ID != tc.want[i].ID || e.Values["outbox_id"] != tc.want[i].Values["outbox_id"] {
				return false, fmt.Errorf("entry %d is %+v", i, e)
			}
			if i++; i == tc.stop {
				return false, tc.err
			}
			return true, nil
		})
		if !errors.Is(err, tc.err) || err != nil && tc.err == nil || i != len(tc.want) {
			t.Errorf("%s: %d of %d entries, %v", name, i, len(tc.want), err)
		}
	}
	if err := f.admin.Set(t.Context(), "text", "x", 0).Err(); err != nil {
		t.Fatal(err)
	}
	if err := f.pub.EntriesBack(t.Context(), "text", "+", nothing); fault.As(err) == nil {
		t.Errorf("no stream at all: %v, want an error for an operator", err)
	}
}

func TestForget(t *testing.T) {
	f := setUp(t, testservers.RedisOptions{}, 0)
	f.append(0, state(1, 10), rows(1))
	for _, want := range []bool{true, false} {
		if was, err := f.pub.Forget(t.Context(), key); err != nil || was != want {
			t.Errorf("got %v, %v; want %v", was, err, want)
		}
	}
	f.wantIDs("1")
}

// Also where there is no stream yet, what is missing is the right to look.
func TestWithoutTheRightToLookNoStreamIsBlamed(t *testing.T) {
	t.Parallel()
	f := setUp(t, testservers.RedisOptions{}, 0)
	f.acl("~jobs ~walrelay:* " + strings.Replace(commands, "+xinfo|stream", "", 1))
	_, err := f.as("jobs").Append(t.Context(), key, cdc.Version{}, state(1, 10), nil)
	if err == nil || !strings.Contains(err.Error(), "running XINFO") || !strings.Contains(err.Error(), "ACL SETUSER") {
		t.Errorf("it says %v", err)
	}
}
