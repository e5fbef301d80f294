package main

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/stagedoor/walrelay/internal/shop"
)

// The comparison sees what the suite is there to see.
func TestLedgerSeesWhatIsWrong(t *testing.T) {
	row := func(id, kind string) shop.Row {
		return shop.Row{OutboxID: id, Kind: kind, Payload: id + kind, LSN: "0/" + id + "0"}
	}
	entry := func(at int, id, kind, payload string) redis.XMessage {
		return redis.XMessage{ID: fmt.Sprint(1_000_000_000_000+int64(at)*1000, "-0"), Values: map[string]any{"outbox_id": id, "kind": kind, "payload": payload}}
	}
	a, b, c, d := entry(1, "1", "k", "1k"), entry(2, "2", "k", "2k"), entry(3, "3", "updated", "3updated"), entry(4, "4", "k", "4k")
	at := func(s int) time.Time { return time.UnixMilli(1_000_000_000_000 + int64(s)*1000) }
	first := window{at(-10), at(-9)}
	heal := window{at(10), at(20)}
	all := map[string]bool{"1": true, "2": true, "3": true, "4": true}
	for _, tt := range []struct {
		name           string
		entries        []redis.XMessage
		change         func(*ledger)
		windows        []window
		missing, wrong string
		lost           int
	}{
		{name: "all there", entries: []redis.XMessage{a, b, c, d}},
		{name: "one missing", entries: []redis.XMessage{a, c, d}, missing: "row 2"},
		{name: "one twice", entries: []redis.XMessage{a, b, c, d, entry(5, "2", "k", "2k")}, wrong: "row 2 (k) is on the stream 2 times"},
		{name: "out of order", entries: []redis.XMessage{b, entry(3, "1", "k", "1k"), c, d}, wrong: "row 1 comes after row 2"},
		{name: "out of order in a heal", entries: []redis.XMessage{b, c, d, entry(15, "1", "k", "1k")}, windows: []window{first, heal}},
		{name: "twice in a heal", entries: []redis.XMessage{a, b, c, d, entry(15, "1", "k", "1k")}, windows: []window{first, heal}, wrong: "row 1"},
		{name: "never committed", entries: []redis.XMessage{a, b, c, d, entry(5, "5", "ghost", "1")}, wrong: "of no row"},
		{name: "spoiled", entries: []redis.XMessage{a, entry(2, "2", "k", "2K"), c, d}, wrong: "of no row", missing: "row 2"},
		{name: "changed without a heal", entries: []redis.XMessage{a, b, c, d, entry(15, "3", "updated", `"changed"`)}, wrong: "of no row"},
		{name: "changed and healed", entries: []redis.XMessage{a, b, c, d, entry(15, "3", "updated", `"changed"`)}, windows: []window{first, heal}},
		{name: "forgotten", entries: []redis.XMessage{c, d}, change: func(l *ledger) { l.forget(l.rows[1].lsn, nil) }},
		{name: "forgotten, but not marked", entries: []redis.XMessage{c, d}, change: func(l *ledger) { l.forget(l.rows[1].lsn, map[string]bool{"2": true}) }, missing: "row 2"},
		{name: "lost with a primary", entries: []redis.XMessage{a, b, c, d}, change: func(l *ledger) { l.promoted(l.rows[1].lsn) }, lost: 2},
	} {
		t.Run(tt.name, func(t *testing.T) {
			l := newLedger()
			rows := []shop.Row{row("1", "k"), row("2", "k"), row("3", "updated"), row("4", "k")}
			for range 2 { // the second time it knows them
				if err := l.add(rows); err != nil {
					t.Fatal(err)
				}
			}
			if tt.change != nil {
				tt.change(l)
			}
			v := l.compare(tt.entries, all, tt.windows)
			for what, problem := range map[string]struct {
				got  []string
				want string
			}{"missing": {v.missing, tt.missing}, "wrong": {v.wrong, tt.wrong}} {
				if got := strings.Join(problem.got, "\n"); (problem.want == "") != (got == "") || !strings.Contains(got, problem.want) {
					t.Errorf("%s: %q, want %q", what, got, problem.want)
				}
			}
			if len(v.lost) != tt.lost {
				t.Errorf("lost: %v", v.lost)
			}
		})
	}
}

// The same seed makes the same schedules, and each disruption comes up.
func TestSchedulesAreThoseOfTheSeed(t *testing.T) {
	list := func(seed uint64) (names []string) {
		s := newScheduler(seed, nil)
		for range 40 {
			_, steps := s.next()
			for _, step := range steps {
				names = append(names, fmt.Sprint(step.name, step.seed))
			}
		}
		return names
	}
	one, same, other := fmt.Sprint(list(1)), fmt.Sprint(list(1)), fmt.Sprint(list(2))
	if one != same || one == other {
		t.Error("the schedules do not go by the seed")
	}
	for _, d := range append(append([]disruption{}, harmless...), losses...) {
		if !strings.Contains(one, d.name) {
			t.Errorf("%q is in none of 40 schedules", d.name)
		}
	}
}
