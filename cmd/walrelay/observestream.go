package main

import (
	"context"
	"time"

	"github.com/stagedoor/walrelay/internal/fault"
	"github.com/stagedoor/walrelay/internal/health"
	"github.com/stagedoor/walrelay/publisher"
)

const (
	// streamTimeout bounds one look at the stream.
	streamTimeout = 2 * time.Second
	// askAgain is how long nothing is asked of Redis that it refused: it writes
	// each refusal into its ACL log.
	askAgain = time.Minute
)

// streamOf looks at a stream.
func streamOf(sink *publisher.Publisher, name string) func(context.Context, bool) (publisher.Stream, error) {
	return func(ctx context.Context, groups bool) (publisher.Stream, error) {
		return sink.Stream(ctx, name, groups)
	}
}

// watchStream looks at the stream at every interval, until ctx ends. While Redis
// is away the stream stays as it was seen last, as the slot does: that Redis is
// away the relay knows sooner.
func (o *observer) watchStream(ctx context.Context, beat func()) {
	ticks := time.NewTicker(lookEvery)
	defer ticks.Stop()
	var at, groupsAt time.Time // when what was refused is asked for again
	problem := ""
	for {
		if now := time.Now(); !now.Before(at) {
			groups := !now.Before(groupsAt)
			s, err := o.lookAtStream(ctx, groups)
			switch {
			case fault.As(err) != nil:
				at = now.Add(askAgain)
				o.seeStream(nil)
			case err == nil:
				if groups {
					problem = s.GroupsProblem
				}
				if groups && problem != "" {
					groupsAt = now.Add(askAgain)
				}
				s.GroupsProblem = problem
				o.seeStream(healthStream(s))
			}
		}
		beat()
		select {
		case <-ctx.Done():
			return
		case <-ticks.C:
		}
	}
}

func (o *observer) lookAtStream(ctx context.Context, groups bool) (publisher.Stream, error) {
	ctx, cancel := context.WithTimeout(ctx, streamTimeout)
	defer cancel()
	return o.stream(ctx, groups)
}

func (o *observer) seeStream(s *health.Stream) {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.onStream = s
}

// healthStream is a stream as health knows it.
func healthStream(s publisher.Stream) *health.Stream {
	h := &health.Stream{Name: s.Name, Length: s.Length}
	if s.Exists && s.LastID != "0-0" {
		h.LastID = &s.LastID
	}
	if s.Groups == nil {
		h.GroupError = &s.GroupsProblem
		return h
	}
	h.GroupCount = &s.GroupCount
	h.Groups = make([]health.Group, len(s.Groups))
	for i, g := range s.Groups {
		h.Groups[i] = health.Group{
			Name: g.Name, Consumers: g.Consumers, Pending: g.Pending, Lag: g.Lag,
			LastDelivered: g.LastDelivered, EntriesRead: g.EntriesRead,
		}
	}
	return h
}
