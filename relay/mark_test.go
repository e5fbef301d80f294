package relay

import (
	"context"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stagedoor/walrelay/cdc"
)

// locking is an outbox with one row that somebody holds until a moment.
type locking struct {
	Table
	takes  time.Duration // each statement
	until  time.Time
	marked time.Time // when the row was
}

// Mark implements Table.
func (l *locking) Mark(_ context.Context, rows []cdc.Mark) ([]cdc.MarkState, error) {
	time.Sleep(l.takes)
	states := make([]cdc.MarkState, len(rows))
	for i, m := range rows {
		switch {
		case m.ID != "held":
		case time.Now().Before(l.until):
			states[i] = cdc.MarkLocked
		default:
			l.marked = time.Now()
		}
	}
	return states, nil
}

// Locker implements Table.
func (l *locking) Locker(context.Context, string) (string, error) { return "somebody", nil }

// A row that was locked is marked when it is let go, also while rows keep
// coming: nothing beyond it is confirmed.
func TestLockedRowIsTriedAgainUnderLoad(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		table := &locking{until: time.Now().Add(10 * time.Second)}
		s := &streaming{
			Relay: New(Config{Table: table}), marks: newMarks(1 << 20),
			published: make(chan struct{}), marked: make(chan struct{}),
		}
		ended := make(chan error)
		go func() { ended <- s.mark(t.Context()) }()
		s.marks.add(cdc.Mark{ID: "held", LSN: 1})
		for i := range 1000 { // of 20 ms: 20 s
			s.marks.add(cdc.Mark{ID: "other", LSN: cdc.LSN(i + 2)})
			time.Sleep(20 * time.Millisecond)
		}
		close(s.published)
		if err := <-ended; err != nil {
			t.Fatal(err)
		}
		if late := table.marked.Sub(table.until); table.marked.IsZero() || late > time.Second {
			t.Errorf("the row was marked %s after it was let go", late)
		}
	})
}

// A statement that takes as long as it may is not a loop that stands still.
func TestMarkerBeatsDuringASlowStatement(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var longest time.Duration
		last := time.Now()
		beat := func() { longest, last = max(longest, time.Since(last)), time.Now() }
		s := &streaming{
			Relay: New(Config{
				Table: &locking{takes: 35 * time.Second},
				Loop:  func(string) (func(), func()) { return beat, func() {} },
			}),
			marks: newMarks(1 << 20), published: make(chan struct{}), marked: make(chan struct{}),
		}
		s.marks.add(cdc.Mark{ID: "slow", LSN: 1})
		close(s.published)
		began := time.Now()
		time.AfterFunc(20*time.Second, func() {
			if since := s.status.snapshot().MarksSince; !since.Equal(began) {
				t.Errorf("no row could be marked since %v, it says since %v", began, since)
			}
		})
		if err := s.mark(t.Context()); err != nil {
			t.Fatal(err)
		}
		if since := s.status.snapshot().MarksSince; !since.IsZero() {
			t.Errorf("it could be, and it says since %v", since)
		}
		if longest > 10*time.Second || time.Since(last) > time.Second {
			t.Errorf("no beat for %s", max(longest, time.Since(last)))
		}
	})
}
