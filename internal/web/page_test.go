package web

import (
	"context"
	"flag"
	"fmt"
	"maps"
	"math"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/chromedp/chromedp/kb"

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

// take keeps pictures, where somebody wants to look at it.
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

// ago is a time so long before now.
func ago(d time.Duration) time.Time { return time.Now().Add(-d) }

// byKeyboard reaches all that can be used, and reads the charts.
func byKeyboard(t *testing.T, tab *testbrowser.Tab) {
	seen := map[string]bool{}
	for range 30 {
		tab.Press(kb.Tab)
		on := testbrowser.Value[string](tab, "(({tagName, id, className, href}) => [tagName, id, className, href].join(' '))(document.activeElement)")
		seen[on] = true
		if !strings.HasPrefix(on, "BODY") && !testbrowser.Value[bool](tab, "getComputedStyle(document.activeElement).outlineStyle !== 'none'") {
			t.Errorf("it does not show that the focus is on %s", on)
		}
	}
	for _, want := range []string{"A  skip", "DIV  plot", "SUMMARY", "DIV groups-scroll", "/healthz", "/metrics"} {
		if !slices.ContainsFunc(slices.Collect(maps.Keys(seen)), func(on string) bool { return strings.Contains(on, want) }) {
			t.Errorf("the focus never came to %s, but to %q", want, slices.Sorted(maps.Keys(seen)))
		}
	}
	testbrowser.Value[any](tab, "document.querySelector('#throughput .plot').focus()")
	says := func() string {
		return testbrowser.Value[string](tab, "document.querySelector('#throughput .plot').getAttribute('aria-valuetext')")
	}
	last := says()
	tab.Press(kb.Home)
	first := says()
	tab.Press(kb.ArrowRight)
	if next := says(); !strings.Contains(last, "rows appended") || first == last || next == first || next == last {
		t.Errorf("the chart says %q, %q, %q", last, first, next)
	}
	tab.Says("#throughput .when", "at ")
	testbrowser.Value[any](tab, "document.activeElement.blur()")
}

// The page says how the relay is, in each state and on each screen.
func TestPage(t *testing.T) {
	browser := testbrowser.Start(t)
	for _, c := range []struct {
		name  string
		relay func(*shownRelay)
		level string
		says  map[string]string
		and   func(*testing.T, *testbrowser.Tab)
	}{
		{"healthy", func(r *shownRelay) {
			r.changed(26*time.Hour, health.StatusWarn, health.StatusOK, 3*time.Second, "The relay has been starting for 3.0 s: no row is published yet.")
			r.changed(25*time.Hour+59*time.Minute, health.StatusOK, health.StatusWarn, 4*time.Second, "")
			r.changed(27*time.Minute, health.StatusWarn, health.StatusOK, 25*time.Hour, "Redis has been away for 3.0 s (last error: dial tcp 10.0.0.7:6379: connect: connection refused); rows wait in PostgreSQL, which keeps their WAL.")
			r.changed(26*time.Minute, health.StatusCritical, health.StatusWarn, 57*time.Second, "The oldest unpublished row is 1 min 0 s old (critical from 1 min).")
			r.changed(25*time.Minute, health.StatusOK, health.StatusCritical, 63*time.Second, "")
		}, "ok", map[string]string{
			"#level": "OK", "#path": "streaming", "#groups": "search-index", "#runway": "No end in sight", "#transitions": "Critical",
		}, byKeyboard},
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
		}, nil},
		{"slot-lost", func(r *shownRelay) {
			r.changed(4*time.Second, health.StatusCritical, health.StatusOK, time.Hour, `PostgreSQL removed WAL that slot "walrelay" still needed (wal_status lost).`)
			r.is(func(in *health.Input) {
				in.Role, in.Streaming, in.StreamingAwaySince = health.RoleStarting, false, ago(4*time.Second)
				in.Slot = &health.Slot{Name: "walrelay", WALStatus: "lost"}
				in.Problems = []string{"the slot has lost WAL that was not read yet; to repair: run `walrelay heal`: it publishes again what the stream lacks, and streams on (with --heal=auto the relay does so by itself)"}
			})
		}, "critical", map[string]string{
			"#level": "Critical", "#reasons": "walrelay heal", "#path": "the slot has lost WAL", "#lag": "–",
		}, nil},
		// Names and errors come from servers: they are text, whatever is in them.
		{"text", func(r *shownRelay) {
			const nasty = `<script>document.title='x'</script><img src=x onerror="document.title='y'">`
			r.changed(time.Minute, health.StatusCritical, health.StatusOK, time.Hour, nasty)
			r.is(func(in *health.Input) {
				in.Slot.Name = nasty
				in.Problems = []string{nasty + "; to repair: SELECT pg_drop_replication_slot('" + nasty + "');"}
				in.RedisAwaySince, in.RedisError = ago(time.Minute), nasty
				in.Stream.Groups[0].Name = nasty
			})
		}, "critical", map[string]string{
			"#reasons": "<script>document.title='x'</script><img src=x", "#reasons code": "pg_drop_replication_slot('<script>",
			"#groups": "<script>", "#transitions": "<script>", "#cause": "<script>",
		}, func(t *testing.T, tab *testbrowser.Tab) {
			if n := testbrowser.Value[int](tab, "document.querySelectorAll('main script, main img').length"); n != 0 {
				t.Errorf("%d elements were made of text", n)
			}
		}},
		{"standby", func(r *shownRelay) {
			r.is(func(in *health.Input) {
				in.Role, in.Streaming, in.Holder = health.RoleStandby, false, "the slot is in use by process 4711"
				in.Stream, in.Published = nil, 0
			})
		}, "ok", map[string]string{
			"#level": "OK", "#role": "Stands by", "#reasons": "process 4711", "#path": "another relay has it", "#groups-note": "not told",
		}, nil},
		{"poll", func(r *shownRelay) {
			zero := 0
			r.is(func(in *health.Input) {
				in.Role, in.Slot, in.Stream.Groups, in.Stream.GroupCount = health.RolePolling, nil, []health.Group{}, &zero
			})
		}, "ok", map[string]string{
			"#level": "OK", "#role": "Polls the table", "#path": "every row is published", "#groups-note": "No consumer group", "#latency": "creation to append",
		}, nil},
		{"blind", func(r *shownRelay) {
			r.document(t.Context())
			r.is(func(in *health.Input) {
				in.SampledAt = ago(20 * time.Second)
				in.DatabaseAwaySince, in.DatabaseError = ago(15*time.Second), "connection refused"
			})
		}, "warn", map[string]string{
			"#level": "Warning", "#blind": "as last seen at", "#path": "as last seen", "#runway": "Not known",
		}, nil},
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
			word := map[string]string{"ok": "OK", "warn": "Warning", "critical": "Critical"}[c.level]
			if title := testbrowser.Value[string](tab, "document.title"); title != word+" · jobs · walrelay" {
				t.Errorf("the title is %q", title)
			}
			tab.Says("#announce", "Level: "+word)
			tab.Becomes("document.querySelectorAll('.plot canvas').length === 4")
			icon(t, tab)
			everybodyCanRead(t, tab)
			if c.and != nil {
				c.and(t, tab)
			}
			take(t, tab, c.name)
		})
	}
	t.Run("stale", func(t *testing.T) {
		t.Parallel()
		stale(t, browser)
	})
	t.Run("many viewers", func(t *testing.T) {
		t.Parallel()
		tooMany(t, browser)
	})
}

// stale: walrelay goes and comes back. Meanwhile nothing looks as if it were of
// now, and what was seen before stays in the charts.
func stale(t *testing.T, browser *testbrowser.Browser) {
	r := newShownRelay()
	s, stop := shown(t, r, "127.0.0.1:0")
	addr := s.Addr()
	tab := browser.Open(t, "http://"+addr+"/", testbrowser.Phone, "ERR_CONNECTION_REFUSED", "ERR_INCOMPLETE_CHUNKED_ENCODING", "ERR_CONNECTION_RESET", "503")
	tab.Becomes("document.documentElement.dataset.level === 'ok'")
	ok := icon(t, tab)
	testbrowser.Value[bool](tab, "window.sameAsBefore = true")
	if err := stop(); err != nil {
		t.Fatal(err)
	}
	tab.Becomes("document.documentElement.dataset.level === 'unknown'")
	tab.Says("#gone", "walrelay has not answered since")
	tab.Says("#level", "Not known")
	tab.Says("#announce", "No connection to walrelay.")
	tab.Becomes("[...document.querySelectorAll('.stage')].every((s) => s.dataset.state === 'unknown')")
	if title := testbrowser.Value[string](tab, "document.title"); !strings.HasPrefix(title, "No connection") {
		t.Errorf("the title is %q", title)
	}
	if icon(t, tab) == ok {
		t.Error("the icon says that all is well")
	}
	everybodyCanRead(t, tab)
	take(t, tab, "stale")

	r.is(func(in *health.Input) { in.RedisAwaySince = ago(time.Second) })
	cfg := config()
	cfg.Addr, cfg.Health, cfg.Names = addr, r.document, s.cfg.Names
	again, _ := newServer(cfg)
	run(t, again)
	tab.Becomes("document.documentElement.dataset.level === 'warn' && document.getElementById('gone').hidden")
	tab.Says("#announce", "Level: Warning. Redis has been away")
	tab.Becomes("window.sameAsBefore") // it was not loaded anew
	testbrowser.Value[bool](tab, "document.querySelector('#throughput details').open = true")
	tab.Becomes("document.querySelectorAll('#throughput tbody tr').length >= 12")
}

// tooMany: an answer that is an error is not the end.
func tooMany(t *testing.T, browser *testbrowser.Browser) {
	s, _ := shown(t, newShownRelay(), "127.0.0.1:0")
	others := make([]listener, viewersMost)
	for i := range others {
		others[i] = listen(t, s.Addr())
	}
	tab := browser.Open(t, "http://"+s.Addr()+"/", testbrowser.Phone, "503")
	tab.Says("#gone", "walrelay does not answer.")
	others[0].close()
	tab.Becomes("document.documentElement.dataset.level === 'ok'")
}
