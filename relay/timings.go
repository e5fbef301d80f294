package relay

import (
	"time"

	"github.com/stagedoor/walrelay/cdc"
)

// Timings is told of what was appended. It is called where rows are carried, so
// it must neither wait nor cost more than a counter does.
type Timings interface {
	// Appended notes an append that succeeded, of rows that hold about so many
	// bytes. Those of a backfill count too.
	Appended(rows, bytes int)
	// Published notes how long a row was on its way to its stream: from its
	// commit, by PostgreSQL's clock, or, where it was polled, from its creation.
	// It is negative where that clock is ahead of ours by more. Rows of a backfill
	// were not on their way, and rows that went to the dead stream did not arrive.
	Published(latency time.Duration)
}

// noTimings takes no note.
type noTimings struct{}

func (noTimings) Appended(int, int)       {}
func (noTimings) Published(time.Duration) {}

// timeStreamed notes events of one append.
func timeStreamed(t Timings, events []cdc.Event) {
	t.Appended(len(events), bytesOf(events))
	now := time.Now()
	for i := range events {
		if ev := &events[i]; !ev.Dead && !ev.Commit.Time.IsZero() {
			t.Published(now.Sub(ev.Commit.Time))
		}
	}
}

// timeClaimed notes events of one append that were created then, each.
func timeClaimed(t Timings, events []cdc.Event, created []time.Time) {
	t.Appended(len(events), bytesOf(events))
	now := time.Now()
	for _, at := range created {
		if !at.IsZero() {
			t.Published(now.Sub(at))
		}
	}
}
