package health

import (
	"fmt"
	"strconv"
	"time"
)

// Stage is one step of the way that a row takes from a writer's commit to the
// consumers of a stream, with what is known of it at the moment.
type Stage struct {
	Name  string     `json:"name"` // writers, wal, connection, relay, redis; beside a poller writers, table, relay, redis
	State State      `json:"state"`
	Text  string     `json:"text"`  // a few words
	Since *time.Time `json:"since"` // when it began to be away; nil while it is not, and where that is not known
}

// State is how a stage does: a Status, or one of the two below.
type State string

// The states that are no level.
const (
	StateUnknown State = "unknown" // it was not seen, or not lately
	StateIdle    State = "idle"    // it is another relay's turn, or not needed yet
)

// stages follow a row through what is known.
func (j *judgement) stages() []Stage {
	if j.in.Role == RolePolling {
		return []Stage{j.writers(), j.tableStage(), j.relayStage(), j.redisStage(), j.groupsStage()}
	}
	return []Stage{j.writers(), j.walStage(), j.connectionStage(), j.relayStage(), j.redisStage(), j.groupsStage()}
}

func (j *judgement) writers() Stage {
	s := Stage{Name: "writers", State: State(StatusOK)}
	switch written, known := j.machine.history.last(paceSpan).written(); {
	case !j.in.DatabaseAwaySince.IsZero(), j.in.SampledAt.IsZero():
		s.State, s.Text = StateUnknown, "not seen"
	case !known:
		s.Text = "PostgreSQL answers"
	case written < 1:
		s.Text = "nothing is written"
	default:
		s.Text = fmt.Sprintf("%s/s of WAL", size(int64(written)))
	}
	return s
}

// walStage is the slot: what of the WAL is kept, and whether it is still there.
func (j *judgement) walStage() Stage {
	in, s := &j.in, Stage{Name: "wal", State: State(StatusOK)}
	slot := in.Slot
	switch {
	case slot == nil && in.SampledAt.IsZero():
		s.State, s.Text = StateUnknown, "not seen yet"
		return s
	case slot == nil:
		s.State, s.Text = State(StatusWarn), "no slot"
		if in.Role == RoleBackfill {
			s.State, s.Text = StateIdle, "the slot is being made"
		}
		return s
	case slot.WALStatus == "lost":
		s.State, s.Text = State(StatusCritical), "the slot has lost WAL"
	case slot.WALStatus == "unreserved":
		s.State, s.Text = State(StatusCritical), "the slot is about to lose WAL"
	default:
		level := worst(j.machine.unconfirmed.level(), j.machine.retained.level(), j.machine.short.level())
		if slot.WALStatus != "reserved" && slot.WALStatus != "" {
			level = worst(level, StatusWarn)
		}
		s.State, s.Text = State(level), "kept for the slot"
		if slot.RetainedBytes != nil {
			s.Text = size(*slot.RetainedBytes) + " kept for the slot"
		}
	}
	if !in.DatabaseAwaySince.IsZero() {
		s.Text += ", as last seen"
		if s.State == State(StatusOK) {
			s.State = StateUnknown
		}
	}
	return s
}

// tableStage is what a poller reads from.
func (j *judgement) tableStage() Stage {
	in, s := &j.in, Stage{Name: "table", State: State(j.machine.age.level())}
	switch {
	case !in.DatabaseAwaySince.IsZero(), in.OldestAge == nil:
		s.State, s.Text = StateUnknown, "not seen"
	case *in.OldestAge == 0:
		s.Text = "every row is published"
	default:
		s.Text = "the oldest row waits for " + duration(seconds(*in.OldestAge))
	}
	return s
}

// connectionStage is the replication connection.
func (j *judgement) connectionStage() Stage {
	in, s := &j.in, Stage{Name: "connection", State: State(StatusOK)}
	away := func(text string) Stage {
		d, _ := j.since(in.StreamingAwaySince)
		s.State, s.Text, s.Since = State(j.awayStatus(d)), text, nonZero(in.StreamingAwaySince)
		if len(in.Problems) > 0 {
			s.State = State(StatusCritical)
		}
		return s
	}
	switch {
	case in.Role == RoleStreaming && in.Streaming:
		s.Text = "streaming"
	case in.Role == RoleStandby && j.holder() != "":
		s.State, s.Text = StateIdle, "another relay has it"
	case in.Role == RoleStandby && in.StreamingAwaySince.IsZero():
		s.State, s.Text = StateUnknown, "not seen"
	case in.Role == RoleStandby:
		return away("no relay has it")
	case in.Role == RoleBackfill && (in.StreamingAwaySince.IsZero() || in.StreamingError == ""):
		s.State, s.Text = StateIdle, "after the backfill"
		if in.Waiting != "" {
			s.State, s.Text = State(StatusWarn), "waits for a transaction"
		}
	case in.Role == RoleStreaming, in.Role == RoleBackfill:
		return away("interrupted")
	default:
		return away("not connected yet")
	}
	return s
}

// relayStage is this program itself.
func (j *judgement) relayStage() Stage {
	in := &j.in
	s := Stage{Name: "relay", State: State(StatusOK), Text: string(in.Role)}
	switch {
	case len(in.Problems) > 0:
		s.State, s.Text = State(StatusCritical), "stopped until somebody acts"
	case in.MarksRefused != "":
		s.State, s.Text = State(StatusCritical), string(in.Role)+", marks are refused"
	case in.Role == RoleStandby:
		s.Text = "stands by"
	case in.Role == RolePolling && !in.Streaming:
		d, _ := j.since(in.StreamingAwaySince)
		s.State, s.Text, s.Since = State(j.awayStatus(d)), "polling is interrupted", nonZero(in.StreamingAwaySince)
	case in.Role == RoleBackfill:
		s.Text = "backfill: " + in.backfill()
		if in.Healing != "" {
			s.State, s.Text = State(StatusWarn), "puts rows back: "+in.backfill()
		}
	case in.Role == RoleStarting:
		s.State = State(StatusWarn)
	case in.LockedRow != "":
		s.State, s.Text = State(StatusWarn), "streaming, a row is locked"
	}
	return s
}

// redisStage is the stream that the rows go to.
func (j *judgement) redisStage() Stage {
	s := Stage{Name: "redis", State: State(StatusOK), Text: "takes entries"}
	in := &j.in
	switch since := in.RedisAwaySince; {
	case in.RedisStopped:
		s.State, s.Text, s.Since = State(StatusCritical), "takes no entries", nonZero(since)
	case !since.IsZero():
		d, _ := j.since(since)
		s.State, s.Text, s.Since = State(j.awayStatus(d)), "away", &since
	case in.Stream != nil:
		s.Text = plural(in.Stream.Length, "entry", "entries")
	case in.Role == RoleStandby:
		s.Text = "answers"
	}
	return s
}

// groupsStage is who reads the stream. How far they are is their affair.
func (j *judgement) groupsStage() Stage {
	s := Stage{Name: "groups", State: State(StatusOK)}
	stream := j.in.Stream
	if stream == nil || stream.GroupCount == nil {
		s.State, s.Text = StateUnknown, "not seen"
		return s
	}
	var lag, pending int64
	behind := len(stream.Groups) == *stream.GroupCount
	for _, g := range stream.Groups {
		pending += g.Pending
		if g.Lag == nil {
			behind = false
			continue
		}
		lag += *g.Lag
	}
	switch s.Text = plural(int64(*stream.GroupCount), "group", "groups"); {
	case *stream.GroupCount == 0:
		s.State, s.Text = StateIdle, "no consumer group"
	case !behind:
	case lag == 0 && pending == 0:
		s.Text += ", nothing waits"
	default:
		s.Text += fmt.Sprintf(", %s to come, %s pending", grouped(lag), grouped(pending))
	}
	if !j.in.RedisAwaySince.IsZero() {
		s.State = StateUnknown
		s.Text += ", as last seen"
	}
	return s
}

func plural(n int64, one, many string) string {
	if n == 1 {
		return "1 " + one
	}
	return grouped(n) + " " + many
}

// grouped is a number with its thousands set apart.
func grouped(n int64) string {
	digits := strconv.FormatInt(n, 10)
	for i := len(digits) - 3; i > 0 && digits[i-1] != '-'; i -= 3 {
		digits = digits[:i] + "," + digits[i:]
	}
	return digits
}

// worst is the worst of some levels.
func worst(levels ...Status) Status {
	w := StatusOK
	for _, l := range levels {
		if l.severity() > w.severity() {
			w = l
		}
	}
	return w
}
