package relay

import (
	"slices"
	"testing"
	"time"

	"github.com/stagedoor/walrelay/cdc"
)

// noted keeps what it is told.
type noted struct {
	rows, bytes int
	latencies   []time.Duration
}

func (n *noted) Appended(rows, bytes int) { n.rows, n.bytes = n.rows+rows, n.bytes+bytes }
func (n *noted) Published(latency time.Duration) {
	n.latencies = append(n.latencies, latency.Round(time.Minute))
}

// Rows that were read from the table were not on their way, and rows that were
// skipped did not arrive.
func TestLatencyIsOfRowsThatArrive(t *testing.T) {
	now := time.Now()
	committed := func(ago time.Duration) cdc.Event {
		return cdc.Event{Commit: cdc.Commit{Time: now.Add(-ago)}, Bytes: 10}
	}
	dead := committed(time.Hour)
	dead.Dead = true
	var got noted
	timeStreamed(&got, []cdc.Event{committed(2 * time.Minute), {Bytes: 1}, dead, committed(0), committed(-5 * time.Minute)})
	if want := []time.Duration{2 * time.Minute, 0, -5 * time.Minute}; !slices.Equal(got.latencies, want) || got.rows != 5 || got.bytes != 41 {
		t.Errorf("noted %+v, want %v", got, want)
	}

	got = noted{}
	timeClaimed(&got, []cdc.Event{{Bytes: 1}, {Bytes: 1}}, []time.Time{{}, now.Add(-time.Minute)})
	if want := []time.Duration{time.Minute}; !slices.Equal(got.latencies, want) || got.rows != 2 || got.bytes != 2 {
		t.Errorf("noted %+v, want %v", got, want)
	}
}
