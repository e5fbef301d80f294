package publisher

import (
	"context"
	"fmt"
	"strings"
	"testing"

	"github.com/stagedoor/walrelay/internal/finding"
	"github.com/stagedoor/walrelay/internal/testservers"
)

// findings are those of a check that begins now, by name.
func (f *fixture) findings(pub *Publisher) map[string]finding.Finding {
	f.t.Helper()
	all, answers := pub.CheckServer(f.t.Context())
	if answers {
		all = append(all, pub.CheckKeys(f.t.Context(), key)...)
	}
	byName := map[string]finding.Finding{}
	for _, found := range all {
		byName[found.Name] = found
	}
	return byName
}

func (f *fixture) wantFinding(found map[string]finding.Finding, name string, level finding.Level, text, fix string) {
	f.t.Helper()
	got, ok := found[name]
	if !ok || got.Level != level || !strings.Contains(got.Text, text) || !strings.Contains(got.Fix, fix) {
		f.t.Errorf("%s is %+v, want %s with %q and the fix %q", name, got, level, text, fix)
	}
}

// as is a publisher that logs in as the user relay.
func (f *fixture) as(streams ...string) *Publisher {
	f.t.Helper()
	client, err := Connect("redis://relay:secret@" + f.redis.Addr() + "/0")
	if err != nil {
		f.t.Fatal(err)
	}
	f.t.Cleanup(func() { client.Close() })
	return New(client, 0, streams...)
}

func (f *fixture) do(args ...any) {
	f.t.Helper()
	if err := f.admin.Do(context.Background(), args...).Err(); err != nil {
		f.t.Fatalf("%v: %v", args, err)
	}
}

// acl replaces what the user relay may do.
func (f *fixture) acl(rules string) {
	f.t.Helper()
	args := []any{"ACL", "SETUSER", "relay", "reset", "on", ">secret"}
	for rule := range strings.FieldsSeq(rules) {
		args = append(args, rule)
	}
	f.do(args...)
}

// A check writes nothing, be there a checkpoint and a stream or not, and does not
// even count as a change.
func TestCheckWritesNothingToRedis(t *testing.T) {
	f := setUp(t, testservers.RedisOptions{}, 0)
	changes := func() string {
		f.t.Helper()
		info := f.admin.Info(t.Context(), "persistence").Val()
		_, rest, _ := strings.Cut(info, "rdb_changes_since_last_save:")
		n, _, _ := strings.Cut(rest, "\r")
		return fmt.Sprint(n, " changes, ", f.admin.DBSize(t.Context()).Val(), " keys")
	}
	for i, what := range []string{"an empty one", "one that is in use"} {
		if i == 1 {
			f.append(0, state(1, 10), rows(1, 2))
		}
		before := changes()
		found := f.findings(f.pub)
		for name, got := range found {
			if got.Level == finding.Fail {
				t.Errorf("%s: %s fails: %+v", what, name, got)
			}
		}
		if after := changes(); after != before {
			t.Errorf("%s: %s became %s", what, before, after)
		}
		f.wantFinding(found, "redis_persistence", finding.Warn, "keeps nothing", "CONFIG SET appendonly yes")
		f.wantFinding(found, "redis_eviction", finding.OK, "noeviction", "")
		f.wantFinding(found, "redis_version", finding.OK, ".", "")
	}
	f.wantIDs("1", "2")
	f.wantVersion(1)
}

// A user with what the README names, and no more, passes. Without any one of the
// commands and keys a check fails, names it, and the repair repairs it. Such a
// user may ask Redis nothing about users.
func TestCheckOfLeastRedisPrivileges(t *testing.T) {
	f := setUp(t, testservers.RedisOptions{}, 0)
	const keys = "~jobs ~jobs:dead ~walrelay:*"
	all := strings.TrimSpace(strings.NewReplacer("+exists", "", "+hello", "", "+select", "", "+client|setname", "").Replace(commands))
	f.acl(keys + " " + commands)
	for _, held := range []bool{false, true} {
		pub := f.as("jobs")
		for name, got := range f.findings(pub) {
			if got.Level == finding.Fail {
				t.Errorf("%s fails: %+v", name, got)
			}
		}
		f.wantFinding(f.findings(pub), "redis_eviction", finding.Warn, "not known", "ACL SETUSER relay +info +config|get")
		f.wantFinding(f.findings(pub), "redis_commands", finding.OK, "", "")
		for command := range strings.FieldsSeq(all) {
			f.acl(keys + " " + strings.Replace(commands+" ", command+" ", "", 1))
			found := f.findings(f.as("jobs"))
			f.wantFinding(found, "redis_commands", finding.Fail, command, "ACL SETUSER relay "+command)
			var fix []any
			for part := range strings.FieldsSeq(found["redis_commands"].Fix) {
				fix = append(fix, part)
			}
			f.do(fix...)
			f.wantFinding(f.findings(f.as("jobs")), "redis_commands", finding.OK, "", "")
		}
		if !held {
			f.append(0, state(1, 10), rows(1))
		}
	}
	f.acl("~walrelay:* ~jobs:dead " + commands)
	f.wantFinding(f.findings(f.as("jobs")), "redis_commands", finding.Fail, "~jobs", "~jobs")
	f.acl("~jobs ~jobs:dead " + commands)
	f.wantFinding(f.findings(f.as("jobs")), "redis_commands", finding.Fail, "~walrelay:*", "~walrelay:*")
	f.acl("~jobs ~" + key + " " + commands) // no more than its own checkpoint
	found := f.findings(f.as("jobs"))
	f.wantFinding(found, "redis_commands", finding.OK, "", "")
	f.wantFinding(found, "redis_dead_stream", finding.Warn, "no row can be skipped", "~jobs:dead")
	f.acl(keys + " +@all")
	f.wantFinding(f.findings(f.as("jobs")), "redis_eviction", finding.OK, "noeviction", "")
}

// What keeps Redis from taking entries now, or keeping them, is found.
func TestCheckOfRedisThatIsWrong(t *testing.T) {
	f := setUp(t, testservers.RedisOptions{}, 0)
	for _, tt := range []struct {
		name        string
		args, undo  []any
		finding     string
		level       finding.Level
		text, fixes string
	}{
		{"the stream is a list", []any{"RPUSH", "jobs", "x"}, []any{"DEL", "jobs"}, "redis_stream", finding.Fail, "holds a list", "RENAME"},
		{"the dead stream is a list", []any{"RPUSH", "jobs:dead", "x"}, []any{"DEL", "jobs:dead"}, "redis_dead_stream", finding.Warn, "holds a list", "RENAME"},
		{"evicts all", []any{"CONFIG", "SET", "maxmemory-policy", "allkeys-lru"}, []any{"CONFIG", "SET", "maxmemory-policy", "noeviction"}, "redis_eviction", finding.Fail, "allkeys-lru", "noeviction"},
		{"evicts what expires", []any{"CONFIG", "SET", "maxmemory-policy", "volatile-lru"}, []any{"CONFIG", "SET", "maxmemory-policy", "noeviction"}, "redis_eviction", finding.OK, "volatile-lru", ""},
		{"is full", []any{"CONFIG", "SET", "maxmemory", "1"}, []any{"CONFIG", "SET", "maxmemory", "0"}, "redis_commands", finding.Fail, "OOM", "maxmemory"},
		{"waits for replicas", []any{"CONFIG", "SET", "min-replicas-to-write", "1"}, []any{"CONFIG", "SET", "min-replicas-to-write", "0"}, "redis_replicas", finding.Fail, "takes no writes", "min-replicas-to-write 0"},
		{"follows another", []any{"REPLICAOF", "127.0.0.1", "1"}, []any{"REPLICAOF", "NO", "ONE"}, "redis_replicas", finding.Fail, "replica", "--redis"},
		{"takes snapshots", []any{"CONFIG", "SET", "save", "3600 1"}, []any{"CONFIG", "SET", "save", ""}, "redis_persistence", finding.Warn, "snapshots only", "appendonly yes"},
		{"writes when it likes", []any{"CONFIG", "SET", "appendonly", "yes", "appendfsync", "no"}, []any{"CONFIG", "SET", "appendfsync", "everysec"}, "redis_persistence", finding.Warn, "appendfsync no", "everysec"},
		{"writes", []any{"PING"}, []any{"PING"}, "redis_persistence", finding.OK, "appendonly is on", ""},
	} {
		f.do(tt.args...)
		found := f.findings(f.pub)
		f.wantFinding(found, tt.finding, tt.level, tt.text, tt.fixes)
		for name, got := range found {
			also := tt.finding == "redis_replicas" && name == "redis_commands"
			if name != tt.finding && got.Level == finding.Fail && !also {
				t.Errorf("%s: %s fails as well: %+v", tt.name, name, got)
			}
		}
		f.do(tt.undo...)
	}
}

// A Redis that lets nobody in, or is away, is one finding.
func TestCheckOfRedisThatIsAway(t *testing.T) {
	f := setUp(t, testservers.RedisOptions{}, 0)
	f.acl("~* +@all")
	f.do("ACL", "SETUSER", "relay", "<secret", ">other")
	found := f.findings(f.as("jobs"))
	f.wantFinding(found, "redis", finding.Fail, "WRONGPASS", "user and password")
	f.acl("-@all")
	closed := f.findings(f.as("jobs"))
	f.wantFinding(closed, "redis", finding.Fail, "client|setname", "ACL SETUSER relay ~jobs ~jobs:dead ~walrelay:* +eval ")
	f.do("CONFIG", "SET", "requirepass", "other")
	closed = f.findings(f.stranger())
	f.wantFinding(closed, "redis", finding.Fail, "NOAUTH", "password")
	f.redis.Stop()
	away := f.findings(f.stranger())
	f.wantFinding(away, "redis", finding.Fail, "refused", "--redis")
	if len(found)+len(closed)+len(away) != 3 {
		t.Errorf("it found %v, %v, %v", found, closed, away)
	}
}

// stranger is a publisher without a password, on a new connection.
func (f *fixture) stranger() *Publisher {
	f.t.Helper()
	client, err := Connect(f.redis.URL())
	if err != nil {
		f.t.Fatal(err)
	}
	f.t.Cleanup(func() { client.Close() })
	return New(client, 0, "jobs")
}

// A node of a cluster is told by its mode, before any key is.
func TestCheckOfACluster(t *testing.T) {
	f := setUp(t, testservers.RedisOptions{Args: []string{"--cluster-enabled", "yes"}}, 0)
	f.wantFinding(f.findings(f.pub), "redis_mode", finding.Fail, "cluster", "single server")
}

// What is said of a Redis that is too old is the same everywhere.
func TestTheRedisThatIsAskedFor(t *testing.T) {
	t.Parallel()
	fix, permanent := remedy("ERR unknown command 'XADD', with args beginning with: ")
	if f := versionFinding(map[string]string{"server": "redis", "version": "6.0.1"}); !permanent || f.Level != finding.Fail || !strings.HasPrefix(fix, f.Fix) {
		t.Errorf("check says %q, an error %q", f.Fix, fix)
	}
}
