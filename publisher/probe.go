package publisher

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/redis/go-redis/v9"

	"github.com/stagedoor/walrelay/cdc"
	"github.com/stagedoor/walrelay/internal/finding"
)

// probe is a call of a command that the relay or its scripts use, which cannot
// change anything: it reads, or names what is not there, or Redis refuses its
// arguments. That the user may run it, on this key, and that the server takes
// writes now, Redis looks at first, for a script as for a client. So the answer
// is true for a user that may ask for nothing else, where ACL DRYRUN, which is an
// administrator's, would be refused.
type probe struct {
	command string // as an ACL allows it
	key     string // as an ACL allows it; empty for none
	args    []any
	fine    string // in the error of one that was allowed
}

// ourKeys are the checkpoints, as an ACL allows them.
const ourKeys = "~walrelay:*"

// probes are all commands that append.lua and Publisher use. Invariant: none of
// them writes. The checkpoint is never named to DEL, and a field that nobody has
// to HDEL.
func (p *Publisher) probes(key string) []probe {
	stream, nobody := p.streams[0], rand.Text()
	ours, its := ourKeys, "~"+stream
	return []probe{
		{"+time", "", []any{"TIME"}, ""},
		{"+eval", its, []any{"EVAL", "return 1", 1, stream}, ""},
		{"+eval", ours, []any{"EVAL", "return 1", 1, key}, ""},
		{"+evalsha", its, []any{"EVALSHA", strings.Repeat("0", 40), 1, stream}, "NOSCRIPT"},
		{"+hmget", ours, []any{"HMGET", key, "version"}, ""},
		{"+hgetall", ours, []any{"HGETALL", key}, ""},
		{"+hset", ours, []any{"HSET", key, nobody, "", nobody}, "wrong number of arguments"},
		{"+hdel", ours, []any{"HDEL", key, nobody}, ""},
		// A user that may use this checkpoint alone may not name another key.
		{"+del", "", []any{"DEL", key + ":" + nobody}, "access"},
		{"+type", its, []any{"TYPE", stream}, ""},
		{"+xadd", its, []any{"XADD", stream, "no-id", "a", "b"}, "Invalid stream ID"},
		{"+xdel", its, []any{"XDEL", stream, "0-0"}, ""},
		{"+xinfo|stream", its, []any{"XINFO", "STREAM", stream}, "no such key"},
		{"+xrange", its, []any{"XRANGE", stream, "+", "-", "COUNT", 1}, ""},
		{"+xrevrange", its, []any{"XREVRANGE", stream, "-", "+", "COUNT", 1}, ""},
	}
}

// deadProbes are what skipping a row takes beside them.
func (p *Publisher) deadProbes() []probe {
	dead := cdc.DeadStream(p.streams[0])
	its := "~" + dead
	return []probe{
		{"", its, []any{"EVAL", "return 1", 1, dead}, ""},
		{"", its, []any{"XADD", dead, "no-id", "a", "b"}, "Invalid stream ID"},
	}
}

// denial is what an ACL lacks for a probe; empty where that is not it.
func (b probe) denial(text string) string {
	switch {
	case !strings.Contains(text, "NOPERM"):
		return ""
	case strings.Contains(text, "access"):
		return b.key
	}
	return b.command
}

// CheckKeys looks whether the relay may do what it has to with the checkpoint of
// this key and with the stream, and whether the stream is one. It changes
// nothing.
func (p *Publisher) CheckKeys(ctx context.Context, key string) []finding.Finding {
	const name = "redis_commands"
	lacks, err := p.try(ctx, p.probes(key))
	commands := finding.Good(name, "the user may run all that a relay needs, and Redis takes writes")
	switch {
	case len(lacks) > 0:
		commands = p.denied(name, lacks)
	case err != nil:
		commands = unwell(name, err)
	}
	if err != nil && noAnswer(err) {
		return []finding.Finding{commands}
	}
	dead := p.kind(ctx, "redis_dead_stream", cdc.DeadStream(p.streams[0]))
	if lacks, _ := p.try(ctx, p.deadProbes()); len(lacks) > 0 {
		dead = p.denied("redis_dead_stream", lacks)
		dead.Text += ", so that no row can be skipped"
	}
	if dead.Level == finding.Fail {
		dead.Level = finding.Warn // it is for skipped rows alone
	}
	return []finding.Finding{commands, p.kind(ctx, "redis_stream", p.streams[0]), dead, p.groupsFinding(ctx)}
}

// groupsFinding is about what a relay works without: an operator wants to see how
// far the consumers are.
func (p *Publisher) groupsFinding(ctx context.Context) finding.Finding {
	const name = "redis_groups"
	probes := []probe{{groupsOption, "~" + p.streams[0], []any{"XINFO", "GROUPS", p.streams[0]}, "no such key"}}
	if lacks, _ := p.try(ctx, probes); len(lacks) > 0 {
		f := p.denied(name, lacks)
		f.Level = finding.Warn
		f.Text += ", so that health and status do not tell how far consumer groups are"
		return f
	}
	return finding.Good(name, "health and status tell how far consumer groups are")
}

// try runs the probes. What an ACL does not allow is in lacks; err is the first
// error of another kind.
func (p *Publisher) try(ctx context.Context, probes []probe) (lacks []string, err error) {
	for _, b := range probes {
		got := p.client.Do(ctx, b.args...).Err()
		if got == nil || errors.Is(got, redis.Nil) {
			continue
		}
		text := got.Error()
		if b.fine != "" && strings.Contains(text, b.fine) || strings.HasPrefix(text, "WRONGTYPE") {
			continue // the type of the stream is a finding of its own
		}
		if lack := b.denial(text); lack != "" {
			if !slices.Contains(lacks, lack) {
				lacks = append(lacks, lack)
			}
			continue
		}
		if err == nil || noAnswer(got) {
			err = got
		}
		if noAnswer(got) {
			return lacks, err // nor would the next one be answered
		}
	}
	return lacks, err
}

func noAnswer(err error) bool {
	var reply redis.Error
	return !errors.As(err, &reply)
}

// denied names what is to be allowed.
func (p *Publisher) denied(name string, lacks []string) finding.Finding {
	return finding.Failure(name, fmt.Sprintf("the user %s is not allowed: %s", p.user(), strings.Join(lacks, " ")),
		p.allow(lacks...))
}

// kind is the finding of a key that has to be a stream, or nothing yet.
func (p *Publisher) kind(ctx context.Context, name, stream string) finding.Finding {
	kind, err := p.client.Type(ctx, stream).Result()
	switch {
	case err != nil && strings.Contains(err.Error(), "NOPERM"):
		return finding.Failure(name, fmt.Sprintf("what the key %q holds is not known: the user may not look", stream), p.allow("+type", "~"+stream))
	case err != nil:
		return unwell(name, err)
	case kind == "none":
		return finding.Good(name, fmt.Sprintf("%q is not there yet; the first entry makes it", stream))
	case kind != "stream":
		fix, _ := remedy("WRONGTYPE")
		return finding.Failure(name, fmt.Sprintf("the key %q holds a %s, not a stream", stream, kind), fix)
	}
	return finding.Good(name, fmt.Sprintf("%q is one", stream))
}
