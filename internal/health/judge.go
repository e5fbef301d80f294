package health

import (
	"fmt"
	"math"
	"slices"
	"time"
)

// Judge decides the level and says why. Invariant: the level is that of the
// worst reason, so that nothing is coloured without a word.
func Judge(in Input) Document {
	in = cleanTexts(in)
	in.Slot, in.Leftover = cleanSlot(in.Slot), cleanSlot(in.Leftover)
	in.OldestAge = cleanAge(in.OldestAge)
	if in.Role == "" {
		in.Role = RoleStarting
	}

	j := judgement{in: in}
	j.passed = j.ageCritical() || j.critical(j.unconfirmed()) || j.critical(j.retained())
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

// judgement collects the reasons of one Judge.
type judgement struct {
	in      Input
	passed  bool // age or lag reached its threshold
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
	d := Document{
		Status:    StatusOK,
		Reasons:   make([]string, len(j.reasons)),
		Role:      j.in.Role,
		Slot:      j.in.Slot,
		OldestAge: j.in.OldestAge,
		Published: j.in.Published,
	}
	for i, r := range j.reasons {
		d.Reasons[i] = r.text
	}
	if len(j.reasons) > 0 {
		d.Status = j.reasons[0].status
	}
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
		j.say(StatusCritical, "PostgreSQL removed WAL that slot %q still needed (wal_status lost): rows that were not published yet cannot come from this slot any more.", s.Name)
	case "unreserved":
		j.say(StatusCritical, "PostgreSQL removes WAL that slot %q still needs at its next checkpoint (wal_status unreserved): raise max_slot_wal_keep_size now, or see that the relay catches up.", s.Name)
	}
}

// away is about connections that are not there.
func (j *judgement) away() {
	in := &j.in
	if d, since := j.since(in.DatabaseAwaySince); !in.DatabaseAwaySince.IsZero() {
		j.say(j.awayStatus(d), "PostgreSQL has not answered the monitor%s%s; slot and age are as last seen.", since, lastError(in.DatabaseError))
	}
	j.streaming()
	if d, since := j.since(in.RedisAwaySince); !in.RedisAwaySince.IsZero() {
		wait := "in PostgreSQL, which keeps their WAL"
		if in.Role == RolePolling {
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
		if !in.Streaming && !in.StreamingAwaySince.IsZero() && in.StreamingError != "" {
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

// levels are the thresholds, which hold in every role.
func (j *judgement) levels() {
	limits, s := j.in.Thresholds, j.in.Slot
	if j.ageCritical() {
		j.say(StatusCritical, "The oldest unpublished row is %s old (critical from %s).",
			duration(seconds(*j.in.OldestAge)), duration(limits.AgeCritical))
	}
	idle := ""
	if s != nil && !s.Active {
		idle = "; nobody reads from the slot"
	}
	if n := j.unconfirmed(); j.critical(n) {
		j.say(StatusCritical, "%s of WAL are not confirmed on slot %q (critical from %s)%s.", size(*n), s.Name, size(limits.LagCritical), idle)
	}
	if n := j.retained(); j.critical(n) {
		if j.in.SlotPinnedBy != "" {
			idle = "; held back by " + j.in.SlotPinnedBy
		}
		j.say(StatusCritical, "PostgreSQL keeps %s of WAL for slot %q (critical from %s)%s.", size(*n), s.Name, size(limits.LagCritical), idle)
	}
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
		j.say(StatusWarn, "The slot is not created yet: %s.", in.Waiting)
	}
	if in.Healing != "" {
		j.say(StatusWarn, "Rows may be missing, and are being put back: %s.", in.Healing)
	}
	if in.TableUnseen != "" {
		j.say(StatusWarn, "The table cannot be looked at, so that its oldest unpublished row is not known, nor whether rows were missed (a partial index on unpublished ids makes it quick, see walrelay setup --create-table --print-sql): %s.", in.TableUnseen)
	}
	if in.Doubt != "" {
		j.say(StatusWarn, "An operator has to decide: %s.", in.Doubt)
	}
	if in.Leftover != nil {
		j.say(StatusWarn, "%s.", in.Leftover.AsLeftover())
	}
	if in.LockedRow != "" {
		j.say(StatusWarn, "Published rows cannot be marked, and WAL is not confirmed: %s.", in.LockedRow)
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
		progress := in.BackfillProgress
		if progress == "" {
			progress = "reading the table"
		}
		j.say(StatusOK, "A backfill is running: %s.", progress)
	}
	if holder := j.holder(); in.Role == RoleStandby && holder != "" {
		j.say(StatusOK, "Stands by: %s.", holder)
	}
	if in.SlotPinnedBy != "" && !j.critical(j.retained()) {
		j.say(StatusOK, "WAL is held back by %s.", in.SlotPinnedBy)
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

func (j *judgement) ageCritical() bool {
	age, limit := j.in.OldestAge, j.in.Thresholds.AgeCritical
	return age != nil && limit > 0 && *age >= limit.Seconds()
}

func (j *judgement) critical(bytes *int64) bool {
	limit := j.in.Thresholds.LagCritical
	return bytes != nil && limit > 0 && *bytes >= limit
}

func (j *judgement) unconfirmed() *int64 {
	if j.in.Slot == nil {
		return nil
	}
	return j.in.Slot.UnconfirmedBytes
}

func (j *judgement) retained() *int64 {
	if j.in.Slot == nil {
		return nil
	}
	return j.in.Slot.RetainedBytes
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
	for _, lag := range []**int64{&c.UnconfirmedBytes, &c.RetainedBytes} {
		if *lag != nil {
			n := max(0, **lag)
			*lag = &n
		}
	}
	if c.SafeWALSize != nil {
		n := *c.SafeWALSize
		c.SafeWALSize = &n
	}
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
