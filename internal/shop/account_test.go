package shop

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"testing"
	"time"
)

// ledger is n committed orders, and their stream with nothing wrong.
func ledger(n int) ([]Row, []Entry) {
	var rows []Row
	var entries []Entry
	for i := range n {
		row := Row{
			OutboxID: fmt.Sprint(i + 1), Kind: RenderTickets,
			Payload: fmt.Sprintf(`{"order": "%d"}`, i/2), // the odd ones refund the even ones
		}
		if i%2 == 1 {
			row.Kind = RefundOrder
		}
		rows = append(rows, row)
		entries = append(entries, Entry{OutboxID: row.OutboxID, Kind: row.Kind, Payload: row.Payload})
	}
	return rows, entries
}

func TestAccountFindsWhatIsWrong(t *testing.T) {
	move := func(entries []Entry, from, to int) []Entry {
		e := entries[from]
		return slices.Insert(slices.Delete(entries, from, from+1), to, e)
	}
	for name, c := range map[string]struct {
		plant func([]Entry) []Entry
		want  Account
	}{
		"nothing":        {func(e []Entry) []Entry { return e }, Account{}},
		"loss":           {func(e []Entry) []Entry { return slices.Delete(e, 4, 5) }, Account{Lost: []string{"5"}, BeforeTickets: []string{"6"}}},
		"loss at end":    {func(e []Entry) []Entry { return e[:9] }, Account{Lost: []string{"10"}}},
		"everything":     {func([]Entry) []Entry { return nil }, Account{Lost: []string{"1", "2", "3", "4", "5", "6", "7", "8", "9", "10"}}},
		"duplicate":      {func(e []Entry) []Entry { return slices.Insert(e, 4, e[3]) }, Account{Duplicated: []string{"4"}}},
		"late duplicate": {func(e []Entry) []Entry { return append(e, e[0], e[0]) }, Account{Duplicated: []string{"1", "1"}}},
		"swap":           {func(e []Entry) []Entry { return move(e, 1, 2) }, Account{OutOfOrder: []string{"3"}}},
		"early":          {func(e []Entry) []Entry { return move(e, 8, 0) }, Account{OutOfOrder: []string{"9"}}},
		"late":           {func(e []Entry) []Entry { return move(e, 1, 9) }, Account{OutOfOrder: []string{"2"}}},
		"refund first":   {func(e []Entry) []Entry { return move(e, 3, 1) }, Account{OutOfOrder: []string{"4"}, BeforeTickets: []string{"4"}}},
		"phantom":        {func(e []Entry) []Entry { return append(e, Entry{OutboxID: "11"}) }, Account{NeverCommitted: []string{"11"}}},
		"payload":        {func(e []Entry) []Entry { e[2].Payload = `{"order":"1"}`; return e }, Account{Altered: []string{"3"}}},
		"kind":           {func(e []Entry) []Entry { e[8].Kind = "x"; return e }, Account{Altered: []string{"9"}, BeforeTickets: []string{"10"}}},
	} {
		t.Run(name, func(t *testing.T) {
			rows, entries := ledger(10)
			entries = c.plant(entries)
			c.want.Rows, c.want.Entries = len(rows), len(entries)
			got := Reconcile(rows, entries)
			if fmt.Sprint(got) != fmt.Sprint(c.want) {
				t.Errorf("the account is\n%+v\nwant\n%+v", got, c.want)
			}
			if exact := name == "nothing"; got.Exact() != exact {
				t.Errorf("Exact is %v", got.Exact())
			}
		})
	}
}

// Each of the lists alone has to spoil the account.
func TestAccountIsExactOnlyIfNothingIsWrong(t *testing.T) {
	wrong := []string{"1"}
	for i, a := range []Account{
		{Lost: wrong},
		{Duplicated: wrong},
		{OutOfOrder: wrong},
		{Altered: wrong},
		{NeverCommitted: wrong},
		{BeforeTickets: wrong},
	} {
		if a.Exact() {
			t.Errorf("account %d is exact: %+v", i, a)
		}
	}
}

func TestAccountCountsOvertakenIDs(t *testing.T) {
	rows := []Row{{OutboxID: "9"}, {OutboxID: "11"}, {OutboxID: "10"}, {OutboxID: "8"}, {OutboxID: "12"}}
	if got := Reconcile(rows, nil).IDsOvertaken; got != 2 {
		t.Errorf("%d ids were overtaken, want 10 and 8", got)
	}
}

// The rest must grow, and nothing smaller may do: checked against all subsets.
func TestMisplacedIsTheFewest(t *testing.T) {
	r := rand.New(rand.NewPCG(1, 2))
	for range 200 {
		places := r.Perm(1 + r.IntN(8))
		out := misplaced(places)
		var rest []int
		for i, p := range places {
			if !slices.Contains(out, i) {
				rest = append(rest, p)
			}
		}
		best := 0
		for subset := range 1 << len(places) {
			var run []int
			for i, p := range places {
				if subset>>i&1 == 1 {
					run = append(run, p)
				}
			}
			if slices.IsSorted(run) {
				best = max(best, len(run))
			}
		}
		if !slices.IsSorted(rest) || len(rest) != best {
			t.Fatalf("%v without %v is %v; a run of %d is there", places, out, rest, best)
		}
	}
}

func TestMeasure(t *testing.T) {
	var latencies []time.Duration
	for i := range 200 {
		latencies = append(latencies, time.Duration(200-i)*time.Millisecond)
	}
	want := Spread{N: 200, P50: 100 * time.Millisecond, P99: 198 * time.Millisecond, Max: 200 * time.Millisecond}
	if got := Measure(latencies); got != want {
		t.Errorf("got %+v, want %+v", got, want)
	}
	if got := Measure(nil); got != (Spread{}) {
		t.Errorf("of nothing: %+v", got)
	}
	one := []time.Duration{time.Second}
	if got := Measure(one); got.P50 != time.Second || got.P99 != time.Second {
		t.Errorf("of one: %+v", got)
	}
}

func TestLatenciesAreOfFirstArrivals(t *testing.T) {
	start := time.Unix(1000, 0)
	at := func(ms int) time.Time { return start.Add(time.Duration(ms) * time.Millisecond) }
	rows := []Row{{OutboxID: "1", Committed: at(0)}, {OutboxID: "2", Committed: at(10)}, {OutboxID: "3", Committed: at(20)}}
	entries := []Entry{
		{OutboxID: "1", Arrived: at(5)},
		{OutboxID: "2", Arrived: at(17)},
		{OutboxID: "1", Arrived: at(50)}, // once more
		{OutboxID: "3"},                  // nobody looked
		{OutboxID: "9", Arrived: at(60)}, // never committed
	}
	all := func(time.Time, time.Time) bool { return true }
	if got := fmt.Sprint(Latencies(rows, entries, all)); got != "[5ms 7ms]" {
		t.Errorf("got %s", got)
	}
	late := func(committed, arrived time.Time) bool { return committed.After(at(1)) && arrived.Before(at(18)) }
	if got := fmt.Sprint(Latencies(rows, entries, late)); got != "[7ms]" {
		t.Errorf("got %s", got)
	}
}
