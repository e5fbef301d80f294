package main

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"math"
	"slices"
	"sync"
	"time"

	"github.com/stagedoor/walrelay/internal/health"
	"github.com/stagedoor/walrelay/internal/web"
	"github.com/stagedoor/walrelay/outbox"
	"github.com/stagedoor/walrelay/publisher"
	"github.com/stagedoor/walrelay/relay"
	"github.com/stagedoor/walrelay/slot"
)

// lookEvery is the interval of the monitor.
const lookEvery = 5 * time.Second

// pollLookEvery is that beside a poller, which does not learn of each row when it
// is written.
const pollLookEvery = time.Second

// observer brings together what the monitor sees and what the relay knows.
type observer struct {
	status     func() relay.Status
	relay      *relay.Relay // nil where a poller works instead
	table      *outbox.Table
	timings    *web.Timings
	log        *slog.Logger
	purger     *outbox.Purger
	stream     func(ctx context.Context, groups bool) (publisher.Stream, error) // a look at Redis
	thresholds health.Thresholds
	started    time.Time // of the process

	mu        sync.Mutex
	machine   health.Machine
	recent    health.Recent
	sampled   slot.Sample // the last look that saw something
	pace      pace
	slot      *health.Slot
	pinnedBy  string
	leftover  *health.Slot // a relay's slot beside a poller
	warnedAt  time.Time    // of it
	unseen    string       // why the table cannot be looked at
	problem   error        // seen by the monitor
	awaySince time.Time    // since when the monitor sees nothing
	awayError string
	age       time.Duration // of the oldest unmarked row that is not on the stream
	ageAt     time.Time     // when that was seen; zero when it is not known
	witness   *health.Witness
	onStream  *health.Stream
}

// watch runs the monitor until ctx ends.
func (o *observer) watch(ctx context.Context, m *slot.Monitor, beat func()) error {
	every := lookEvery
	if o.relay == nil {
		every = pollLookEvery // beside ten looks a second
	}
	return m.Run(ctx, every, &rowsLook{observer: o}, func(s slot.Sample) {
		beat()
		o.take(s)
	}, o.hangUp)
}

// hangUp ends the current connection. A poller's holds up nobody.
func (o *observer) hangUp(reason error) {
	if o.relay != nil {
		o.relay.HangUp(reason)
	}
}

// rowsLook is the table's part of one look: the age of the oldest row that is
// not published, and the table's word against the slot's.
type rowsLook struct {
	*observer
	witness *relay.Witness // nil where there is none
	again   []string       // rows that the witness looks at again
	look    bool           // it looks anew
	asked   bool           // the table has something to tell
	err     error

	outdated bool // it was hung up, so that the table is checked anew, and no look has worked since
}

var _ slot.Table = (*rowsLook)(nil)

// witnessed is how many unmarked rows are looked at, the oldest ones.
const witnessed = 100

// Question implements slot.Table.
func (l *rowsLook) Question(first int) (sql string, args []any) {
	l.witness, l.again, l.look, l.asked, l.err = nil, nil, false, false, nil
	if l.table.Marks() == outbox.MarkNone {
		return "", nil // also before the table was checked, as on a standby
	}
	if l.relay != nil { // a poller goes by the marks itself
		l.witness = l.relay.Witness()
	}
	if l.witness != nil {
		l.again, l.look = l.witness.Due()
	}
	l.asked = true
	sql, args, l.err = l.table.Look(first, witnessed, l.status().WaitingIDs, l.again)
	return sql, args
}

// Answer implements slot.Table.
func (l *rowsLook) Answer(text string, s slot.Sample, err error) error {
	if err == nil {
		err = l.err
	}
	seen, wrong := l.table.Saw(text)
	if err == nil {
		err = wrong
	}
	if err != nil {
		unseen := l.table.Unseen(err)
		l.notSeen(unseen)
		if outbox.Outdated(err) && !l.outdated {
			l.outdated = true
			l.hangUp(unseen)
		}
		return unseen
	}
	if l.asked {
		l.outdated = false
	}
	at := time.Now()
	if !l.asked || l.relay == nil && !l.table.KnowsAge() {
		at = time.Time{} // nobody knows; a poller knows only of rows that it has seen
	}
	l.seen(seen.Age, at)
	l.testify(seen, s)
	return nil
}

// seen keeps the age of the oldest row; at is zero where that is not known.
func (o *observer) seen(age time.Duration, at time.Time) {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.age, o.ageAt = age, at
}

// notSeen forgets the age, and says at once why.
func (o *observer) notSeen(why error) {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.age, o.ageAt, o.unseen = 0, time.Time{}, why.Error()
}

// testify tells the witness what was seen, unless that is of another server than
// the one that is streamed from, or of a standby, which does not tell how far it
// has written.
func (l *rowsLook) testify(seen outbox.Looked, s slot.Sample) {
	w := l.witness
	if w == nil || s.Timeline == 0 || s.Timeline != w.Timeline() {
		l.testified(nil)
		return
	}
	switch {
	case len(l.again) > 0:
		w.LookedAgain(seen.Still)
		l.testified(&health.Witness{LookedAt: known(s.At)})
	case l.look:
		w.Looked(seen.Unmarked, s.InsertLSN)
		doc := &health.Witness{LookedAt: known(s.At), Unmarked: len(seen.Unmarked)}
		if len(seen.Unmarked) > 0 {
			doc.Until = &s.InsertLSN
		}
		l.testified(doc)
	}
}

// testified keeps what the witness last said; nil where there is none.
func (o *observer) testified(w *health.Witness) {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.witness = w
}

// take keeps a sample. A problem that would lose rows, or slow the writers
// down, ends the current connection: the next start refuses with the repair.
func (o *observer) take(s slot.Sample) {
	o.mu.Lock()
	defer o.mu.Unlock()
	if s.Err != nil {
		if o.awaySince.IsZero() {
			o.awaySince = s.At
		}
		o.awayError = s.Err.Error()
		return
	}
	o.awaySince, o.awayError = time.Time{}, ""
	o.sampled = s
	o.pace.take(s)
	o.unseen = ""
	if s.Unseen != nil {
		o.unseen = s.Unseen.Error()
	}
	if o.relay == nil {
		o.leave(healthSlot(s.Slot))
		return
	}
	if !s.Recovery {
		o.relay.Promoted(s.Timeline)
	}
	o.slot, o.pinnedBy = healthSlot(s.Slot), ""
	if s.Holder != nil {
		o.pinnedBy = fmt.Sprintf("%s; to end that: %s", s.Holder, s.Holder.Command())
	}
	o.problem = s.Problem
	if s.Slot == nil && errors.Is(s.Problem, slot.ErrPublication) {
		o.problem = nil // a first start makes the publication, or says why it cannot
	}
	now := o.status()
	switch {
	case now.Role != relay.RoleStreaming:
	case o.problem != nil:
		o.hangUp(o.problem)
	case standsInTheWay(now, time.Now(), o.slot):
		o.hangUp(errUnread)
	}
}

// standsInTheWay reports whether PostgreSQL is about to remove WAL that the slot
// needs, while the relay has read nothing for a whole interval of the monitor. One
// that catches up faster than Redis takes rows reads less than it could, and is to
// go on: only a connection that lasts moves what is confirmed.
func standsInTheWay(s relay.Status, now time.Time, slot *health.Slot) bool {
	if !s.Unread || slot == nil || slot.WALStatus != "unreserved" && slot.WALStatus != "lost" {
		return false
	}
	read := s.Connected
	if s.LastReceive.After(read) {
		read = s.LastReceive
	}
	return now.Sub(read) >= lookEvery
}

// errUnread ends a connection that PostgreSQL is about to end, and cannot: its
// process waits for us to read, and its checkpoint for the process, so that no WAL
// is removed for anybody, and the disk fills up.
var errUnread = errors.New("PostgreSQL is about to remove WAL that the slot needs, and its checkpoint would wait for a relay that does not read")

// leftoverEvery is how often it is logged that a slot was left behind.
const leftoverEvery = time.Hour

// leave keeps the slot that was found beside a poller. The caller holds mu.
func (o *observer) leave(s *health.Slot) {
	o.leftover = s
	if s != nil && time.Since(o.warnedAt) >= leftoverEvery {
		o.warnedAt = time.Now()
		o.log.Warn(s.AsLeftover(), "slot", s.Name)
	}
}

// healthSlot is a slot as health knows it; nil for none.
func healthSlot(lag *slot.SlotLag) *health.Slot {
	if lag == nil {
		return nil
	}
	s := &health.Slot{
		Name: lag.Name, Active: lag.Active, WALStatus: lag.WALStatus,
		ConfirmedFlush: lag.ConfirmedFlush, Restart: lag.RestartLSN,
		SafeWALSize:   lag.SafeWALSize,
		InactiveSince: lag.InactiveSince, InvalidationReason: lag.InvalidationReason,
		ActivePID: lag.ActivePID,
	}
	if lag.Sender != nil {
		s.Sender = &health.Sender{Started: known(lag.Sender.Started), LastReply: known(lag.Sender.LastReply)}
	}
	if lag.Spill != nil {
		spill := health.Spill(*lag.Spill)
		s.Spill = &spill
	}
	if lag.ConfirmedFlush != 0 {
		s.UnconfirmedBytes = &lag.UnconfirmedBytes
	}
	if lag.RestartLSN != 0 {
		s.RetainedBytes = &lag.RetainedBytes
	}
	return s
}

// otherSlot is a slot that is not ours, as health knows it; nil for none.
func otherSlot(o *slot.OtherSlot) *health.Other {
	if o == nil {
		return nil
	}
	return &health.Other{
		Name: o.Name, Kind: o.Kind, Database: o.Database, Active: o.Active,
		Restart: o.RestartLSN, RetainedBytes: o.RetainedBytes, InactiveSince: known(o.InactiveSince),
	}
}

// known is a time as a document has it: nil for zero, and without a monotonic
// clock.
func known(t time.Time) *time.Time {
	if t.IsZero() {
		return nil
	}
	t = t.UTC().Round(0)
	return &t
}

// health judges by what is known now. It waits for nothing.
func (o *observer) health() health.Document {
	now := time.Now()
	s := o.status()
	o.mu.Lock()
	defer o.mu.Unlock()
	in := health.Input{
		Now:                now,
		Thresholds:         o.thresholds,
		Role:               health.Role(s.Role),
		Streaming:          s.Role == relay.RoleStreaming || s.Role == relay.RolePolling && s.AwaySince.IsZero(),
		StreamingAwaySince: s.AwaySince,
		RedisAwaySince:     s.SinkAwaySince,
		RedisError:         s.SinkProblem,
		DatabaseAwaySince:  o.awaySince,
		DatabaseError:      o.awayError,
		Holder:             s.StandingBy,
		LockedRow:          s.LockedRow,
		Leftover:           o.leftover,
		SampledAt:          o.sampled.At,
		WALEnd:             o.sampled.WALEnd,
		Timeline:           o.sampled.Timeline,
		FullPages:          o.sampled.FullPages,
		CheckpointEvery:    o.sampled.CheckpointEvery,
		Other:              otherSlot(o.sampled.Other),
		SlotPinnedBy:       o.pinnedBy,
		Healing:            s.Healing,
		Doubt:              s.Doubt,
		TableUnseen:        o.unseen,
		Slot:               o.slotNow(s),
		OldestAge:          o.oldest(now, s, o.table.Marks()),
		Published:          s.Published,
		Stream:             o.onStream,
		RedisSeenAt:        s.SinkSeenAt,
		RedisStopped:       s.SinkStopped,
		Started:            o.started,
		Connections:        s.Connections,
	}
	if !s.Connected.IsZero() {
		in.Connection = &health.Connection{
			Since: known(s.Connected), LastReceive: known(s.LastReceive), LastStatus: known(s.LastStatus),
		}
		in.Unread, in.Witness = s.Unread, o.witness
	}
	if s.Role == relay.RoleBackfill {
		in.BackfillProgress = s.Progress
		in.Waiting = s.Waiting
	}
	switch {
	case s.Stopped:
		in.Problems = append(in.Problems, s.Problem)
	default:
		in.StreamingError = s.Problem
		if o.problem != nil {
			in.Problems = append(in.Problems, o.problem.Error())
		}
	}
	if s.SinkStopped && !slices.Contains(in.Problems, s.SinkProblem) {
		in.Problems = append(in.Problems, s.SinkProblem)
	}
	switch since := s.MarksSince; {
	case s.MarksRefused:
		in.MarksRefused = s.MarksProblem
	case in.LockedRow == "" && !since.IsZero() && now.Sub(since) >= marksPatience:
		in.LockedRow = fmt.Sprintf("no row could be marked since %s", since.UTC().Format(time.DateTime+" MST"))
		if s.MarksProblem != "" {
			in.LockedRow += " (last error: " + s.MarksProblem + ")"
		}
	}
	return o.machine.Step(in)
}

// marksPatience is how long it may take to mark some rows.
const marksPatience = 10 * time.Second

// tellEvery is how often it is looked whether there is something to be logged.
const tellEvery = time.Second

// tell logs what becomes of health, until ctx ends.
func (o *observer) tell(ctx context.Context) {
	ticks := time.NewTicker(tellEvery)
	defer ticks.Stop()
	var journal health.Journal
	for {
		select {
		case <-ctx.Done():
			return
		case <-ticks.C:
		}
		doc := o.health()
		if e, ok := journal.Step(time.Now(), doc); ok {
			o.keep(e, doc)
			o.log.LogAttrs(ctx, logLevel(e.Status), "health", entryAttrs(e, doc)...)
		}
	}
}

// keep remembers a change of the level for the status page.
func (o *observer) keep(e health.Entry, doc health.Document) {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.recent.Keep(time.Now(), e, doc)
}

// transitions are the last changes of the level, the last one first.
func (o *observer) transitions() []health.Transition {
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.recent.List()
}

// logLevel is the level of the log for one of health.
func logLevel(s health.Status) slog.Level {
	switch s {
	case health.StatusCritical:
		return slog.LevelError
	case health.StatusWarn:
		return slog.LevelWarn
	default:
		return slog.LevelInfo
	}
}

// entryAttrs are what the log says of a document.
func entryAttrs(e health.Entry, doc health.Document) []slog.Attr {
	attrs := []slog.Attr{slog.String("status", string(e.Status))}
	if !e.Again {
		attrs = append(attrs, slog.String("before", string(e.Before)))
	}
	attrs = append(attrs, slog.Duration("lasted", e.Lasted.Round(time.Second)))
	if e.Status == health.StatusOK {
		return attrs
	}
	attrs = append(attrs, slog.String("reason", doc.Reasons[0]))
	if doc.Cause != nil {
		attrs = append(attrs, slog.String("cause", *doc.Cause))
	}
	if doc.Runway != nil {
		attrs = append(attrs, slog.Float64("runway_seconds", math.Round(*doc.Runway)))
	}
	return attrs
}

// slotNow is the slot as last seen, but for what the relay knows better. The
// caller holds mu.
func (o *observer) slotNow(s relay.Status) *health.Slot {
	if o.slot == nil || s.Role != relay.RoleStreaming {
		return o.slot
	}
	now := *o.slot
	now.Active = true // by our own connection
	return &now
}

// oldest is the age of the oldest unpublished row, in seconds; nil when it is
// not known. The table tells it of every row, every few seconds, and the relay
// of the rows it has received, at once. While nothing can be published, the row
// that was seen grows older. While the table cannot be looked at, the age is at
// least that of the rows that the relay holds. The caller holds mu.
func (o *observer) oldest(now time.Time, s relay.Status, marks outbox.MarkMode) *float64 {
	known, age := false, time.Duration(0)
	if !o.ageAt.IsZero() {
		known, age = true, o.age
		if age > 0 && (s.Role == relay.RoleStarting || !s.AwaySince.IsZero() || !s.SinkAwaySince.IsZero()) {
			age += now.Sub(o.ageAt)
		}
	}
	if s.Role == relay.RolePolling && !s.Oldest.IsZero() {
		known, age = true, max(age, now.Sub(s.Oldest))
	}
	if s.Role == relay.RoleStreaming && (!s.Oldest.IsZero() || marks == outbox.MarkNone) {
		known = true
		if !s.Oldest.IsZero() {
			age = max(age, now.Sub(s.Oldest))
		}
	}
	if !known {
		return nil
	}
	seconds := age.Seconds()
	return &seconds
}

// stats are the totals of /metrics.
func (o *observer) stats() web.Stats {
	s := o.status()
	o.mu.Lock()
	defer o.mu.Unlock()
	return web.Stats{
		Published: s.Published, Dead: s.Dead, Skipped: s.Skipped,
		AppendRetries: s.AppendRetries, StampRetries: s.StampRetries, Reconnects: s.Reconnects,
		Marked: s.Marked, MarksWaiting: s.MarksWaiting,
		Heals: s.Heals, LostEntries: s.LostEntries,
		Purged:     o.purger.Deleted(),
		WALWritten: o.pace.written, WALConfirmed: o.pace.confirmed,
	}
}
