// Package publisher is Redis' side of the relay: it appends entries to a
// stream and keeps the checkpoint beside them.
//
// One key per source holds the checkpoint as a hash:
//
//	version      which state this is: INSTANCE-COUNTER, never used twice
//	checkpoint   the document, as JSON
//	last:STREAM  the id of the last entry this source appended to that stream
//	added:STREAM how many entries it ever had then; 0 where Redis does not tell
//	skip:ROW     when an operator asked for a row to be skipped
//
// One script (append.lua) compares the version, replaces the checkpoint and
// appends the entries, all of it or nothing. So a relay that died, a reply that
// was lost, a second relay and a Redis that went back in time all show in one
// place: the version is not the expected one, and nothing was written. What
// that means is the caller's to judge.
package publisher

import (
	"context"
	_ "embed"
	"encoding/json"
	"errors"
	"fmt"
	"strconv"
	"strings"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/redis/go-redis/v9/maintnotifications"

	"github.com/stagedoor/walrelay/cdc"
)

//go:embed append.lua
var appendSource string

var appendScript = newScript(appendSource)

// The time-outs of a connection: a Redis that is frozen is noticed after
// ioTimeout.
const (
	dialTimeout = 3 * time.Second
	ioTimeout   = 5 * time.Second
)

// A command that is larger than quickBytes may take longer, as on a network
// that carries slowestBytes a second.
const (
	quickBytes   = 2 << 20
	slowestBytes = 256 << 10
)

// MaxValueBytes is the largest value that Redis takes, by default
// (proto-max-bulk-len).
const MaxValueBytes = 512 << 20

// Connect opens a client on redis://, rediss:// or unix://. It does not dial.
//
// The client does not repeat commands by itself: the relay repeats an append
// under the same version, which is safe, and knows then that it did.
func Connect(url string) (*redis.Client, error) {
	opts, err := redis.ParseURL(url)
	if err != nil {
		return nil, err
	}
	opts.ClientName = "walrelay"
	opts.DialTimeout = dialTimeout
	opts.ReadTimeout = ioTimeout
	opts.WriteTimeout = ioTimeout
	opts.MaxRetries = -1
	opts.DialerRetries = 1
	opts.PoolSize = 4
	opts.ContextTimeoutEnabled = true
	opts.DisableIdentity = true
	opts.MaintNotificationsConfig = &maintnotifications.Config{Mode: maintnotifications.ModeDisabled}
	return redis.NewClient(opts), nil
}

// Key is the name of a source's checkpoint.
func Key(systemID, database, slot string) string {
	return "walrelay:" + systemID + ":" + database + ":" + slot
}

// Publisher appends to streams.
type Publisher struct {
	client  redis.UniversalClient
	streams []string
	maxLen  int64
}

// New returns a Publisher for these streams. An append trims its stream to
// about maxLen entries; 0 never trims.
func New(client redis.UniversalClient, maxLen int64, streams ...string) *Publisher {
	return &Publisher{client: client, streams: streams, maxLen: maxLen}
}

// Append replaces the checkpoint by next, if its version is the expected one,
// and appends the events to the first stream, in order, or to its dead stream.
// Without events it is a stamp. next.LastIDs, where set, replaces what the
// checkpoint says of the streams' last entries; an empty id forgets it.
//
// An error leaves open whether it was done: repeat it with the same arguments.
func (p *Publisher) Append(ctx context.Context, key string, expected cdc.Version, next cdc.Checkpoint, events []cdc.Event) (cdc.AppendResult, error) {
	if why := tooWide(events); why != "" {
		return cdc.AppendResult{Refused: why}, nil
	}
	settled, dead := 0, 0
	for i := range events {
		if events[i].SkipAsked {
			settled++
		}
		if events[i].Dead {
			dead = 1
		}
	}
	c := newCall(1 + len(p.streams) + dead)
	defer c.free()
	var err error
	if c.document, err = next.AppendJSON(c.document[:0]); err != nil {
		return cdc.AppendResult{}, err
	}
	c.add(key)
	for i := range p.streams {
		c.add(&p.streams[i])
	}
	if dead > 0 { // declared only where it is used: a user needs no right to it before
		c.add(cdc.DeadStream(p.streams[0]))
	}
	c.add(expected.String(), next.Version.String(), c.document, p.maxLen, len(next.LastIDs), len(p.streams), settled)
	for stream, id := range next.LastIDs {
		c.add(stream, id)
	}
	for i := range events {
		if events[i].SkipAsked {
			c.add(skipPrefix + events[i].ID)
		}
	}
	size := c.addEvents(events, 1+len(p.streams))
	reply, err := c.run(ctx, p.patient(size), appendScript)
	if why := refusal(err); why != "" {
		return cdc.AppendResult{Refused: why}, nil
	}
	if err != nil {
		return cdc.AppendResult{}, explain(err)
	}
	return parseReply(reply)
}

// patient is the client for a command of that many bytes. A value can take
// longer to Redis than a Redis that is well may take to answer.
func (p *Publisher) patient(bytes int) redis.UniversalClient {
	client, ok := p.client.(*redis.Client)
	if !ok || bytes <= quickBytes {
		return p.client
	}
	return client.WithTimeout(ioTimeout + time.Duration(bytes-quickBytes)*time.Second/slowestBytes)
}

func parseReply(reply []any) (cdc.AppendResult, error) {
	code, ok := int64(-1), false
	if len(reply) > 0 {
		code, ok = reply[0].(int64)
	}
	switch {
	case ok && code == 1:
		return cdc.AppendResult{Done: true}, nil
	case ok && code == 0 && len(reply) == 2:
		fields, err := hash(reply[1])
		if err != nil {
			return cdc.AppendResult{}, err
		}
		held, err := parseCheckpoint(fields)
		return cdc.AppendResult{Held: held}, err
	case ok && code == 2 && len(reply) == 2:
		return cdc.AppendResult{MissingStream: fmt.Sprint(reply[1])}, nil
	}
	return cdc.AppendResult{}, fmt.Errorf("the append script answered %v", reply)
}

// hash reads a flat list of names and values.
func hash(v any) (map[string]string, error) {
	list, _ := v.([]any)
	if len(list)%2 != 0 {
		return nil, fmt.Errorf("the append script answered %v", v)
	}
	fields := make(map[string]string, len(list)/2)
	for i := 0; i < len(list); i += 2 {
		name, ok1 := list[i].(string)
		value, ok2 := list[i+1].(string)
		if !ok1 || !ok2 {
			return nil, fmt.Errorf("the append script answered %v", v)
		}
		fields[name] = value
	}
	return fields, nil
}

// Load reads the checkpoint, nil for none, and after it the streams: they only
// grow, so a stream that ends below the checkpoint really lacks something.
func (p *Publisher) Load(ctx context.Context, key string) (*cdc.Checkpoint, map[string]cdc.StreamState, error) {
	fields, err := p.client.HGetAll(ctx, key).Result()
	if err != nil {
		return nil, nil, explain(err)
	}
	cp, err := parseCheckpoint(fields)
	if err != nil {
		return nil, nil, fmt.Errorf("the checkpoint %q: %w", key, err)
	}
	states := make(map[string]cdc.StreamState, len(p.streams))
	for _, stream := range p.streams {
		info, err := p.client.XInfoStream(ctx, stream).Result()
		switch {
		case err == nil:
			states[stream] = cdc.StreamState{
				Exists: true, LastID: info.LastGeneratedID, FirstID: info.FirstEntry.ID,
				Length: info.Length, Added: info.EntriesAdded, MaxDeletedID: info.MaxDeletedEntryID,
			}
		case strings.Contains(err.Error(), "no such key"):
			states[stream] = cdc.StreamState{}
		default:
			return nil, nil, explain(err)
		}
	}
	return cp, states, nil
}

// parseCheckpoint reads the hash; nil for an empty one.
func parseCheckpoint(fields map[string]string) (*cdc.Checkpoint, error) {
	if len(fields) == 0 {
		return nil, nil
	}
	cp := &cdc.Checkpoint{LastIDs: map[string]string{}, Added: map[string]int64{}, Skips: map[string]bool{}}
	if err := json.Unmarshal([]byte(fields["checkpoint"]), cp); err != nil {
		return nil, fmt.Errorf("it is not walrelay's: %w", err)
	}
	version, err := cdc.ParseVersion(fields["version"])
	if err != nil {
		return nil, err
	}
	cp.Version = version
	for name, id := range fields {
		if stream, ok := strings.CutPrefix(name, "last:"); ok {
			cp.LastIDs[stream] = id
		}
		if stream, ok := strings.CutPrefix(name, "added:"); ok {
			if cp.Added[stream], err = strconv.ParseInt(id, 10, 64); err != nil {
				return nil, fmt.Errorf("%s: %w", name, err)
			}
		}
		if row, ok := strings.CutPrefix(name, skipPrefix); ok {
			cp.Skips[row] = true
		}
	}
	return cp, nil
}

// Forget deletes the checkpoint and reports whether there was one.
func (p *Publisher) Forget(ctx context.Context, key string) (bool, error) {
	n, err := p.client.Del(ctx, key).Result()
	return n > 0, explain(err)
}

// HangUp closes all connections, also those that wait for an answer. The
// Publisher is of no use afterwards.
func (p *Publisher) HangUp() { p.client.Close() }

// Clock is Redis' time, by which it makes entry ids.
func (p *Publisher) Clock(ctx context.Context) (time.Time, error) {
	now, err := p.client.Time(ctx).Result()
	return now, explain(err)
}

// pageBytes bounds what one page of entries holds in memory, about.
const pageBytes = 1 << 20

// Entries reads a stream from the first id to the last, both included, a page
// at a time.
func (p *Publisher) Entries(ctx context.Context, stream, first, last string, fn func(cdc.Entry) error) error {
	for count := int64(16); ; {
		page, err := p.client.XRangeN(ctx, stream, first, last, count).Result()
		if err != nil {
			return explain(err)
		}
		size := int64(1)
		for _, m := range page {
			e, bytes, err := entry(m)
			if err != nil {
				return err
			}
			if err := fn(e); err != nil {
				return err
			}
			size += bytes
		}
		if int64(len(page)) < count {
			return nil
		}
		first = "(" + page[len(page)-1].ID
		count = pageLength(int64(len(page)), size)
	}
}

// EntriesBack reads a stream from an id, included, towards its beginning, a
// page at a time, until fn wants no more or the stream has no more. The id + is
// its end.
func (p *Publisher) EntriesBack(ctx context.Context, stream, last string, fn func(cdc.Entry) (more bool, err error)) error {
	for count := int64(16); ; {
		page, err := p.client.XRevRangeN(ctx, stream, last, "-", count).Result()
		if err != nil {
			return explain(err)
		}
		size := int64(1)
		for _, m := range page {
			e, bytes, err := entry(m)
			if err != nil {
				return err
			}
			if more, err := fn(e); err != nil || !more {
				return err
			}
			size += bytes
		}
		if int64(len(page)) < count {
			return nil
		}
		last = "(" + page[len(page)-1].ID
		count = pageLength(int64(len(page)), size)
	}
}

// pageLength is how many entries the next page has, by the bytes of the last.
func pageLength(entries, bytes int64) int64 { return min(max(1, pageBytes*entries/bytes), 1000) }

// entry reads an entry, and how many bytes its fields have.
func entry(m redis.XMessage) (e cdc.Entry, bytes int64, err error) {
	e = cdc.Entry{ID: m.ID, Values: make(map[string]string, len(m.Values))}
	for name, value := range m.Values {
		s, ok := value.(string)
		if !ok {
			return e, 0, errors.New("an entry has a value that is no string")
		}
		e.Values[name] = s
		bytes += int64(len(name) + len(s))
	}
	return e, bytes, nil
}
