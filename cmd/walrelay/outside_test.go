package main

import (
	"testing"
	"time"

	"github.com/stagedoor/walrelay/cdc"
)

// A relay whose clock is ahead is not taken for one that writes, for as long as
// its last checkpoint is of a time to come.
func TestAClockThatIsAheadIsNoSignOfLife(t *testing.T) {
	t.Parallel()
	now := time.Date(2026, 7, 31, 18, 0, 0, 0, time.UTC)
	for name, test := range map[string]struct {
		written time.Duration
		stamped bool
		still   time.Time
	}{
		"of now":               {0, true, now},
		"of a moment ago":      {-time.Second, true, now.Add(-time.Second)},
		"of long ago":          {-time.Minute, false, now.Add(-time.Minute)},
		"of a moment to come":  {time.Second, true, now},
		"of an hour to come":   {time.Hour, false, now},
		"just as late as that": {-stampsLate, false, now.Add(-stampsLate)},
	} {
		cp := &cdc.Checkpoint{WrittenAt: now.Add(test.written)}
		if got := stamped(cp, now, stampsLate); got != test.stamped {
			t.Errorf("%s: stamped is %v", name, got)
		}
		if got := stillSince(cp, now); !got.Equal(test.still) {
			t.Errorf("%s: it stands still since %v", name, got)
		}
	}
	covered := now.Add(-time.Hour)
	if got := stillSince(&cdc.Checkpoint{CoveredTime: covered}, now); !got.Equal(covered) {
		t.Errorf("without a time it stands still since %v", got)
	}
}
