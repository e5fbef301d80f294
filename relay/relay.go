package relay

import (
	"context"
	"crypto/rand"
	"encoding/hex"
	"errors"
	"fmt"
	"log/slog"
	"sync"
	"sync/atomic"
	"time"

	"github.com/stagedoor/walrelay/cdc"
)

// Config is what a relay works with. The zero values of the limits choose the
// defaults.
type Config struct {
	Source Source
	Table  Table
	Sink   Sink
	Stream string
	// Key names the checkpoint of a source.
	Key func(cdc.Server) string

	// ManualHeal has a gap wait for an operator.
	ManualHeal bool

	ConfirmDelay    time.Duration // how old a stamp has to be before it is confirmed
	ShutdownTimeout time.Duration // how long a stop may take

	QueueBytes     int // rows received and not published; 8 MiB
	MarkQueueBytes int // rows published and not marked; 4 MiB
	BatchRows      int // rows in one append; 500
	BatchBytes     int // bytes in one append; 1 MiB
	ValueBytes     int // the largest value that the sink takes; 0 for any

	// Loop registers a loop that has to turn, and returns how it says that it
	// did, and that it ended. May be nil.
	Loop func(name string) (beat, done func())
	// OnStep is called between the steps that the guarantee is made of.
	// Tests end the process there; nil otherwise.
	OnStep func(Step)
	// Timings is told of what is appended. May be nil.
	Timings Timings

	Log *slog.Logger
}

// Step names a moment between two steps that can each be the last one.
type Step string

// The steps, in the order in which a row meets them.
const (
	StepAppend   Step = "append"   // received, about to be appended
	StepAppended Step = "appended" // appended, about to be marked
	StepMark     Step = "mark"     // about to be marked
	StepMarked   Step = "marked"   // marked, about to be stamped
	StepStamp    Step = "stamp"    // about to be stamped
	StepStamped  Step = "stamped"  // stamped, about to be confirmed
	StepConfirm  Step = "confirm"  // about to be reported as flushed

	StepBackfillLocked   Step = "backfill-locked"   // the lock is ours
	StepBackfillBegun    Step = "backfill-begun"    // the checkpoint says backfill
	StepBackfillSlot     Step = "backfill-slot"     // the temporary slot exists
	StepBackfillAppended Step = "backfill-appended" // some rows are appended
	StepBackfillMarked   Step = "backfill-marked"   // some rows are marked
	StepBackfillFinished Step = "backfill-finished" // the checkpoint says streaming
	StepBackfillKept     Step = "backfill-kept"     // the slot is permanent
)

// Relay carries the rows of one outbox.
type Relay struct {
	*complaints
	cfg      Config
	log      *slog.Logger
	instance string
	counter  atomic.Uint64
	status   status
	beat     func()

	// stop ends with the wish to stop; kill a shutdown time-out later.
	stop, kill context.Context

	// since is what an unfinished backfill of this process goes by, also when
	// Redis forgets it.
	since *cdc.Since
	// known is the last transaction whose WAL was met as the checkpoint has it.
	known cdc.Commit
	// reported is the last entry, when it was reported which of those up to it
	// were lost with a database.
	reported string
	// lost are the entries that were reported as lost with a database.
	lost map[string]bool
	// left is the last connection that streamed.
	left left
	// asked is when Redis was last asked while there was nothing to write.
	asked time.Time
	// healer remembers what went wrong, so that it is not repaired for ever.
	healer healer

	mu     sync.Mutex
	cancel context.CancelCauseFunc // of the current attempt
	conn   Stream                  // what streams; nil while nothing does
}

// New returns a relay that has not started.
func New(cfg Config) *Relay {
	def := func(v *int, to int) {
		if *v == 0 {
			*v = to
		}
	}
	def(&cfg.QueueBytes, 8<<20)
	def(&cfg.MarkQueueBytes, 4<<20)
	def(&cfg.BatchRows, 500)
	def(&cfg.BatchBytes, 1<<20)
	if cfg.Log == nil {
		cfg.Log = slog.New(slog.DiscardHandler)
	}
	if cfg.Timings == nil {
		cfg.Timings = noTimings{}
	}
	var id [8]byte
	rand.Read(id[:]) // never fails
	r := &Relay{complaints: newComplaints(cfg.Log), cfg: cfg, log: cfg.Log, instance: hex.EncodeToString(id[:]), lost: map[string]bool{}}
	r.status.role(RoleStarting)
	return r
}

// Status tells what the relay does. It does not wait for anything.
func (r *Relay) Status() Status { return r.status.snapshot() }

// HangUp ends the current connections at once, for a reason that is then
// judged as a failure of theirs: a database that shuts down waits for them.
func (r *Relay) HangUp(reason error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.cancel != nil {
		r.cancel(reason)
	}
	if r.conn != nil {
		r.conn.Close() // also while a stop finishes what is in flight
	}
}

// streamsOver notes what HangUp has to close; nil for nothing.
func (r *Relay) streamsOver(conn Stream) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.conn = conn
}

var (
	// ErrSlotInUse says that another process took the slot first.
	ErrSlotInUse = errors.New("the slot is in use")

	// errAgain ends an attempt that the next one follows at once.
	errAgain = errors.New("judging anew")
	// errPromoted ends an attempt because the server changed under it.
	errPromoted = errors.New("the standby that was streamed from was promoted")
	// errStandBy ends an attempt because another relay is at work.
	errStandBy = errors.New("another relay is at work")
)

// Run carries rows until ctx ends, and then finishes what is in flight, within
// the shutdown time-out. Whatever fails is tried again for ever; so Run returns
// nil.
func (r *Relay) Run(ctx context.Context) error {
	kill, end := context.WithCancelCause(context.WithoutCancel(ctx))
	defer end(nil)
	r.stop, r.kill = ctx, kill
	defer context.AfterFunc(ctx, func() {
		select {
		case <-time.After(r.cfg.ShutdownTimeout):
			r.log.Warn("the shutdown time-out is over; what is in flight is left to the next start, which repeats it")
			end(errors.New("the shutdown time-out is over"))
			r.cfg.Sink.HangUp()
		case <-kill.Done():
		}
	})()
	beat, done := r.loop("relay")
	defer done()
	r.beat = beat

	var retry backoff
	for ctx.Err() == nil {
		before := r.status.ups.Load()
		err := r.attempt(ctx)
		if r.status.ups.Load() > before {
			retry.reset()
		}
		var gap *GapError
		switch {
		case ctx.Err() != nil:
		case errors.As(err, &gap):
			r.status.role(RoleStarting)
			r.healer.found = gap
		case err == nil, errors.Is(err, errAgain), errors.Is(err, errReadAgain), errors.Is(err, errPromoted):
		case errors.Is(err, errStandBy), errors.Is(err, ErrSlotInUse):
			r.standBy(ctx, err)
		default:
			r.status.reconnects.Add(1)
			r.status.role(RoleStarting)
			r.status.failed(err.Error(), permanent(err))
			r.complain("streaming", err)
			if !errors.Is(err, cdc.ErrNoAnswer) {
				r.askSink(ctx)
			}
			wait := retry.next()
			if permanent(err) {
				wait = retryMost // it waits for an operator
			}
			r.pause(ctx, wait)
		}
	}
	return nil
}

// pause waits between attempts.
func (r *Relay) pause(ctx context.Context, d time.Duration) {
	r.beat()
	sleep(ctx, d)
}

// standBy waits a moment for another relay.
func (r *Relay) standBy(ctx context.Context, why error) {
	if r.Status().Role != RoleStandby {
		r.log.Info("standing by", "reason", why.Error())
	}
	r.status.role(RoleStandby)
	r.status.set(func(now *Status) { now.StandingBy = why.Error() })
	r.askSink(ctx)
	r.pause(ctx, time.Second)
}

// sinkEvery is how often a relay asks Redis that has nothing to write to it, since
// it stands by or PostgreSQL is away.
const sinkEvery = 5 * time.Second

// askSink has Redis show that it is there, if it did not lately: a relay that
// could not take over is no healthy standby.
func (r *Relay) askSink(ctx context.Context) {
	if time.Since(r.asked) < sinkEvery {
		return
	}
	_, err := r.cfg.Sink.Clock(ctx)
	r.asked = time.Now()
	switch {
	case ctx.Err() != nil:
	case err != nil:
		r.status.sinkFailed(err, true)
		r.complain("Redis", err)
	case r.status.sinkAnswers():
		r.recovered("Redis")
	}
}

// attempt connects, judges and does what the judgement says.
func (r *Relay) attempt(stop context.Context) error {
	ctx, cancel := context.WithCancelCause(stop)
	defer cancel(nil)
	r.mu.Lock()
	r.cancel = cancel
	r.mu.Unlock()

	err := r.judgeAndAct(ctx)
	if cause := context.Cause(ctx); cause != nil && stop.Err() == nil {
		return cause // hung up
	}
	return err
}

func (r *Relay) judgeAndAct(ctx context.Context) error {
	r.beat()
	settled := keepBeating(r.beat)
	session, err := r.cfg.Source.Open(ctx)
	settled()
	if err != nil {
		return err
	}
	defer session.Close()

	slot, err := session.Slot(ctx)
	if err != nil {
		return err
	}
	for slot != nil && slot.Active {
		// Look again until it is not, and judge nothing.
		if r.left.holds(slot) {
			r.status.failed(fmt.Sprintf("PostgreSQL has not noticed yet that the last connection of this relay is gone, and has the slot %q in use for it; it usually does within seconds; to end that at once: SELECT pg_terminate_backend(%d);", slot.Name, slot.ActivePID), false)
			r.pause(ctx, time.Second)
		} else {
			r.overtaken()
			r.standBy(ctx, fmt.Errorf("the slot %q is in use by the PostgreSQL process %d", slot.Name, slot.ActivePID))
		}
		if slot, err = session.Slot(ctx); err != nil {
			return err
		}
		if ctx.Err() != nil {
			return ctx.Err()
		}
	}
	r.beat()
	if err := r.cfg.Table.Check(ctx); err != nil {
		return err
	}
	r.beat()
	state, err := r.judge(ctx, session)
	if err != nil {
		return err
	}
	if err := session.EnsurePublication(ctx, state.Verdict == cdc.Backfill); err != nil {
		return err
	}
	switch state.Verdict {
	case cdc.Stream:
		return r.resumeStream(ctx, session, state)
	case cdc.StandBy:
		r.overtaken()
		return fmt.Errorf("%w: %s", errStandBy, state.Reason)
	default: // in a gap nothing is appended or confirmed before it is healed
		return r.backfill(ctx, session)
	}
}

// left is a connection that this relay streamed over. Its process may hold the
// slot for as long as PostgreSQL takes to notice that the other end is gone.
//
// Its number may come again, so it is told by when it started, too. Its role is
// ours, so that we may see that.
type left struct {
	pid     int
	started time.Time // by PostgreSQL's clock
}

// holds reports whether it is the process that has the slot in use.
func (l left) holds(slot *cdc.Slot) bool {
	return slot.ActivePID == l.pid && slot.ActiveSince.Equal(l.started)
}

// overtaken forgets what a backfill of this relay went by: another one streams.
func (r *Relay) overtaken() { r.since = nil }

// resumeStream streams from where slot and checkpoint agree.
func (r *Relay) resumeStream(ctx context.Context, session Session, state state) error {
	r.since = nil
	r.healer.generation = state.checkpoint.Generation
	if state.checkpoint.MayHaveLostOn(session.Server()) {
		if err := r.reportLost(ctx, state); err != nil {
			return err
		}
	}
	cp := state.checkpoint.On(session.Server())
	foreign, err := r.foreignEntries(ctx, session, &cp, state.streams)
	if err != nil {
		return err
	}
	r.status.doubt(cp.Doubt)
	r.log.Info("streaming", "slot", state.slot.Name, "confirmed", state.slot.ConfirmedFlush, "covered", cp.Covered)
	return r.stream(ctx, session, state.slot, &cp, foreign)
}

// state is what both sides hold, and what that means.
type state struct {
	cdc.Judgement
	slot       *cdc.Slot
	checkpoint *cdc.Checkpoint
	streams    map[string]cdc.StreamState
}

// judge reads the slot, then the checkpoint, then the end of the WAL: in this
// order each can only be ahead of the one before.
func (r *Relay) judge(ctx context.Context, session Session) (state, error) {
	var s state
	var err error
	server := session.Server()
	if s.slot, err = session.Slot(ctx); err != nil {
		return s, err
	}
	if s.checkpoint, s.streams, err = r.cfg.Sink.Load(ctx, r.cfg.Key(server)); err != nil {
		r.status.sinkFailed(err, false)
		return s, err
	}
	if r.status.sinkWorks() {
		r.recovered("Redis")
	}
	if server.WALEnd, err = session.WALEnd(ctx); err != nil {
		return s, err
	}
	newest := server.Timeline
	if s.checkpoint != nil {
		newest = max(newest, s.checkpoint.Timeline)
	}
	news := r.cfg.Source.Prefer(newest)
	s.Judgement, err = cdc.Judge(server, s.slot, s.checkpoint, s.streams)
	if errors.Is(err, cdc.ErrOldTimeline) && news {
		r.log.Info("looking for the new primary", "reason", err.Error())
		return s, errAgain
	}
	if err != nil {
		r.log.Debug("judged", "error", err)
		return s, Unfit(err)
	}
	if s.Kind == cdc.NoSlot || s.Kind == cdc.OtherHistory {
		// Another relay may have finished a backfill since it was read.
		switch slot, err := session.Slot(ctx); {
		case err != nil:
			return s, err
		case (slot == nil) != (s.slot == nil), slot != nil && slot.ConfirmedFlush != s.slot.ConfirmedFlush:
			return s, errAgain
		}
	}
	if gap := r.healer.stillOpen(s.checkpoint); gap != nil && s.Verdict == cdc.Stream {
		s.Judgement = cdc.Judgement{Verdict: cdc.Gap, Kind: gap.Kind, Reason: gap.Error()}
	}
	r.log.Debug("judged", "verdict", s.Verdict.String(), "reason", s.Reason)
	return s, nil
}

// nextVersion names a state that no checkpoint ever had.
func (r *Relay) nextVersion() cdc.Version {
	return cdc.Version{Instance: r.instance, Counter: r.counter.Add(1)}
}

func (r *Relay) step(s Step) {
	if r.cfg.OnStep != nil {
		r.cfg.OnStep(s)
	}
}

// loop registers a loop that has to turn.
func (r *Relay) loop(name string) (beat, done func()) {
	if r.cfg.Loop == nil {
		return func() {}, func() {}
	}
	return r.cfg.Loop(name)
}
