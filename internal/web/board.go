package web

import (
	"context"
	"fmt"
	"log/slog"
	"net/http"
	"sync"
	"time"

	"github.com/stagedoor/walrelay/internal/health"
)

const (
	// viewEvery is how often those who look at the page are told how it is.
	viewEvery = time.Second
	// viewersMost is how many are served at a time. A browser keeps one
	// connection for each tab.
	viewersMost = 32
	// viewersLag is how many events a viewer may be behind before it has to
	// connect anew.
	viewersLag = 16
	// viewFor ends the connection of a viewer, so that those whose network is
	// gone do not stay for long. A browser connects again by itself.
	viewFor = 15 * time.Minute
	// reconnectAfter is how long a browser waits before that.
	reconnectAfter = time.Second
)

// board is what the page shows: it takes the samples for the charts, and tells
// all viewers the same. Without viewers it takes a sample every five seconds and
// does nothing else.
type board struct {
	cfg  Config
	log  *slog.Logger
	life time.Duration // of a viewer's connection

	mu      sync.Mutex
	hour    hour
	viewers map[*viewer]struct{}
	closed  bool
}

// viewer is one connection. Its channel is closed when there is no more to come.
type viewer struct{ events chan []byte }

func newBoard(cfg Config, log *slog.Logger) *board {
	return &board{cfg: cfg, log: log, life: viewFor, viewers: map[*viewer]struct{}{}}
}

// run looks until ctx is done.
func (b *board) run(ctx context.Context) {
	ticks := time.NewTicker(viewEvery)
	defer ticks.Stop()
	var sampled time.Time
	for {
		now := time.Now()
		due := now.Sub(sampled) >= sampleEvery-viewEvery/2
		if due {
			sampled = now
		}
		b.tick(ctx, now, due)
		select {
		case <-ctx.Done():
			return
		case <-ticks.C:
		}
	}
}

// tick takes a sample where one is due, and tells the viewers.
func (b *board) tick(ctx context.Context, now time.Time, due bool) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if !due && len(b.viewers) == 0 {
		return
	}
	doc := b.health(ctx)
	if due {
		latency := counts{}
		if b.cfg.Latency != nil {
			latency = countsOf(b.cfg.Latency())
		}
		if s, ok := b.hour.take(now, doc, latency); ok {
			b.tell("sample", columnsOf(s))
		}
	}
	if len(b.viewers) > 0 {
		b.tell("view", b.view(now, doc))
	}
}

func (b *board) health(ctx context.Context) health.Document {
	ctx, cancel := context.WithTimeout(ctx, healthTimeout)
	defer cancel()
	return b.cfg.Health(ctx)
}

// tell sends an event to all viewers. One that is far behind is let go. The
// caller holds mu.
func (b *board) tell(name string, v any) {
	if len(b.viewers) == 0 {
		return
	}
	text, err := event(name, v)
	if err != nil {
		b.log.Error("the page cannot be shown", "error", err)
		return
	}
	for w := range b.viewers {
		select {
		case w.events <- text:
		default:
			b.leave(w)
		}
	}
}

// join adds a viewer, who is told at once of the last hour and of now; false
// where there are too many, or the server stops.
func (b *board) join(ctx context.Context) (*viewer, bool) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.closed || len(b.viewers) >= viewersMost {
		return nil, false
	}
	w := &viewer{events: make(chan []byte, viewersLag)}
	for _, first := range []struct {
		name string
		v    any
	}{{"hour", columnsOf(b.hour.list()...)}, {"view", b.view(time.Now(), b.health(ctx))}} {
		text, err := event(first.name, first.v)
		if err != nil {
			b.log.Error("the page cannot be shown", "error", err)
			return nil, false
		}
		w.events <- text
	}
	b.viewers[w] = struct{}{}
	return w, true
}

// leave lets a viewer go. The caller holds mu.
func (b *board) leave(w *viewer) {
	if _, ok := b.viewers[w]; ok {
		delete(b.viewers, w)
		close(w.events)
	}
}

// close lets all viewers go, and takes no more.
func (b *board) close() {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.closed = true
	for w := range b.viewers {
		b.leave(w)
	}
}

// ServeHTTP sends events until the viewer leaves, the server stops, or time is
// up.
func (b *board) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	w.Header().Set("Content-Type", "text/event-stream")
	if r.Method == http.MethodHead {
		return
	}
	viewer, ok := b.join(r.Context())
	if !ok {
		w.Header().Set("Retry-After", "5")
		http.Error(w, "too many look at the page already, or the relay stops", http.StatusServiceUnavailable)
		return
	}
	defer func() {
		b.mu.Lock()
		defer b.mu.Unlock()
		b.leave(viewer)
	}()
	if err := b.send(w, r, viewer); err != nil {
		b.log.Debug("writing the page's events", "error", err)
	}
}

// send writes events as they come. The server's time-out for writing is for
// answers that end: here each write has its own.
func (b *board) send(w http.ResponseWriter, r *http.Request, viewer *viewer) error {
	conn := http.NewResponseController(w)
	write := func(text []byte) error {
		if err := conn.SetWriteDeadline(time.Now().Add(writeTimeout)); err != nil {
			return err
		}
		if _, err := w.Write(text); err != nil {
			return err
		}
		return conn.Flush()
	}
	if err := write(fmt.Appendf(nil, "retry: %d\n\n", reconnectAfter.Milliseconds())); err != nil {
		return err
	}
	up := time.NewTimer(b.life)
	defer up.Stop()
	for {
		select {
		case <-r.Context().Done():
			return nil
		case <-up.C:
			return nil
		case text, more := <-viewer.events:
			if !more {
				return nil
			}
			if err := write(text); err != nil {
				return err
			}
		}
	}
}
