package cdc

import (
	"errors"
	"fmt"
	"maps"
	"slices"
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

// Kind names what is wrong in a gap.
type Kind string

// The kinds of gaps.
const (
	NoCheckpoint   Kind = "no_checkpoint"   // Redis lost its data, or is another one
	NoSlot         Kind = "no_slot"         // dropped, or left behind in a failover
	SlotLost       Kind = "slot_lost"       // PostgreSQL removed WAL that it needed
	NotCovered     Kind = "not_covered"     // Redis went back, or the slot was moved
	BeyondWAL      Kind = "beyond_wal"      // PostgreSQL lost the end of its WAL
	OtherHistory   Kind = "history"         // the checkpoint's transaction was not met, or the slot is older than it
	Promoted       Kind = "promoted"        // a standby was, while it was streamed from
	StreamMissing  Kind = "stream_missing"  // deleted, or evicted
	StreamBehind   Kind = "stream_behind"   // it ends below the checkpoint's last id, or was made anew
	NoPublication  Kind = "publication"     // it was away while rows were written
	RowsMissed     Kind = "missed"          // confirmed, and not marked
	ForeignEntries Kind = "foreign_entries" // more of them than fit into memory
)

// Kinds are all kinds of gaps.
var Kinds = []Kind{
	NoCheckpoint, NoSlot, SlotLost, NotCovered, BeyondWAL, OtherHistory, Promoted,
	StreamMissing, StreamBehind, NoPublication, RowsMissed, ForeignEntries,
}

// Judgement is a verdict and why. Only a gap has a kind.
type Judgement struct {
	Verdict Verdict
	Kind    Kind
	Reason  string
}

// ErrOldTimeline says that the server is one that was failed over from.
var ErrOldTimeline = errors.New("the server is on an older timeline than the checkpoint")

// ErrStandby says that the server is a standby, and the checkpoint was written
// from its primary.
var ErrStandby = errors.New("the server is a standby of the one that the checkpoint was written from")

// ErrBehind says that a standby has yet to replay what the checkpoint has.
var ErrBehind = errors.New("the standby is behind the checkpoint")

// ErrFormat says that the checkpoint is of another release.
var ErrFormat = errors.New("the checkpoint has another format")

// Judge compares what PostgreSQL and Redis hold. The slot has to be read before
// the checkpoint, and the checkpoint before the end of the WAL: read the other way
// round, a pair that is healthy and moving looks as if it had a gap. Nil stands for
// what is not there.
//
// An error says that this server and this checkpoint must not be brought
// together at all.
func Judge(server Server, slot *Slot, cp *Checkpoint, streams map[string]StreamState) (Judgement, error) {
	switch {
	case slot != nil && slot.Active:
		return judged(StandBy, "the slot %q is in use by the PostgreSQL process %d", slot.Name, slot.ActivePID)
	case server.Standby && (slot != nil && cp == nil || cp != nil && !cp.Standby):
		// Its slot may be a copy that follows the primary's, and is not ours to
		// drop; and two relays, on either, would take the checkpoint in turns.
		return Judgement{}, ErrStandby
	case cp == nil && slot == nil:
		return judged(Backfill, "there is neither a slot nor a checkpoint: a first start")
	case cp == nil:
		return gap(NoCheckpoint, "the slot %q exists and Redis has no checkpoint for it: Redis lost its data, or is another one than before", slot.Name)
	case cp.Format != CheckpointFormat:
		return Judgement{}, fmt.Errorf("%w: %d, and this release knows %d", ErrFormat, cp.Format, CheckpointFormat)
	case server.Timeline < cp.Timeline:
		return Judgement{}, fmt.Errorf("%w: %d, and that is of timeline %d", ErrOldTimeline, server.Timeline, cp.Timeline)
	case cp.Phase == PhaseBackfill:
		return judged(Backfill, "a backfill was asked for, or is not finished")
	case slot == nil && cp.Since != nil:
		return judged(Backfill, "an earlier backfill was finished, and its slot was not made permanent")
	case slot == nil:
		return gap(NoSlot, "the slot is gone: it was dropped, or the database failed over to a server without it")
	case slot.WALStatus == "lost":
		return gap(SlotLost, "the slot %q is lost: PostgreSQL removed WAL that it still needed", slot.Name)
	case cp.Standby && cp.LostOn(server):
		return gap(Promoted, "the standby was promoted at %s while it was streamed from, and rows up to %s were appended", server.Fork(cp), cp.Last.LSN)
	}
	switch here := cp.On(server); {
	case slot.ConfirmedFlush < here.Consistent:
		return gap(OtherHistory, "the slot %q is confirmed up to %s, and the last backfill made it at %s: the database was restored from before that, or failed over to a server whose slot is older", slot.Name, slot.ConfirmedFlush, here.Consistent)
	case here.Covered < slot.ConfirmedFlush:
		return gap(NotCovered, "the slot %q is confirmed up to %s, the checkpoint covers rows up to %s: Redis went back in time, or the slot was moved or created anew", slot.Name, slot.ConfirmedFlush, here.Covered)
	case here.Covered > server.WALEnd && server.Standby:
		return Judgement{}, fmt.Errorf("%w: it has replayed up to %s, and rows up to %s are covered", ErrBehind, server.WALEnd, here.Covered)
	case here.Covered > server.WALEnd:
		return gap(BeyondWAL, "the checkpoint covers rows up to %s, the server's WAL ends at %s: the database lost its end or was restored", here.Covered, server.WALEnd)
	case here.Last.LSN >= server.WALEnd && !server.Standby: // which may have yet to replay it
		return gap(BeyondWAL, "the last row appended was committed at %s, the server's WAL ends at %s: the database lost its end or was restored", here.Last.LSN, server.WALEnd)
	}
	if lost, ok := LostStream(cp, streams); ok {
		return lost, nil
	}
	return judged(Stream, "the slot and the checkpoint agree")
}

// LostStream reports whether one of the streams is gone, or ends below the last
// entry that the checkpoint has of it, as the gap that this is.
func LostStream(cp *Checkpoint, streams map[string]StreamState) (Judgement, bool) {
	for _, name := range slices.Sorted(maps.Keys(cp.LastIDs)) {
		state, asked := streams[name]
		var lost Judgement
		switch {
		case !asked: // of a stream that is no longer configured
			continue
		case !state.Exists:
			lost, _ = gap(StreamMissing, "the stream %q is gone, the checkpoint has its last entry as %s", name, cp.LastIDs[name])
		case compareIDs(state.LastID, cp.LastIDs[name]) < 0:
			lost, _ = gap(StreamBehind, "the stream %q ends at %s, the checkpoint has its last entry as %s", name, state.LastID, cp.LastIDs[name])
		case state.Added > 0 && state.Added < cp.Added[name]:
			lost, _ = gap(StreamBehind, "the stream %q has had %d entries, and %d when the checkpoint's last entry was appended: it was deleted and made anew", name, state.Added, cp.Added[name])
		default:
			continue
		}
		return lost, true
	}
	return Judgement{}, false
}

func judged(v Verdict, format string, args ...any) (Judgement, error) {
	return Judgement{Verdict: v, Reason: fmt.Sprintf(format, args...)}, nil
}

func gap(kind Kind, format string, args ...any) (Judgement, error) {
	return Judgement{Verdict: Gap, Kind: kind, Reason: fmt.Sprintf(format, args...)}, nil
}

// SinceOf bounds the backfill that heals a gap beside a checkpoint: what it
// covered is on the stream, and later rows may not be.
func SinceOf(cp *Checkpoint) Since {
	if cp.Since != nil {
		return *cp.Since
	}
	return Since{Time: cp.CoveredTime, Position: cp.Last}
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
	// TakenOver: another relay has begun a backfill, or an operator asked for one.
	TakenOver
	// Overtaken: another relay's last append arrived after we read.
	Overtaken
	// Forgotten: Redis went back in time, or lost everything.
	Forgotten
)

func (c Conflict) String() string {
	return [...]string{
		"our own append succeeded and its reply was lost",
		"another relay has begun a backfill, or one was asked for",
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

// DeletedUpTo is the highest id of an entry that may have been deleted from a
// stream, of those from the given id on; empty for none. A server that does not
// tell may have deleted any.
func DeletedUpTo(s StreamState, id string) string {
	last := ""
	if s.Added == 0 && s.LastID != "0-0" {
		last = s.LastID
	}
	if DeletedSince(s, id) {
		for _, deleted := range []string{s.MaxDeletedID, s.FirstID} {
			if compareIDs(deleted, last) > 0 {
				last = deleted
			}
		}
		if s.FirstID == "" {
			last = s.LastID
		}
	}
	return last
}

// DeletedSince reports whether entries from the given id on may have been
// deleted from a stream, by XDEL or by trimming, as far as Redis tells.
func DeletedSince(s StreamState, id string) bool {
	if compareIDs(s.MaxDeletedID, id) >= 0 && compareIDs(s.MaxDeletedID, "0-0") > 0 {
		return true
	}
	return s.Added > s.Length && (s.FirstID == "" || compareIDs(s.FirstID, id) > 0)
}
