package relay

import (
	"errors"
	"fmt"
	"strings"
	"unicode"
	"unicode/utf8"

	"github.com/stagedoor/walrelay/cdc"
	"github.com/stagedoor/walrelay/internal/fault"
)

// reasonBytes bounds a reason that is kept.
const reasonBytes = 1 << 10

// RowError says that a row cannot be published. Everything before it is, and
// the line stops there until the cause is gone or an operator has the row
// skipped.
type RowError struct {
	Row cdc.Blocked
	err *fault.Error
}

func (e *RowError) Error() string { return e.err.Error() }
func (e *RowError) Unwrap() error { return e.err }

// refusedError says that Redis takes no batch with these rows. It is about one
// of them.
type refusedError struct{ reason string }

func (e *refusedError) Error() string { return "Redis does not take it: " + e.reason }

// fits says why no entry can be made of a row, as far as that is known before
// Redis is asked. Of a value beyond its limit it hangs up, which looks like a
// broken network.
func fits(ev cdc.Event, valueBytes int) error {
	if ev.Unfit != nil {
		return ev.Unfit
	}
	for _, f := range ev.Fields {
		if valueBytes > 0 && len(f.Value) > valueBytes {
			return tooLarge(fmt.Sprintf("it has %d bytes in the field %q, and Redis takes at most %d", len(f.Value), f.Name, valueBytes))
		}
	}
	return nil
}

func tooLarge(problem string) *fault.Error {
	return &fault.Error{Problem: problem, Fix: "keep such documents elsewhere and refer to them"}
}

// admit decides what becomes of a row that cannot be published for some reason,
// nil for most: nothing, unless an operator asked for it to be skipped; then it
// goes to the dead stream.
//
// A request never touches a row that can be published. It is settled by such a
// row of its id all the same, since it was made for another state of things.
func (r *Relay) admit(ev cdc.Event, why error, skips map[string]bool) (cdc.Event, error) {
	switch {
	case why == nil:
		ev.SkipAsked = skips[ev.ID]
		return ev, nil
	case skips[ev.ID] && !ev.Dead:
		return r.dead(ev, reasonOf(why)), nil
	}
	return ev, r.rowError(ev, why)
}

// reasonOf is why, without what to do about it.
func reasonOf(why error) string {
	reason := why.Error()
	if f := fault.As(why); f != nil {
		reason = (&fault.Error{Problem: f.Problem, Err: f.Err}).Error()
	}
	return strings.ToValidUTF8(reason[:min(len(reason), reasonBytes)], "")
}

// rowError names the row, and the command that has it skipped.
func (r *Relay) rowError(ev cdc.Event, why error) *RowError {
	row := cdc.Blocked{Row: ev.ID, Position: ev.Position, Reason: reasonOf(why)}
	name := "the row with id " + ev.ID
	if ev.NoID {
		name = "a row"
	}
	if !ev.Position.IsZero() {
		name += fmt.Sprintf(" (row %d of transaction %d at %s)", ev.Position.Ordinal, ev.Commit.XID, ev.Commit.LSN)
	}
	fix := skipFix(r.cfg.Stream, ev.ID)
	var refused *refusedError
	f := fault.As(why)
	if errors.As(why, &refused) {
		f = tooLarge("")
	}
	if f != nil && f.Fix != "" {
		fix = f.Fix + "; or, " + fix
	}
	return &RowError{Row: row, err: &fault.Error{Problem: name + " cannot be published: " + row.Reason, Fix: fix}}
}

// skipFix is the command that has a row skipped, and what it does.
func skipFix(stream, row string) string {
	flag := "--id "
	if strings.HasPrefix(row, "-") {
		flag = "--id="
	}
	return fmt.Sprintf("to go on without it, have it put on the stream %q instead: walrelay skip %s%s", cdc.DeadStream(stream), flag, shellWord(row))
}

// StoppedAt is the fault of a line that stops at a row, as the checkpoint tells
// of it.
func StoppedAt(b cdc.Blocked, stream string) error {
	return &fault.Error{Problem: fmt.Sprintf("the row %s cannot be published: %s", b.Row, b.Reason), Fix: skipFix(stream, b.Row)}
}

// shellWord quotes an argument for a shell where it needs that.
func shellWord(s string) string {
	plain := func(c rune) bool {
		return c < utf8.RuneSelf && (unicode.IsLetter(c) || unicode.IsDigit(c)) || strings.ContainsRune("_-./:,@+", c)
	}
	if s != "" && !strings.ContainsFunc(s, func(c rune) bool { return !plain(c) }) {
		return s
	}
	return "'" + strings.ReplaceAll(s, "'", `'\''`) + "'"
}
