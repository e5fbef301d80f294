package audit

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/stagedoor/walrelay/cdc"
)

// short writes entry ids as they were given.
func short(s string) string {
	return strings.ReplaceAll(strings.ReplaceAll(s, "18000000", ""), "1800003700000", "3700000")
}

// What the two sides can look like, and what may be said of it.
func TestWhatAnAuditFinds(t *testing.T) {
	marked := func(ids ...string) (rows []Row) {
		for i, id := range ids {
			rows = append(rows, row(int64(1000*i), id, true))
		}
		return rows
	}
	entries := func(ids ...string) (entries []cdc.Entry) {
		for i, id := range ids {
			entries = append(entries, entry(int64(1000*i)+5, id))
		}
		return entries
	}
	for name, tt := range map[string]struct {
		sides listed
		want  string
	}{
		"nothing": {listed{}, "clean"},
		"all there, JSON spelt differently": {
			listed{rows: marked("1", "2"), entries: entries("1", "2")}, "clean",
		},
		"a row without an entry": {
			listed{rows: marked("1", "2", "3"), entries: entries("1", "2")}, "missing 1: 3",
		},
		"no stream at all": {
			listed{rows: marked("1", "2", "3", "4")}, "missing 4: 1 2 3",
		},
		"more than are listed": {
			listed{rows: marked("1", "2", "3", "4", "5"), entries: entries("1")}, "missing 4: 2 3 4",
		},
		"an entry twice": {
			listed{rows: marked("1", "2"), entries: append(entries("1", "2"), entry(3000, "1"))},
			"duplicated 1: 1(00005-0,03000-0)",
		},
		"an entry twice, once after the snapshot": {
			listed{rows: marked("1", "2"), entries: append(entries("1", "2"), entry(3000, "1")), late: 1},
			"duplicated 1: 1(00005-0,03000-0)",
		},
		"two rows that are the same, one entry": {
			listed{rows: marked("1", "1"), entries: entries("1")}, "missing 1: 1",
		},
		"two rows that are the same, two entries": {
			listed{rows: marked("1", "1"), entries: entries("1", "1")}, "clean",
		},
		"an entry of no row": {
			listed{rows: marked("1", "2"), entries: append(entries("1", "2"), entry(3000, "9"))},
			"foreign 1: 9(03000-0)",
		},
		"an entry with fewer fields is the row's": {
			listed{rows: marked("1"), entries: []cdc.Entry{{ID: "1800000000005-0", Values: map[string]string{"outbox_id": "1"}}}}, "clean",
		},
		"an entry of no row, after the snapshot": {
			listed{rows: marked("1", "2"), entries: append(entries("1", "2"), entry(3000, "9")), late: 1},
			"clean",
		},
		"an entry whose row was not visible in the snapshot": {
			listed{rows: marked("1"), now: marked("1", "2"), entries: entries("1", "2")}, "clean",
		},
		"an entry whose id is visible now, with other values": {
			listed{rows: marked("1"), now: marked("1", "2"), entries: append(entries("1"), entry(1005, "2", "kind", "refunded"))},
			"foreign 1: 2(01005-0)",
		},
		"entries of another program": {
			listed{rows: marked("1"), entries: append(entries("1"), cdc.Entry{ID: "1800000003000-0", Values: map[string]string{"a": "b"}})},
			"other 1; clean",
		},
		"entries of rows that were deleted from the beginning": {
			listed{rows: marked("1", "2"), entries: []cdc.Entry{entry(-9000, "7"), entry(-8000, "8"), entry(5, "1"), entry(700, "9"), entry(1005, "2")}},
			"gone 3; clean",
		},
		"an entry of no row, long after rows were deleted from the beginning": {
			listed{rows: marked("1", "2"), entries: []cdc.Entry{entry(-9000, "7"), entry(5, "1"), entry(1005, "2"), entry(3_700_000, "9")}},
			"foreign 1: 9(3700000-0); gone 1",
		},
		"older entries were trimmed, so it cannot be seen whether rows were deleted": {
			listed{rows: marked("1", "2"), entries: []cdc.Entry{entry(600, "9"), entry(1005, "2")}, state: cdc.StreamState{Added: 5}},
			"trimmed 1: 1; gone 1; clean",
		},
		"entries of rows that are deleted once they are published": {
			listed{deletes: true, rows: []Row{row(2000, "3", false)}, entries: entries("1", "2", "3")}, "gone 2; clean",
		},
		"two equal entries of a row that was deleted": {
			listed{deletes: true, entries: entries("1", "2", "2")}, "duplicated 1: 2(01005-0,02005-0); gone 2",
		},
		"an entry whose id is no time": {
			listed{rows: marked("1"), entries: []cdc.Entry{
				{ID: "1-0", Values: entry(0, "1").Values},
				{ID: "2-0", Values: entry(0, "2").Values},
			}}, "gone 1; clean",
		},
		"other values under the id, from after the row": {
			listed{rows: marked("1"), entries: []cdc.Entry{entry(5, "1", "payload", `{"n":2}`)}}, "changed 1: 1(00005-0)",
		},
		"other values under the id, from before the row": {
			listed{rows: marked("1", "2"), entries: []cdc.Entry{entry(5, "1"), entry(800, "2", "payload", `{"n":2}`)}}, "missing 1: 2",
		},
		"other values under the id, beside the row's own entry": {
			listed{rows: marked("1"), entries: append(entries("1"), entry(3000, "1", "payload", `{"n":2}`))}, "foreign 1: 1(03000-0)",
		},
		"a row that the relay has not come to": {
			listed{behind: true, rows: append(marked("1"), row(2000, "2", false)), entries: entries("1")}, "waiting 1: 2",
		},
		"a marked row is missing however far the relay is": {
			listed{behind: true, rows: marked("1", "2"), entries: entries("1")}, "missing 1: 2",
		},
		"an unmarked row that the relay has passed": {
			listed{rows: append(marked("1"), row(2000, "2", false)), entries: entries("1")}, "missing 1: 2",
		},
		"an unmarked row that was marked since, and is not on the stream": {
			listed{behind: true, rows: append(marked("1"), row(2000, "2", false)), now: marked("1", "2"), entries: entries("1")}, "missing 1: 2",
		},
		"an unmarked row that was deleted since": {
			listed{rows: append(marked("1"), row(2000, "2", false)), now: marked("1"), entries: entries("1")}, "clean",
		},
		"a row that was skipped": {
			listed{rows: marked("1", "2"), entries: entries("1"), dead: []cdc.Entry{
				{ID: "1800000003000-0", Values: map[string]string{"outbox_id": "2", "walrelay_reason": "too large"}},
			}}, "dead 1: 2; clean",
		},
		"rows without an id": {
			listed{rows: []Row{{Event: cdc.Event{NoID: true}}, {Event: cdc.Event{NoID: true}}}, dead: []cdc.Entry{
				{ID: "1800000003000-0", Values: map[string]string{"walrelay_reason": "it has no id"}},
			}}, "no id 1",
		},
		"rows without an id that were skipped": {
			listed{rows: []Row{{Event: cdc.Event{NoID: true}}}, dead: []cdc.Entry{
				{ID: "1800000003000-0", Values: map[string]string{"walrelay_reason": "it has no id"}},
			}}, "clean",
		},
		"a skipped row's stream does not make up for another one": {
			listed{rows: marked("1", "2", "3"), entries: entries("1"), dead: []cdc.Entry{
				{ID: "1800000003000-0", Values: map[string]string{"outbox_id": "2", "walrelay_reason": "too large"}},
			}}, "missing 1: 3; dead 1: 2",
		},
		"trimmed": {
			listed{rows: marked("1", "2", "3"), entries: entries("1", "2", "3")[2:], state: cdc.StreamState{Added: 2}},
			"trimmed 2: 1 2; clean",
		},
		"trimmed to nothing": {
			listed{rows: marked("1", "2"), state: cdc.StreamState{Added: 2}}, "trimmed 2: 1 2; clean",
		},
		"trimmed, and one missing after that": {
			listed{
				rows:    []Row{row(0, "1", true), row(1000, "2", true), row(30_000, "3", true), row(40_000, "4", true)},
				entries: []cdc.Entry{entry(1005, "2"), entry(40_005, "4")}, state: cdc.StreamState{Added: 1},
			}, "missing 1: 3; trimmed 1: 1",
		},
		"trimmed, of a row whose clock was ahead": {
			listed{
				rows:    []Row{row(5000, "1", true), row(1000, "2", true)},
				entries: []cdc.Entry{entry(1005, "2")}, state: cdc.StreamState{Added: 1},
			}, "trimmed 1: 1; clean",
		},
		"Redis before 7 does not tell of trimming": {
			listed{
				rows:    []Row{row(0, "1", true), row(1000, "2", true), row(30_000, "3", true), row(40_000, "4", true)},
				entries: []cdc.Entry{entry(1005, "2"), entry(40_005, "4")}, state: cdc.StreamState{Added: -2},
			}, "missing 1: 3; trimmed 1: 1",
		},
		"an unmarked row is not taken for trimmed": {
			listed{rows: append([]Row{row(0, "1", false)}, marked("2", "3")...), entries: []cdc.Entry{entry(5, "2"), entry(1005, "3")}, state: cdc.StreamState{Added: 1}},
			"missing 1: 1",
		},
		"deleted from the middle": {
			listed{rows: marked("1", "2", "3"), entries: []cdc.Entry{entry(5, "1"), entry(2005, "3")}, state: cdc.StreamState{Added: 1, MaxDeletedID: "1800000001005-0"}},
			"missing 1: 2; deletable 1",
		},
		"missing after what was deleted last": {
			listed{
				rows:    []Row{row(0, "1", true), row(1000, "2", true), row(2000, "3", true), row(40_000, "4", true)},
				entries: []cdc.Entry{entry(5, "1"), entry(2005, "3")}, state: cdc.StreamState{Added: 1, MaxDeletedID: "1800000001005-0"},
			}, "missing 2: 2 4; deletable 1",
		},
		"the first ones deleted by hand": {
			listed{rows: marked("1", "2", "3"), entries: []cdc.Entry{entry(2005, "3")}, state: cdc.StreamState{Added: 2, MaxDeletedID: "1800000001005-0"}},
			"trimmed 2: 1 2; clean",
		},
		"since a time": {
			listed{
				since: time.UnixMilli(base + 2000), rows: marked("1", "2", "3", "4")[2:], now: marked("1", "2", "3", "4"),
				// The first was appended late, the second long after and with other values.
				entries: []cdc.Entry{entry(400, "8"), entry(2001, "1"), entry(2002, "2", "kind", "other"), entry(2005, "3"), entry(2500, "9")},
			}, "missing 1: 4; foreign 1: 9(02500-0)",
		},
		"since a time, and entries from before it cannot be seen": {
			listed{
				since: time.UnixMilli(base + 20_000), whole: time.UnixMilli(base + 20_000), rows: []Row{row(21_000, "3", true)},
				entries: []cdc.Entry{entry(21_005, "3"), entry(22_000, "9")},
			}, "gone 1; clean",
		},
		"no index, and few to look up": {
			listed{unindexed: true, rows: append(marked("1"), row(2000, "2", false)), now: marked("1", "2"), entries: entries("1")}, "missing 1: 2",
		},
	} {
		t.Run(name, func(t *testing.T) {
			if got := short(summary(tt.sides.audit(t))); got != tt.want {
				t.Errorf("found %q, want %q", got, tt.want)
			}
		})
	}
}

// Rows that were written in one transaction have the same time. Their ids tell
// those that were trimmed from one that was deleted later.
func TestTrimmedAndDeletedOfOneTransaction(t *testing.T) {
	var rows []Row
	var entries []cdc.Entry
	for i := range 10 {
		id := fmt.Sprint(i + 1)
		rows = append(rows, row(0, id, true))
		e := entry(3, id)
		e.ID = fmt.Sprintf("1800000000003-%d", i)
		entries = append(entries, e)
	}
	kept := append(append([]cdc.Entry{}, entries[3:6]...), entries[7:]...)
	l := &listed{rows: rows, entries: kept, state: cdc.StreamState{Added: 4, MaxDeletedID: entries[6].ID}}
	if got, want := summary(l.audit(t)), "missing 1: 7; deletable 1; trimmed 3: 1 2 3"; got != want {
		t.Errorf("found %q, want %q", got, want)
	}
}

// The oldest missing row is where a repair has to begin.
func TestOldestMissingRow(t *testing.T) {
	l := &listed{rows: []Row{row(3000, "3", true), row(1000, "1", true), row(2000, "2", true)}, entries: []cdc.Entry{entry(3005, "3")}}
	r := l.audit(t)
	if r.Missing.Oldest == nil || !r.Missing.Oldest.Equal(time.UnixMilli(base+1000)) {
		t.Errorf("the oldest is %v", r.Missing.Oldest)
	}
	l.rows[2].Created = time.Time{}
	l.loads = 0
	if r = l.audit(t); r.Missing.Oldest != nil {
		t.Errorf("the oldest is %v though one is unknown", r.Missing.Oldest)
	}
}

// Where an id is found by a scan only, the table is not scanned for ever.
func TestFewScansWithoutAnIndex(t *testing.T) {
	l := &listed{unindexed: true, rows: []Row{row(0, "0", true)}, entries: []cdc.Entry{entry(5, "0")}}
	for i := range 3 * lookUnindexed {
		l.entries = append(l.entries, entry(int64(1000+i), fmt.Sprint("x", i)))
	}
	r := l.audit(t)
	if len(l.asked) > lookUnindexed || r.Foreign.Count > lookUnindexed || r.Gone == 0 || r.Foreign.Count+r.Gone != 3*lookUnindexed {
		t.Errorf("asked %d times, %d foreign, %d gone", len(l.asked), r.Foreign.Count, r.Gone)
	}
}
