package health

import (
	"fmt"
	"math"
	"slices"
	"time"
)

// clean takes what cannot be meant out of an input, and copies what it keeps.
func clean(in Input) Input {
	in = cleanTexts(in)
	in.Slot, in.Leftover = cleanSlot(in.Slot), cleanSlot(in.Leftover)
	in.Other, in.Connection, in.Witness = copied(in.Other), copied(in.Connection), copied(in.Witness)
	in.OldestAge = cleanAge(in.OldestAge)
	in.Stream = cleanStream(in.Stream)
	if in.Role == "" {
		in.Role = RoleStarting
	}
	return in
}

// judge decides the level and says why. Invariant: the level is that of the
// worst reason, so that nothing is coloured without a word.
func judge(in Input, m *Machine) Document {
	j := judgement{in: in, machine: m}
	for _, l := range []*latch{&m.age, &m.unconfirmed, &m.retained} {
		j.passed = j.passed || l.level() == StatusCritical
	}
	// From cause to consequence: the order within a level.
	j.problems()
	j.lostWAL()
	j.away()
	j.marksRefused()
	j.levels()
	j.heldUp()
	j.notes()
	return j.document()
}

// judgement collects the reasons of one document.
type judgement struct {
	in      Input
	machine *Machine // as it is after this input
	passed  bool     // age or lag reached its threshold
	reasons []reason
}

type reason struct {
	status Status
	text   string
}

func (j *judgement) say(status Status, format string, args ...any) {
	j.reasons = append(j.reasons, reason{status, fmt.Sprintf(format, args...)})
}

func (j *judgement) document() Document {
	slices.SortStableFunc(j.reasons, func(a, b reason) int { return b.status.severity() - a.status.severity() })
	cause, kinds := j.cause()
	d := Document{
		Status:    StatusOK,
		Reasons:   make([]string, len(j.reasons)),
		Role:      j.in.Role,
		Cause:     nonZero(cause),
		Causes:    kinds,
		Leftover:  j.in.Leftover,
		Slot:      j.in.Slot,
		OldestAge: j.in.OldestAge,
		Published: j.in.Published,
		Stream:    j.in.Stream,

		At:          moment(j.in.Now),
		Started:     moment(j.in.Started),
		Rates:       j.machine.history.rates(),
		Other:       j.in.Other,
		Connection:  j.in.Connection,
		Connections: j.in.Connections,
		Database:    peer(j.in.SampledAt, j.in.DatabaseAwaySince, j.in.DatabaseError),
		Redis:       peer(j.in.RedisSeenAt, j.in.RedisAwaySince, j.in.RedisError),
		Witness:     j.in.Witness,

		Stages: j.stages(),
	}
	if r := j.machine.runway; r.ends {
		after := r.after.Seconds()
		d.Runway = &after
	}
	for i, r := range j.reasons {
		d.Reasons[i] = r.text
	}
	if len(j.reasons) > 0 {
		d.Status = j.reasons[0].status
	}
	d.Ready = j.ready()
	return d
}

// problems are critical at once: waiting does not repair them.
func (j *judgement) problems() {
	for _, p := range j.in.Problems {
		j.say(StatusCritical, "The line has stopped until somebody acts: %s", p)
	}
}

// lostWAL is about WAL that the slot needs and PostgreSQL removed or will.
func (j *judgement) lostWAL() {
	s := j.in.Slot
	if s == nil {
		return
	}
	switch s.WALStatus {
	case "lost":
		if why := s.InvalidationReason; why != "" && why != "wal_removed" {
			j.say(StatusCritical, "PostgreSQL invalidated slot %s (invalidation_reason %s): rows that were not published yet cannot come from this slot any more.", quoted(s.Name), why)
			return
		}
		j.say(StatusCritical, "PostgreSQL removed WAL that slot %q still needed (wal_status lost): rows that were not published yet cannot come from this slot any more.", s.Name)
	case "unreserved":
		j.say(StatusCritical, "PostgreSQL removes WAL that slot %q still needs at its next checkpoint (wal_status unreserved): raise max_slot_wal_keep_size now, or see that the relay catches up.", s.Name)
	}
}

// away is about connections that are not there.
func (j *judgement) away() {
	in := &j.in
	if d, since := j.since(in.DatabaseAwaySince); !in.DatabaseAwaySince.IsZero() {
		switch {
		case in.Role == RoleNone && in.SampledAt.IsZero():
			j.say(j.awayStatus(d), "PostgreSQL has not answered%s%s.", since, lastError(in.DatabaseError))
		default:
			j.say(j.awayStatus(d), "PostgreSQL has not answered the monitor%s%s; slot and age are as last seen.", since, lastError(in.DatabaseError))
		}
	}
	j.streaming()
	if d, since := j.since(in.RedisAwaySince); !in.RedisAwaySince.IsZero() && !in.RedisStopped {
		wait := "in PostgreSQL, which keeps their WAL"
		if in.Role == RolePolling || in.Role == RoleNone && in.Slot == nil {
			wait = "in the table"
		}
		j.say(j.awayStatus(d), "Redis has been away%s%s; rows wait %s.", since, lastError(in.RedisError), wait)
	}
}

// streaming is about the replication connection, as the role needs it.
func (j *judgement) streaming() {
	in := &j.in
	d, since := j.since(in.StreamingAwaySince)
	last := lastError(in.StreamingError)
	switch in.Role {
	case RoleBackfill:
		if j.backfillAway() {
			j.say(j.awayStatus(d), "The backfill has not reached PostgreSQL%s%s.", since, last)
		}
	case RoleStandby:
		if in.Streaming || j.holder() != "" {
			return
		}
		if in.StreamingAwaySince.IsZero() && !in.DatabaseAwaySince.IsZero() {
			return // it cannot be seen, which has a reason of its own
		}
		j.say(j.awayStatus(d), "Stands by, but no relay has been active%s%s: no row is published.", since, last)
	case RoleStreaming:
		if !in.Streaming {
			j.say(j.awayStatus(d), "Streaming from PostgreSQL has been interrupted%s%s.", since, last)
		}
	case RoleNone:
		switch {
		case in.Streaming || !in.DatabaseAwaySince.IsZero():
		case in.Slot == nil:
			j.say(j.awayStatus(d), "No relay is at work%s, and there is no slot.", since)
		default:
			j.say(j.awayStatus(d), "No relay is connected to slot %q%s.", in.Slot.Name, since)
		}
	case RolePolling:
		if !in.Streaming {
			j.say(j.awayStatus(d), "Polling has been interrupted%s%s.", since, last)
		}
	default:
		if !in.Streaming {
			j.say(j.awayStatus(d), "The relay has been starting%s%s: no row is published yet.", since, last)
		} else {
			j.say(StatusWarn, "The relay is starting.")
		}
	}
}

// holder says that another relay streams or backfills while this one stands by,
// or is "".
func (j *judgement) holder() string {
	switch s := j.in.Slot; {
	case j.in.Holder != "":
		return j.in.Holder
	case s != nil && s.Active && j.in.DatabaseAwaySince.IsZero():
		return "another relay is active"
	default:
		return ""
	}
}

// marksRefused costs the witness: the table no longer checks the stream.
func (j *judgement) marksRefused() {
	if j.in.MarksRefused != "" {
		j.say(StatusCritical, "Published rows cannot be marked, so that rows that are missed go unnoticed; publishing goes on: %s", j.in.MarksRefused)
	}
}

// ready says that this relay is at work, or would take over from the one that is.
// The level is no reason against it: another instance would have it, too.
func (j *judgement) ready() bool {
	in := &j.in
	if len(in.Problems) > 0 {
		return false
	}
	switch in.Role {
	case RoleStreaming, RolePolling:
		return in.Streaming
	case RoleBackfill:
		return !j.backfillAway()
	case RoleStandby:
		return j.holder() != "" && in.DatabaseAwaySince.IsZero() && in.RedisAwaySince.IsZero()
	default:
		return false
	}
}

// backfillAway says that a backfill does not reach PostgreSQL.
func (j *judgement) backfillAway() bool {
	in := &j.in
	return !in.Streaming && !in.StreamingAwaySince.IsZero() && in.StreamingError != ""
}

// levels are the thresholds, which hold in every role.
func (j *judgement) levels() {
	limits, s, m := j.in.Thresholds, j.in.Slot, j.machine
	if r := m.runway; m.short.level() != StatusOK {
		from := "from " + duration(limits.RunwayCritical)
		switch {
		case r.after == 0:
			j.say(StatusCritical, "The budget for WAL is used up: %s.", r.budget.what)
		case !m.dire:
			j.say(StatusWarn, "At the present rate, in %s %s (critical %s, if that lasts).", duration(r.after), r.budget.what, from)
		default:
			j.say(StatusCritical, "At the present rate, in %s %s (critical %s).", duration(r.after), r.budget.what, reached(
				r.after <= limits.RunwayCritical, from, "it is more than "+duration(seconds(limits.RunwayCritical.Seconds()/keep))))
		}
	}
	if status := m.age.level(); status != StatusOK {
		limit := limits.AgeWarn
		if status == StatusCritical {
			limit = limits.AgeCritical
		}
		is := "is"
		if j.in.OldestAge == nil {
			is = "was, when that was last known,"
		}
		j.say(status, "The oldest unpublished row %s %s old (%s %s).", is, duration(seconds(m.ageSeen)), status, reached(
			m.ageSeen >= limit.Seconds(), "from "+duration(limit), "it is below "+duration(seconds(keep*limit.Seconds()))))
	}
	idle := ""
	if s != nil && !s.Active {
		idle = "; nobody reads from the slot"
	}
	bytes := func(status Status, n int64) string {
		limit := limits.LagWarn
		if status == StatusCritical {
			limit = limits.LagCritical
		}
		return fmt.Sprintf("%s %s", status, reached(n >= limit, "from "+size(limit), "it is below "+size(int64(keep*float64(limit)))))
	}
	if status := m.unconfirmed.level(); status != StatusOK {
		n := *j.in.unconfirmed()
		j.say(status, "%s of WAL are not confirmed on slot %q (%s)%s.", size(n), s.Name, bytes(status, n), idle)
	}
	if status := m.retained.level(); status != StatusOK {
		n := *j.in.retained()
		if j.in.SlotPinnedBy != "" {
			idle = "; held back by " + j.in.SlotPinnedBy
		}
		j.say(status, "%s", ended(fmt.Sprintf("PostgreSQL keeps %s of WAL for slot %q (%s)%s", size(n), s.Name, bytes(status, n), idle)))
	}
}

// reached is the words for a level: from when on it is reached, or where it was
// reached before, until when it stays.
func reached(now bool, from, until string) string {
	if now {
		return from
	}
	return "until " + until
}

// heldUp is what is not right, and harmless until a threshold says otherwise.
func (j *judgement) heldUp() {
	in := &j.in
	if s := in.Slot; s != nil {
		switch s.WALStatus {
		case "extended":
			left := ""
			if s.SafeWALSize != nil {
				left = fmt.Sprintf("; %s more can be written before the slot loses WAL", size(max(0, *s.SafeWALSize)))
			}
			j.say(StatusWarn, "Slot %q makes PostgreSQL keep more WAL than max_wal_size (wal_status extended)%s.", s.Name, left)
		case "", "reserved", "lost", "unreserved":
		default:
			j.say(StatusWarn, "Slot %q has the unknown wal_status %q.", s.Name, s.WALStatus)
		}
	}
	if in.Waiting != "" {
		j.say(StatusWarn, "The slot is not created yet: %s", ended(in.Waiting))
	}
	if in.Healing != "" {
		j.say(StatusWarn, "Rows may be missing, and are being put back: %s", ended(in.Healing))
	}
	if in.TableUnseen != "" {
		j.say(StatusWarn, "The table cannot be looked at, so that its oldest unpublished row is not known, nor whether rows were missed: %s", in.TableUnseen)
	}
	if in.Doubt != "" {
		j.say(StatusWarn, "An operator has to decide: %s", ended(in.Doubt))
	}
	if in.Leftover != nil {
		j.say(StatusWarn, "%s.", in.Leftover.AsLeftover())
	}
	if in.LockedRow != "" {
		j.say(StatusWarn, "Published rows cannot be marked, and WAL is not confirmed: %s", ended(in.LockedRow))
	}
}

// AsLeftover is what is to be said of a relay's slot beside a poller.
func (s *Slot) AsLeftover() string {
	if s.Active {
		return fmt.Sprintf("A relay streams from slot %q beside this poller, so that rows may be published twice: stop one of the two", s.Name)
	}
	kept := "WAL"
	if s.RetainedBytes != nil {
		kept = size(*s.RetainedBytes) + " of WAL"
	}
	return fmt.Sprintf("PostgreSQL keeps %s, and more with every change, for slot %q, which nobody reads: go back to walrelay run, or drop the slot with walrelay teardown", kept, s.Name)
}

// notes explain, and colour nothing.
func (j *judgement) notes() {
	in := &j.in
	if in.Role == RoleBackfill {
		j.say(StatusOK, "A backfill is running: %s.", in.backfill())
	}
	if holder := j.holder(); in.Role == RoleStandby && holder != "" {
		j.say(StatusOK, "Stands by: %s.", holder)
	}
	if in.SlotPinnedBy != "" && j.machine.retained.level() == StatusOK {
		j.say(StatusOK, "WAL is held back by %s", ended(in.SlotPinnedBy))
	}
}

// awayStatus is the level of something that has been away for d.
func (j *judgement) awayStatus(d time.Duration) Status {
	if limit := j.in.Thresholds.AgeCritical; j.passed || limit > 0 && d >= limit {
		return StatusCritical
	}
	return StatusWarn
}

// since is how long something is away, and that as words; "" when unknown.
func (j *judgement) since(t time.Time) (time.Duration, string) {
	if t.IsZero() {
		return 0, ""
	}
	d := max(0, j.in.Now.Sub(t))
	return d, " for " + duration(d)
}

// backfill is how far a backfill is.
func (in *Input) backfill() string {
	if in.BackfillProgress == "" {
		return "reading the table"
	}
	return in.BackfillProgress
}

// unconfirmed is the lag of the slot; nil when it is not known.
func (in *Input) unconfirmed() *int64 {
	if in.Slot == nil {
		return nil
	}
	return in.Slot.UnconfirmedBytes
}

// retained is the WAL that the slot keeps; nil when it is not known.
func (in *Input) retained() *int64 {
	if in.Slot == nil {
		return nil
	}
	return in.Slot.RetainedBytes
}

func lastError(text string) string {
	if text == "" {
		return ""
	}
	return " (last error: " + text + ")"
}

// cleanTexts takes credentials and line breaks out of every text. That happens
// on the way in, so that a secret's end is not confused with words around it.
func cleanTexts(in Input) Input {
	for _, text := range []*string{
		&in.StreamingError, &in.RedisError, &in.DatabaseError, &in.MarksRefused,
		&in.Healing, &in.Doubt, &in.TableUnseen, &in.Holder, &in.BackfillProgress, &in.Waiting, &in.LockedRow, &in.SlotPinnedBy,
	} {
		*text = oneLine(Redact(*text))
	}
	problems := make([]string, len(in.Problems))
	for i, p := range in.Problems {
		problems[i] = oneLine(Redact(p))
	}
	in.Problems = problems
	return in
}

// cleanSlot copies a slot, since the document outlives the call. Lags below
// zero are none: the two ends are not read at the same moment.
func cleanSlot(s *Slot) *Slot {
	if s == nil {
		return nil
	}
	c := *s
	c.Sender, c.Spill = copied(s.Sender), copied(s.Spill)
	for _, lag := range []**int64{&c.UnconfirmedBytes, &c.RetainedBytes} {
		if *lag != nil {
			n := max(0, **lag)
			*lag = &n
		}
	}
	c.SafeWALSize = copied(c.SafeWALSize)
	return &c
}

// cleanAge copies an age. One below zero is a clock that runs ahead; one that is
// no number is unknown, and JSON could not carry it.
func cleanAge(age *float64) *float64 {
	if age == nil || math.IsNaN(*age) || math.IsInf(*age, 0) {
		return nil
	}
	a := max(0, *age)
	return &a
}
