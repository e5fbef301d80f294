package publisher

import (
	"cmp"
	"context"
	_ "embed"
	"fmt"
	"slices"
	"strings"

	"github.com/redis/go-redis/v9"
)

//go:embed stream.lua
var streamSource string

var streamScript = redis.NewScript(streamSource)

// GroupsMost is how many groups a Stream has at most. Some programs make one for
// each of their processes, and never remove any.
const GroupsMost = 100

// Stream is what Redis tells of a stream.
type Stream struct {
	Name   string
	Exists bool
	Length int64  // entries that it holds
	LastID string // of the last entry it ever got; "0-0" before the first, empty where there is no stream

	Groups        []Group // by name, the GroupsMost that are furthest behind; nil where they are not known
	GroupCount    int     // all of them
	GroupsProblem string  // why they are not known, and what to do about it; empty where they were not asked for
}

// Group is a consumer group as Redis tells of it.
// https://redis.io/docs/latest/commands/xinfo-groups/
type Group struct {
	Name          string
	Consumers     int64
	Pending       int64  // entries delivered and not acknowledged
	Lag           *int64 // entries not delivered yet; nil where Redis does not know: before 7.0, and where entries between were deleted
	LastDelivered string // id of the last entry delivered; "0-0" before the first
	EntriesRead   *int64 // entries delivered so far, by Redis' own count; nil where it does not know
}

// groupsOption is what it takes to see the groups. A relay works without.
const groupsOption = "+xinfo|groups"

// Stream reads a stream of a key, and with groups its consumer groups, in one
// step that is cheap whatever they hold. An error says that nothing is known of
// the stream; that of the groups alone is in the answer.
func (p *Publisher) Stream(ctx context.Context, name string, groups bool) (Stream, error) {
	ask := 0
	if groups {
		ask = 1
	}
	reply, err := streamScript.Run(ctx, p.client, []string{name}, ask).Slice()
	if err != nil {
		return Stream{}, explain(err)
	}
	s, err := parseStream(name, reply)
	if err == nil && notAllowed(s.GroupsProblem) {
		s.GroupsProblem = fmt.Sprintf("the Redis user %s may not look: %s", p.user(), p.allow(groupsOption))
	}
	return s, err
}

// NotAllowed reports whether an error is that the user may not do that.
func NotAllowed(err error) bool { return err != nil && notAllowed(err.Error()) }

// notAllowed reports whether a script's error is that the user may not run a
// command, in the words of the versions of Redis.
func notAllowed(text string) bool {
	return strings.Contains(text, "NOPERM") || strings.Contains(text, "can't run this command") || strings.Contains(text, "can't access at least one of the keys")
}

// parseStream reads the script's answer.
func parseStream(name string, reply []any) (Stream, error) {
	s := Stream{Name: name}
	if len(reply) == 0 {
		s.Groups = []Group{}
		return s, nil
	}
	length, ok1 := reply[0].(int64)
	var last string
	ok2 := false
	if len(reply) > 1 {
		last, ok2 = reply[1].(string)
	}
	if !ok1 || !ok2 {
		return s, fmt.Errorf("the stream script answered %v", reply)
	}
	s.Exists, s.Length, s.LastID = true, length, last
	if len(reply) == 2 {
		return s, nil
	}
	if text, refused := reply[2].(string); refused {
		s.GroupsProblem = text
		return s, nil
	}
	list, _ := reply[2].([]any)
	s.Groups = make([]Group, 0, len(list))
	for _, one := range list {
		g, err := parseGroup(one)
		if err != nil {
			return Stream{}, err
		}
		s.Groups = append(s.Groups, g)
	}
	s.GroupCount = len(s.Groups)
	if s.GroupCount > GroupsMost {
		slices.SortStableFunc(s.Groups, func(a, b Group) int { return cmp.Compare(b.behind(), a.behind()) })
		s.Groups = s.Groups[:GroupsMost:GroupsMost]
	}
	slices.SortFunc(s.Groups, func(a, b Group) int { return cmp.Compare(a.Name, b.Name) })
	return s, nil
}

// behind is how many entries a group has not done, as far as that is known.
func (g Group) behind() int64 {
	if g.Lag == nil {
		return g.Pending
	}
	return g.Pending + *g.Lag
}

// parseGroup reads names and values. Redis before 7.0 has no lag.
func parseGroup(v any) (Group, error) {
	list, _ := v.([]any)
	of := map[string]any{}
	for i := 0; i+1 < len(list); i += 2 {
		of[fmt.Sprint(list[i])] = list[i+1]
	}
	number := func(name string) *int64 {
		if n, ok := of[name].(int64); ok {
			return &n
		}
		return nil
	}
	g := Group{Lag: number("lag"), EntriesRead: number("entries-read")}
	var ok1, ok2 bool
	g.Name, ok1 = of["name"].(string)
	g.LastDelivered, ok2 = of["last-delivered-id"].(string)
	consumers, pending := number("consumers"), number("pending")
	if !ok1 || !ok2 || consumers == nil || pending == nil {
		return g, fmt.Errorf("XINFO GROUPS answered %v", v)
	}
	g.Consumers, g.Pending = *consumers, *pending
	return g, nil
}
