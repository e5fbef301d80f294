package audit

import (
	"math/big"
	"strconv"
	"strings"
	"time"

	"github.com/stagedoor/walrelay/cdc"
)

// timeIDs is the smallest first half of an entry id that is a time, in
// milliseconds since 1970: the year 2001. Smaller ones are somebody's counter.
const timeIDs = 1_000_000_000_000

// entryTime is when an entry was appended, by Redis' clock; false where its id
// is no time.
func entryTime(id string) (time.Time, bool) {
	text, _, _ := strings.Cut(id, "-")
	ms, err := strconv.ParseInt(text, 10, 64)
	if err != nil || ms < timeIDs {
		return time.Time{}, false
	}
	return time.UnixMilli(ms), true
}

// splitID reads the id of an entry, MILLISECONDS-SEQUENCE. What cannot be read
// counts as 0-0.
func splitID(id string) (ms, seq uint64) {
	m, s, _ := strings.Cut(id, "-")
	ms, _ = strconv.ParseUint(m, 10, 64)
	seq, _ = strconv.ParseUint(s, 10, 64)
	return ms, seq
}

// after reports whether entry a comes after entry b.
func after(a, b string) bool {
	am, as := splitID(a)
	bm, bs := splitID(b)
	return am > bm || am == bm && as > bs
}

// remains is what the stream tells of entries that were removed from it. It has
// to be read after the entries: they can be removed while they are read.
type remains struct {
	state cdc.StreamState
	ahead time.Duration // Redis' clock, of PostgreSQL's

	// The row of the oldest entry, where that is known.
	first        string
	firstCreated time.Time
}

// fate is what may have become of the entry of a row.
type fate int

const (
	there     fate = iota // nothing tells that it was removed
	trimmed               // it is as old as what was removed from the beginning
	deletable             // Redis tells that an entry was deleted which was not older
)

// of says what may have become of the entry of a row that was published. A row
// is never younger than its entry, but for clocks that differ, so one from after
// the oldest entry was not trimmed. Where others than the oldest were deleted,
// rows from about that time are told apart by the row of the oldest entry.
func (r remains) of(id string, created time.Time) fate {
	s := r.state
	tells := s.Added > 0 // Redis 7 does; before that, what could be trimmed counts as that
	if !s.Exists || s.LastID == "0-0" || tells && s.Added <= s.Length {
		return there
	}
	deleted := s.MaxDeletedID != "" && s.MaxDeletedID != "0-0"
	first, ok := entryTime(s.FirstID)
	if s.FirstID == "" || !ok || created.IsZero() {
		return trimmed // or not: it cannot be known
	}
	within := deleted && after(s.MaxDeletedID, s.FirstID) // not only from the beginning
	appended := created.Add(r.ahead)
	switch {
	case appended.After(first.Add(margin)):
		if last, ok := entryTime(s.MaxDeletedID); within && (!ok || !appended.After(last.Add(margin))) {
			return deletable
		}
		return there
	case within && r.firstCreated.Before(created) && !r.firstCreated.IsZero():
		return deletable
	case within && r.firstCreated.Equal(created) && lessID(r.first, id):
		return deletable
	}
	return trimmed
}

// lessID orders ids that are whole numbers; others have no order.
func lessID(a, b string) bool {
	x, ok1 := new(big.Int).SetString(a, 10)
	y, ok2 := new(big.Int).SetString(b, 10)
	return ok1 && ok2 && x.Cmp(y) < 0
}
