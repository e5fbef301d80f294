package main

import (
	"errors"
	"strconv"
	"testing"
)

// Published rows vanish beside writers and over a death of the relay, by the
// relay, by hand, and by a poller. Each row arrives once, and none goes before it does.
func TestPublishedRowsArePurged(t *testing.T) {
	t.Parallel()
	w := newWorld(t, worldOptions{})
	p := w.startRelay("--purge-after", "500ms")
	p.streams()
	kinds := map[string]transaction{}
	for _, kind := range []string{"single", "rollback", "slow", "many", "update in it", "update another"} {
		kinds[kind] = outboxKinds[kind]
	}
	ws := w.startWritersOf(kinds, 2, 1)
	ws.wrote(2)
	purges := func() {
		w.eventually("rows are purged", func() error {
			if n, err := strconv.Atoi(p.metric("walrelay_purged_rows_total")); err != nil || n == 0 {
				return errors.New("none yet")
			}
			return nil
		})
	}
	purges()
	p.kill()
	ws.goOn(1)
	expectFailure(t, exitUsage, []string{"--mark delete"}, "purge", "--older-than", "1h", "--mark", "delete", "--postgres", w.dsn)
	if code, out, errs := walrelay(nil, "purge", "--older-than", "0s", "--postgres", w.dsn); code != exitDone {
		t.Errorf("exit code %d, printed %s%s", code, out, errs)
	}
	p = w.startRelay("--purge-after", "500ms")
	p.streams()
	ws.goOn(1)
	purges()
	// A row that cannot be published is not purged.
	w.toRedis.Cut()
	p.says("Redis fails")
	w.insert("waits", 5)
	ws.end()
	w.endPrepared()
	w.eventually("all that is published is purged", func() error {
		if n := w.query(`SELECT count(*) FROM outbox WHERE published_at IS NOT NULL`); n != "0" {
			return errors.New(n + " are left")
		}
		return nil
	})
	if n := w.query(`SELECT count(*) FROM outbox WHERE kind = 'waits'`); n != "5" {
		t.Errorf("%s rows are left of 5 that wait", n)
	}
	w.toRedis.Restore()
	w.verify(0)
	w.allDeleted()
	p.stop()

	p = w.startPoll("--purge-after", "500ms")
	w.insert("polled", 5)
	w.verify(0)
	w.allDeleted()
	purges()
	p.stop()
}
