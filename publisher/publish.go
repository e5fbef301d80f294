package publisher

import (
	"context"
	_ "embed"

	"github.com/redis/go-redis/v9"

	"github.com/stagedoor/walrelay/cdc"
)

//go:embed publish.lua
var publishSource string

var publishScript = redis.NewScript(publishSource)

// Publish appends events to the first stream, in order, all or none, without a
// checkpoint: for a poller, whose checkpoint are the marks in the table. Where
// Redis does not take an entry, however often that is tried, refused says why.
//
// An error leaves open whether they were appended.
func (p *Publisher) Publish(ctx context.Context, events []cdc.Event) (refused string, err error) {
	size := 0
	args := make([]any, 0, 1+8*len(events))
	args = append(args, p.maxLen)
	for _, ev := range events {
		args = append(args, 2*len(ev.Fields))
		for _, f := range ev.Fields {
			args = append(args, f.Name, f.Value)
			size += len(f.Name) + len(f.Value)
		}
	}
	reply, err := publishScript.Run(ctx, p.patient(size), p.streams[:1], args...).Slice()
	if why := refusal(err); why != "" {
		return why, nil
	}
	if err != nil {
		return "", explain(err)
	}
	res, err := parseReply(reply)
	return res.Refused, err
}

// Answers is nil while Redis does.
func (p *Publisher) Answers(ctx context.Context) error {
	_, err := p.Clock(ctx)
	return err
}
