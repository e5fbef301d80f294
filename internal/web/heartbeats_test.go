package web

import (
	"sync"
	"testing"
	"testing/synctest"
	"time"
)

func wantLive(t *testing.T, h *Heartbeats, want string) {
	t.Helper()
	ok, detail := h.Live()
	if ok != (want == "") || detail != want {
		t.Errorf("live %t, %q; want %q", ok, detail, want)
	}
}

func TestLoopsThatStoppedTurningAreNamed(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		h := NewHeartbeats()
		time.Sleep(time.Hour)
		wantLive(t, h, "")

		receiver := h.Register("receiver")
		publisher := h.Register("publisher")
		time.Sleep(LoopLimit)
		wantLive(t, h, "") // at the limit

		receiver.Beat()
		time.Sleep(time.Nanosecond)
		wantLive(t, h, "loop publisher has not turned for 30 s")

		time.Sleep(LoopLimit + time.Second)
		wantLive(t, h, "loop publisher has not turned for 61 s; loop receiver has not turned for 31 s")

		publisher.Beat() // turns again
		wantLive(t, h, "loop receiver has not turned for 31 s")

		receiver.Done() // ended, so that it need not turn
		wantLive(t, h, "")
		receiver.Done()
		receiver.Beat()
		wantLive(t, h, "")
	})
}

func TestLoopsOfOneName(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		h := NewHeartbeats()
		first, second := h.Register("marker"), h.Register("marker")
		time.Sleep(LoopLimit + time.Second)
		first.Beat()
		wantLive(t, h, "loop marker has not turned for 31 s")
		second.Done()
		wantLive(t, h, "")
	})
}

func TestBeatAllocatesNothing(t *testing.T) {
	l := NewHeartbeats().Register("loop")
	if n := testing.AllocsPerRun(100, l.Beat); n != 0 {
		t.Errorf("%v allocations a beat", n)
	}
}

// For the race detector.
func TestHeartbeatsOfManyLoops(t *testing.T) {
	h := NewHeartbeats()
	var loops sync.WaitGroup
	for range 8 {
		loops.Go(func() {
			l := h.Register("loop")
			defer l.Done()
			for range 100 {
				l.Beat()
				wantLive(t, h, "")
			}
		})
	}
	loops.Wait()
	if len(h.loops) != 0 {
		t.Errorf("%d loops are left", len(h.loops))
	}
}
