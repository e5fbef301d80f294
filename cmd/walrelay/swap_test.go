package main

import (
	"fmt"
	"strings"
	"testing"
	"time"
)

// Rows that a poller appended and did not mark are recognised by the relay that
// takes its place, and what the relay leaves is the next poller's.
func TestSwapAfterACrash(t *testing.T) {
	t.Parallel()
	w := newWorld(t, worldOptions{})
	w.exec(`INSERT INTO outbox (kind, payload) SELECT 'old', jsonb_build_object('n', i, 'é', 1.50) FROM generate_series(1, 250) i`)
	poll := w.startPollEnv([]string{execEnv + "=crash", crashEnv + "=appended:2"})
	if err := poll.killedItself(); err != nil {
		t.Fatal(err)
	}
	run := w.startRelay()
	run.streams()
	w.insert("to the relay", 5)
	w.verify(250)
	w.allMarked()
	run.stop()
	w.insert("while nobody works", 5)
	poll = w.startPoll()
	w.insert("to the poller", 5)
	w.allMarked()
	poll.stop()
	w.insert("while nobody works", 5)
	w.startRelay().streams()
	w.insert("to the relay again", 5)
	w.verify(250)
	w.allMarked()
	w.confirmedPast()
}

// The poller works a second time before what is covered has passed what it did
// the first time.
func TestSwapThereAndBackTwiceOnAQuietServer(t *testing.T) {
	t.Parallel()
	w := newWorld(t, worldOptions{})
	for round, rows := range []int{3, 1500, 3} {
		run := w.startRelay()
		run.streams()
		w.insert("to the relay", 3)
		w.allMarked()
		run.stop()
		poll := w.startPoll()
		w.exec(fmt.Sprintf(`INSERT INTO outbox (kind, payload) SELECT 'to the poller', to_jsonb(repeat('x', 900) || i) FROM generate_series(1, %d) i`, rows))
		w.allMarked()
		poll.stop()
		w.insert(fmt.Sprint("while nobody works ", round), 3)
	}
	w.startRelay().streams()
	w.insert("in the end", 3)
	w.allMarked()
	w.confirmedPast()
	w.eachOnce(nil)
}

// While a poller works, its entries are trimmed away, or deleted by consumers. The
// relay that comes back finds no entry of those rows, but their marks.
func TestPollersEntriesAreGoneWhenTheRelayComesBack(t *testing.T) {
	for name, tt := range map[string]struct {
		flags []string
		gone  func(*world)
	}{
		"trimmed": {[]string{"--maxlen", "100"}, func(*world) {}},
		"all deleted": {nil, func(w *world) {
			entries, err := w.entries()
			if err != nil {
				w.t.Fatal(err)
			}
			for _, m := range entries {
				w.redisDo("XDEL", "jobs", m.ID)
			}
		}},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			w := newWorld(t, worldOptions{})
			run := w.startRelay(tt.flags...)
			run.streams()
			w.insert("to the relay", 3)
			w.verify(0)
			w.allMarked()
			run.stop()
			poll := w.startPoll(tt.flags...)
			for range 5 {
				w.exec(`INSERT INTO outbox (kind, payload) SELECT 'to the poller', to_jsonb(i) FROM generate_series(1, 300) i`)
				w.allMarked()
			}
			poll.stop()
			tt.gone(w)
			w.insert("unpublished", 3)
			added := w.added()
			run = w.startRelay(tt.flags...)
			run.streams()
			w.insert("after", 3)
			w.allMarked()
			w.confirmedPast()
			if now := w.added(); now != added+6 {
				t.Errorf("%d entries were added, want 6", now-added)
			}
			if n := w.times("kind"); n["unpublished"] != 3 || n["after"] != 3 {
				t.Errorf("the stream has the kinds %v", n)
			}
			run.says("rows that are marked as published and may have been theirs")
			if strings.Contains(run.log.String(), "rows may be missing") {
				t.Error("what the poller did is taken for a gap")
			}
		})
	}
}

// added is how many entries the stream ever had.
func (w *world) added() int64 {
	w.t.Helper()
	info, err := w.rdb().XInfoStream(w.t.Context(), "jobs").Result()
	if err != nil {
		w.t.Fatal(err)
	}
	return info.EntriesAdded
}

// appendedUnmarked are the rows that may be on the stream twice: appended and not
// marked when nobody works.
func (w *world) appendedUnmarked() map[string]bool {
	w.t.Helper()
	may := map[string]bool{}
	times := w.times("outbox_id")
	for id := range strings.FieldsSeq(w.query(`SELECT string_agg(id::text, ' ') FROM outbox WHERE published_at IS NULL`)) {
		if times[id] > 0 {
			may[id] = true
		}
	}
	return may
}

// mixed writes about 500 rows a second until end is called: long and short
// transactions, those that end by a rollback, with savepoints or in two phases, ids
// that commit late. A row that is changed or deleted before a poller sees it is
// another one than what the log has.
func (w *world) mixed() (end func()) {
	w.pace = 150 * time.Millisecond
	ws := w.startWriters(6, 11, "spilled", "update in it", "delete in it", "delete published")
	return func() {
		ws.end()
		w.endPrepared()
	}
}

// Under load: a poller, a relay, a relay after kill -9, a poller that is killed,
// and a relay again. Every row arrives once, but for those that the killed poller
// had appended and not marked, and the next poller sends again.
func TestSwapThereAndBackUnderLoad(t *testing.T) {
	t.Parallel()
	w := newWorld(t, worldOptions{})
	end := w.mixed()
	more := func(n int) {
		t.Helper()
		goal := w.length() + n
		w.eventually(fmt.Sprintf("%d entries", goal), func() error {
			if now := w.length(); now < goal {
				return fmt.Errorf("%d", now)
			}
			return nil
		})
	}
	poll := w.startPoll()
	more(500)
	poll.stop()
	run := w.startRelay()
	run.streams()
	more(500)
	run.kill()
	run = w.startRelay()
	run.streams()
	more(500)
	run.stop()
	poll = w.startPoll()
	more(500)
	poll.kill()
	w.eventually("the killed poller's session has ended", func() error {
		if n := w.query(`SELECT count(*) FROM pg_stat_activity WHERE application_name = 'walrelay'`); n != "0" {
			return fmt.Errorf("%s have not", n)
		}
		return nil
	})
	w.eventually("Redis has all that the killed poller sent", func() error {
		if n := w.toRedis.Open(); n != 0 {
			return fmt.Errorf("%d connections are open", n)
		}
		return nil
	})
	again := w.appendedUnmarked()
	poll = w.startPoll()
	more(500)
	poll.stop()
	w.startRelay().streams()
	more(500)
	end()
	w.allMarked()
	w.eachOnce(again)
}

// A poller and a relay beside one another lose no row.
func TestPollerBesideARelayLosesNothing(t *testing.T) {
	t.Parallel()
	w := newWorld(t, worldOptions{})
	end := w.mixed()
	w.startRelay().streams()
	w.startPoll().polls()
	w.eventually("2000 entries", func() error {
		if n := w.length(); n < 2000 {
			return fmt.Errorf("%d", n)
		}
		return nil
	})
	end()
	w.allMarked()
	all := map[string]bool{}
	for id := range strings.FieldsSeq(w.query(`SELECT string_agg(id::text, ' ') FROM outbox`)) {
		all[id] = true
	}
	w.eachOnce(all)
}

// eachOnce compares the rows of the table with the stream: each once, or twice
// where that may be.
func (w *world) eachOnce(mayBeTwice map[string]bool) {
	w.t.Helper()
	var times map[string]int
	rows := strings.Fields(w.query(`SELECT string_agg(id::text, ' ') FROM outbox`))
	times = w.times("outbox_id")
	for _, id := range rows {
		if n := times[id]; n != 1 && !(n == 2 && mayBeTwice[id]) {
			w.t.Errorf("the row %s is on the stream %d times", id, n)
		}
		delete(times, id)
	}
	for id, n := range times {
		w.t.Errorf("the id %s was never committed and is on the stream %d times", id, n)
	}
	w.t.Logf("%d rows, %d of them may be there twice", len(rows), len(mayBeTwice))
}
