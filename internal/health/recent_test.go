package health

import (
	"fmt"
	"testing"
	"time"
)

func TestRecentKeepsTheLastTransitionsOfTheJournal(t *testing.T) {
	var (
		journal Journal
		recent  Recent
		now     = time.Date(2026, 11, 29, 12, 0, 0, 0, time.UTC)
	)
	step := func(d Document) {
		if e, ok := journal.Step(now, d); ok {
			recent.Keep(now, e, d)
		}
		now = now.Add(time.Minute)
	}
	cause := "Redis is away."
	for i := range 40 {
		reason := fmt.Sprintf("reason %d", i)
		for range 7 { // said again after five minutes, which is no transition
			step(Document{Status: StatusCritical, Reasons: []string{reason}, Cause: &cause})
		}
		step(Document{Status: StatusOK})
	}
	list := recent.List()
	if len(list) != recentMost {
		t.Fatalf("%d transitions are kept, want %d", len(list), recentMost)
	}
	last, before := list[0], list[1]
	if last.Status != StatusOK || last.Before != StatusCritical || last.Reason != nil || last.Lasted != 7*60 || !last.At.Equal(now.Add(-time.Minute)) {
		t.Errorf("the last one is %+v", last)
	}
	if before.Status != StatusCritical || before.Before != StatusOK || before.Lasted != 60 || *before.Reason != "reason 39" || *before.Cause != cause {
		t.Errorf("the one before is %+v", before)
	}
	if oldest := list[recentMost-1]; oldest.Status != StatusCritical || *oldest.Reason != "reason 15" {
		t.Errorf("the oldest is %+v", oldest)
	}
	list[0].Status = StatusWarn
	if recent.List()[0].Status != StatusOK {
		t.Error("the list is no copy")
	}
}
