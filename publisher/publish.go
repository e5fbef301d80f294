package publisher

import (
	"context"

	"github.com/redis/go-redis/v9"

	"github.com/stagedoor/walrelay/cdc"
)

// Publish appends events to the first stream, in order, without a checkpoint:
// for a poller, whose checkpoint are the marks in the table. They go as one
// transaction, so that a command which Redis refuses keeps all of them away, and
// no script is needed. Where it does not take an entry, however often that is
// tried, refused says why, and none is appended.
//
// An error leaves open whether they were appended.
// https://redis.io/docs/latest/develop/using-commands/transactions/
func (p *Publisher) Publish(ctx context.Context, events []cdc.Event) (refused string, err error) {
	size := 0
	for _, ev := range events {
		for _, f := range ev.Fields {
			size += len(f.Name) + len(f.Value)
		}
	}
	_, err = p.patient(size).TxPipelined(ctx, func(pipe redis.Pipeliner) error {
		for _, ev := range events {
			values := make([]any, 0, 2*len(ev.Fields))
			for _, f := range ev.Fields {
				values = append(values, f.Name, f.Value)
			}
			pipe.XAdd(ctx, &redis.XAddArgs{Stream: p.streams[0], MaxLen: p.maxLen, Approx: p.maxLen > 0, Values: values})
		}
		return nil
	})
	if why := refusal(err); why != "" {
		return why, nil
	}
	return "", explain(err)
}

// Answers reports whether Redis does: nil, or why not.
func (p *Publisher) Answers(ctx context.Context) error { return explain(p.client.Ping(ctx).Err()) }
