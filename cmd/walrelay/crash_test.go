package main

import (
	"fmt"
	"os"
	"strings"
	"sync/atomic"
	"testing"

	"github.com/stagedoor/walrelay/relay"
)

// The relay dies at each named step, some time that it comes there. The next one continues: nothing is lost, nothing twice, in order.
func TestRelayKilledAtEachStep(t *testing.T) {
	t.Parallel()
	for _, step := range []relay.Step{
		relay.StepAppend, relay.StepAppended, relay.StepMark, relay.StepMarked, relay.StepStamp, relay.StepStamped, relay.StepConfirm,
	} {
		times := []int{3}
		if os.Getenv("WALRELAY_TEST_LONG") != "" {
			times = []int{1, 2, 3, 7}
		}
		for _, times := range times {
			t.Run(fmt.Sprintf("%s-%d", step, times), func(t *testing.T) {
				t.Parallel()
				w := newWorld(t, worldOptions{})
				w.startRelay().streams()
				w.relays[0].stop()

				p := w.startRelayEnv([]string{execEnv + "=crash", crashEnv + "=" + fmt.Sprintf("%s:%d", step, times)})
				rounds := 0
				for alive := true; alive; {
					w.insert(fmt.Sprint("round ", rounds), 3)
					w.exec(`INSERT INTO outbox (kind, payload) SELECT 'many', to_jsonb(i) FROM generate_series(1, 1200) i`)
					rounds++
					select {
					case <-p.done:
						alive = false
					default:
						alive = rounds < 100 || !strings.HasPrefix(string(step), "append")
					}
				}
				if err := p.killedItself(); err != nil {
					t.Fatal(err)
				}
				w.insert("after", 3)
				w.startRelay().streams()
				w.insert("last", 3)
				w.verify(0)
				w.allMarked()
				w.confirmedPast()
			})
		}
	}
}

// The relay dies in each step of the first backfill, with rows in the table and
// rows being written. The next one does it again, and finds on the stream what
// was appended.
func TestRelayKilledInBackfill(t *testing.T) {
	t.Parallel()
	for _, step := range []relay.Step{
		relay.StepBackfillLocked, relay.StepBackfillBegun, relay.StepBackfillSlot, relay.StepBackfillAppended,
		relay.StepBackfillMarked, relay.StepBackfillFinished, relay.StepBackfillKept,
	} {
		t.Run(string(step), func(t *testing.T) {
			t.Parallel()
			w := newWorld(t, worldOptions{})
			w.exec(`INSERT INTO outbox (kind, payload) SELECT 'old', jsonb_build_object('n', i, 'é', 1.50) FROM generate_series(1, 1800) i`)
			p := w.startRelayEnv([]string{execEnv + "=crash", crashEnv + "=" + string(step) + ":1"})
			w.insert("meanwhile", 5)
			if err := p.killedItself(); err != nil {
				t.Fatal(err)
			}
			w.insert("after", 5)
			second := w.startRelay()
			second.streams()
			w.insert("last", 5)
			w.verify(1810)
			w.allMarked()
			w.confirmedPast()
			second.stop()
		})
	}
}

// The relay dies between its append and the reply: the reply is cut off and the
// relay killed while it waits.
func TestRelayKilledBetweenAppendAndReply(t *testing.T) {
	w := newWorld(t, worldOptions{})
	p := w.startRelay()
	p.streams()
	w.insert("before", 3)
	w.verify(0)

	var lost atomic.Bool
	w.toRedis.OnReply(func(piece []byte) bool {
		if strings.HasPrefix(string(piece), "*1\r\n:1\r\n") && !lost.Swap(true) {
			_ = p.cmd.Process.Kill()
			return true
		}
		return lost.Load() && isRunning(p)
	})
	w.insert("during", 3)
	if err := p.killedItself(); err != nil {
		t.Fatal(err)
	}
	if !lost.Load() {
		t.Fatal("no reply was cut off")
	}
	w.toRedis.OnReply(nil)
	w.startRelay().streams()
	w.insert("after", 3)
	w.verify(0)
	w.allMarked()
}

func isRunning(p *relayProcess) bool {
	select {
	case <-p.done:
		return false
	default:
		return true
	}
}
