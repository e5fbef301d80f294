package web

import (
	"bufio"
	"context"
	"encoding/json"
	"fmt"
	"net/http"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stagedoor/walrelay/internal/health"
)

// listener reads the events of a page.
type listener struct {
	body  *bufio.Scanner
	close func()
}

func listen(t *testing.T, addr string) listener {
	t.Helper()
	req, err := http.NewRequestWithContext(t.Context(), "GET", "http://"+addr+"/events", nil)
	if err != nil {
		t.Fatal(err)
	}
	resp, err := client(t).Do(req)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { resp.Body.Close() })
	if resp.StatusCode != http.StatusOK || resp.Header.Get("Content-Type") != "text/event-stream" {
		t.Fatalf("%s, %v", resp.Status, resp.Header)
	}
	lines := bufio.NewScanner(resp.Body)
	lines.Buffer(nil, 1<<20)
	return listener{lines, func() { resp.Body.Close() }}
}

// next is the next event; an empty name says that there is none any more.
func (l listener) next() (name, data string) {
	for l.body.Scan() {
		line := l.body.Text()
		switch {
		case strings.HasPrefix(line, "event: "):
			name = line[len("event: "):]
		case strings.HasPrefix(line, "data: "):
			data = line[len("data: "):]
		case line == "" && name != "":
			return name, data
		}
	}
	return "", ""
}

func TestAViewerIsToldOfTheHourAndThenOfNow(t *testing.T) {
	cfg := config()
	cfg.Names = Names{Table: "public.outbox", Stream: "jobs", Slot: "walrelay"}
	cfg.Health = func(context.Context) health.Document {
		return health.Judge(health.Input{Now: time.Now(), Role: health.RoleStreaming, Streaming: true, Problems: []string{"it broke; to repair: run `walrelay heal`"}})
	}
	s, _ := newServer(cfg)
	anHour(s.board, time.Now())
	run(t, s)
	viewer := listen(t, s.Addr())

	name, data := viewer.next()
	var hour struct {
		At   []int64
		P99  []*float64
		Rows []*float64
	}
	if err := json.Unmarshal([]byte(data), &hour); err != nil || name != "hour" {
		t.Fatalf("%s: %v", name, err)
	}
	if len(hour.At) != hourSamples-1 || len(hour.Rows) != len(hour.At) || hour.P99[400] != nil || hour.P99[0] == nil {
		t.Errorf("%d times, %d rates", len(hour.At), len(hour.Rows))
	}
	for range 2 { // now, and a second later
		name, data = viewer.next()
		var v struct {
			Names   Names
			Assets  string
			Health  health.Document
			Stages  []health.Stage
			Reasons [][]part
		}
		if err := json.Unmarshal([]byte(data), &v); err != nil || name != "view" {
			t.Fatalf("%s: %v", name, err)
		}
		if v.Names != cfg.Names || v.Assets != assetsVersion || v.Health.Status != health.StatusCritical || len(v.Stages) != 6 {
			t.Errorf("the view is %s", data)
		}
		if last := v.Reasons[0][len(v.Reasons[0])-1]; last != (part{Text: "walrelay heal", Code: true}) {
			t.Errorf("the reason ends with %+v", last)
		}
	}
}

// The server's time-out for writing would end every connection after ten seconds.
func TestEventsGoOnForLongerThanAnAnswerMayTake(t *testing.T) {
	s, _ := newServer(config())
	s.http.WriteTimeout = 20 * time.Millisecond
	run(t, s)
	viewer := listen(t, s.Addr())
	for range 4 {
		if name, _ := viewer.next(); name == "" {
			t.Fatal("the events ended")
		}
	}
}

func TestAStoppingServerLetsViewersGoAtOnce(t *testing.T) {
	s, log := newServer(config())
	s.grace = time.Hour
	stop := run(t, s)
	viewer := listen(t, s.Addr())
	viewer.next()
	if err := stop(); err != nil {
		t.Error(err)
	}
	for {
		if name, _ := viewer.next(); name == "" {
			break
		}
	}
	if strings.Contains(log.String(), "cut off") {
		t.Errorf("log %s", log)
	}
}

func TestViewersAreBounded(t *testing.T) {
	s, _ := newServer(config())
	run(t, s)
	viewers := make([]listener, viewersMost)
	for i := range viewers {
		viewers[i] = listen(t, s.Addr())
	}
	got := ask(t, "GET", "http://"+s.Addr()+"/events")
	if got.code != http.StatusServiceUnavailable || got.header.Get("Retry-After") == "" {
		t.Errorf("one too many: %d %v", got.code, got.header)
	}
	viewers[0].close()
	for {
		got := ask(t, "HEAD", "http://"+s.Addr()+"/events")
		s.board.mu.Lock()
		n := len(s.board.viewers)
		s.board.mu.Unlock()
		if n < viewersMost {
			break
		}
		if got.code != http.StatusOK || t.Context().Err() != nil {
			t.Fatal("a viewer that left is still counted")
		}
		time.Sleep(time.Millisecond)
	}
	listen(t, s.Addr())
}

func TestAConnectionEndsBeforeLong(t *testing.T) {
	s, _ := newServer(config())
	s.board.life = time.Millisecond
	run(t, s)
	viewer := listen(t, s.Addr())
	for {
		if name, _ := viewer.next(); name == "" {
			return
		}
	}
}

// A viewer that does not read holds up nobody, and does not fill the memory.
func TestAViewerThatDoesNotReadIsLetGo(t *testing.T) {
	s, _ := newServer(config())
	slow, ok := s.board.join(t.Context())
	if !ok {
		t.Fatal("no viewer may join")
	}
	for range 2 * viewersLag {
		s.board.tick(t.Context(), time.Now(), false)
	}
	if n := len(s.board.viewers); n != 0 {
		t.Errorf("%d viewers are left", n)
	}
	n := 0
	for range slow.events {
		n++
	}
	if n != viewersLag {
		t.Errorf("it was told %d times, want %d", n, viewersLag)
	}
}

// Nobody who looks is no work: health is asked for a sample, and not for a view.
func TestWithoutViewersThereIsASampleEveryFiveSeconds(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		asked, published := 0, uint64(0)
		cfg := config()
		timings := NewTimings()
		cfg.Latency = timings.Latency
		cfg.Health = func(ctx context.Context) health.Document {
			asked++
			published += 50
			timings.Published(3 * time.Millisecond)
			doc := okDocument(ctx)
			doc.Published = published
			return doc
		}
		s, _ := newServer(cfg)
		ctx, cancel := context.WithCancel(t.Context())
		done := make(chan struct{})
		go func() {
			defer close(done)
			s.board.run(ctx)
		}()
		const hours = 2
		time.Sleep(hours*time.Hour + time.Second)
		cancel()
		<-done
		list := s.board.hour.list()
		if asked != hours*hourSamples+1 || len(list) != hourSamples {
			t.Errorf("health was asked %d times; there are %d samples", asked, len(list))
		}
		for i, sample := range list {
			if i > 0 && sample.at.Sub(list[i-1].at) != sampleEvery {
				t.Fatalf("sample %d is %s after the one before", i, sample.at.Sub(list[i-1].at))
			}
			if sample.rows != 10 || sample.median < 0.0026 || sample.median > 0.0034 {
				t.Fatalf("sample %d is %+v", i, sample)
			}
		}
	})
}

// A slot that was not looked at has no lag of now.
func TestALagThatWasNotSeenIsNoPoint(t *testing.T) {
	lag := int64(5)
	doc := health.Document{Slot: &health.Slot{UnconfirmedBytes: &lag}}
	var h hour
	now := time.Now()
	h.take(now, doc, counts{})
	seen, _ := h.take(now.Add(sampleEvery), doc, counts{})
	doc.Database.AwaySince = &now
	blind, _ := h.take(now.Add(2*sampleEvery), doc, counts{})
	if got := fmt.Sprint(seen.unconfirmed, seen.retained, blind.unconfirmed, seen.age); got != "5 NaN NaN NaN" {
		t.Errorf("lags and age: %s", got)
	}
	text, err := json.Marshal([]value{unknown, 0, 12345.6, 0.00123456, 99.96})
	if err != nil || string(text) != "[null,0,12346,0.001235,99.96]" {
		t.Errorf("%s, %v", text, err)
	}
}
