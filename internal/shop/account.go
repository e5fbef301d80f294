package shop

import (
	"slices"
)

// Account is what came of the rows that were committed. The lists hold outbox
// ids.
type Account struct {
	Rows    int // committed, by the oracle
	Entries int // on the stream

	Lost           []string // committed, and not on the stream
	Duplicated     []string // on the stream once more than they should be
	OutOfOrder     []string // the fewest that would have to move for commit order
	Altered        []string // kind or payload is not what was committed
	NeverCommitted []string // on the stream, and not committed
	BeforeTickets  []string // refunds that arrived before their order's tickets

	// IDsOvertaken counts the rows that committed after one with a greater id.
	// It is no fault: it is why a relay that goes by ids would miss rows.
	IDsOvertaken int
}

// Exact reports whether every committed row is on the stream once, unchanged and
// in commit order, and nothing else is.
func (a Account) Exact() bool {
	return len(a.Lost)+len(a.Duplicated)+len(a.OutOfOrder)+len(a.Altered)+
		len(a.NeverCommitted)+len(a.BeforeTickets) == 0
}

// Reconcile compares the stream with the rows that were committed, both in
// their own order.
func Reconcile(rows []Row, entries []Entry) Account {
	a := Account{Rows: len(rows), Entries: len(entries)}

	place := make(map[string]int, len(rows)) // in commit order
	var greatest string
	for i, r := range rows {
		place[r.OutboxID] = i
		if lessID(r.OutboxID, greatest) {
			a.IDsOvertaken++
		} else {
			greatest = r.OutboxID
		}
	}

	var places []int // of the entries, each row once
	var ids []string
	arrived := make(map[string]bool, len(entries))
	rendered := map[string]bool{}
	for _, e := range entries {
		i, committed := place[e.OutboxID]
		switch {
		case !committed:
			a.NeverCommitted = append(a.NeverCommitted, e.OutboxID)
			continue
		case arrived[e.OutboxID]:
			a.Duplicated = append(a.Duplicated, e.OutboxID)
			continue
		}
		arrived[e.OutboxID] = true
		places, ids = append(places, i), append(ids, e.OutboxID)
		if e.Kind != rows[i].Kind || e.Payload != rows[i].Payload {
			a.Altered = append(a.Altered, e.OutboxID)
		}
		job, err := e.Job()
		switch {
		case err != nil: // not a job of the shop's
		case e.Kind == RenderTickets:
			rendered[job.Order] = true
		case e.Kind == RefundOrder && !rendered[job.Order]:
			a.BeforeTickets = append(a.BeforeTickets, e.OutboxID)
		}
	}
	for _, r := range rows {
		if !arrived[r.OutboxID] {
			a.Lost = append(a.Lost, r.OutboxID)
		}
	}
	for _, i := range misplaced(places) {
		a.OutOfOrder = append(a.OutOfOrder, ids[i])
	}
	return a
}

// lessID compares decimal numbers of any length. The empty string is the least.
func lessID(a, b string) bool {
	if len(a) != len(b) {
		return len(a) < len(b)
	}
	return a < b
}

// misplaced returns the indexes of the fewest places that have to be taken out
// for the rest to grow: all but a longest increasing subsequence. Counting the
// places that are lower than the one before would call one row that came too
// early a fault of all the others.
func misplaced(places []int) []int {
	var ends []int                     // ends[n]: index of the least place that ends a run of n+1
	before := make([]int, len(places)) // the index before it in its run
	for i, p := range places {
		n, _ := slices.BinarySearchFunc(ends, p, func(e, p int) int { return places[e] - p })
		before[i] = -1
		if n > 0 {
			before[i] = ends[n-1]
		}
		if n == len(ends) {
			ends = append(ends, i)
		} else {
			ends[n] = i
		}
	}
	if len(ends) == 0 {
		return nil
	}
	inRun := make([]bool, len(places))
	for i := ends[len(ends)-1]; i >= 0; i = before[i] {
		inRun[i] = true
	}
	var out []int
	for i, in := range inRun {
		if !in {
			out = append(out, i)
		}
	}
	return out
}
