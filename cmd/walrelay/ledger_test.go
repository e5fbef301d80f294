package main

import (
	"fmt"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/stagedoor/walrelay/cdc"
	"github.com/stagedoor/walrelay/internal/shop"
)

// ledger is what PostgreSQL says was committed, over all crashes and failovers,
// and what may be missing from the stream by what the README says.
type ledger struct {
	rows []*ledgerRow // in commit order
	byID map[string][]*ledgerRow
	last cdc.LSN // where the last one's commit ends
}

type ledgerRow struct {
	shop.Row
	lsn  cdc.LSN
	rank int

	// forgotten: Redis lost all it knew after the row was on the stream, marked,
	// and confirmed, so nobody can tell that its entry was lost.
	forgotten bool
	// lost: the database lost it with a primary. Its entry may be there, and is
	// reported, unless nobody can tell any more that the database lost anything.
	lost, untold bool
}

func newLedger() *ledger { return &ledger{byID: map[string][]*ledgerRow{}} }

// add takes rows of the oracle. It may tell them again after a crash.
func (l *ledger) add(rows []shop.Row) error {
	last := l.last
	for _, r := range rows {
		lsn, err := cdc.ParseLSN(r.LSN)
		if err != nil {
			return err
		}
		if lsn <= l.last {
			continue
		}
		row := &ledgerRow{Row: r, lsn: lsn, rank: len(l.rows)}
		l.rows = append(l.rows, row)
		l.byID[r.OutboxID] = append(l.byID[r.OutboxID], row)
		last = max(last, lsn)
	}
	l.last = last
	return nil
}

// promoted takes note that history ended at fork, and returns how many rows
// went with the old primary.
func (l *ledger) promoted(fork cdc.LSN) int {
	n := 0
	for _, r := range l.rows {
		if !r.lost && r.lsn > fork {
			r.lost = true
			n++
		}
	}
	l.last = fork
	return n
}

// hush takes note that nobody can tell any more that the database lost rows.
func (l *ledger) hush() {
	for _, r := range l.rows {
		r.untold = r.untold || r.lost
	}
}

// forget takes note that Redis lost what it knew of the rows before an LSN, of
// which nobody knows any more that are marked or deleted.
func (l *ledger) forget(before cdc.LSN, unmarked map[string]bool) {
	for _, r := range l.rows {
		if r.lsn <= before && !unmarked[r.OutboxID] {
			r.forgotten = true
		}
	}
}

// window is a time in which backfilled rows were appended: those are in the
// order in which they were written, not in that of their commits.
type window struct{ from, to time.Time }

// verdict is what a comparison of ledger and stream says.
type verdict struct {
	missing []string // rows that are to come
	wrong   []string // what can never become right
	lost    []string // ids of the entries whose rows the database lost, which must be reported
}

// compare looks at the whole stream. After a heal a row that was changed in the
// transaction that inserted it may be there as it is now, also beside what it
// was.
// What was deleted since cannot be put back.
func (l *ledger) compare(entries []redis.XMessage, table map[string]bool, backfills []window) verdict {
	var v verdict
	healed := len(backfills) > 1 // the first one is the first start
	times, changed := map[*ledgerRow]int{}, map[*ledgerRow]int{}
	var before *ledgerRow
	for _, e := range entries {
		row := l.of(e)
		if row == nil && healed {
			if row = l.changed(e); row != nil {
				if changed[row]++; changed[row] > 1 {
					v.wrong = append(v.wrong, fmt.Sprintf("entry %s: row %s as it was changed is on the stream %d times", e.ID, row.OutboxID, changed[row]))
				}
				continue
			}
		}
		if row == nil {
			v.wrong = append(v.wrong, fmt.Sprintf("entry %s is of no row that was ever committed: %.200v", e.ID, e.Values))
			continue
		}
		if times[row]++; times[row] > 1 {
			v.wrong = append(v.wrong, fmt.Sprintf("entry %s: row %s (%s) is on the stream %d times", e.ID, row.OutboxID, row.Kind, times[row]))
			continue
		}
		if row.lost {
			if !row.untold {
				v.lost = append(v.lost, e.ID)
			}
			continue
		}
		if slices.ContainsFunc(backfills, func(w window) bool { return w.has(e.ID) }) {
			continue
		}
		if before != nil && row.rank < before.rank {
			v.wrong = append(v.wrong, fmt.Sprintf("entry %s: row %s comes after row %s, which was committed later", e.ID, row.OutboxID, before.OutboxID))
		}
		before = row
	}
	for _, r := range l.rows {
		optional := r.lost || r.forgotten || healed && !table[r.OutboxID]
		if times[r]+changed[r] == 0 && !optional {
			v.missing = append(v.missing, fmt.Sprintf("row %s (%s, committed at %s, %s)", r.OutboxID, r.Kind, r.LSN, r.Committed.Format("15:04:05.000")))
		}
	}
	return v
}

// of finds the row of an entry; of two that are the same, the later one.
func (l *ledger) of(e redis.XMessage) *ledgerRow {
	return l.find(e, func(r *ledgerRow) bool { return e.Values["payload"] == r.Payload })
}

// changed finds the row of an entry that is as the row was changed.
func (l *ledger) changed(e redis.XMessage) *ledgerRow {
	return l.find(e, func(r *ledgerRow) bool { return r.Kind == "updated" && e.Values["payload"] == `"changed"` })
}

func (l *ledger) find(e redis.XMessage, same func(*ledgerRow) bool) (found *ledgerRow) {
	id, _ := e.Values["outbox_id"].(string)
	for _, r := range l.byID[id] {
		if e.Values["kind"] == r.Kind && same(r) {
			found = r
		}
	}
	return found
}

// has reports whether an entry was appended in the window.
func (w window) has(id string) bool {
	ms, _, _ := strings.Cut(id, "-")
	n, _ := strconv.ParseInt(ms, 10, 64)
	at := time.UnixMilli(n)
	const clock = 20 * time.Millisecond // Redis looks at its own once per round
	return at.After(w.from.Add(-clock)) && at.Before(w.to.Add(clock))
}

func (v verdict) String() string {
	return fmt.Sprintf("%d rows missing, %d things wrong:\n%s\n%s", len(v.missing), len(v.wrong), some(v.missing), some(v.wrong))
}

func some(list []string) string {
	return strings.Join(list[:min(len(list), 15)], "\n")
}

var logged = regexp.MustCompile(`(?m)^time=(\S+) level=\S+ msg=(?:"([^"]*)"|(\S+))(.*)$`)

// backfills reads from the relays' logs when they backfilled, and how many gaps
// of each kind they healed.
func backfills(logs []string) (windows []window, heals map[string]int) {
	var begins, ends []time.Time
	heals = map[string]int{}
	for _, log := range logs {
		for _, m := range logged.FindAllStringSubmatch(log, -1) {
			at, err := time.Parse(time.RFC3339Nano, m[1])
			if err != nil {
				continue
			}
			switch message := m[2] + m[3]; {
			case strings.HasPrefix(message, "rows may be missing; healing"):
				heals[attribute(m[4], "kind")]++
				begins = append(begins, at)
			case message == "backfilling":
				begins = append(begins, at)
			case message == "the slot is made":
				ends = append(ends, at)
			}
		}
	}
	slices.SortFunc(begins, time.Time.Compare)
	slices.SortFunc(ends, time.Time.Compare)
	// One that was not finished goes on in the next.
	for _, from := range begins {
		w := window{from, time.Now()}
		for _, to := range ends {
			if !to.Before(from) {
				w.to = to
				break
			}
		}
		if n := len(windows); n > 0 && windows[n-1].to.Equal(w.to) {
			continue
		}
		windows = append(windows, w)
	}
	return windows, heals
}

func attribute(text, key string) string {
	_, rest, _ := strings.Cut(text, " "+key+"=")
	value, _, _ := strings.Cut(rest, " ")
	return value
}

// reportedLost are the ids of the entries that the relays reported as lost with
// a primary.
func reportedLost(logs []string) map[string]bool {
	ids := map[string]bool{}
	for _, log := range logs {
		for _, m := range logged.FindAllStringSubmatch(log, -1) {
			if strings.HasPrefix(m[2], "entries are on the stream whose rows were lost") {
				_, list, _ := strings.Cut(m[4], " entries=")
				for _, id := range strings.Fields(strings.Trim(list, `"`)) {
					ids[id] = true
				}
			}
		}
	}
	return ids
}
