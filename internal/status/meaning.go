package status

import (
	"fmt"
	"strings"
	"time"

	"github.com/stagedoor/walrelay/cdc"
	"github.com/stagedoor/walrelay/internal/health"
)

// meaning is what a look means for the rows, in a sentence or two.
func (l *Look) meaning(doc health.Document) string {
	d, r := &l.Database, &l.Redis
	switch {
	case d.SeenAt.IsZero() && !r.AwaySince.IsZero():
		return "Neither PostgreSQL nor Redis answers, so that nothing is known. A relay that runs tries again until they do."
	case d.SeenAt.IsZero():
		return "PostgreSQL does not answer, so that the slot and the rows that wait are not known. A relay that runs tries again until it does."
	}
	switch l.role() {
	case health.RoleStreaming:
		switch {
		case len(l.Problems) > 0:
			return "A relay is connected, and the line has stopped until somebody acts. What commits waits in PostgreSQL, which keeps its WAL."
		case !r.AwaySince.IsZero():
			return "A relay is connected. What commits waits in PostgreSQL until Redis answers, and nothing is lost."
		case doc.Status == health.StatusOK:
			return "A relay streams: rows go to the stream as they commit."
		default:
			return "A relay streams, and not all is well."
		}
	case health.RoleBackfill:
		return "A relay publishes what the table holds and the stream lacks; then it streams."
	case health.RoleStarting:
		return "A relay is about to begin."
	}
	if l.blocked() {
		return "The line has stopped until somebody acts; a relay that runs tries again every few seconds. What commits waits in PostgreSQL, which keeps its WAL."
	}
	text := fmt.Sprintf("No relay is connected%s%s.", since(l.idleSince()), l.consequence())
	if !l.expected() {
		text = fmt.Sprintf("No relay has worked here with a slot %q. If a poller publishes the rows, that is as it should be.", l.Slot)
		if doc.Status == health.StatusOK {
			return text
		}
	}
	text += l.waiting()
	if l.others() {
		text += " Another program has appended to the stream since the last relay did, such as a poller."
	}
	return text
}

// consequence is what it leads to that no relay is connected.
func (l *Look) consequence() string {
	const heals = "; one that starts publishes from the table what the stream lacks, and makes a new slot"
	switch s := l.Database.Slot; {
	case l.phase() == cdc.PhaseBackfill:
		return ", and a backfill is not finished; a relay that starts does it again"
	case s == nil:
		return ", and the slot is gone" + heals
	case s.WALStatus == "lost":
		return ", and the slot is lost" + heals
	default:
		return "; PostgreSQL keeps all WAL for the one that starts next"
	}
}

// waiting says how many rows wait and since when; "" where none does, or that is
// not known.
func (l *Look) waiting() string {
	at := l.oldest()
	if at.IsZero() {
		return ""
	}
	rows := rows(l.Database.Waiting)
	verb := "wait"
	if l.Database.Waiting == 1 {
		verb = "waits"
	}
	return fmt.Sprintf(" %s %s%s.", strings.ToUpper(rows[:1])+rows[1:], verb, since(at))
}

// rows is how many wait.
func rows(n int) string {
	switch {
	case n >= WaitingMost:
		return fmt.Sprintf("%d rows or more", WaitingMost)
	case n == 1:
		return "a row"
	}
	return fmt.Sprintf("%d rows", n)
}

// oldest is when the oldest unpublished row was written, by our clock; zero for
// none.
func (l *Look) oldest() time.Time {
	age := l.Database.OldestAge
	if age == nil || *age <= 0 {
		return time.Time{}
	}
	return l.Database.SeenAt.Add(-time.Duration(min(*age, 9e9) * float64(time.Second)))
}

// since is since when, as words; "" when that is not known.
func since(t time.Time) string {
	if t.IsZero() {
		return ""
	}
	return " since " + clock(t)
}

// clock is a time as people read it.
func clock(t time.Time) string { return t.UTC().Format("2006-01-02 15:04:05 MST") }
