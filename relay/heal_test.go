package relay

import (
	"errors"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stagedoor/walrelay/cdc"
)

func gapOf(kind cdc.Kind) cdc.Judgement {
	return cdc.Judgement{Verdict: cdc.Gap, Kind: kind, Reason: "it is gone"}
}

// What is made anew again and again is not healed for ever. Streaming for a
// while in between, or another kind, makes it a new gap.
func TestHealsInARowWaitForAnOperator(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var h healer
		heal := func(kind cdc.Kind) {
			t.Helper()
			if err := h.mayHeal(gapOf(kind), false); err != nil {
				t.Fatal(err)
			}
			h.began(gapOf(kind), "token")
			h.healed()
		}
		heal(cdc.NoSlot)
		heal(cdc.NoSlot)
		err := h.mayHeal(gapOf(cdc.NoSlot), false)
		if err == nil || !permanent(err) || !strings.Contains(err.Error(), "walrelay heal") {
			t.Errorf("the third one is healed: %v", err)
		}
		heal(cdc.StreamMissing) // another one, which changes nothing about the first
		h.streamed(0)
		h.streamed(healSettled - time.Second)
		time.Sleep(time.Hour)
		if h.mayHeal(gapOf(cdc.NoSlot), false) == nil {
			t.Error("waiting is taken for streaming")
		}
		h.streamed(healSettled)
		heal(cdc.NoSlot)
		heal(cdc.NoSlot)
		if h.mayHeal(gapOf(cdc.NoSlot), false) == nil {
			t.Error("after a pause they are not counted any more")
		}
		// The operator's request is a backfill, not a gap, and is not a reason
		// to trust the next one.
		h.began(cdc.Judgement{Verdict: cdc.Backfill}, "the operator's")
		h.healed()
	})
}

func TestManualHealNamesTheCommand(t *testing.T) {
	var h healer
	if err := h.mayHeal(gapOf(cdc.NoSlot), true); !permanent(err) || !strings.Contains(err.Error(), "walrelay heal") {
		t.Errorf("got %v", err)
	}
}

// A backfill that PostgreSQL does not keep WAL for is not repeated for ever, but
// is when an operator asks for it.
func TestBackfillThatIsOutlivedWaitsForAnOperator(t *testing.T) {
	var h healer
	mine := &cdc.Checkpoint{Phase: cdc.PhaseBackfill, Token: "mine"}
	for range healsInARow {
		if err := h.mayRetry(mine); err != nil {
			t.Fatal(err)
		}
		h.began(cdc.Judgement{Verdict: cdc.Backfill}, "mine")
		h.outlived(errors.New("the temporary slot was gone"))
	}
	if err := h.mayRetry(mine); !permanent(err) || !strings.Contains(err.Error(), "max_slot_wal_keep_size") {
		t.Errorf("got %v", err)
	}
	if err := h.mayRetry(&cdc.Checkpoint{Phase: cdc.PhaseBackfill, Token: "the operator's"}); err != nil {
		t.Errorf("the operator is refused: %v", err)
	}
	h.healed()
	if err := h.mayRetry(mine); err != nil {
		t.Errorf("after a success: %v", err)
	}
}

// A doubt stays until an operator asks for what it is about.
func TestDoubtStaysUntilDecided(t *testing.T) {
	at := func(hour int) time.Time { return time.Date(2026, 1, 1, hour, 0, 0, 0, time.UTC) }
	since := func(hour int) cdc.Since { return cdc.Since{Time: at(hour)} }
	held := &cdc.Doubt{Reason: "Redis was emptied", Before: at(12)}
	with := func(d *cdc.Doubt, j cdc.Judgement) state {
		return state{Judgement: j, checkpoint: &cdc.Checkpoint{Doubt: d}}
	}
	deleted := func(d *cdc.Doubt, j cdc.Judgement) state {
		return state{
			Judgement:  j,
			checkpoint: &cdc.Checkpoint{Doubt: d, LastIDs: map[string]string{"jobs": "17-0"}},
			streams:    map[string]cdc.StreamState{"jobs": {}},
		}
	}
	gone := `the stream "jobs" is gone, the checkpoint has its last entry as 17-0`
	for name, tc := range map[string]struct {
		s     state
		since cdc.Since
		want  *cdc.Doubt
	}{
		"nothing to doubt":         {with(nil, gapOf(cdc.NoSlot)), since(10), nil},
		"Redis was emptied":        {state{Judgement: gapOf(cdc.NoCheckpoint)}, since(10), &cdc.Doubt{Reason: "it is gone", Before: at(10)}},
		"the stream was deleted":   {deleted(nil, gapOf(cdc.StreamMissing)), since(10), &cdc.Doubt{Reason: gone, Before: at(10)}},
		"it and the slot were":     {deleted(nil, gapOf(cdc.NoSlot)), since(10), &cdc.Doubt{Reason: gone, Before: at(10)}},
		"during a backfill":        {deleted(nil, cdc.Judgement{Verdict: cdc.Backfill}), since(10), &cdc.Doubt{Reason: gone, Before: at(10)}},
		"in the middle of a heal":  {state{Judgement: cdc.Judgement{Verdict: cdc.Backfill}}, since(10), &cdc.Doubt{Reason: "Redis lost its data while rows were backfilled", Before: at(10)}},
		"a first start":            {state{Judgement: cdc.Judgement{Verdict: cdc.Backfill}}, cdc.Since{Time: at(10), First: true}, nil},
		"another heal does not":    {with(held, gapOf(cdc.NoSlot)), since(12), held},
		"a later one neither":      {with(held, gapOf(cdc.NoSlot)), since(13), held},
		"an operator's does":       {with(held, cdc.Judgement{Verdict: cdc.Backfill}), since(11), nil},
		"the next one comes later": {deleted(held, gapOf(cdc.StreamMissing)), since(13), &cdc.Doubt{Reason: gone, Before: at(13)}},
	} {
		got := doubt(tc.s, tc.since)
		if (got == nil) != (tc.want == nil) || got != nil && *got != *tc.want {
			t.Errorf("%s: got %+v, want %+v", name, got, tc.want)
		}
	}
}

// A gap that was found outlives another relay's turn, and not a backfill.
func TestGapThatWasFoundStaysOpen(t *testing.T) {
	gap := &GapError{Kind: cdc.RowsMissed, Err: errors.New("rows were missed")}
	h := healer{found: gap, generation: 3}
	for range 2 {
		if h.stillOpen(&cdc.Checkpoint{Generation: 3}) != gap || h.stillOpen(nil) != gap {
			t.Error("it is forgotten")
		}
	}
	if h.stillOpen(&cdc.Checkpoint{Generation: 4}) != nil {
		t.Error("it is healed again")
	}
}
