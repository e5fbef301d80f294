package publisher

import (
	"context"
	_ "embed"

	"github.com/stagedoor/walrelay/cdc"
)

//go:embed publish.lua
var publishSource string

var publishScript = newScript(publishSource)

// Publish appends events to the first stream, in order, all or none, without a
// checkpoint: for a poller, whose checkpoint are the marks in the table. Where
// Redis does not take an entry, however often that is tried, refused says why.
//
// An error leaves open whether they were appended.
func (p *Publisher) Publish(ctx context.Context, events []cdc.Event) (refused string, err error) {
	if why := tooWide(events); why != "" {
		return why, nil
	}
	c := newCall(1)
	defer c.free()
	c.add(p.streams[0], p.maxLen)
	size := c.addEvents(events, 1)
	reply, err := c.run(ctx, p.patient(size), publishScript)
	if why := refusal(err); why != "" {
		return why, nil
	}
	if err != nil {
		return "", explain(err)
	}
	_, err = parseReply(reply)
	return "", err
}

// Answers is nil while Redis does.
func (p *Publisher) Answers(ctx context.Context) error {
	_, err := p.Clock(ctx)
	return err
}
