package relay

import (
	"context"
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
	mu   sync.Mutex
	open map[string]*complaint // by what failed
}

type complaint struct {
	text     string
	since    time.Time
	logged   time.Time
	repeated int
}

// complain logs a failure of a named part.
func (r *Relay) complain(part string, err error) {
	r.warn(part, part+" fails", "error", err.Error())
}

// warn logs what is not well with a named part, as a message with one more key.
func (r *Relay) warn(part, message, key, text string) {
	r.complaints.mu.Lock()
	defer r.complaints.mu.Unlock()
	now := time.Now()
	c := r.complaints.open[part]
	if c == nil {
		c = &complaint{since: now}
		r.complaints.open[part] = c
	}
	if c.text == text && now.Sub(c.logged) < repeatWarning {
		c.repeated++
		return
	}
	r.log.Warn(message, key, text, "since", c.since.Truncate(time.Second), "repeated", c.repeated)
	c.text, c.logged, c.repeated = text, now, 0
}

// recovered logs that a part that failed works again.
func (r *Relay) recovered(part string) {
	r.complaints.mu.Lock()
	defer r.complaints.mu.Unlock()
	c := r.complaints.open[part]
	if c == nil {
		return
	}
	delete(r.complaints.open, part)
	r.log.Info(part+" recovered", "after", time.Since(c.since).Round(time.Millisecond))
}
