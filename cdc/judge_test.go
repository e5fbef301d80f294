package cdc

import (
	"errors"
	"slices"
	"strings"
	"testing"
)

func TestJudge(t *testing.T) {
	history := History{{1, 300}, {2, 400}}
	server := Server{SystemID: "1", Timeline: 3, History: history, WALEnd: 1000}
	slot := func(change func(*Slot)) *Slot {
		s := &Slot{Name: "walrelay", ConfirmedFlush: 500, WALStatus: "reserved"}
		if change != nil {
			change(s)
		}
		return s
	}
	cp := func(change func(*Checkpoint)) *Checkpoint {
		c := &Checkpoint{
			Format: 1, Timeline: 3, History: history, Phase: PhaseStreaming, Covered: 500, Last: Position{490, 0},
			LastIDs: map[string]string{"jobs": "17-3"},
		}
		if change != nil {
			change(c)
		}
		return c
	}
	jobs := func(id string) map[string]StreamState {
		return map[string]StreamState{"jobs": {Exists: id != "", LastID: id}}
	}
	for name, tc := range map[string]struct {
		slot    *Slot
		cp      *Checkpoint
		streams map[string]StreamState
		want    Verdict
		reason  string
	}{
		"in agreement":                       {slot(nil), cp(nil), jobs("17-3"), Stream, ""},
		"the stream went on":                 {slot(nil), cp(nil), jobs("18-0"), Stream, ""},
		"covered ahead of confirmed":         {slot(nil), cp(func(c *Checkpoint) { c.Covered = 1000 }), jobs("17-3"), Stream, ""},
		"another stream's id":                {slot(nil), cp(func(c *Checkpoint) { c.LastIDs["old"] = "99-0" }), jobs("17-3"), Stream, ""},
		"first start":                        {nil, nil, nil, Backfill, "first start"},
		"backfill unfinished":                {nil, cp(func(c *Checkpoint) { c.Phase = PhaseBackfill }), jobs(""), Backfill, "not finished"},
		"backfill with a slot left":          {slot(nil), cp(func(c *Checkpoint) { c.Phase = PhaseBackfill }), jobs(""), Backfill, "not finished"},
		"slot not made permanent":            {nil, cp(func(c *Checkpoint) { c.Since = &Since{} }), jobs("17-3"), Backfill, "made permanent"},
		"slot in use":                        {slot(func(s *Slot) { s.Active, s.ActivePID = true, 77 }), nil, nil, StandBy, "process 77"},
		"in use and lost":                    {slot(func(s *Slot) { s.Active = true; s.WALStatus = "lost" }), cp(nil), jobs(""), StandBy, ""},
		"slot gone":                          {nil, cp(nil), jobs("17-3"), Gap, "slot is gone"},
		"no checkpoint":                      {slot(nil), nil, jobs(""), Gap, "no checkpoint"},
		"lost":                               {slot(func(s *Slot) { s.WALStatus = "lost" }), cp(nil), jobs("17-3"), Gap, "lost"},
		"slot of the last backfill":          {slot(nil), cp(func(c *Checkpoint) { c.Consistent, c.Last = 500, Position{} }), jobs("17-3"), Stream, ""},
		"slot from before the last backfill": {slot(nil), cp(func(c *Checkpoint) { c.Consistent, c.Last = 501, Position{} }), jobs("17-3"), Gap, "made it at 0/1F5"},
		"covered behind confirmed":           {slot(nil), cp(func(c *Checkpoint) { c.Covered = 499 }), jobs("17-3"), Gap, "confirmed up to 0/1F4"},
		"covered beyond the WAL":             {slot(nil), cp(func(c *Checkpoint) { c.Covered = 1001 }), jobs("17-3"), Gap, "WAL ends at 0/3E8"},
		"appended beyond the WAL":            {slot(nil), cp(func(c *Checkpoint) { c.Last = Position{1000, 0} }), jobs("17-3"), Gap, "WAL ends at 0/3E8"},
		"appended to its end":                {slot(nil), cp(func(c *Checkpoint) { c.Last = Position{999, 7} }), jobs("17-3"), Stream, ""},
		"stream gone":                        {slot(nil), cp(nil), jobs(""), Gap, `"jobs" is gone`},
		"stream made anew": {slot(nil), cp(func(c *Checkpoint) { c.Added = map[string]int64{"jobs": 8} }), map[string]StreamState{
			"jobs": {Exists: true, LastID: "99-0", Added: 7},
		}, Gap, "made anew"},
		"stream of a server that says less": {slot(nil), cp(func(c *Checkpoint) { c.Added = map[string]int64{"jobs": 8} }), jobs("99-0"), Stream, ""},
		"stream ends before":                {slot(nil), cp(nil), jobs("17-2"), Gap, "ends at 17-2"},
		"stream ends before, in time":       {slot(nil), cp(nil), jobs("9-9"), Gap, "ends at 9-9"},
		"failed over": {slot(func(s *Slot) { s.ConfirmedFlush = 400 }), cp(func(c *Checkpoint) {
			c.Timeline, c.History = 2, history[:1]
		}), jobs("17-3"), Stream, ""},
		"failed over, slot ahead of what it covers": {slot(func(s *Slot) { s.ConfirmedFlush = 401 }), cp(func(c *Checkpoint) {
			c.Timeline, c.History = 2, history[:1]
		}), jobs("17-3"), Gap, "covers rows up to 0/190"},
		"failed over without the slot": {nil, cp(func(c *Checkpoint) { c.Timeline, c.History = 2, history[:1] }), jobs("17-3"), Gap, "slot is gone"},
		"a standby, promoted": {slot(func(s *Slot) { s.ConfirmedFlush = 400 }), cp(func(c *Checkpoint) {
			c.Timeline, c.History, c.Standby = 2, history[:1], true
		}), jobs("17-3"), Gap, "promoted at 0/190"},
		"a standby, promoted while idle": {slot(func(s *Slot) { s.ConfirmedFlush = 400 }), cp(func(c *Checkpoint) {
			c.Timeline, c.History, c.Standby, c.Last = 2, history[:1], true, Position{399, 0}
		}), jobs("17-3"), Stream, ""},
	} {
		t.Run(name, func(t *testing.T) {
			got, err := Judge(server, tc.slot, tc.cp, tc.streams)
			if err != nil || got.Verdict != tc.want || !strings.Contains(got.Reason, tc.reason) {
				t.Errorf("got %v: %s, %v; want %v with %q", got.Verdict, got.Reason, err, tc.want, tc.reason)
			}
			if (got.Verdict == Gap) != slices.Contains(Kinds, got.Kind) {
				t.Errorf("%v is of the kind %q", got.Verdict, got.Kind)
			}
		})
	}
	replica := server
	replica.Standby = true
	standby := func(change func(*Checkpoint)) *Checkpoint {
		return cp(func(c *Checkpoint) { c.Standby = true; change(c) })
	}
	for name, tc := range map[string]struct {
		server Server
		cp     *Checkpoint
		want   error
	}{
		"a standby, written from the primary": {replica, cp(nil), ErrStandby},
		"a backfill of the primary":           {replica, cp(func(c *Checkpoint) { c.Phase = PhaseBackfill }), ErrStandby},
		"a copy of the primary's slot":        {replica, nil, ErrStandby},
		"a standby that is behind":            {replica, standby(func(c *Checkpoint) { c.Covered = 1001 }), ErrBehind},
		"a standby that is not":               {replica, standby(func(*Checkpoint) {}), nil},
		"one that has yet to replay a row":    {replica, standby(func(c *Checkpoint) { c.Last = Position{1001, 0} }), nil},
		"older timeline":                      {server, cp(func(c *Checkpoint) { c.Timeline = 4 }), ErrOldTimeline},
		"older, and backfilled then":          {server, cp(func(c *Checkpoint) { c.Timeline, c.Phase = 4, PhaseBackfill }), ErrOldTimeline},
		"another format":                      {server, cp(func(c *Checkpoint) { c.Format = 2 }), ErrFormat},
	} {
		if _, err := Judge(tc.server, slot(nil), tc.cp, jobs("17-3")); !errors.Is(err, tc.want) {
			t.Errorf("%s: got %v", name, err)
		}
	}
}

func TestJudgeConflict(t *testing.T) {
	tried := Version{"a", 7}
	for name, tc := range map[string]struct {
		held *Checkpoint
		want Conflict
	}{
		"the reply was lost":  {&Checkpoint{Version: Version{"a", 7}}, OwnSuccess},
		"nothing is there":    {nil, Forgotten},
		"an older one of us":  {&Checkpoint{Version: Version{"a", 5}}, Forgotten},
		"a backfill":          {&Checkpoint{Version: Version{"b", 7}, Phase: PhaseBackfill}, TakenOver},
		"a predecessor's end": {&Checkpoint{Version: Version{"b", 7}, Phase: PhaseStreaming}, Overtaken},
	} {
		if got := JudgeConflict(tried, tc.held); got != tc.want {
			t.Errorf("%s: got %v, want %v", name, got, tc.want)
		}
	}
}

func TestDeletedSince(t *testing.T) {
	for name, tc := range map[string]struct {
		s    StreamState
		want bool
	}{
		"nothing ever":            {StreamState{FirstID: "100-0", Length: 5, Added: 5, MaxDeletedID: "0-0"}, false},
		"deleted before":          {StreamState{FirstID: "10-0", Length: 5, Added: 6, MaxDeletedID: "49-9"}, false},
		"deleted in it":           {StreamState{FirstID: "10-0", Length: 5, Added: 6, MaxDeletedID: "50-0"}, true},
		"trimmed before":          {StreamState{FirstID: "40-0", Length: 5, Added: 9, MaxDeletedID: "0-0"}, false},
		"trimmed into it":         {StreamState{FirstID: "60-0", Length: 5, Added: 9, MaxDeletedID: "0-0"}, true},
		"all gone":                {StreamState{Length: 0, Added: 9}, true},
		"a server that says less": {StreamState{FirstID: "60-0", Length: 5}, false},
	} {
		if got := DeletedSince(tc.s, "50-0"); got != tc.want {
			t.Errorf("%s: got %v", name, got)
		}
	}
	for name, tc := range map[string]struct {
		s    StreamState
		want string
	}{
		"nothing":                 {StreamState{FirstID: "100-0", LastID: "200-0", Length: 5, Added: 5, MaxDeletedID: "0-0"}, ""},
		"deleted in it":           {StreamState{FirstID: "10-0", LastID: "200-0", Length: 5, Added: 6, MaxDeletedID: "60-0"}, "60-0"},
		"trimmed into it":         {StreamState{FirstID: "70-0", LastID: "200-0", Length: 5, Added: 9, MaxDeletedID: "60-0"}, "70-0"},
		"all gone":                {StreamState{LastID: "200-0", Added: 9, MaxDeletedID: "60-0"}, "200-0"},
		"a server that says less": {StreamState{FirstID: "60-0", LastID: "200-0", Length: 5}, "200-0"},
		"no entry ever":           {StreamState{LastID: "0-0"}, ""},
	} {
		if got := DeletedUpTo(tc.s, "50-0"); got != tc.want {
			t.Errorf("%s: deleted up to %q, want %q", name, got, tc.want)
		}
	}
}
