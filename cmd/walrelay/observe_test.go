package main

import (
	"testing"
	"time"

	"github.com/stagedoor/walrelay/internal/health"
	"github.com/stagedoor/walrelay/outbox"
	"github.com/stagedoor/walrelay/relay"
)

// A relay that does not read hangs up before PostgreSQL's checkpoint has to wait
// for it. One that reads, and only has to wait for Redis in between, stays.
func TestOnlyARelayThatReadsNothingHangsUpForTheCheckpoint(t *testing.T) {
	t.Parallel()
	now := time.Date(2026, 8, 1, 12, 0, 0, 0, time.UTC)
	ago := func(d time.Duration) time.Time { return now.Add(-d) }
	for _, c := range []struct {
		name      string
		unread    bool
		connected time.Time
		received  time.Time
		status    string
		hangsUp   bool
	}{
		{"it reads nothing, and the slot is about to be lost", true, ago(time.Hour), ago(5 * time.Second), "unreserved", true},
		{"it reads nothing, and the slot is lost", true, ago(time.Hour), ago(time.Minute), "lost", true},
		{"it has never read anything", true, ago(time.Minute), time.Time{}, "unreserved", true},
		{"its queue is full at the moment", true, ago(time.Hour), ago(time.Second), "unreserved", false},
		{"it has just connected", true, ago(time.Second), time.Time{}, "unreserved", false},
		{"it would read, and nothing comes", false, ago(time.Hour), ago(10 * time.Second), "unreserved", false},
		{"the slot is safe", true, ago(time.Hour), ago(time.Minute), "extended", false},
		{"there is no slot", true, ago(time.Hour), ago(time.Minute), "", false},
	} {
		var slot *health.Slot
		if c.status != "" {
			slot = &health.Slot{WALStatus: c.status}
		}
		s := relay.Status{Role: relay.RoleStreaming, Unread: c.unread, Connected: c.connected, LastReceive: c.received}
		if got := standsInTheWay(s, now, slot); got != c.hangsUp {
			t.Errorf("%s: it hangs up is %t, want %t", c.name, got, c.hangsUp)
		}
	}
}

// A relay that holds rows knows their age, also while nobody can look at the
// table; one that holds none does not know of the table's.
func TestAgeIsKnownOfRowsThatTheRelayHolds(t *testing.T) {
	t.Parallel()
	now := time.Now()
	unseen, seen := observer{}, observer{age: time.Hour, ageAt: now}
	for _, c := range []struct {
		name   string
		o      *observer
		status relay.Status
		marks  outbox.MarkMode
		want   float64 // seconds; -1 for not known
	}{
		{"a row is held, and the table is not seen", &unseen, relay.Status{Role: relay.RoleStreaming, Oldest: now.Add(-time.Minute)}, outbox.MarkPublishedAt, 60},
		{"none is held", &unseen, relay.Status{Role: relay.RoleStreaming}, outbox.MarkPublishedAt, -1},
		{"none is held, and there is nothing to be seen", &unseen, relay.Status{Role: relay.RoleStreaming}, outbox.MarkNone, 0},
		{"the table has an older one", &seen, relay.Status{Role: relay.RoleStreaming, Oldest: now.Add(-time.Minute)}, outbox.MarkPublishedAt, 3600},
		{"left from another connection", &unseen, relay.Status{Role: relay.RoleStandby, Oldest: now.Add(-time.Minute)}, outbox.MarkPublishedAt, -1},
	} {
		got := -1.0
		if age := c.o.oldest(now, c.status, c.marks); age != nil {
			got = *age
		}
		if got != c.want {
			t.Errorf("%s: %v s, want %v", c.name, got, c.want)
		}
	}
}
