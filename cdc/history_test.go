package cdc

import (
	"math"
	"slices"
	"testing"
)

func TestParseHistory(t *testing.T) {
	got, err := ParseHistory([]byte("1\t0/3000000\tno recovery target specified\n\n# a comment\n2\t1/A0\tbefore 2026-01-01\n"))
	if err != nil || !slices.Equal(got, History{{1, 0x3000000}, {2, 0x1000000A0}}) {
		t.Errorf("got %v, %v", got, err)
	}
	for _, bad := range []string{"x\t0/1", "1", "1\tnowhere"} {
		if _, err := ParseHistory([]byte(bad)); err == nil {
			t.Errorf("%q is read", bad)
		}
	}
}

func FuzzParseHistory(f *testing.F) {
	f.Add([]byte("1\t0/3000000\tno recovery target specified\n"))
	f.Fuzz(func(t *testing.T, content []byte) {
		h, err := ParseHistory(content)
		if err != nil {
			return
		}
		server := Server{Timeline: 9, History: h}
		server.Fork(&Checkpoint{Timeline: 1}) // does not panic
	})
}

func TestFork(t *testing.T) {
	for name, tc := range map[string]struct {
		server Server
		cp     Checkpoint
		want   LSN
	}{
		"the same":              {Server{Timeline: 1}, Checkpoint{Timeline: 1}, EndOfWAL},
		"promoted":              {Server{Timeline: 2, History: History{{1, 50}}}, Checkpoint{Timeline: 1}, 50},
		"promoted twice":        {Server{Timeline: 3, History: History{{1, 50}, {2, 70}}}, Checkpoint{Timeline: 1}, 50},
		"promoted once more":    {Server{Timeline: 3, History: History{{1, 50}, {2, 70}}}, Checkpoint{Timeline: 2, History: History{{1, 50}}}, 70},
		"another branch":        {Server{Timeline: 3, History: History{{1, 40}}}, Checkpoint{Timeline: 2, History: History{{1, 50}}}, 40},
		"another branch, later": {Server{Timeline: 3, History: History{{1, 60}}}, Checkpoint{Timeline: 2, History: History{{1, 50}}}, 50},
		"two that took one number": {
			Server{Timeline: 2, History: History{{1, 60}}}, Checkpoint{Timeline: 2, History: History{{1, 50}}}, 50,
		},
		"a history that is cut": {Server{Timeline: 9, History: History{{7, 50}, {8, 70}}}, Checkpoint{Timeline: 8}, 70},
		"nothing in common":     {Server{Timeline: 9, History: History{{1, 5}}}, Checkpoint{Timeline: 8, History: History{{7, 50}}}, 0},
	} {
		if got := tc.server.Fork(&tc.cp); got != tc.want {
			t.Errorf("%s: got %s, want %s", name, got, tc.want)
		}
	}
}

func TestCheckpointOnAnotherHistory(t *testing.T) {
	promoted := Server{Timeline: 2, History: History{{1, 50}}}
	cp := Checkpoint{Timeline: 1, Covered: 55, Last: Position{60, 3}, LastCommit: at(60, 7)}
	if !cp.LostOn(promoted) || cp.LostOn(Server{Timeline: 1}) {
		t.Error("rows at 0/3C are not lost beyond 0/32, or lost where they are")
	}
	here := cp.On(promoted)
	if here.Timeline != 2 || here.Covered != 50 || !slices.Equal(here.History, promoted.History) {
		t.Errorf("it counts as %+v", here)
	}
	r := NewResume(here, 40)
	if !r.Met() {
		t.Error("waits for a transaction that the server does not have")
	}
	if !r.Appended(Position{49, 17}) || r.Appended(Position{50, 0}) {
		t.Error("what is skipped does not end where the histories part")
	}
	// Once written, it counts the same.
	if again := here.On(promoted); again.Last != here.Last || again.Covered != here.Covered {
		t.Errorf("then it counts as %+v", again)
	}
	// What was appended before is resumed as ever.
	cp.Last, cp.LastCommit = Position{49, 3}, at(49, 7)
	if here := cp.On(promoted); cp.LostOn(promoted) || here.Last != cp.Last || NewResume(here, 40).Met() {
		t.Errorf("rows before the fork are not resumed: %+v", here)
	}
	// A server with another past altogether has nothing of it.
	other := Server{Timeline: 9, History: History{{1, 5}, {6, 9}}}
	cp.History = History{{7, 3}}
	cp.Timeline = 8
	if here := cp.On(other); !here.Last.IsZero() || here.Covered != 0 {
		t.Errorf("counts on a stranger: %+v", here)
	}
}

// The rows of a backfill have no positions: what was covered tells, or, before
// it is finished, nothing does.
func TestBackfilledRowsMayBeLostInAFailover(t *testing.T) {
	promoted := Server{Timeline: 2, History: History{{1, 50}}}
	for _, tt := range []struct {
		name string
		cp   Checkpoint
		want bool
	}{
		{"finished before the fork", Checkpoint{Timeline: 1, Phase: PhaseStreaming, Covered: 50}, false},
		{"finished beyond the fork", Checkpoint{Timeline: 1, Phase: PhaseStreaming, Covered: 51}, true},
		{"not finished", Checkpoint{Timeline: 1, Phase: PhaseBackfill}, true},
		{"not finished on this server", Checkpoint{Timeline: 2, History: promoted.History, Phase: PhaseBackfill}, false},
		{"of a newer timeline", Checkpoint{Timeline: 3, Phase: PhaseStreaming, Covered: 51}, false},
		{"streamed before the fork, and idle beyond it", Checkpoint{Timeline: 1, Phase: PhaseStreaming, Covered: 51, Last: Position{49, 1}}, false},
		{"streamed beyond the fork", Checkpoint{Timeline: 1, Phase: PhaseStreaming, Last: Position{50, 1}}, true},
	} {
		if got := tt.cp.MayHaveLostOn(promoted); got != tt.want {
			t.Errorf("%s: %t", tt.name, got)
		}
	}
}

func TestHistoryKeepsItsEnd(t *testing.T) {
	var h History
	for i := range uint32(100) {
		h = append(h, Switch{i + 1, LSN(i)})
	}
	got := h.Recent()
	if len(got) != historyKept || got[len(got)-1] != h[99] {
		t.Errorf("kept %v", got)
	}
	cp := Checkpoint{Timeline: 101, History: got}
	if fork := (Server{Timeline: 102, History: append(h, Switch{101, 500})}).Fork(&cp); fork != 500 {
		t.Errorf("the fork is %s", fork)
	}
	if math.MaxUint64 != uint64(EndOfWAL) {
		t.Error("there is an LSN beyond the end")
	}
}
