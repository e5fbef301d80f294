package status

import (
	"fmt"
	"io"
	"strconv"
	"strings"
	"time"
	"unicode/utf8"

	"github.com/stagedoor/walrelay/internal/health"
)

const (
	width  = 80
	indent = 13 // of what stands beside a label
	// groupsShown is how many consumer groups fit on a screen.
	groupsShown = 8
)

// page is a text of at most 80 columns.
type page struct {
	strings.Builder
	colour bool
}

// WriteText writes the report for people, of at most 80 columns. Colours only
// repeat what the words say.
func (r *Report) WriteText(w io.Writer, colour bool) error {
	p := &page{colour: colour}
	title := "walrelay status"
	at := clock(r.At)
	fmt.Fprintf(p, "%s%*s\n\n", title, width-len(title), at)
	level := strings.ToUpper(string(r.Status))
	p.wrapped(p.painted(level, levelColour[r.Status])+"  ", len(level)+2, r.Meaning)
	p.WriteString("\n")
	r.database(p)
	r.redis(p)
	r.remarks(p)
	_, err := io.WriteString(w, p.String())
	return err
}

// database is PostgreSQL's half.
func (r *Report) database(p *page) {
	l := r.look
	if !r.Database.Answers {
		p.line("PostgreSQL", away(r.Database))
	}
	if r.Database.SeenAt == nil {
		return
	}
	if r.Database.Answers {
		what := "a primary"
		if *r.Database.Standby {
			what = "a standby"
		}
		p.line("PostgreSQL", fmt.Sprintf("%s, %s; database %s; WAL ends at %s", *r.Database.Version, what, *r.Database.Database, r.Database.WALEnd))
	}
	p.line("Relay", r.relay())
	s := r.Slot
	if s == nil {
		p.line("Slot", fmt.Sprintf("there is none named %s", l.Slot))
	} else {
		p.line("Slot", fmt.Sprintf("%s: %s, of database %s%s", s.Name, orNone(s.Plugin), orNone(s.Database), walStatus(s)))
		p.line("  unconfirmed", lag(s.UnconfirmedBytes, r.Rates.Unconfirmed))
		if s.WALStatus != nil && *s.WALStatus == "lost" {
			p.line("  retained", "none: the slot is lost")
		} else {
			p.line("  retained", lag(s.RetainedBytes, r.Rates.Retained))
		}
	}
	if s != nil && (s.WALStatus == nil || *s.WALStatus != "lost") || r.Runway != nil {
		p.line("  runway", r.runway())
	}
	pub := r.Publication
	switch {
	case pub.Error != nil && pub.Exists:
		p.line("Publication", *pub.Error)
	case !pub.Exists:
		p.line("Publication", fmt.Sprintf("there is none named %s", pub.Name))
	default:
		p.line("Publication", fmt.Sprintf("%s: the inserts of %s", pub.Name, l.Table))
	}
	switch at := l.oldest(); {
	case r.AgeUnknown != nil:
		p.line("Unpublished", "not known: "+*r.AgeUnknown)
	case r.OldestAge == nil:
		p.line("Unpublished", "not known")
	case at.IsZero():
		p.line("Unpublished", "no row waits")
	default:
		p.line("Unpublished", fmt.Sprintf("%s, the oldest for %s, since %s", rows(l.Database.Waiting), seconds(*r.OldestAge), clock(at)))
	}
}

func (r *Report) relay() string {
	who := r.Relay
	by := ""
	if who.PID != nil {
		by = fmt.Sprintf(", PID %d", *who.PID)
	}
	started := ""
	if who.Since != nil {
		started = fmt.Sprintf(" since %s (%s)", clock(*who.Since), health.Duration(r.At.Sub(*who.Since)))
	}
	switch who.Role {
	case health.RoleStreaming:
		return "streams" + started + by
	case health.RoleBackfill:
		return "backfills" + by
	case health.RoleStarting:
		return "is about to begin" + by
	}
	if !r.look.expected() {
		return "none has worked here"
	}
	if s := r.look.Database.Slot; started != "" && (s == nil || s.InactiveSince.IsZero()) {
		started += ", when the last one wrote its checkpoint"
	}
	return "none is connected" + started
}

func (r *Report) runway() string {
	var left []string
	s, budget := r.Slot, r.look.DiskBudget
	if s != nil && s.SafeWALSize != nil {
		left = append(left, fmt.Sprintf("%s may still be written (max_slot_wal_keep_size)", health.Size(*s.SafeWALSize)))
	}
	if budget > 0 {
		left = append(left, fmt.Sprintf("slots may keep %s (--disk-budget)", health.Size(budget)))
	}
	if len(left) == 0 {
		return "no limit is set: until the disk is full"
	}
	text := strings.Join(left, "; ")
	switch {
	case r.Runway != nil && *r.Runway == 0:
		return "it is used up; " + text
	case r.Runway != nil:
		return seconds(*r.Runway) + " at the present rate; " + text
	case r.Rates.Retained != nil && *r.Rates.Retained <= 0:
		return "it does not end at the present rate; " + text
	case r.Rates.Retained != nil:
		return "not known yet; " + text
	default:
		return text + "; how long that lasts --watch finds out"
	}
}

// redis is Redis' half.
func (r *Report) redis(p *page) {
	if r.Redis.Answers {
		p.line("Redis", "answers")
	} else {
		p.line("Redis", away(r.Redis))
	}
	switch c := r.Checkpoint; {
	case c != nil:
		text := string(c.Phase)
		if c.Covered != 0 {
			text += fmt.Sprintf("; covers WAL up to %s", c.Covered)
		}
		if c.Age != nil {
			text += fmt.Sprintf(" as of %s ago", seconds(*c.Age))
		}
		if c.Last != nil {
			text += "; last row at " + *c.Last
		}
		text += "; written"
		if c.Written != nil {
			text += " " + health.Duration(r.At.Sub(*c.Written)) + " ago"
		}
		text += " by relay " + c.Relay
		if c.Blocked != nil {
			text += "; the line stops at the row " + *c.Blocked
		}
		p.line("Checkpoint", text)
	case r.CheckpointError != nil:
		p.line("Checkpoint", "not known: "+*r.CheckpointError)
	default:
		p.line("Checkpoint", "there is none")
	}
	s := r.Stream
	switch {
	case s == nil && r.StreamError != nil:
		p.line("Stream", "not known: "+*r.StreamError)
		return
	case s == nil:
		return
	case s.LastID == nil && s.Length == 0:
		p.line("Stream", s.Name+": no entry yet")
	default:
		p.line("Stream", fmt.Sprintf("%s: %s, the last is %s", s.Name, entries(s.Length), *s.LastID))
	}
	r.groups(p, s)
}

// groups is a table of the consumer groups.
func (r *Report) groups(p *page, s *health.Stream) {
	switch {
	case s.GroupError != nil:
		p.line("  groups", "not known: "+*s.GroupError)
		return
	case len(s.Groups) == 0:
		p.line("  groups", "none")
		return
	}
	const row = "  %-28s %12s %12s %12s\n"
	fmt.Fprintf(p, row, "group", "consumers", "pending", "lag")
	for _, g := range s.Groups[:min(len(s.Groups), groupsShown)] {
		lag := "not known"
		if g.Lag != nil {
			lag = thousands(*g.Lag)
		}
		fmt.Fprintf(p, row, shortened(g.Name, 28), thousands(g.Consumers), thousands(g.Pending), lag)
	}
	if n := *s.GroupCount - groupsShown; n > 0 {
		fmt.Fprintf(p, "  and %d more\n", n)
	}
}

// remarks are the reasons, the cause and what to do.
func (r *Report) remarks(p *page) {
	if r.Cause != nil {
		p.WriteString("\nWhy WAL is kept\n")
		p.wrapped("  ", 2, *r.Cause)
	}
	if len(r.Reasons)+len(r.Notes) > 0 {
		p.WriteString("\nTo know\n")
		for _, reason := range r.Reasons {
			p.wrapped("- ", 2, reason)
		}
		for _, note := range r.Notes {
			p.wrapped("- ", 2, note)
		}
	}
	if len(r.Steps) > 0 {
		p.WriteString("\nTo do\n")
		for _, s := range r.Steps {
			if s.Command == "" {
				p.wrapped("- ", 2, s.Text+".")
				continue
			}
			p.wrapped("- ", 2, s.Text+":")
			p.wrapped("      ", 6, s.Command)
		}
	}
}

// line is what stands beside a label.
func (p *page) line(label, text string) {
	p.wrapped(fmt.Sprintf("%-*s", indent, label)+" ", indent+1, text)
}

// wrapped writes a text of several words behind a beginning of so many columns.
func (p *page) wrapped(beginning string, columns int, text string) {
	p.WriteString(beginning)
	at := columns
	for i, word := range strings.Fields(text) {
		n := utf8.RuneCountInString(word)
		switch {
		case i == 0:
		case at+1+n > width:
			p.WriteString("\n" + strings.Repeat(" ", columns))
			at = columns
		default:
			p.WriteString(" ")
			at++
		}
		p.WriteString(word)
		at += n
	}
	p.WriteString("\n")
}

var levelColour = map[health.Status]string{
	health.StatusOK: "32", health.StatusWarn: "33", health.StatusCritical: "31",
}

// painted is bold, and of that colour of a terminal.
func (p *page) painted(s, colour string) string {
	if !p.colour {
		return s
	}
	return "\x1b[1;" + colour + "m" + s + "\x1b[0m"
}

// lag is one of the two, and how it grows.
func lag(bytes *int64, rate *float64) string {
	if bytes == nil {
		return "not known"
	}
	text := health.Size(*bytes)
	switch {
	case rate == nil:
	case *rate >= 1:
		text += fmt.Sprintf(", grows by %s/s", health.Size(int64(*rate)))
	case *rate <= -1:
		text += fmt.Sprintf(", shrinks by %s/s", health.Size(int64(-*rate)))
	default:
		text += ", does not grow"
	}
	return text
}

func walStatus(s *Slot) string {
	if s.WALStatus == nil {
		return ""
	}
	text := "; wal_status " + *s.WALStatus
	if s.InvalidationReason != nil {
		text += ", invalidation_reason " + *s.InvalidationReason
	}
	return text
}

// away is that a server does not answer, why, and of when what follows is.
func away(s Server) string {
	text := "does not answer"
	if s.Error != nil {
		text += ": " + *s.Error
	}
	if s.SeenAt != nil {
		text += "; what follows was seen at " + clock(*s.SeenAt)
	}
	return text
}

func orNone(s string) string {
	if s == "" {
		return "none"
	}
	return s
}

func entries(n int64) string {
	if n == 1 {
		return "1 entry"
	}
	return thousands(n) + " entries"
}

// thousands is a number with a comma between each three digits.
func thousands(n int64) string {
	digits := strconv.FormatInt(n, 10)
	for i := len(digits) - 3; i > 0 && digits[i-1] != '-'; i -= 3 {
		digits = digits[:i] + "," + digits[i:]
	}
	return digits
}

// seconds is an age as people read it.
func seconds(s float64) string {
	return health.Duration(time.Duration(min(s, 9e9) * float64(time.Second)))
}

// shortened is a name of at most so many letters.
func shortened(s string, most int) string {
	if utf8.RuneCountInString(s) <= most {
		return s
	}
	return string([]rune(s)[:most-1]) + "…"
}
