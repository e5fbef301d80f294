package publisher

import (
	"context"
	"errors"
	"fmt"
	"strconv"
	"strings"

	"github.com/redis/go-redis/v9"

	"github.com/stagedoor/walrelay/cdc"
	"github.com/stagedoor/walrelay/internal/finding"
)

// The versions that a relay works with, and works with as it should.
const (
	oldestRedis = 6002 // 6.2
	wantedRedis = 7000 // tells which entries were deleted
)

// newerRedis is what to do about one that is older.
const newerRedis = "use Redis 7 or newer"

// CheckServer looks at the server and changes nothing. answers is false where
// there is nobody to ask any more.
func (p *Publisher) CheckServer(ctx context.Context) (found []finding.Finding, answers bool) {
	hello, err := p.hello(ctx)
	if err != nil {
		f := unwell("redis", err)
		if strings.Contains(f.Text, "NOPERM") { // already when it logs in
			stream := p.streams[0]
			f.Fix = p.allow("~"+stream, "~"+cdc.DeadStream(stream), ourKeys, commands)
		}
		return []finding.Finding{f}, false
	}
	s := p.settings(ctx)
	return []finding.Finding{
		finding.Good("redis", "it answers"),
		versionFinding(hello),
		clusterFinding(hello),
		p.replicasFinding(hello, s),
		p.persistenceFinding(s),
		p.evictionFinding(s),
	}, true
}

// hello is what a server says of itself to each client, whatever the client may
// do: its version, mode and role. Empty for one that does not know the command.
// https://redis.io/docs/latest/commands/hello/
func (p *Publisher) hello(ctx context.Context) (map[string]string, error) {
	reply, err := p.client.Do(ctx, "HELLO").Result()
	if err != nil && strings.Contains(err.Error(), "unknown command") {
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	hello := map[string]string{}
	switch reply := reply.(type) {
	case map[any]any:
		for name, value := range reply {
			hello[fmt.Sprint(name)] = fmt.Sprint(value)
		}
	case []any: // RESP2
		for i := 0; i+1 < len(reply); i += 2 {
			hello[fmt.Sprint(reply[i])] = fmt.Sprint(reply[i+1])
		}
	}
	return hello, nil
}

// unwell is the finding of an error of Redis.
func unwell(name string, err error) finding.Finding {
	var reply redis.Error
	if !errors.As(err, &reply) {
		return finding.Failure(name, fmt.Sprintf("%v: %v", cdc.ErrNoAnswer, err), "start Redis, or correct --redis")
	}
	fix, _ := remedy(reply.Error())
	return finding.Failure(name, "Redis answers: "+reply.Error(), fix)
}

func versionFinding(hello map[string]string) finding.Finding {
	const name = "redis_version"
	version := hello["version"]
	var major, minor int
	if n, _ := fmt.Sscanf(version, "%d.%d", &major, &minor); n < 2 {
		return finding.Warning(name, "it does not tell its version", newerRedis)
	}
	text := fmt.Sprintf("%s %s", hello["server"], version)
	switch number := 1000*major + minor; {
	case number < oldestRedis:
		return finding.Failure(name, text+" is too old", newerRedis)
	case number < wantedRedis:
		return finding.Warning(name, text+" does not tell which entries were deleted, so that a heal leaves out rows that are marked", newerRedis)
	}
	return finding.Good(name, text)
}

func clusterFinding(hello map[string]string) finding.Finding {
	const name = "redis_mode"
	switch mode := hello["mode"]; mode {
	case "cluster":
		return finding.Failure(name, "it is a node of a cluster", onCluster)
	case "sentinel":
		return finding.Failure(name, "it is a sentinel, and no server of keys", "let --redis name the primary that the sentinel watches")
	}
	return finding.Good(name, "a single server")
}

// settings are what the server says of itself to a user with more privileges
// than a relay needs, each in one of two ways.
type settings struct {
	info, config map[string]string
}

// settings asks for what the user may see. Managed servers often know INFO and
// no CONFIG.
func (p *Publisher) settings(ctx context.Context) settings {
	s := settings{info: map[string]string{}, config: map[string]string{}}
	for _, section := range []string{"memory", "persistence", "replication"} {
		text, err := p.client.Info(ctx, section).Result()
		if err != nil {
			continue
		}
		for line := range strings.Lines(text) {
			if name, value, ok := strings.Cut(strings.TrimSpace(line), ":"); ok {
				s.info[name] = value
			}
		}
	}
	for _, name := range []string{"appendonly", "appendfsync", "save", "maxmemory-policy", "min-replicas-to-write"} {
		values, err := p.client.ConfigGet(ctx, name).Result()
		if value, ok := values[name]; err == nil && ok {
			s.config[name] = value
		}
	}
	return s
}

// unseen is the finding of what the user may not see. A relay needs no privilege
// to, so that it is not known whether it is well.
func (p *Publisher) unseen(name, what, look string) finding.Finding {
	return finding.Warning(name, fmt.Sprintf("%s is not known: the user may run neither INFO nor CONFIG GET", what),
		fmt.Sprintf("look yourself: redis-cli %s; or let check see it: %s", look, p.allow("+info", "+config|get")))
}

// user is the one that the client logs in as.
func (p *Publisher) user() string {
	if client, ok := p.client.(*redis.Client); ok && client.Options().Username != "" {
		return client.Options().Username
	}
	return "default"
}

// allow is the command that gives the user what it lacks.
func (p *Publisher) allow(rules ...string) string {
	return "ACL SETUSER " + p.user() + " " + strings.Join(rules, " ")
}

func (p *Publisher) replicasFinding(hello map[string]string, s settings) finding.Finding {
	const name = "redis_replicas"
	if role := hello["role"]; role == "replica" || role == "slave" || s.info["role"] == "slave" {
		fix, _ := remedy("READONLY")
		return finding.Failure(name, "it is a replica, which takes no writes", fix)
	}
	connected, seen := s.info["connected_slaves"]
	if !seen {
		return finding.Good(name, "it is a primary; how many replicas it has the user may not see")
	}
	text := connected + " connected"
	least, _ := strconv.Atoi(s.config["min-replicas-to-write"])
	if least == 0 {
		return finding.Good(name, text+", and it takes writes without")
	}
	good := connected
	if n, ok := s.info["min_slaves_good_slaves"]; ok {
		good = n
	}
	text += fmt.Sprintf(", and min-replicas-to-write is %d", least)
	if n, _ := strconv.Atoi(good); n < least {
		return finding.Failure(name, text+": it takes no writes now", fmt.Sprintf("start replicas, or CONFIG SET min-replicas-to-write %d", n))
	}
	return finding.Good(name, text)
}

// lasting is how a setting of Redis outlives a restart.
const lasting = " (and the same in redis.conf, or CONFIG REWRITE, so that it stays)"

func (p *Publisher) persistenceFinding(s settings) finding.Finding {
	const name = "redis_persistence"
	aof := s.config["appendonly"] == "yes" || s.info["aof_enabled"] == "1"
	save, known := s.config["save"]
	_, seen := s.info["aof_enabled"]
	const fix = "CONFIG SET appendonly yes" + lasting
	switch {
	case !seen && !known:
		return p.unseen(name, "persistence", "CONFIG GET appendonly, and save")
	case aof && s.config["appendfsync"] == "no":
		return finding.Warning(name, "appendonly is on, and appendfsync no leaves it to the operating system when it is on disk: a crash of the machine loses more than --confirm-delay covers, which is a gap", "CONFIG SET appendfsync everysec"+lasting)
	case aof:
		return finding.Good(name, "appendonly is on")
	case known && save == "":
		return finding.Warning(name, "it keeps nothing on disk: each of its restarts loses the stream, and of what was marked before only the last seconds come again", fix)
	}
	return finding.Warning(name, "it keeps snapshots only: a crash loses entries from the last one on, which is a gap that has to be healed", fix)
}

// evictionFinding fails where keys without an expiry may be evicted: checkpoint
// or stream could go alone.
func (p *Publisher) evictionFinding(s settings) finding.Finding {
	const name = "redis_eviction"
	policy, seen := s.config["maxmemory-policy"]
	if !seen {
		policy, seen = s.info["maxmemory_policy"]
	}
	switch {
	case !seen:
		return p.unseen(name, "maxmemory-policy", "CONFIG GET maxmemory-policy, which must not be allkeys-…")
	case strings.HasPrefix(policy, "allkeys-"):
		return finding.Failure(name, fmt.Sprintf("maxmemory-policy is %s: Redis may throw away the stream, or the checkpoint beside it", policy),
			"CONFIG SET maxmemory-policy noeviction"+lasting)
	}
	return finding.Good(name, fmt.Sprintf("maxmemory-policy is %s", policy))
}
