package web

import (
	"context"
	"flag"
	"fmt"
	"math"
	"os"
	"path/filepath"
	"sync"
	"testing"
	"time"

	"github.com/stagedoor/walrelay/cdc"
	"github.com/stagedoor/walrelay/internal/health"
	"github.com/stagedoor/walrelay/internal/testbrowser"
)

var pictures = flag.String("pictures", "", "write pictures of the page into this directory")

// shownRelay is a relay of which a page tells, as health judges it.
type shownRelay struct {
	mu          sync.Mutex
	machine     health.Machine
	before      time.Duration // that is to be judged first
	in          health.Input
	transitions []health.Transition
}

func newShownRelay() *shownRelay {
	lag := func(n int64) *int64 { return &n }
	two := 2
	age := 0.0
	last := "1764460800000-0"
	return &shownRelay{before: 2 * time.Minute, in: health.Input{
		Thresholds: health.Thresholds{
			AgeWarn: 5 * time.Second, AgeCritical: time.Minute, LagWarn: 256 << 20, LagCritical: 1 << 30, RunwayCritical: time.Hour,
		},
		Role: health.RoleStreaming, Streaming: true, Started: time.Now().Add(-26 * time.Hour),
		Slot:      &health.Slot{Name: "walrelay", Active: true, WALStatus: "reserved", UnconfirmedBytes: lag(18 << 10), RetainedBytes: lag(3 << 20)},
		OldestAge: &age, Published: 1804467, Timeline: 1,
		Stream: &health.Stream{Name: "jobs", Length: 1804467, LastID: &last, GroupCount: &two, Groups: []health.Group{
			{Name: "mailer", Consumers: 3, Pending: 4, Lag: lag(0), LastDelivered: last},
			{Name: "search-index", Consumers: 1, Pending: 0, Lag: lag(1210), LastDelivered: last},
		}},
	}}
}

// is changes what is known.
func (r *shownRelay) is(change func(*health.Input)) {
	r.mu.Lock()
	defer r.mu.Unlock()
	change(&r.in)
}

// document is judged from what is known now.
func (r *shownRelay) document(context.Context) health.Document {
	r.mu.Lock()
	defer r.mu.Unlock()
	in := r.in
	in.Now = time.Now()
	if !in.DatabaseAwaySince.IsZero() {
		return r.machine.Step(in)
	}
	// A MiB is written in each second, also in the minutes before.
	for ; r.before > 0; r.before -= 5 * time.Second {
		earlier := in
		earlier.Now = in.Now.Add(-r.before)
		r.machine.Step(written(earlier))
	}
	return r.machine.Step(written(in))
}

func written(in health.Input) health.Input {
	in.SampledAt = in.Now
	in.WALEnd = 1<<40 + 1<<20*cdc.LSN(in.Now.Sub(in.Started)/time.Second)
	if in.Slot != nil && in.Slot.RetainedBytes != nil {
		slot := *in.Slot
		slot.ConfirmedFlush = in.WALEnd - cdc.LSN(*slot.UnconfirmedBytes)
		slot.Restart = in.WALEnd - cdc.LSN(*slot.RetainedBytes)
		in.Slot = &slot
	}
	return in
}

func (r *shownRelay) list() []health.Transition {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.transitions
}

// changed adds a transition, the last one.
func (r *shownRelay) changed(ago time.Duration, status, before health.Status, lasted time.Duration, reason string) {
	r.mu.Lock()
	defer r.mu.Unlock()
	next := health.Transition{At: time.Now().Add(-ago).UTC(), Status: status, Before: before, Lasted: lasted.Seconds()}
	if reason != "" {
		next.Reason = &reason
	}
	r.transitions = append([]health.Transition{next}, r.transitions...)
}

// anHour fills the charts: a day's traffic, and Redis away for some minutes.
func anHour(b *board, end time.Time) {
	for i := range hourSamples - 1 {
		x := float64(i)
		s := sample{
			at: end.Add(-time.Duration(hourSamples-1-i) * sampleEvery), status: health.StatusOK,
			rows:   value(420 + 90*math.Sin(x/60) + 25*math.Sin(x*1.7)),
			median: value(0.0011 + 0.0002*math.Sin(x/7)), slowest: value(0.0046 + 0.002*math.Abs(math.Sin(x/5))),
			unconfirmed: value((2 + math.Sin(x)) * (1 << 20)), retained: value((6 + float64(i%12)/2) * (1 << 20)),
		}
		if away := i - 400; away >= 0 && away < 24 {
			s.status, s.rows, s.median, s.slowest, s.age = health.StatusWarn, 0, unknown, unknown, value(float64(away)*5)
			if away > 12 {
				s.status = health.StatusCritical
			}
			s.unconfirmed += value(away) * (1 << 20)
			s.retained += value(away) * (1 << 20)
		} else if away >= 24 && away < 28 {
			s.rows, s.median, s.slowest = 3900, 40, 110
		}
		b.hour.ring[i] = s
		b.hour.n++
	}
}

func shown(t *testing.T, r *shownRelay, addr string) (*Server, func() error) {
	t.Helper()
	cfg := config()
	cfg.Addr = addr
	cfg.Health, cfg.Transitions = r.document, r.list
	cfg.Version = "v1.4.0 (ab08795)"
	cfg.Names = Names{Table: "public.outbox", Stream: "jobs", Slot: "walrelay"}
	cfg.Latency = NewTimings().Latency
	s, _ := newServer(cfg)
	anHour(s.board, time.Now())
	return s, run(t, s)
}

// take keeps a picture, where somebody wants to look at it.
func take(t *testing.T, tab *testbrowser.Tab, name string) {
	t.Helper()
	if *pictures == "" {
		return
	}
	for kind, screen := range map[string]testbrowser.Screen{
		"phone-light": testbrowser.Phone, "phone-dark": dark(testbrowser.Phone),
		"desktop-light": testbrowser.Desktop, "desktop-dark": dark(testbrowser.Desktop),
	} {
		tab.Look(screen)
		time.Sleep(300 * time.Millisecond)
		file := filepath.Join(*pictures, fmt.Sprintf("%s-%s.png", name, kind))
		if err := os.WriteFile(file, tab.Picture(), 0o644); err != nil {
			t.Fatal(err)
		}
	}
}

func dark(s testbrowser.Screen) testbrowser.Screen {
	s.Dark = true
	return s
}

// cause is of a level, for pictures.
func ago(d time.Duration) time.Time { return time.Now().Add(-d) }

// The page says how the relay is, in each state and on each screen.
func TestPage(t *testing.T) {
	browser := testbrowser.Start(t)
	for _, c := range []struct {
		name  string
		relay func(*shownRelay)
		level string
		says  map[string]string
	}{
		{"healthy", func(r *shownRelay) {
			r.changed(26*time.Hour, health.StatusWarn, health.StatusOK, 3*time.Second, "The relay has been starting for 3.0 s: no row is published yet.")
			r.changed(25*time.Hour+59*time.Minute, health.StatusOK, health.StatusWarn, 4*time.Second, "")
			r.changed(27*time.Minute, health.StatusWarn, health.StatusOK, 25*time.Hour, "Redis has been away for 3.0 s (last error: dial tcp 10.0.0.7:6379: connect: connection refused); rows wait in PostgreSQL, which keeps their WAL.")
			r.changed(26*time.Minute, health.StatusCritical, health.StatusWarn, 57*time.Second, "The oldest unpublished row is 1 min 0 s old (critical from 1 min).")
			r.changed(25*time.Minute, health.StatusOK, health.StatusCritical, 63*time.Second, "")
		}, "ok", map[string]string{
			"#level": "OK", "#path": "streaming", "#groups": "search-index", "#runway": "No end in sight", "#transitions": "Critical",
		}},
		{"redis-down", func(r *shownRelay) {
			r.changed(75*time.Second, health.StatusWarn, health.StatusOK, 26*time.Hour, "Redis has been away for 3.0 s; rows wait in PostgreSQL, which keeps their WAL.")
			r.changed(17*time.Second, health.StatusCritical, health.StatusWarn, 57*time.Second, "Redis has been away for 1 min; rows wait in PostgreSQL, which keeps their WAL.")
			age := 78.0
			r.is(func(in *health.Input) {
				in.RedisAwaySince, in.RedisError = ago(78*time.Second), "dial tcp 10.0.0.7:6379: connect: connection refused"
				in.OldestAge = &age
				*in.Slot.UnconfirmedBytes, *in.Slot.RetainedBytes = 90<<20, 96<<20
			})
		}, "critical", map[string]string{
			"#level": "Critical", "#reasons": "Redis has been away for 1 min", "#cause": "Redis has been unreachable since", "#path": "away for 1 min",
		}},
		{"slot-lost", func(r *shownRelay) {
			r.changed(4*time.Second, health.StatusCritical, health.StatusOK, time.Hour, `PostgreSQL removed WAL that slot "walrelay" still needed (wal_status lost).`)
			r.is(func(in *health.Input) {
				in.Role, in.Streaming, in.StreamingAwaySince = health.RoleStarting, false, ago(4*time.Second)
				in.Slot = &health.Slot{Name: "walrelay", WALStatus: "lost"}
				in.Problems = []string{"the slot has lost WAL that was not read yet; to repair: run `walrelay heal`: it publishes again what the stream lacks, and streams on (with --heal=auto the relay does so by itself)"}
			})
		}, "critical", map[string]string{
			"#level": "Critical", "#reasons": "walrelay heal", "#path": "the slot has lost WAL", "#lag": "–",
		}},
		{"standby", func(r *shownRelay) {
			r.is(func(in *health.Input) {
				in.Role, in.Streaming, in.Holder = health.RoleStandby, false, "the slot is in use by process 4711"
				in.Stream, in.Published = nil, 0
			})
		}, "ok", map[string]string{
			"#level": "OK", "#role": "Stands by", "#reasons": "process 4711", "#path": "another relay has it", "#groups-note": "not told",
		}},
		{"poll", func(r *shownRelay) {
			zero := 0
			r.is(func(in *health.Input) {
				in.Role, in.Slot, in.Stream.Groups, in.Stream.GroupCount = health.RolePolling, nil, []health.Group{}, &zero
			})
		}, "ok", map[string]string{
			"#level": "OK", "#role": "Polls the table", "#path": "every row is published", "#groups-note": "No consumer group",
		}},
		{"blind", func(r *shownRelay) {
			r.document(t.Context())
			r.is(func(in *health.Input) {
				in.SampledAt = ago(20 * time.Second)
				in.DatabaseAwaySince, in.DatabaseError = ago(15*time.Second), "connection refused"
			})
		}, "warn", map[string]string{
			"#level": "Warning", "#blind": "as last seen at", "#path": "as last seen", "#runway": "Not known",
		}},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			r := newShownRelay()
			c.relay(r)
			s, _ := shown(t, r, "127.0.0.1:0")
			tab := browser.Open(t, "http://"+s.Addr()+"/", testbrowser.Phone)
			tab.Becomes("document.documentElement.dataset.level === '" + c.level + "'")
			for selector, words := range c.says {
				tab.Says(selector, words)
			}
			take(t, tab, c.name)
		})
	}
}
