package main

import (
	"errors"
	"testing"

	"github.com/stagedoor/walrelay/relay"
	"github.com/stagedoor/walrelay/slot"
)

// What a monitor knew of one server says nothing of the next one it reaches:
// rows seen there must not be held against what was confirmed here.
func TestTimelineIsOfTheMonitorsConnection(t *testing.T) {
	o := &observer{relay: relay.New(relay.Config{})}
	o.take(slot.Sample{Timeline: 1})
	if o.timeline != 1 {
		t.Errorf("the timeline is %d", o.timeline)
	}
	o.take(slot.Sample{Err: errors.New("away")})
	if o.timeline != 0 {
		t.Errorf("without a connection the timeline is %d", o.timeline)
	}
}
