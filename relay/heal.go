package relay

import (
	"errors"
	"fmt"
	"time"

	"github.com/stagedoor/walrelay/cdc"
	"github.com/stagedoor/walrelay/internal/fault"
)

const (
	// healsInARow is how often a gap of one kind is healed before an operator
	// has to look: something makes it anew.
	healsInARow = 2
	// healSettled is how long it has to stream so that what was healed before is
	// another story.
	healSettled = time.Minute
)

var (
	// ErrOutlived says that the server took the temporary slot back before the
	// backfill was finished.
	ErrOutlived = errors.New("the backfill took longer than PostgreSQL keeps WAL for it")
	// ErrNotDelivered says that the slot cannot be asked what it has.
	ErrNotDelivered = errors.New("the slot does not deliver")
)

// GapError says that rows may be missing, as found out while streaming: slot
// and checkpoint by themselves look as if they agreed.
type GapError struct {
	Kind cdc.Kind
	Err  error
}

func (e *GapError) Error() string { return e.Err.Error() }
func (e *GapError) Unwrap() error { return e.Err }

// otherHistory makes a gap of WAL that does not have the checkpoint's last
// transaction.
func otherHistory(err error) error { return &GapError{Kind: cdc.OtherHistory, Err: err} }

// healer decides whether a gap is healed now. It belongs to the goroutine of
// Run.
type healer struct {
	// found is a gap that slot and checkpoint do not show, of the generation that
	// was streamed. It is kept until a backfill has begun, also while another
	// relay streams: that one may not get to heal it either, before it hands the
	// slot on.
	found      *GapError
	generation uint64

	counts map[cdc.Kind]int // of heals, since it last streamed for long enough

	token string // of the last backfill that this relay began
	lost  int    // of backfills in a row that PostgreSQL did not wait for
	why   error  // the last one's end
}

// stillOpen returns the gap that was found, nil when there is none, or when
// another relay has backfilled since.
func (h *healer) stillOpen(cp *cdc.Checkpoint) *GapError {
	if h.found != nil && cp != nil && cp.Generation != h.generation {
		h.found = nil
	}
	return h.found
}

// mayHeal refuses what waits for an operator.
func (h *healer) mayHeal(j cdc.Judgement, manual bool) error {
	if manual {
		return WaitsForHeal(j)
	}
	if n := h.counts[j.Kind]; n >= healsInARow {
		return &fault.Error{
			Problem: fmt.Sprintf("%s; that was healed %d times in a row, and something makes it anew", j.Reason, n),
			Fix:     "find out what (such as maxmemory-policy other than noeviction, or a job that drops slots), and run `walrelay heal`",
		}
	}
	return nil
}

// WaitsForHeal is the fault of a gap that is healed only when an operator asks
// for it.
func WaitsForHeal(j cdc.Judgement) error {
	return &fault.Error{
		Problem: j.Reason,
		Fix:     "run `walrelay heal`: it publishes again what the stream lacks, and streams on (with --heal=auto the relay does so by itself)",
	}
}

// mayRetry refuses to repeat a backfill that cannot end in time, until an
// operator asks for it, which gives it another token.
func (h *healer) mayRetry(cp *cdc.Checkpoint) error {
	if h.lost < healsInARow || cp == nil || cp.Token != h.token {
		return nil
	}
	return &fault.Error{
		Problem: fmt.Sprintf("%d backfills in a row were not finished", h.lost),
		Err:     h.why,
		Fix:     "raise max_slot_wal_keep_size, SELECT pg_reload_conf(); and run `walrelay heal`",
	}
}

// began notes the backfill that the checkpoint now names.
func (h *healer) began(j cdc.Judgement, token string) {
	h.token, h.found = token, nil
	if j.Verdict == cdc.Gap {
		if h.counts == nil {
			h.counts = map[cdc.Kind]int{}
		}
		h.counts[j.Kind]++
	}
}

// streamed notes that a connection worked for so long, or not at all.
func (h *healer) streamed(worked time.Duration) {
	if worked >= healSettled {
		h.counts = nil
	}
}

// trouble is what went wrong with the backfill that is tried again, empty for
// nothing.
func (h *healer) trouble() string {
	if h.why == nil {
		return ""
	}
	return "an earlier try was not finished: " + h.why.Error()
}

// healed notes that the backfill is done.
func (h *healer) healed() { h.lost, h.why = 0, nil }

// outlived notes that the backfill took too long.
func (h *healer) outlived(err error) {
	h.lost++
	h.why = err
}

// doubt is what a heal cannot know: after Redis lost the stream or all it knew
// of the source, which of the rows that were marked long before it has lost. It
// stays until an operator decides, by asking for more or by accepting it.
func doubt(s state, since cdc.Since) *cdc.Doubt {
	var before *cdc.Doubt
	if s.checkpoint != nil {
		before = s.checkpoint.Doubt
	}
	switch {
	case s.Kind == cdc.NoCheckpoint:
		return &cdc.Doubt{Reason: s.Reason, Before: since.Time}
	case s.checkpoint == nil && !since.First:
		// It looks like a first start, but this process has begun a backfill that
		// was none.
		return &cdc.Doubt{Reason: "Redis lost its data while rows were backfilled", Before: since.Time}
	}
	// It may be gone whatever the verdict goes by: another kind of gap that is
	// seen first, or a backfill that was under way when it went.
	if s.checkpoint != nil {
		if lost, ok := cdc.LostStream(s.checkpoint, s.streams); ok {
			return &cdc.Doubt{Reason: lost.Reason, Before: since.Time}
		}
	}
	switch {
	case before == nil:
		return nil
	case before.Before.IsZero(): // whoever asked for the heal did not know
		return &cdc.Doubt{Reason: before.Reason, Before: since.Time}
	case since.Time.Before(before.Before):
		return nil // that is what was asked for
	}
	return before
}

// Unfit makes a fault of a server and a checkpoint that do not go together.
func Unfit(err error) error {
	if errors.Is(err, cdc.ErrBehind) {
		return err // it catches up
	}
	fix := "run the release that wrote it, or a newer one"
	if errors.Is(err, cdc.ErrOldTimeline) {
		fix = "connect to the primary: name all hosts in --postgres, with target_session_attrs=read-write; if this is the right one, since the newer one is given up: `walrelay heal`"
	}
	if errors.Is(err, cdc.ErrStandby) {
		fix = "connect to the primary: name all hosts in --postgres, with target_session_attrs=read-write; to stream from this one instead, run `walrelay teardown` on the primary first"
	}
	return &fault.Error{Problem: err.Error(), Fix: fix}
}
