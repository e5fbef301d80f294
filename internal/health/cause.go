package health

import (
	"fmt"
	"time"

	"github.com/stagedoor/walrelay/cdc"
)

// otherLeast is how much WAL another slot must keep, and how many times what
// ours keeps, to be the real culprit.
const (
	otherLeast = 64 << 20
	otherTimes = 2

	// paceSpan is over how long the relay is compared with the writers, and pace
	// is how many times as fast one must be to be called faster.
	paceSpan = 30 * time.Second
	pace     = 1.05

	// silentFor is how long nothing may come over a replication connection in good
	// health: PostgreSQL answers each status, of which one is sent every second.
	silentFor = 5 * time.Second
)

const timeLayout = "2006-01-02 15:04:05 MST"

// cause says in sentences why WAL is kept, or is "" where nothing keeps it for
// longer than usual. What is known to stop everything comes before what is
// worked out from rates, and another slot is named whatever ours does.
func (j *judgement) cause() (text string, kinds []CauseKind) {
	for _, c := range j.ownCauses() {
		text, kinds = text+and(text)+c.sentence, append(kinds, c.kind)
	}
	other := j.otherCause()
	if other == "" {
		return text, kinds
	}
	kinds = append(kinds, CauseOtherSlot)
	if text == "" {
		return "Another slot is what keeps WAL: " + other, kinds
	}
	return text + and(text) + "But another slot keeps more: " + other, kinds
}

// and is what goes between a text and the next sentence. A text may end with a
// command, of which a dot would be copied along.
func and(text string) string {
	switch {
	case text == "":
		return ""
	case ended(text) == text:
		return " "
	default:
		return "; "
	}
}

// ownCause is a reason why our slot keeps WAL.
type ownCause struct {
	kind     CauseKind
	sentence string
}

// ownCauses are why our slot keeps WAL, or why rows wait: what stops the line, and
// what keeps WAL whatever becomes of that.
func (j *judgement) ownCauses() (causes []ownCause) {
	in, s := &j.in, j.in.Slot
	add := func(kind CauseKind, format string, args ...any) {
		causes = append(causes, ownCause{kind, fmt.Sprintf(format, args...)})
	}
	if len(in.Problems) > 0 {
		add(CauseStopped, "The line has stopped until somebody acts: %s", in.Problems[0])
	}
	switch {
	case in.Role != RolePolling && s != nil && s.WALStatus == "lost":
		return causes // it keeps none
	case in.Role == RoleNone && s == nil:
		return causes // there is nothing that would keep any
	}
	if !in.RedisAwaySince.IsZero() && (!in.RedisStopped || len(in.Problems) == 0) {
		wait := "rows that it has not taken are not confirmed, so PostgreSQL keeps their WAL"
		if in.Role == RolePolling {
			wait = "rows wait in the table"
		}
		add(CauseRedis, "Redis has been unreachable%s%s: %s.", sinceTime(in.RedisAwaySince), lastError(in.RedisError), wait)
	}
	if in.Role == RolePolling {
		if l := in.Leftover; l != nil && !l.Active {
			add(CauseNoRelay, "No relay is connected to slot %s%s, and a poller does not read from it.", quoted(l.Name), j.inactiveSince())
		}
		return causes
	}
	if u, r := in.unconfirmed(), in.retained(); in.SlotPinnedBy != "" && u != nil && r != nil && *r-*u > *u {
		add(CauseTransaction, "WAL is held back by %s", ended(in.SlotPinnedBy))
	}
	if in.Role == RoleNone && !s.Active {
		add(CauseNoRelay, "No relay is connected to slot %s%s.", quoted(s.Name), j.inactiveSince())
	}
	if len(causes) > 0 {
		return causes
	}
	switch {
	case s != nil && !s.Active && in.Role != RoleStreaming:
		add(CauseNoRelay, "No relay is connected to slot %s%s%s.", quoted(s.Name), j.inactiveSince(), lastError(in.StreamingError))
	case s != nil && in.Role == RoleStreaming && !in.Streaming, in.Role == RoleStarting && !in.StreamingAwaySince.IsZero() && s != nil:
		add(CauseNotStreaming, "The relay has not streamed%s%s.", sinceTime(in.StreamingAwaySince), lastError(in.StreamingError))
	case in.LockedRow != "":
		add(CauseLockedRow, "Published rows cannot be marked, and so are not confirmed: %s", ended(in.LockedRow))
	case in.Waiting != "":
		add(CauseCreation, "The slot is not created yet: %s", ended(in.Waiting))
	case in.SlotPinnedBy != "":
		add(CauseTransaction, "WAL is held back by %s", ended(in.SlotPinnedBy))
	case in.Role == RoleBackfill:
		add(CauseBackfill, "WAL is kept until a backfill has finished: %s", ended(in.backfill()))
	default:
		if kind, sentence := j.slow(); sentence != "" {
			add(kind, "%s", sentence)
		}
	}
	return causes
}

// inactiveSince is since when nobody reads from the slot, as words.
func (j *judgement) inactiveSince() string {
	since := sinceTime(j.machine.inactiveSince)
	if since != "" && !j.machine.sawActive {
		return " since " + j.machine.inactiveSince.UTC().Format(timeLayout) + " or longer"
	}
	return since
}

// slow compares what is written with what is confirmed, where the relay is
// behind.
func (j *judgement) slow() (CauseKind, string) {
	m := j.machine
	if m.age.level() == StatusOK && m.unconfirmed.level() == StatusOK {
		return "", ""
	}
	if c := j.in.Connection; c != nil && c.LastReceive != nil && !j.in.Unread && j.in.Now.Sub(*c.LastReceive) >= silentFor {
		return CauseNotStreaming, fmt.Sprintf("PostgreSQL has sent nothing%s, although it is asked every second.", sinceTime(*c.LastReceive))
	}
	recent := m.history.last(paceSpan)
	if !m.hold.last.IsZero() && len(recent.points) > 0 && !m.hold.last.Before(recent.points[0].at) {
		return CauseCatchingUp, "The relay goes on after it was held up, and has yet to catch up."
	}
	in, known := recent.written()
	out, confirms := recent.confirmed()
	if !known || !confirms || in == 0 && out == 0 {
		return "", ""
	}
	rates := fmt.Sprintf("WAL grows by %s/s, and %s/s are confirmed", size(int64(in)), size(int64(out)))
	switch {
	case out > pace*in:
		return CauseCatchingUp, fmt.Sprintf("The relay is catching up: %s.", rates)
	case in > pace*out:
		return CauseSlow, fmt.Sprintf("The relay is slower than the writers: %s.", rates)
	default:
		return CauseBehind, fmt.Sprintf("The relay is behind, and as fast as the writers: %s.", rates)
	}
}

// otherCause names another slot that keeps much more than ours; PostgreSQL
// would not remove WAL whatever ours did.
func (j *judgement) otherCause() string {
	o := j.in.Other
	if o == nil || o.RetainedBytes < otherLeast {
		return ""
	}
	if own := j.in.retained(); own != nil && o.RetainedBytes < otherTimes**own {
		return ""
	}
	what := o.Kind + " slot " + quoted(o.Name)
	if o.Database != "" {
		what += " of database " + quoted(o.Database)
	}
	if o.Active {
		return fmt.Sprintf("the %s keeps %s, since its reader does not keep up; to see who that is: SELECT * FROM pg_stat_replication;", what, size(o.RetainedBytes))
	}
	since, where := "", ""
	if o.InactiveSince != nil {
		since = sinceTime(*o.InactiveSince)
	}
	if o.Database != "" {
		where = "in that database: "
	}
	return fmt.Sprintf("the %s, which nobody reads%s, keeps %s; if nobody needs it any more: %sSELECT pg_drop_replication_slot(%s);",
		what, since, size(o.RetainedBytes), where, cdc.QuoteLiteral(o.Name))
}

// sinceTime is a time as words; "" when it is not known.
func sinceTime(t time.Time) string {
	if t.IsZero() {
		return ""
	}
	return " since " + t.UTC().Format(timeLayout)
}
