package relay

import (
	"bytes"
	"context"
	"errors"
	"log/slog"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stagedoor/walrelay/cdc"
)

var (
	// errAway is what a server that is not there answers with.
	errAway = errors.New("PostgreSQL is away")
	// errHungUp is what a connection ends with that was closed on this side.
	errHungUp = errors.New("hung up")
)

// attempts is a source whose connections go by a plan, and which notes when
// each of them was asked for.
type attempts struct {
	Session
	r     *Relay
	plan  []func(*flow) // of one connection each, the last one for all that follow; nil refuses it
	at    []time.Time
	since []Status // of the relay, when it connected, when it received, and when it saw who holds the slot

	streams bool      // the current connection
	holder  *cdc.Slot // as another process holds it
	held    time.Time // until then
}

// Open implements Source.
func (a *attempts) Open(context.Context) (Session, error) {
	a.at, a.streams = append(a.at, time.Now()), false
	a.since = append(a.since, a.r.Status())
	if a.now() == nil {
		return nil, errAway
	}
	return a, nil
}

// now is the plan of the current attempt.
func (a *attempts) now() func(*flow) { return a.plan[min(len(a.at), len(a.plan))-1] }

// Server, PID, Slot, WALEnd, EnsurePublication, SenderTimeout and Close implement
// Session: all is well.
func (a *attempts) Server() cdc.Server { return cdc.Server{Timeline: 1} }
func (a *attempts) PID() int           { return 100 + len(a.at) }

func (a *attempts) WALEnd(context.Context) (cdc.LSN, error)       { return 1000, nil }
func (a *attempts) EnsurePublication(context.Context, bool) error { return nil }
func (a *attempts) SenderTimeout() time.Duration                  { return time.Minute }
func (a *attempts) Close()                                        {}

// Slot implements Session.
func (a *attempts) Slot(context.Context) (*cdc.Slot, error) {
	switch {
	case a.streams:
		return &cdc.Slot{Name: "walrelay", Active: true, ActivePID: a.PID(), ActiveSince: a.at[len(a.at)-1]}, nil
	case time.Now().Before(a.held):
		a.since = append(a.since, a.r.Status())
		return a.holder, nil
	}
	return &cdc.Slot{Name: "walrelay"}, nil
}

// Start implements Session.
func (a *attempts) Start(context.Context) (Stream, error) {
	a.streams = true
	f := &flow{
		attempts: a, frames: make(chan cdc.Frame, 100),
		ended: make(chan struct{}), interrupted: make(chan struct{}), closed: make(chan struct{}),
	}
	a.now()(f)
	return f, nil
}

// willing is a Redis that has a checkpoint and takes everything.
type willing struct{ Sink }

// Load implements Sink.
func (willing) Load(context.Context, string) (*cdc.Checkpoint, map[string]cdc.StreamState, error) {
	return &cdc.Checkpoint{Format: cdc.CheckpointFormat, Timeline: 1, Phase: cdc.PhaseStreaming}, nil, nil
}

// Append implements Sink.
func (willing) Append(context.Context, string, cdc.Version, cdc.Checkpoint, []cdc.Event) (cdc.AppendResult, error) {
	return cdc.AppendResult{Done: true}, nil
}

// Clock implements Sink.
func (willing) Clock(context.Context) (time.Time, error) { return time.Now(), nil }

// flow is a connection that delivers its frames, until it ends.
type flow struct {
	*attempts
	frames chan cdc.Frame
	// The other end hung up, ours was interrupted, and hung up.
	ended, interrupted, closed chan struct{}
	interrupt, hangUp          sync.Once

	gathers int // how often it was asked to, in vain
}

// Gather implements Stream.
func (f *flow) Gather(int, time.Time) (int, error) {
	f.gathers++
	return 0, nil
}

// Receive implements Stream.
func (f *flow) Receive(deadline time.Time) (cdc.Frame, bool, error) {
	f.since = append(f.since, f.r.Status())
	select {
	case <-f.interrupted: // whatever else there is
		time.Sleep(time.Millisecond)
		return cdc.Frame{}, false, nil
	case frame := <-f.frames:
		return frame, true, nil
	default:
	}
	select {
	case frame := <-f.frames:
		return frame, true, nil
	case <-f.ended:
		return cdc.Frame{}, false, errAway
	case <-f.closed:
		return cdc.Frame{}, false, errHungUp
	case <-f.interrupted:
		time.Sleep(time.Millisecond)
		return cdc.Frame{}, false, nil
	case <-time.After(max(time.Millisecond, time.Until(deadline))): // the bubble's time goes on only while all wait
		return cdc.Frame{}, false, nil
	}
}

// Status, Interrupt and Close implement Stream.
func (f *flow) Status(cdc.LSN, cdc.LSN, bool) error { return nil }

func (f *flow) Interrupt() { f.interrupt.Do(func() { close(f.interrupted) }) }
func (f *flow) Close()     { f.hangUp.Do(func() { close(f.closed) }) }

// lasts has the connection deliver a keepalive and break after a while.
func lasts(d time.Duration) func(*flow) {
	return func(f *flow) {
		f.frames <- cdc.Frame{Keepalive: true, WALEnd: 500}
		time.AfterFunc(d, func() { close(f.ended) })
	}
}

// Where gathering brings little, though the rows are late, messages are taken as
// they come: a server whose segments wait for us to read would send a few rows in
// each of the pauses.
func TestNothingIsGatheredWhereLittleComes(t *testing.T) {
	const rows, every = 100, 10 * time.Millisecond // a second
	var conn *flow
	a, _, _ := runAttempts(t, 3*time.Second, func(f *flow) {
		conn = f
		s := script{sent: func(frame cdc.Frame) error {
			frame.ServerTime = time.Now().Add(time.Hour) // its rows were committed long ago
			f.frames <- frame
			return nil
		}}
		_ = s.relation()
		for i := range rows {
			time.AfterFunc(time.Duration(i+1)*every, func() { _ = s.transaction(cdc.LSN(100*(i+1)), "a") })
		}
	})
	if n := a.r.Status().Published; n != rows {
		t.Errorf("%d rows were published", n)
	}
	if most := 2 * (rows*int(every/time.Millisecond)/int(apartFor/time.Millisecond) + 1); conn.gathers == 0 || conn.gathers > most {
		t.Errorf("gathered %d times, want at most %d times", conn.gathers, most)
	}
}

func (a *attempts) Prefer(uint32) bool { return false }

// stuck has the connection deliver a row that cannot be published.
func stuck(f *flow) {
	s := script{sent: func(frame cdc.Frame) error {
		f.frames <- frame
		return nil
	}}
	_ = errors.Join(s.relation(), s.begin(100), s.row("a"), s.row("refused"), s.row("b"), s.commit(100, 110))
}

// runAttempts runs a relay for a time that does not pass, and returns the
// pauses before each attempt but the first.
func runAttempts(t *testing.T, length time.Duration, plan ...func(*flow)) (a *attempts, pauses []time.Duration, log string) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) {
		var out bytes.Buffer
		a = &attempts{plan: plan}
		a.r = New(Config{
			Source: a, Table: oneColumn{}, Sink: willing{}, Stream: "jobs", Key: func(cdc.Server) string { return "checkpoint" },
			ConfirmDelay: 5 * time.Second, ShutdownTimeout: 10 * time.Second, Log: slog.New(slog.NewTextHandler(&out, nil)),
		})
		ctx, cancel := context.WithTimeout(t.Context(), length)
		defer cancel()
		if err := a.r.Run(ctx); err != nil {
			t.Error(err)
		}
		log = out.String()
	})
	for i := range a.at[1:] {
		pauses = append(pauses, a.at[i+1].Sub(a.at[i]))
	}
	return a, pauses, log
}

// The pauses between tries grow to seconds and not further, for as long as it
// takes. After streaming has worked they are short again, and the log says that
// it is over.
func TestBackoffEndsWithSuccess(t *testing.T) {
	const away = 12
	plan := make([]func(*flow), away)
	plan = append(plan, lasts(10*time.Second), nil)
	a, pauses, log := runAttempts(t, 2*time.Minute, plan...)
	if len(pauses) < away+10 {
		t.Fatalf("%d pauses in two minutes: %v", len(pauses), pauses)
	}
	for i, p := range pauses {
		if p > retryMost && i != away {
			t.Errorf("pause %d is %s", i, p)
		}
	}
	for _, i := range []int{away - 1, len(pauses) - 1} {
		if pauses[i] < retryMost/2 {
			t.Errorf("pause %d is %s: still in a hurry", i, pauses[i])
		}
	}
	// The attempt that worked lasted ten seconds.
	if after := pauses[away] - 10*time.Second; after < 0 || after > retryFirst {
		t.Errorf("after it had worked, the next attempt came %s later", after)
	}
	if s := a.since[away]; s.Stopped || s.Problem != errAway.Error() {
		t.Errorf("while it is away the problem is %q, stopped %v", s.Problem, s.Stopped)
	}
	if n := strings.Count(log, "streaming recovered"); n != 1 {
		t.Errorf("says %d times that it is over:\n%s", n, log)
	}
	// Also a try counts that no connection came of.
	if s := a.since[away-1]; s.Reconnects != away-1 || s.Connections != 0 {
		t.Errorf("after %d tries that failed it counts %d, and %d connections", away-1, s.Reconnects, s.Connections)
	}
}

// Who finds that a connection must not go on ends it, and the next attempt follows
// at once. The relay does not wait until the server is told, or until it is silent.
func TestHangUpEndsTheConnectionAtOnce(t *testing.T) {
	const after = 10*time.Second + time.Second/2 // between two status updates
	reason := errors.New("that is enough")
	for name, hangUp := range map[string]func(*Relay){
		"the monitor": func(r *Relay) { r.HangUp(reason) },
		"the witness": func(r *Relay) { r.status.streaming.witness.hangUp(reason) },
		"promoted":    func(r *Relay) { r.status.streaming.standby = true; r.Promoted(2) },
	} {
		t.Run(name, func(t *testing.T) {
			_, pauses, log := runAttempts(t, 20*time.Second, func(f *flow) {
				f.frames <- cdc.Frame{Keepalive: true, WALEnd: 500}
				time.AfterFunc(after, func() { hangUp(f.r) })
			})
			if len(pauses) != 1 || pauses[0] < after || pauses[0] > after+retryFirst {
				t.Errorf("hung up after %s, and %d attempts followed, after %v", after, len(pauses), pauses)
			}
			if name != "promoted" && !strings.Contains(log, reason.Error()) {
				t.Errorf("the log does not say why:\n%s", log)
			}
		})
	}
}

// A connection that is made and breaks at once is no success.
func TestConnectionThatBreaksAtOnceIsNoSuccess(t *testing.T) {
	_, pauses, log := runAttempts(t, 40*time.Second, lasts(10*time.Millisecond))
	if last := pauses[len(pauses)-1]; last < retryMost/2 {
		t.Errorf("the last of %d pauses is %s: it loops", len(pauses), last)
	}
	if strings.Contains(log, "recovered") {
		t.Errorf("says that it is over:\n%s", log)
	}
}

// Nor is one over which nothing comes, however well Redis does.
func TestConnectionThatDeliversNothingIsNoSuccess(t *testing.T) {
	a, pauses, log := runAttempts(t, 3*time.Minute, lasts(10*time.Second), func(*flow) {})
	if last := pauses[len(pauses)-1] - peerTimeout; len(pauses) < 5 || last < retryFirst || strings.Contains(log, "recovered") {
		t.Errorf("the last of %d pauses is %s longer than it waits for an answer:\n%s", len(pauses), last, log)
	}
	if s := a.r.Status(); s.Connections != 1 || s.AwaySince.IsZero() {
		t.Errorf("%d connections count, and rows are not streamed since %v", s.Connections, s.AwaySince)
	}
}

// A row that cannot be published waits for an operator: the tries become slow,
// and the problem is not taken for solved by a connection that works.
func TestStoppedLineIsTriedSlowly(t *testing.T) {
	a, pauses, log := runAttempts(t, 40*time.Second, stuck)
	if last := pauses[len(pauses)-1]; last < retryMost/2 {
		t.Errorf("the last of %d pauses is %s: it loops", len(pauses), last)
	}
	known := false
	for i, s := range a.since {
		now := s.Stopped && strings.Contains(s.Problem, "it has no kind")
		if known && !now {
			t.Errorf("look %d: the problem is %q, stopped %v", i, s.Problem, s.Stopped)
		}
		known = known || now
	}
	if strings.Contains(log, "recovered") {
		t.Errorf("says that it is over:\n%s", log)
	}
	if !known || a.r.Status().Published == 0 {
		t.Errorf("the problem was seen: %v; what came before is published: %d rows", known, a.r.Status().Published)
	}
}

// Also where much has to be read before the row is met, so that the connection
// works for a while each time.
func TestStoppedLineBehindABacklogIsTriedSlowly(t *testing.T) {
	const backlog = 3 * time.Second
	_, pauses, _ := runAttempts(t, 2*time.Minute, func(f *flow) {
		f.frames <- cdc.Frame{Keepalive: true, WALEnd: 50}
		time.AfterFunc(backlog, func() { stuck(f) })
	})
	if last := pauses[len(pauses)-1] - backlog; last < retryMost/2 {
		t.Errorf("the last of %d pauses is %s: it loops", len(pauses), last)
	}
}

// A connection that is gone may hold the slot until PostgreSQL notices, however
// long that takes. That is no other relay: rows wait. A process that only has its
// number is one.
func TestSlotThatOurLastConnectionHoldsIsNoOtherRelays(t *testing.T) {
	for name, theirs := range map[string]struct {
		pid   int
		later time.Duration
	}{
		"ours":                               {},
		"another relay's":                    {pid: 1000},
		"another relay's of the same number": {later: time.Second},
	} {
		t.Run(name, func(t *testing.T) {
			a, _, _ := runAttempts(t, 15*time.Minute, func(f *flow) {
				lasts(10 * time.Second)(f)
				if len(f.at) == 1 {
					f.holder, _ = f.Slot(t.Context())
					f.holder.ActivePID += theirs.pid
					f.holder.ActiveSince = f.holder.ActiveSince.Add(theirs.later).In(time.FixedZone("", 3600))
					f.held = time.Now().Add(10 * time.Minute)
				}
			})
			ours, standby := 0, 0
			for _, s := range a.since {
				if s.Role == RoleStandby {
					standby++
				}
				if s.Role == RoleStarting && !s.AwaySince.IsZero() && strings.Contains(s.Problem, "SELECT pg_terminate_backend(101);") {
					ours++
				}
			}
			other := name != "ours"
			if (ours > 500) == other || (standby > 500) != other || ours > 0 && standby > 0 {
				t.Errorf("of %d looks, %d say that it is ours, and %d that it is another's", len(a.since), ours, standby)
			}
			if a.r.Status().Connections < 2 {
				t.Error("it does not stream again")
			}
		})
	}
}

// frozen is a Redis that swallows what is sent and answers nothing, until then.
type frozen struct {
	willing
	until time.Time
}

// Append implements Sink. What is large may take minutes.
func (f frozen) Append(context.Context, string, cdc.Version, cdc.Checkpoint, []cdc.Event) (cdc.AppendResult, error) {
	time.Sleep(time.Until(f.until))
	return cdc.AppendResult{Done: true}, nil
}

// Clock implements Sink.
func (f frozen) Clock(context.Context) (time.Time, error) {
	if time.Until(f.until) > 0 {
		time.Sleep(5 * time.Second)
		return time.Time{}, cdc.ErrNoAnswer
	}
	return time.Now(), nil
}

// A Redis that is frozen is away within seconds, also while it is sent a row that
// may take minutes.
func TestRedisThatFreezesUnderALargeRow(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := New(Config{Sink: frozen{until: time.Now().Add(2 * time.Minute)}})
		r.kill = t.Context()
		written := make(chan error)
		go func() {
			w := &writer{relay: r, beat: func() {}}
			written <- w.write(t.Context(), cdc.Checkpoint{}, []cdc.Event{{Bytes: 50 << 20}})
		}()
		time.Sleep(29 * time.Second)
		if s := r.Status(); s.SinkAwaySince.IsZero() || s.SinkStopped {
			t.Errorf("after half a minute it is away since %v, stopped %v", s.SinkAwaySince, s.SinkStopped)
		}
		if err := <-written; err != nil {
			t.Error(err)
		}
		if s := r.Status(); !s.SinkAwaySince.IsZero() {
			t.Errorf("it has taken the row, and is away: %s", s.SinkProblem)
		}
	})
}

// While PostgreSQL is away, Redis is asked: it may go away and come back
// meanwhile. That it answers is not that it takes what is written.
func TestRedisIsSeenWhilePostgreSQLIsAway(t *testing.T) {
	for name, tt := range map[string]struct {
		failure error
		back    bool
	}{
		"it did not answer":   {cdc.ErrNoAnswer, true},
		"it refused to write": {errors.New("READONLY"), false},
		"it was there":        {nil, true},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				a := &attempts{plan: []func(*flow){nil}}
				a.r = New(Config{Source: a, Sink: frozen{until: time.Now().Add(30 * time.Second)}, ConfirmDelay: time.Second, ShutdownTimeout: time.Second})
				if tt.failure != nil {
					a.r.status.sinkFailed(tt.failure, false)
				}
				ctx, cancel := context.WithCancel(t.Context())
				ended := make(chan error)
				go func() { ended <- a.r.Run(ctx) }()
				time.Sleep(29 * time.Second)
				if s := a.r.Status(); s.SinkAwaySince.IsZero() {
					t.Error("it is not seen that Redis is away")
				}
				time.Sleep(29 * time.Second)
				if s := a.r.Status(); !s.SinkAwaySince.IsZero() || s.SinkSeenAt.IsZero() {
					t.Errorf("away since %v: %s", s.SinkAwaySince, s.SinkProblem)
				}
				if !tt.back {
					a.r.status.sinkFailed(tt.failure, false)
					time.Sleep(29 * time.Second)
					if s := a.r.Status(); s.SinkAwaySince.IsZero() {
						t.Error("it answers, and so counts as taking what is written")
					}
				}
				cancel()
				if err := <-ended; err != nil {
					t.Error(err)
				}
			})
		})
	}
}
