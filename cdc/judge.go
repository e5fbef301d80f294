package cdc

import (
	"fmt"
	"strconv"
	"strings"
)

// Verdict is what a start, a reconnect or a conflict has to do next.
type Verdict int

// The verdicts.
const (
	// Stream: nothing is missing; stream, and skip what the checkpoint has.
	Stream Verdict = iota
	// Backfill: a first start, or one that was not finished.
	Backfill
	// StandBy: another process holds the slot; judge nothing.
	StandBy
	// Gap: rows may be missing, or the two sides do not belong together.
	Gap
)

func (v Verdict) String() string {
	return [...]string{"stream", "backfill", "stand by", "gap"}[v]
}

// Judgement is a verdict, why, and what an operator can do about a gap.
type Judgement struct {
	Verdict Verdict
	Reason  string
	Fix     string
}

// Judge compares what PostgreSQL and Redis hold. The slot has to be read before
// the checkpoint: read the other way round, a pair that is healthy and moving
// looks as if it had a gap. Nil stands for what is not there.
func Judge(server Server, slot *Slot, cp *Checkpoint, streams map[string]StreamState) Judgement {
	switch {
	case slot != nil && slot.Active:
		return Judgement{StandBy, fmt.Sprintf("the slot %q is in use by the PostgreSQL process %d", slot.Name, slot.ActivePID), ""}
	case cp == nil && slot == nil:
		return Judgement{Backfill, "there is neither a slot nor a checkpoint: a first start", ""}
	case cp == nil:
		return gap(slot, "the slot %q exists and Redis has no checkpoint for it: Redis lost its data, or is another one than before", slot.Name)
	case cp.Format != CheckpointFormat:
		return Judgement{Gap, fmt.Sprintf("the checkpoint has format %d, this release knows %d", cp.Format, CheckpointFormat), "run the release that wrote it, or a newer one"}
	case cp.Timeline != server.Timeline:
		return gap(slot, "the server is on timeline %d, the checkpoint was written on timeline %d: the database failed over or was restored", server.Timeline, cp.Timeline)
	case cp.Phase == PhaseBackfill:
		return Judgement{Backfill, "an earlier backfill was not finished", ""}
	case slot == nil && cp.Last.IsZero():
		return Judgement{Backfill, "an earlier backfill was finished, and its slot was not made permanent", ""}
	case slot == nil:
		return gap(slot, "the slot is gone: it was dropped, or the database failed over to a server without it")
	case slot.WALStatus == "lost":
		return gap(slot, "the slot %q is lost: PostgreSQL removed WAL that it still needed", slot.Name)
	case cp.Covered < slot.ConfirmedFlush:
		return gap(slot, "the slot %q is confirmed up to %s, the checkpoint covers rows up to %s: Redis went back in time, or the slot was moved or created anew", slot.Name, slot.ConfirmedFlush, cp.Covered)
	case cp.Covered > server.WALEnd:
		return gap(slot, "the checkpoint covers rows up to %s, the server's WAL ends at %s: the database lost its end or was restored", cp.Covered, server.WALEnd)
	}
	for name, last := range cp.LastIDs {
		state, asked := streams[name]
		if !asked {
			continue // of a stream that is no longer configured
		}
		if !state.Exists {
			return gap(slot, "the stream %q is gone, the checkpoint has its last entry as %s", name, last)
		}
		if compareIDs(state.LastID, last) < 0 {
			return gap(slot, "the stream %q ends at %s, the checkpoint has its last entry as %s", name, state.LastID, last)
		}
	}
	return Judgement{Stream, "the slot and the checkpoint agree", ""}
}

// startAnew is what repairs a slot and a checkpoint that do not belong together.
const startAnew = "stop walrelay, run `walrelay teardown` and start it again: it backfills the rows that are not marked as published"

func gap(slot *Slot, format string, args ...any) Judgement {
	fix := startAnew
	if slot == nil {
		fix = "run `walrelay teardown`, which forgets the checkpoint, and start again: it backfills the rows that are not marked as published"
	}
	return Judgement{Gap, fmt.Sprintf(format, args...), fix}
}

// compareIDs orders stream entry ids, MILLISECONDS-SEQUENCE. What cannot be
// read counts as 0-0.
func compareIDs(a, b string) int {
	am, as := splitID(a)
	bm, bs := splitID(b)
	return Position{LSN(am), as}.Compare(Position{LSN(bm), bs})
}

func splitID(id string) (ms, seq uint64) {
	m, s, _ := strings.Cut(id, "-")
	ms, _ = strconv.ParseUint(m, 10, 64)
	seq, _ = strconv.ParseUint(s, 10, 64)
	return ms, seq
}

// Conflict is what a refused append or stamp shows.
type Conflict int

// The conflicts.
const (
	// OwnSuccess: the version we tried to write is there; its reply was lost.
	OwnSuccess Conflict = iota
	// TakenOver: another relay has begun a backfill.
	TakenOver
	// Overtaken: another relay's last append arrived after we read.
	Overtaken
	// Forgotten: Redis went back in time, or lost everything.
	Forgotten
)

func (c Conflict) String() string {
	return [...]string{
		"our own append succeeded and its reply was lost",
		"another relay has begun a backfill",
		"an append of another relay arrived late",
		"Redis has forgotten what it had acknowledged",
	}[c]
}

// JudgeConflict says what the checkpoint in Redis, nil for none, means to the
// relay whose write of the tried version was refused. After anything but an
// OwnSuccess the relay has to judge anew, as at a start.
func JudgeConflict(tried Version, held *Checkpoint) Conflict {
	switch {
	case held == nil:
		return Forgotten
	case held.Version == tried:
		return OwnSuccess
	case held.Version.Instance == tried.Instance:
		return Forgotten
	case held.Phase == PhaseBackfill:
		return TakenOver
	default:
		return Overtaken
	}
}

// DeletedSince reports whether entries from the given id on may have been
// deleted from a stream, by XDEL or by trimming, as far as Redis tells.
func DeletedSince(s StreamState, id string) bool {
	if compareIDs(s.MaxDeletedID, id) >= 0 && compareIDs(s.MaxDeletedID, "0-0") > 0 {
		return true
	}
	return s.Added > s.Length && (s.FirstID == "" || compareIDs(s.FirstID, id) > 0)
}
