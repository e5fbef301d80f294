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
)

const timeLayout = "2006-01-02 15:04:05 MST"

// cause says in a sentence why WAL is kept, or is "" where nothing keeps it for
// longer than usual. What is known to stop everything comes before what is
// worked out from rates, and another slot is named whatever ours does.
func (j *judgement) cause() (sentence string, kinds []CauseKind) {
	kind, own := j.ownCause()
	if own != "" {
		kinds = append(kinds, kind)
	}
	other := j.otherCause()
	if other == "" {
		return own, kinds
	}
	kinds = append(kinds, CauseOtherSlot)
	if own == "" {
		return "Another slot is what keeps WAL: " + other, kinds
	}
	return own + " But another slot keeps more: " + other, kinds
}

// ownCause is why our slot keeps WAL.
func (j *judgement) ownCause() (CauseKind, string) {
	in, s := &j.in, j.in.Slot
	if in.Role == RolePolling {
		if s = in.Leftover; s == nil || s.Active {
			return "", ""
		}
		return CauseNoRelay, fmt.Sprintf("No relay is connected to slot %s%s, and a poller does not read from it.", quoted(s.Name), j.inactiveSince())
	}
	if s != nil && s.WALStatus == "lost" {
		return "", "" // it keeps none
	}
	pinned := ""
	if in.SlotPinnedBy != "" {
		pinned = "WAL is held back by " + ended(in.SlotPinnedBy)
		if u, r := in.unconfirmed(), in.retained(); u != nil && r != nil && *r-*u > *u {
			return CauseTransaction, pinned
		}
	}
	switch {
	case in.Role == RoleNone && s == nil:
		return "", "" // there is nothing that would keep any
	case in.Role == RoleNone && !s.Active:
		return CauseNoRelay, fmt.Sprintf("No relay is connected to slot %s%s.", quoted(s.Name), j.inactiveSince())
	case len(in.Problems) > 0:
		return CauseStopped, "The line has stopped until somebody acts: " + in.Problems[0]
	case !in.RedisAwaySince.IsZero():
		return CauseRedis, fmt.Sprintf("Redis has been unreachable%s%s: rows that it has not taken are not confirmed, so PostgreSQL keeps their WAL.", sinceTime(in.RedisAwaySince), lastError(in.RedisError))
	case s != nil && !s.Active && in.Role != RoleStreaming:
		return CauseNoRelay, fmt.Sprintf("No relay is connected to slot %s%s%s.", quoted(s.Name), j.inactiveSince(), lastError(in.StreamingError))
	case s != nil && in.Role == RoleStreaming && !in.Streaming, in.Role == RoleStarting && !in.StreamingAwaySince.IsZero() && s != nil:
		return CauseNotStreaming, fmt.Sprintf("The relay has not streamed%s%s.", sinceTime(in.StreamingAwaySince), lastError(in.StreamingError))
	case in.LockedRow != "":
		return CauseLockedRow, "Published rows cannot be marked, and so are not confirmed: " + ended(in.LockedRow)
	case in.Waiting != "":
		return CauseCreation, "The slot is not created yet: " + ended(in.Waiting)
	case pinned != "":
		return CauseTransaction, pinned
	case in.Role == RoleBackfill:
		return CauseBackfill, "WAL is kept until a backfill has finished: " + ended(in.backfill())
	}
	return j.slow()
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
