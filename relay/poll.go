package relay

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"sync"
	"sync/atomic"
	"time"

	"github.com/stagedoor/walrelay/cdc"
	"github.com/stagedoor/walrelay/internal/fault"
)

// PollConfig is what a Poller works with. The zero values of the limits choose
// the defaults.
type PollConfig struct {
	Table PolledTable
	Sink  PollSink
	// Listen waits for notifications until it fails or ctx ends, and calls wake
	// when it listens and for each that arrives. Nil: there are none.
	Listen func(ctx context.Context, wake func()) error

	Interval        time.Duration // between two looks; 100 ms
	SafetyInterval  time.Duration // between two looks while it listens; 60 s
	ShutdownTimeout time.Duration // how long a stop may take

	Rows       int // in one transaction; 100
	BatchBytes int // in one append; 1 MiB
	ValueBytes int // the largest value that the sink takes; 0 for any

	Loop    func(name string) (beat, done func()) // as in Config
	OnStep  func(Step)                            // as in Config
	Timings Timings                               // as in Config

	Log *slog.Logger
}

// PolledTable is the outbox as a poller needs it. Package outbox provides it.
type PolledTable interface {
	// Claim locks the unpublished rows with the smallest ids that nobody else
	// has locked, and calls fn for each, with about when it was created by our
	// clock: zero where the table does not tell. After an error of fn the rows are
	// still claimed; after any other none is.
	Claim(ctx context.Context, limit int, fn func(ev cdc.Event, created time.Time) error) (int, error)
	// Done marks the first n claimed rows and ends the claim.
	Done(ctx context.Context, n int) error
	// Rehearse claims and marks rows and takes that back; it returns how many
	// there were.
	Rehearse(ctx context.Context, limit int) (int, error)
	// Left reports whether there are unpublished rows, whoever has locked them.
	Left(ctx context.Context) (bool, error)
	// PassOver is the SQL that has a row left out.
	PassOver(ev cdc.Event) string
	// Close gives back what is claimed.
	Close()
}

// PollSink is Redis as a poller needs it. Package publisher provides it.
type PollSink interface {
	// Publish appends events, all or none, or says why it never will. An error
	// leaves open whether it did.
	Publish(ctx context.Context, events []cdc.Event) (refused string, err error)
	// Answers is nil while Redis answers.
	Answers(ctx context.Context) error
	// HangUp ends what is waiting for Redis, for good: the process stops.
	HangUp()
}

// Poller is the polling relay: it takes unpublished rows in the order of their
// ids, appends them, and marks them, in one transaction of PostgreSQL. It is for
// databases where logical replication is not allowed, and what one swaps a Relay
// in for, and out again.
//
// It keeps no position. Ids do not commit in their order, so a row may appear
// below those that are published: only the mark tells. So a crash between the
// append and the mark sends rows again, which the consumers' idempotence absorbs.
//
// Invariant: a row is marked only in a transaction that began before its append
// and ends after it, so a row is lost to no failure, and no two pollers have it at
// a time.
type Poller struct {
	*complaints
	cfg    PollConfig
	status status
	wake   chan struct{} // holds a token when there may be rows
	listen atomic.Bool   // whether notifications arrive

	answered time.Time // when Redis last did
	refused  bool      // it did not take rows since; that it answers is no cure
	once     sync.Once // says that it works

	// unsure is set until a row could be marked, and after one could not: rows
	// that cannot be marked would be appended again and again.
	unsure bool
}

// NewPoller returns a poller that has not started.
func NewPoller(cfg PollConfig) *Poller {
	if cfg.Interval == 0 {
		cfg.Interval = 100 * time.Millisecond
	}
	if cfg.SafetyInterval == 0 {
		cfg.SafetyInterval = time.Minute
	}
	if cfg.Rows == 0 {
		cfg.Rows = 100
	}
	if cfg.BatchBytes == 0 {
		cfg.BatchBytes = 1 << 20
	}
	if cfg.Log == nil {
		cfg.Log = slog.New(slog.DiscardHandler)
	}
	if cfg.OnStep == nil {
		cfg.OnStep = func(Step) {}
	}
	if cfg.Timings == nil {
		cfg.Timings = noTimings{}
	}
	if cfg.Loop == nil {
		cfg.Loop = func(string) (func(), func()) { return func() {}, func() {} }
	}
	p := &Poller{complaints: newComplaints(cfg.Log), cfg: cfg, wake: make(chan struct{}, 1), unsure: true}
	p.status.role(RoleStarting)
	return p
}

// Status tells what the poller does. It does not wait for anything.
func (p *Poller) Status() Status { return p.status.snapshot() }

// Run carries rows until ctx ends, and then finishes what is in flight, within
// the shutdown time-out. Whatever fails is tried again for ever; so Run returns
// nil.
func (p *Poller) Run(ctx context.Context) error {
	flight, kill := context.WithCancelCause(context.WithoutCancel(ctx))
	defer kill(nil)
	defer context.AfterFunc(ctx, func() {
		select {
		case <-time.After(p.cfg.ShutdownTimeout):
			p.cfg.Log.Warn("the shutdown time-out is over; what is in flight is given back, and sent again by the next start")
			kill(errors.New("the shutdown time-out is over"))
			p.cfg.Sink.HangUp()
		case <-flight.Done():
		}
	})()
	var listener sync.WaitGroup
	defer listener.Wait()
	if p.cfg.Listen != nil {
		listener.Go(func() { p.keepListening(ctx) })
	}
	beat, done := p.cfg.Loop("poller")
	defer done()
	defer p.cfg.Table.Close()

	var retry backoff
	unasked := false // nobody has notified, and yet it looks
	for ctx.Err() == nil {
		before := p.status.rows.Load()
		err := p.drain(ctx, flight, beat)
		if unasked && p.status.rows.Load() > before {
			p.warn("notifications", "rows were found that nobody has notified of: is the trigger there, and the channel right?", "waited", p.cfg.SafetyInterval.String())
		}
		unasked = false
		switch {
		case err == nil:
			retry.reset()
			wait, err := p.interval(flight)
			if err != nil {
				_ = p.looked(err) // which the next pass meets, too
			}
			woken := p.pause(ctx, wait, p.wake, beat)
			unasked = !woken && p.listen.Load() && wait == p.cfg.SafetyInterval
		case permanent(err): // it waits for an operator
			p.pause(ctx, retryMost, nil, beat)
		default:
			p.pause(ctx, retry.next(), nil, beat)
		}
	}
	return nil
}

// interval is the pause between two looks. Nobody is notified when a row is
// unlocked, nor when another poller dies that has claimed it.
func (p *Poller) interval(ctx context.Context) (time.Duration, error) {
	if !p.listen.Load() {
		return p.cfg.Interval, nil
	}
	if left, err := p.cfg.Table.Left(ctx); left || err != nil {
		return min(p.cfg.Interval, p.cfg.SafetyInterval), err
	}
	return p.cfg.SafetyInterval, nil
}

// pause waits, or until there may be rows: then it is true. Meanwhile Redis is
// asked whether it is there, so that it is not a row that has to find out.
func (p *Poller) pause(ctx context.Context, d time.Duration, wake <-chan struct{}, beat func()) (woken bool) {
	for end := time.Now().Add(d); ; {
		beat()
		if _ = p.askSink(ctx); ctx.Err() != nil { // health has what is wrong
			return false
		}
		t := time.NewTimer(min(time.Until(end), sinkProof))
		select {
		case <-ctx.Done():
		case <-wake:
			woken = true
		case <-t.C:
			if time.Now().Before(end) {
				continue
			}
		}
		t.Stop()
		return woken
	}
}

// sinkProof is how often Redis has to show that it is there.
const sinkProof = time.Second

// askSink has Redis show that it is there, if it did not lately.
func (p *Poller) askSink(ctx context.Context) error {
	if time.Since(p.answered) < sinkProof {
		return nil
	}
	if err := p.cfg.Sink.Answers(ctx); err != nil {
		if ctx.Err() != nil {
			return ctx.Err()
		}
		return p.sinkFails(err)
	}
	p.answered = time.Now()
	if !p.refused {
		p.sinkWorks()
	}
	return nil
}

// sinkWorks notes that Redis took rows, or answered where there are none.
func (p *Poller) sinkWorks() {
	p.answered, p.refused = time.Now(), false
	if p.status.sinkWorks() {
		p.recovered("Redis")
	}
}

// keepListening listens for as long as the poller runs. While that fails, the
// poller looks as often as one that does not listen.
func (p *Poller) keepListening(ctx context.Context) {
	var retry backoff
	for ctx.Err() == nil {
		err := p.cfg.Listen(ctx, func() {
			if !p.listen.Swap(true) {
				retry.reset()
				p.recovered("listening")
			}
			signal(p.wake)
		})
		p.listen.Store(false)
		signal(p.wake) // it may be asleep for a minute
		if ctx.Err() != nil {
			return
		}
		p.complain("listening", err)
		sleep(ctx, retry.next())
	}
}

// drain publishes until a look finds fewer rows than it may take.
func (p *Poller) drain(stop, flight context.Context, beat func()) error {
	for stop.Err() == nil {
		beat()
		n, err := p.pass(flight, beat)
		if err != nil || n < p.cfg.Rows {
			return err
		}
	}
	return nil
}

// pass is one transaction: claim, append, mark. It returns how many rows there
// were.
func (p *Poller) pass(ctx context.Context, beat func()) (int, error) {
	// Nothing is claimed for a Redis that does not answer: what it has received
	// and not answered it may yet append.
	if err := p.askSink(ctx); err != nil {
		return 0, err
	}
	if p.unsure {
		if n, err := p.cfg.Table.Rehearse(ctx, p.cfg.Rows); err != nil || n == 0 {
			return 0, p.looked(err)
		}
		p.unsure = false
	}
	settled := keepBeating(beat) // megabytes take their time
	defer settled()
	a := appending{Poller: p, ctx: ctx}
	n, err := p.cfg.Table.Claim(ctx, p.cfg.Rows, a.take)
	switch {
	case err == nil:
		a.flush()
	case a.err != nil && errors.Is(err, a.err): // our own: the rows are still claimed
	default:
		if a.err != nil && !errors.As(a.err, new(*RowError)) {
			p.refused = true
			_ = p.sinkFails(a.err) // too
		}
		return 0, p.looked(err)
	}
	if n == 0 { // what was tried before, somebody else has published
		p.status.publishing(time.Time{})
		if p.refused {
			p.sinkWorks()
		}
	}
	if a.published > 0 {
		p.cfg.OnStep(StepMark)
	}
	if err := p.cfg.Table.Done(ctx, a.published); err != nil {
		p.unsure = a.published > 0
		return 0, p.looked(err)
	}
	if a.published > 0 {
		p.cfg.OnStep(StepMarked)
		p.status.marked.Add(uint64(a.published))
	}
	var row *RowError
	if errors.As(a.err, &row) && a.published > 0 {
		return p.cfg.Rows, nil // what came before it; the next look is about the row alone
	}
	if row != nil {
		return 0, p.looked(a.err)
	}
	_ = p.looked(nil)
	if a.err != nil {
		p.refused = true
		return 0, p.sinkFails(a.err)
	}
	return n, nil
}

// looked notes how a look at the table went.
func (p *Poller) looked(err error) error {
	if err == nil {
		p.status.polls()
		p.recovered("polling")
		p.once.Do(func() {
			p.cfg.Log.Info("polling", "interval", p.cfg.Interval, "listening", p.cfg.Listen != nil)
		})
		return nil
	}
	p.status.pollFailed(err.Error(), permanent(err))
	p.complain("polling", err)
	return err
}

// sinkFails notes that Redis did not do what it was asked. It has to answer
// before it is given anything more.
func (p *Poller) sinkFails(err error) error {
	p.answered = time.Time{}
	p.status.sinkFailed(err, false)
	p.complain("Redis", err)
	return err
}

// appending is what a pass appends.
type appending struct {
	*Poller
	ctx       context.Context
	events    []cdc.Event // not appended yet
	created   []time.Time // theirs, one for each
	bytes     int
	published int
	err       error // why no more is appended
}

// take is called for each claimed row.
func (a *appending) take(ev cdc.Event, created time.Time) error {
	if why := fits(ev, a.cfg.ValueBytes); why != nil {
		if a.flush(); a.err == nil {
			a.err = a.rowError(ev, why)
		}
		return a.err
	}
	if len(a.events) == 0 {
		a.status.claimed()
	}
	a.events, a.created = append(a.events, ev), append(a.created, created)
	a.bytes += ev.Bytes
	if a.bytes >= a.cfg.BatchBytes {
		a.flush()
	}
	return a.err
}

// flush appends what was taken.
func (a *appending) flush() {
	events, created := a.events, a.created
	a.events, a.created, a.bytes = a.events[:0], a.created[:0], 0
	if len(events) == 0 {
		return
	}
	refused := ""
	if refused, a.err = a.append(events, created); refused == "" {
		return
	}
	// It is about one of them, and what comes before that is appended.
	for i, ev := range events {
		refused := refused
		if len(events) > 1 {
			refused, a.err = a.append(events[i:i+1], created[i:i+1])
		}
		if refused != "" {
			a.err = a.rowError(ev, &refusedError{reason: refused})
		}
		if a.err != nil {
			return
		}
	}
}

func (a *appending) append(events []cdc.Event, created []time.Time) (refused string, err error) {
	a.cfg.OnStep(StepAppend)
	for try := 1; ; try++ {
		refused, err = a.cfg.Sink.Publish(a.ctx, events)
		if err == nil {
			break
		}
		a.status.appendRetries.Add(1)
		// A Redis that is told of a value beyond its limit hangs up, and has
		// appended nothing. One that is slow may yet append.
		if !errors.Is(err, cdc.ErrNoAnswer) || isTimeout(err) || bytesOf(events) < largeBytes || a.cfg.Sink.Answers(a.ctx) != nil {
			return "", err
		}
		if try == hangUps {
			refused = fmt.Sprintf("it hung up %d times in a row, and answers otherwise: %s", hangUps, err)
			break
		}
	}
	a.sinkWorks()
	if refused == "" {
		a.published += len(events)
		a.status.published(len(events))
		timeClaimed(a.cfg.Timings, events, created)
		a.cfg.OnStep(StepAppended)
	}
	return refused, nil
}

// isTimeout tells an answer that did not come in time from a connection that was
// closed.
func isTimeout(err error) bool {
	var timeout interface{ Timeout() bool }
	return errors.As(err, &timeout) && timeout.Timeout()
}

// rowError names a row that cannot be published, and how it is left out.
func (p *Poller) rowError(ev cdc.Event, why error) *RowError {
	name := "the row with id " + ev.ID
	if ev.NoID {
		name = "the row at " + ev.ID
	}
	fix := "to go on without it: " + p.cfg.Table.PassOver(ev)
	if f := fault.As(why); f != nil && f.Fix != "" {
		fix = f.Fix + "; or, " + fix
	}
	reason := reasonOf(why)
	return &RowError{Row: cdc.Blocked{Row: ev.ID, Reason: reason}, err: &fault.Error{
		Problem: fmt.Sprintf("%s cannot be published: %s", name, reason), Fix: fix,
	}}
}
