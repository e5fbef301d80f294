package outbox

import (
	"context"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stagedoor/walrelay/cdc"
)

// TestPurgeFailsWithoutAnotherWord while nothing changes, and goes on when it
// can. A relay that does not work does not purge.
func TestPurgeFailsWithoutAnotherWord(t *testing.T) {
	d := newOutbox(t)
	d.fillPublished(1, 3, "9 days")
	role := d.role("GRANT SELECT, UPDATE (published_at) ON outbox TO %s")
	p := d.purger(Config{Conn: d.config(role)})
	p.cfg.OlderThan = time.Second
	ctx, cancel := context.WithCancel(d.ctx())
	var loop sync.WaitGroup
	defer loop.Wait()
	defer cancel()
	var asked atomic.Int32
	var works atomic.Bool
	works.Store(true)
	loop.Go(func() {
		if err := p.Run(ctx, func() bool { asked.Add(1); return works.Load() }); err != nil {
			t.Error(err)
		}
	})
	until := func(what string, done func() bool) {
		t.Helper()
		for deadline := time.Now().Add(patience); !done(); time.Sleep(5 * time.Millisecond) {
			if time.Now().After(deadline) {
				t.Fatalf("%s: never; %s", what, d.logs)
			}
		}
	}
	says := func(text string) func() bool {
		return func() bool { return strings.Contains(d.logs.String(), text) }
	}
	until("it fails", says("GRANT DELETE"))
	before := asked.Load()
	until("it tries again", func() bool { return asked.Load() > before+1 })
	works.Store(false)
	d.exec("GRANT DELETE ON outbox TO " + cdc.QuoteIdent(role))
	before = asked.Load()
	until("it asks whether it may", func() bool { return asked.Load() > before+1 })
	if got := d.text(outboxIDs); got != "1 2 3" {
		t.Errorf("left are %q", got)
	}
	works.Store(true)
	until("it goes on", says("works again"))
	if n := strings.Count(d.logs.String(), "purging published rows fails"); n != 1 {
		t.Errorf("it complained %d times", n)
	}
	if got := d.text(outboxIDs); got != "" || p.Deleted() != 3 {
		t.Errorf("left are %q, deleted %d", got, p.Deleted())
	}
}
