package protocol

import (
	"fmt"
	"strings"

	"github.com/stagedoor/walrelay/cdc"
)

// What a trace says of things. Positions are decimal: records begin at 10, 20,
// 30 …

func lsnText(lsn cdc.LSN) string {
	if lsn == cdc.EndOfWAL {
		return "the end"
	}
	return fmt.Sprint(uint64(lsn))
}

func slotText(s *cdc.Slot) string {
	if s == nil {
		return "none"
	}
	text := "confirmed " + lsnText(s.ConfirmedFlush)
	if s.Active {
		text += ", active"
	}
	if s.WALStatus == "lost" {
		text += ", lost"
	}
	return text
}

func versionText(v cdc.Version) string {
	if v == (cdc.Version{}) {
		return "nothing"
	}
	return v.String()
}

func checkpointText(cp *cdc.Checkpoint) string {
	if cp == nil {
		return "none"
	}
	text := fmt.Sprintf("%s %s covered %s", versionText(cp.Version), cp.Phase, lsnText(cp.Covered))
	if !cp.Last.IsZero() {
		text += fmt.Sprintf(" last %s/%d", lsnText(cp.Last.LSN), cp.Last.Ordinal)
	}
	if cp.Since != nil {
		text += fmt.Sprintf(" since %d", tickOf(cp.Since))
	}
	return text
}

func tickOf(s *cdc.Since) int64 { return cdc.Micros(s.Time) / 1e6 }

func requestText(q *request) string {
	var rows []string
	for _, r := range q.rows {
		rows = append(rows, fmt.Sprint(r))
	}
	if len(rows) == 0 {
		return "the checkpoint " + checkpointText(q.next)
	}
	return fmt.Sprintf("the append of row %s with %s", strings.Join(rows, ", "), checkpointText(q.next))
}

func replyText(r *reply) string {
	switch {
	case r.done:
		return "done"
	case r.missing:
		return "refused, the stream is gone"
	}
	return "refused, there is " + checkpointText(r.held)
}

func markText(s cdc.MarkState) string {
	return [...]string{"done", "it is locked", "it is not visible yet"}[s]
}

func candidatesText(rows []candidate) string {
	if len(rows) == 0 {
		return "nothing"
	}
	var parts []string
	for _, c := range rows {
		part := fmt.Sprintf("row %d", c.row)
		if c.marked {
			part += " (marked)"
		}
		parts = append(parts, part)
	}
	return strings.Join(parts, ", ")
}

func rowText(r *row) string {
	return fmt.Sprintf("row %d, committed at %s,", r.row, lsnText(r.lsn))
}
