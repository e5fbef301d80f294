package relay

import (
	"context"
	"crypto/sha256"
	"encoding/binary"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/stagedoor/walrelay/cdc"
	"github.com/stagedoor/walrelay/internal/match"
)

// deadBytes bounds the entry of a skipped row, whatever the row's size: well
// below the least that a Redis can be told to take.
const deadBytes = 512 << 10

// dead makes the entry of a skipped row: its id and those of its fields that
// fit, why it is there, and where it was.
func (r *Relay) dead(ev cdc.Event, reason string) cdc.Event {
	ids := map[string]bool{}
	for _, f := range r.cfg.Table.Fields() {
		ids[f.Name] = f.ID
	}
	size := func(f cdc.Field) int { return len(f.Name) + len(f.Value) }
	left := deadBytes - reasonBytes
	for _, f := range ev.Fields {
		if ids[f.Name] {
			left -= size(f)
		}
	}
	var fields []cdc.Field
	for _, f := range ev.Fields {
		if !ids[f.Name] {
			if size(f) > left {
				continue
			}
			left -= size(f)
		}
		fields = append(fields, f)
	}
	fields = append(fields, cdc.Field{Name: cdc.DeadReason, Value: reason})
	switch {
	case !ev.Position.IsZero():
		fields = append(fields, cdc.Field{Name: cdc.DeadPosition, Value: ev.Position.String()})
	case ev.NoID:
		fields = append(fields, cdc.Field{Name: cdc.DeadPosition, Value: ev.ID})
	}
	ev.Fields, ev.Dead, ev.SkipAsked = fields, true, true
	ev.Bytes = min(ev.Bytes, deadBytes) // about
	return ev
}

// count notes what was appended.
func (r *Relay) count(events []cdc.Event) {
	n := 0
	for _, ev := range events {
		if !ev.Dead {
			n++
			continue
		}
		r.status.dead.Add(1)
		r.log.Warn("a row that cannot be published was skipped, as asked", "row", ev.ID, "stream", cdc.DeadStream(r.cfg.Stream))
	}
	r.status.published(n)
	timeStreamed(r.cfg.Timings, events)
}

// deadTail knows which rows the end of the dead stream has, so that a backfill
// neither appends a row that was skipped, nor asks about it again. What Redis
// has of such a row is exactly what we would write again.
type deadTail struct {
	relay   *Relay
	entries map[match.Fingerprint]bool
}

// openDeadTail reads the dead stream, from the oldest candidate on.
func (b *backfilling) openDeadTail(ctx context.Context, oldest time.Time) (*deadTail, error) {
	ahead, err := b.redisAhead(ctx)
	if err != nil {
		return nil, err
	}
	first := b.entriesSince(oldest, ahead)
	defer keepBeating(b.beat)()
	t := &deadTail{relay: b.Relay, entries: map[match.Fingerprint]bool{}}
	err = b.cfg.Sink.Entries(ctx, cdc.DeadStream(b.cfg.Stream), first, "+", func(e cdc.Entry) error {
		t.entries[deadPrint(e.Values)] = true
		return ctx.Err()
	})
	return t, err
}

// has reports whether a row was skipped before.
func (t *deadTail) has(ev cdc.Event) bool {
	if len(t.entries) == 0 {
		return false
	}
	values := map[string]string{}
	for _, f := range t.relay.dead(ev, "").Fields {
		values[f.Name] = f.Value
	}
	return t.entries[deadPrint(values)]
}

// deadPrint covers the fields of the row, and its place where nothing else tells
// it from others. A place in the log is not known of the same row in the table.
func deadPrint(values map[string]string) match.Fingerprint {
	h := sha256.New()
	add := func(s string) {
		h.Write(binary.BigEndian.AppendUint64(nil, uint64(len(s))))
		h.Write([]byte(s))
	}
	for _, name := range slices.Sorted(maps.Keys(values)) {
		if name != cdc.DeadReason && (name != cdc.DeadPosition || strings.HasPrefix(values[name], "ctid/")) {
			add(name)
			add(values[name])
		}
	}
	return match.Fingerprint(h.Sum(nil)[:len(match.Fingerprint{})])
}
