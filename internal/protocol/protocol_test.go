package protocol

import (
	"os"
	"testing"
	"time"
)

// The bounds of an exploration, in states. One that has more of them is cut
// there, and has then seen all that lies nearer.
const (
	bound     = 150_000
	raceBound = 3_000
	longBound = 5_000_000
)

func most() int {
	if os.Getenv("WALRELAY_TEST_LONG") != "" {
		return longBound
	}
	if race { // which takes ten times as long, and nothing here runs at the same time
		return raceBound
	}
	return bound
}

var (
	relayFaults = []step{faultCrash, faultCut, faultAstray, faultStop}
	slotFaults  = []step{faultDropSlot, faultAdvance, faultRecreate, faultLost}
	redisFaults = []step{faultGoBack, faultEmpty, faultDelete}
	pgFaults    = []step{faultRestart, faultFailover, faultRestore}
)

func both(kinds ...[]step) (all []step) {
	for _, k := range kinds {
		all = append(all, k...)
	}
	return all
}

// worlds are what is explored.
var worlds = []settings{
	{name: "nothing goes wrong", relays: 1, delay: 1, ticks: 2, steady: true, rows: 2, pair: true, busy: 1},
	{name: "a first start", relays: 1, delay: 1, ticks: 3, before: 2, rows: 1, reread: true, witness: true},
	{name: "two relays start at once", relays: 2, delay: 1, ticks: 1, before: 1, rows: 1, faults: 1, kinds: relayFaults},
	{name: "a relay dies in a first start", relays: 1, delay: 1, ticks: 2, before: 1, rows: 1, faults: 1, kinds: relayFaults},
	{name: "Redis forgets in a first start", relays: 1, delay: 2, ticks: 2, before: 1, faults: 2, kinds: both(redisFaults, []step{faultCrash})},
	{name: "a relay dies while it streams", relays: 1, delay: 1, ticks: 1, steady: true, rows: 2, pair: true, faults: 2, kinds: relayFaults},
	{name: "two relays take turns", relays: 2, ticks: 1, steady: true, rows: 1, faults: 2, kinds: []step{faultCut, faultCrash}, first: true},
	{name: "Redis goes back a little", relays: 1, delay: 2, ticks: 3, steady: true, rows: 1, faults: 1, kinds: []step{faultGoBack}},
	{name: "Redis goes back twice, and replies are lost", relays: 1, delay: 1, ticks: 1, steady: true, rows: 1, faults: 3, kinds: []step{faultGoBack, faultAstray, faultCrash}},
	{name: "Redis and PostgreSQL forget", relays: 1, delay: 1, ticks: 2, steady: true, rows: 1, faults: 2, kinds: []step{faultGoBack, faultRestart, faultLock}},
	{name: "the slot goes", relays: 1, delay: 1, ticks: 2, steady: true, rows: 1, faults: 2, kinds: both(slotFaults, []step{faultCrash}), witness: true},
	{name: "the slot and Redis go", relays: 1, delay: 1, ticks: 1, steady: true, rows: 1, faults: 2, kinds: both(slotFaults, redisFaults, []step{faultRequest}), witness: true},
	{name: "an operator asks for a heal", relays: 2, delay: 1, ticks: 1, steady: true, rows: 1, faults: 2, kinds: []step{faultRequest, faultCut}, first: true},
	{name: "the primary is lost", relays: 1, delay: 1, ticks: 1, steady: true, rows: 2, faults: 1, kinds: pgFaults, witness: true},
	{name: "a volume is restored from before a heal", relays: 1, ticks: 1, steady: true, rows: 1, busy: 1, faults: 2, kinds: []step{faultRequest, faultRestore}},
	{name: "the primary is lost twice", relays: 1, ticks: 1, steady: true, rows: 2, faults: 2, kinds: []step{faultFailover}, witness: true},
	{name: "the publication is away", relays: 1, delay: 1, ticks: 2, steady: true, rows: 1, faults: 2, kinds: []step{faultHidden, faultCrash}, witness: true},
}

// Whatever happens in whatever order, up to the bounds: nothing is lost, nothing
// is there twice or out of order, only what was confirmed late enough is
// forgotten, nothing healthy is healed, and it comes to rest.
func TestEveryOrder(t *testing.T) {
	for _, s := range worlds {
		t.Run(s.name, func(t *testing.T) {
			t.Parallel()
			begin := time.Now()
			res := explore(&s, most())
			took := time.Since(begin).Round(time.Millisecond)
			if res.finding != nil {
				t.Fatalf("after %d steps, found in %d states:\n%s", len(res.finding.path), res.states, res.finding.tell(&s))
			}
			more := ""
			if res.cut {
				more = ", and there are more"
			}
			t.Logf("%d states within %d steps%s; %d on the way to rest; %d heals at most; %s",
				res.states, res.depth, more, res.restStates, res.heals, took)
		})
	}
}

// Each planted bug is found, and the shortest way to it is told; without it
// nothing is found there.
func TestPlantedBugsAreFound(t *testing.T) {
	for _, s := range planted {
		t.Run(string(s.bug), func(t *testing.T) {
			t.Parallel()
			res := explore(&s, longBound)
			if res.finding == nil {
				t.Fatalf("not found in %d states, within %d steps", res.states, res.depth)
			}
			t.Logf("found in %d states, after %d steps:\n%s", res.states, len(res.finding.path), res.finding.tell(&s))
			s.bug = ""
			if sound := explore(&s, res.states); sound.finding != nil {
				t.Errorf("and without it:\n%s", sound.finding.tell(&s))
			}
		})
	}
}
