package cdc

import (
	"bufio"
	"bytes"
	"fmt"
	"math"
	"slices"
	"strconv"
	"strings"
)

// Switch is where a server left a timeline for the next one: at a promotion, or
// at the end of a recovery to a point in time.
type Switch struct {
	Timeline uint32 `json:"timeline"`
	LSN      LSN    `json:"lsn"`
}

// History is the timelines that a server was on before its current one, oldest
// first. One that is cut at its beginning will do.
type History []Switch

// historyKept is how many switches a checkpoint holds, which is rewritten with
// every append.
const historyKept = 32

// EndOfWAL is beyond every LSN.
const EndOfWAL LSN = math.MaxUint64

// ParseHistory reads the file that TIMELINE_HISTORY answers with.
// https://www.postgresql.org/docs/current/protocol-replication.html
func ParseHistory(content []byte) (History, error) {
	var h History
	lines := bufio.NewScanner(bytes.NewReader(content))
	for lines.Scan() {
		fields := strings.Fields(lines.Text())
		if len(fields) == 0 || strings.HasPrefix(fields[0], "#") {
			continue
		}
		if len(fields) < 2 {
			return nil, fmt.Errorf("timeline history: cannot read %q", lines.Text())
		}
		timeline, err := strconv.ParseUint(fields[0], 10, 32)
		if err != nil {
			return nil, fmt.Errorf("timeline history: cannot read %q", lines.Text())
		}
		lsn, err := ParseLSN(fields[1])
		if err != nil {
			return nil, fmt.Errorf("timeline history: %w", err)
		}
		h = append(h, Switch{Timeline: uint32(timeline), LSN: lsn})
	}
	return h, lines.Err()
}

// Recent is the end of a history, as much as a checkpoint holds.
func (h History) Recent() History { return slices.Clone(h[max(0, len(h)-historyKept):]) }

// span is the WAL of one timeline, as far as it belongs to a server's history.
type span struct {
	timeline   uint32
	start, end LSN
	cut        bool // where it starts is not known
}

func (h History) spans(timeline uint32) []span {
	var spans []span
	var start LSN
	cut := len(h) > 0 && h[0].Timeline != 1 || len(h) == 0 && timeline != 1
	for _, s := range h {
		spans = append(spans, span{s.Timeline, start, s.LSN, cut})
		start, cut = s.LSN, false
	}
	return append(spans, span{timeline, start, EndOfWAL, cut})
}

// Fork is where the WAL of a server and the WAL that a checkpoint was written
// from part: up to there they are the same. EndOfWAL says that they do not part,
// 0 that they have nothing in common.
func (s Server) Fork(cp *Checkpoint) LSN {
	ours := s.History.spans(s.Timeline)
	theirs := cp.History.spans(cp.Timeline)
	for i := len(theirs) - 1; i >= 0; i-- {
		t := theirs[i]
		for _, o := range ours {
			// A number alone names no timeline: two standbys that are promoted
			// without knowing of one another both take the next one.
			if o.timeline == t.timeline && (o.start == t.start || o.cut || t.cut) {
				return min(o.end, t.end)
			}
		}
	}
	return 0
}

// On is the checkpoint as it counts on a server that failed over, or was
// restored to an earlier point, since it was written. What was appended of WAL
// that the server does not have suppresses nothing there, and covers nothing.
func (c Checkpoint) On(s Server) Checkpoint {
	fork := s.Fork(&c)
	if s.Timeline < c.Timeline || c.Timeline == s.Timeline && fork == EndOfWAL {
		return c
	}
	c.Timeline, c.History = s.Timeline, s.History.Recent()
	c.Covered = min(c.Covered, fork)
	if c.Last.LSN >= fork && !c.Last.IsZero() {
		c.Last, c.LastCommit = Position{}, Commit{}
		if fork > 0 {
			// All rows before the fork are on the stream; which was the last is
			// not known.
			c.Last = Position{fork - 1, math.MaxUint64}
		}
	}
	return c
}

// LostOn reports whether rows were appended whose transactions the server does
// not have.
func (c *Checkpoint) LostOn(s Server) bool {
	return s.Timeline >= c.Timeline && !c.Last.IsZero() && c.Last.LSN >= s.Fork(c)
}

// MayHaveLostOn is LostOn, also for rows of a backfill, whose positions are not
// known.
func (c *Checkpoint) MayHaveLostOn(s Server) bool {
	if !c.Last.IsZero() || s.Timeline < c.Timeline {
		return c.LostOn(s)
	}
	fork := s.Fork(c)
	return c.Covered > fork || c.Phase == PhaseBackfill && fork != EndOfWAL
}
