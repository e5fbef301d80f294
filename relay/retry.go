package relay

import (
	"context"
	"log/slog"
	"math/rand/v2"
	"sync"
	"time"
)

// The pace of retries.
const (
	retryFirst    = 50 * time.Millisecond
	retryMost     = 5 * time.Second
	repeatWarning = 30 * time.Second
)

// backoff gives the pauses between tries: doubling, jittered, never more than
// retryMost.
type backoff struct{ last time.Duration }

func (b *backoff) next() time.Duration {
	b.last = min(max(2*b.last, retryFirst), retryMost)
	return b.last/2 + rand.N(b.last/2+1)
}

func (b *backoff) reset() { b.last = 0 }

// sleep waits, and reports whether ctx let it.
func sleep(ctx context.Context, d time.Duration) bool {
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-t.C:
		return true
	case <-ctx.Done():
		return false
	}
}

// complaints logs a failure when it is new, and then now and then with a count,
// so that a long outage does not fill the log.
type complaints struct {
	complainTo *slog.Logger

	mu   sync.Mutex
	open map[string]*complaint // by what failed
}

func newComplaints(log *slog.Logger) *complaints {
	return &complaints{complainTo: log, open: map[string]*complaint{}}
}

type complaint struct {
	text     string
	since    time.Time
	logged   time.Time
	repeated int
}

// complain logs a failure of a named part.
func (c *complaints) complain(part string, err error) {
	c.warn(part, part+" fails", "error", err.Error())
}

// warn logs what is not well with a named part, as a message with one more key.
func (c *complaints) warn(part, message, key, text string) {
	c.mu.Lock()
	defer c.mu.Unlock()
	now := time.Now()
	one := c.open[part]
	if one == nil {
		one = &complaint{since: now}
		c.open[part] = one
	}
	if one.text == text && now.Sub(one.logged) < repeatWarning {
		one.repeated++
		return
	}
	c.complainTo.Warn(message, key, text, "since", one.since.Truncate(time.Second), "repeated", one.repeated)
	one.text, one.logged, one.repeated = text, now, 0
}

// recovered logs that a part that failed works again.
func (c *complaints) recovered(part string) {
	c.mu.Lock()
	defer c.mu.Unlock()
	one := c.open[part]
	if one == nil {
		return
	}
	delete(c.open, part)
	c.complainTo.Info(part+" recovered", "after", time.Since(one.since).Round(time.Millisecond))
}
