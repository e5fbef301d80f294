package audit

import (
	"cmp"
	"fmt"
	"io"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/stagedoor/walrelay/cdc"
)

// Report is what an audit found. Its JSON is what `walrelay audit --json`
// prints; names are not changed, only added.
type Report struct {
	Clean bool `json:"clean"` // there is no finding

	Table  string     `json:"table"`
	Stream string     `json:"stream"`
	Since  *time.Time `json:"since"` // null for everything

	// The table is as it was then, PostgreSQL's clock and position.
	Taken time.Time `json:"taken"`
	LSN   cdc.LSN   `json:"lsn"`
	// Covered says that a relay's checkpoint covered that position when the
	// stream was read, so that all of the rows should be on it.
	Covered bool `json:"covered"`

	Rows         int64 `json:"rows"`          // compared
	Entries      int64 `json:"entries"`       // compared: those with our id field
	OtherEntries int64 `json:"other_entries"` // without our id field, another program's

	// The findings.
	Missing    Missing  `json:"missing"`    // rows that should have an entry and have none
	Duplicated Findings `json:"duplicated"` // rows with more than one equal entry
	Foreign    Findings `json:"foreign"`    // entries of no row, though older rows are still in the table
	Changed    Findings `json:"changed"`    // rows whose entry has other values
	Waiting    Findings `json:"waiting"`    // rows that no relay has come to yet
	NoID       int64    `json:"no_id"`      // rows without an id, which cannot be published, and were not skipped

	// What is no finding.
	Trimmed Findings `json:"trimmed"` // rows from before the stream's oldest entry, which is not its first any more
	Dead    Findings `json:"dead"`    // rows that an operator sent to the stream of dead rows
	Gone    int64    `json:"gone"`    // entries whose rows may have been deleted since
}

// Findings are how many there are, and the oldest of them.
type Findings struct {
	Count int64     `json:"count"`
	List  []Finding `json:"list"`
}

// Missing are the rows without an entry.
type Missing struct {
	Findings
	// Deletable is of how many the entry may have been there: Redis tells that
	// later ones were deleted with XDEL.
	Deletable int64 `json:"deletable"`
	// Oldest is when the oldest of them was created, null where that is not
	// known of all.
	Oldest *time.Time `json:"oldest"`
}

// Finding is a row or an entry.
type Finding struct {
	ID      string   `json:"id"`                // the outbox id
	Entries []string `json:"entries,omitempty"` // ids in the stream

	time int64 // of the record
}

// add counts a finding, and keeps it if it is one of the oldest.
func (f *Findings) add(most int, r *record, entries ...string) {
	f.Count++
	f.keep(most, Finding{ID: string(r.id), Entries: entries, time: r.time})
}

func (f *Findings) keep(most int, one Finding) {
	i, _ := slices.BinarySearchFunc(f.List, one, func(a, b Finding) int {
		return cmp.Or(cmp.Compare(a.time, b.time), cmp.Compare(len(a.ID), len(b.ID)), cmp.Compare(a.ID, b.ID))
	})
	if i < most {
		f.List = slices.Insert(f.List, i, one)
		f.List = f.List[:min(len(f.List), most)]
	}
}

// settle says whether there is a finding.
func (r *Report) settle() {
	r.Clean = r.Missing.Count+r.Duplicated.Count+r.Foreign.Count+r.Changed.Count+r.Waiting.Count+r.NoID == 0
	for _, f := range []*Findings{&r.Missing.Findings, &r.Duplicated, &r.Foreign, &r.Changed, &r.Waiting, &r.Trimmed, &r.Dead} {
		if f.List == nil {
			f.List = []Finding{}
		}
	}
}

// WriteText writes the report for people.
func (r *Report) WriteText(w io.Writer) error {
	var b strings.Builder
	since := ""
	if r.Since != nil {
		since = " since " + r.Since.UTC().Format(time.RFC3339)
	}
	fmt.Fprintf(&b, "compared %s of %s%s with %s of the stream %q\n",
		count(r.Rows, "row"), r.Table, since, count(r.Entries, "entry"), r.Stream)
	note := func(n int64, format string, args ...any) {
		if n > 0 {
			fmt.Fprintf(&b, "  "+format+"\n", args...)
		}
	}
	finding := func(f Findings, what, explanation string) {
		if f.Count == 0 {
			return
		}
		fmt.Fprintf(&b, "  %s %s: %s\n", strings.ToUpper(what), thousands(f.Count), explanation)
		for _, one := range f.List {
			fmt.Fprintf(&b, "    id %s", legible(one.ID))
			if len(one.Entries) > 0 {
				fmt.Fprintf(&b, "  entry %s", strings.Join(one.Entries, ", "))
			}
			b.WriteByte('\n')
		}
		if more := f.Count - int64(len(f.List)); more > 0 {
			fmt.Fprintf(&b, "    and %s more\n", thousands(more))
		}
	}
	finding(r.Missing.Findings, "missing", "rows without an entry")
	note(r.Missing.Deletable, "  the entries of %s of them may have been deleted with XDEL: Redis tells that some were", thousands(r.Missing.Deletable))
	finding(r.Duplicated, "duplicated", "rows with more than one equal entry")
	finding(r.Foreign, "foreign", "entries of no row: it was never committed, or was deleted since, though older ones are there")
	finding(r.Changed, "changed", "rows whose entry has other values: changed after it was written, or the id was issued twice")
	finding(r.Waiting, "waiting", "rows that no relay has published yet")
	note(r.NoID, "NO ID %s: rows whose id is NULL, which cannot be published, and were not skipped", thousands(r.NoID))
	note(r.Trimmed.Count, "trimmed %s: rows from before the stream's oldest entry, whose entries were removed", thousands(r.Trimmed.Count))
	note(r.Dead.Count, "dead %s: rows that were skipped, their entries are in the stream %q", thousands(r.Dead.Count), r.Stream+":dead")
	note(r.Gone, "gone %s: entries whose rows are not in the table, as they are not once published rows are deleted", thousands(r.Gone))
	note(r.OtherEntries, "other %s: entries of other programs, without our id field", thousands(r.OtherEntries))
	if r.Clean {
		b.WriteString("complete: every row that should be on the stream is there once\n")
	}
	_, err := io.WriteString(w, b.String())
	return err
}

// legible quotes what would spoil a terminal: an entry may say anything.
func legible(id string) string {
	const most = 80
	runes := []rune(id)
	if len(runes) > most {
		id = string(runes[:most]) + "…"
	}
	if quoted := strconv.Quote(id); id == "" || quoted != `"`+id+`"` {
		return quoted
	}
	return id
}

func count(n int64, one string) string {
	many := strings.TrimSuffix(one, "y") + "ies"
	if !strings.HasSuffix(one, "y") {
		many = one + "s"
	}
	if n == 1 {
		many = one
	}
	return thousands(n) + " " + many
}

// thousands writes a number with a space every three digits.
func thousands(n int64) string {
	s := fmt.Sprint(n)
	for i := len(s) - 3; i > 0; i -= 3 {
		s = s[:i] + " " + s[i:]
	}
	return s
}
