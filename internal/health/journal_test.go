package health

import (
	"testing"
	"time"
)

// A start, and a connection that breaks and is there again, are over before they
// are worth a line. What is critical is said at once.
func TestJournalLetsWarningsSettle(t *testing.T) {
	var j Journal
	at := now
	step := func(after time.Duration, status Status) string {
		at = at.Add(after)
		e, ok := j.Step(at, Document{Status: status})
		switch {
		case !ok:
			return ""
		case e.Again:
			return "again " + string(e.Status) + " for " + duration(e.Lasted)
		}
		return string(e.Before) + " to " + string(e.Status) + " after " + duration(e.Lasted)
	}
	for i, c := range []struct {
		after  time.Duration
		status Status
		want   string
	}{
		{0, StatusWarn, ""},
		{2 * time.Second, StatusWarn, ""},
		{0, StatusOK, ""},
		{time.Second, StatusWarn, ""},
		{2 * time.Second, StatusWarn, ""},
		{time.Second, StatusWarn, "ok to warn after 6.0 s"},
		{time.Second, StatusWarn, ""},
		{time.Second, StatusCritical, "warn to critical after 2.0 s"},
		{time.Second, StatusWarn, ""},
		{time.Second, StatusCritical, ""},
		{5*time.Minute - 3*time.Second, StatusCritical, ""},
		{time.Second, StatusCritical, "again critical for 5 min"},
		{time.Second, StatusCritical, ""},
		{time.Second, StatusOK, "critical to ok after 5 min 2 s"},
		{time.Hour, StatusOK, ""},
	} {
		if got := step(c.after, c.status); got != c.want {
			t.Errorf("step %d: %q, want %q", i+1, got, c.want)
		}
	}
}
