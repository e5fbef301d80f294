package shop

import (
	"context"
	"encoding/json"
	"fmt"
	"time"

	"github.com/redis/go-redis/v9"
)

// Entry is an outbox row as it arrives on the stream.
type Entry struct {
	ID       string // Redis' id of the entry
	OutboxID string
	Kind     string
	Payload  string    // as PostgreSQL printed it
	Arrived  time.Time // when a reader had it; zero where nobody looked
}

// parseEntry reads the fields that the relay writes by default.
func parseEntry(m redis.XMessage) (Entry, error) {
	e := Entry{ID: m.ID}
	for name, to := range map[string]*string{"outbox_id": &e.OutboxID, "kind": &e.Kind, "payload": &e.Payload} {
		value, ok := m.Values[name].(string)
		if !ok {
			return e, fmt.Errorf("entry %s has no field %q; an outbox entry has outbox_id, kind and payload", m.ID, name)
		}
		*to = value
	}
	return e, nil
}

// Job is the payload, decoded.
func (e Entry) Job() (Payload, error) {
	var p Payload
	if err := json.Unmarshal([]byte(e.Payload), &p); err != nil {
		return p, fmt.Errorf("payload of outbox row %s: %w", e.OutboxID, err)
	}
	return p, nil
}

// ReadStream returns the whole stream, in its order.
func ReadStream(ctx context.Context, rdb *redis.Client, stream string) ([]Entry, error) {
	const page = 1000
	var entries []Entry
	from := "-"
	for {
		messages, err := rdb.XRangeN(ctx, stream, from, "+", page).Result()
		if err != nil {
			return nil, fmt.Errorf("read the stream: %w", err)
		}
		for _, m := range messages {
			e, err := parseEntry(m)
			if err != nil {
				return nil, err
			}
			entries = append(entries, e)
		}
		if len(messages) < page {
			return entries, nil
		}
		from = "(" + messages[len(messages)-1].ID
	}
}

// Follow calls seen for each entry of the stream, from the first one on, as soon
// as it is there, until ctx is done. It reads beside the consumer group and
// takes nothing from it.
func Follow(ctx context.Context, rdb *redis.Client, stream string, seen func(Entry)) error {
	last := "0"
	for {
		reply, err := rdb.XRead(ctx, &redis.XReadArgs{
			Streams: []string{stream, last}, Count: 100, Block: blockFor,
		}).Result()
		arrived := time.Now()
		if ctx.Err() != nil {
			return nil
		}
		if err != nil && !isNil(err) {
			return fmt.Errorf("follow the stream: %w", err)
		}
		for _, s := range reply {
			for _, m := range s.Messages {
				last = m.ID
				e, err := parseEntry(m)
				if err != nil {
					return err
				}
				e.Arrived = arrived
				seen(e)
			}
		}
	}
}
