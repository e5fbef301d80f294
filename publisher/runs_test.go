package publisher

import (
	"fmt"
	"reflect"
	"strings"
	"testing"

	"github.com/stagedoor/walrelay/cdc"
	"github.com/stagedoor/walrelay/internal/testservers"
)

// shaped makes an event with these names, each with a value of its own.
func shaped(id int, names ...string) cdc.Event {
	ev := cdc.Event{ID: fmt.Sprint(id)}
	for _, name := range names {
		ev.Fields = append(ev.Fields, cdc.Field{Name: name, Value: fmt.Sprintf("%s of %d", name, id)})
	}
	return ev
}

// mixed are events of different shapes: runs of one and of several, rows with
// NULLs, the same names in another order, as many fields as a table may have and
// as many as an entry may, and dead ones between them.
func mixed() []cdc.Event {
	names := func(n int) (names []string) {
		for i := range n {
			names = append(names, fmt.Sprint("field", i))
		}
		return names
	}
	var events []cdc.Event
	add := func(dead bool, names ...string) {
		ev := shaped(len(events), names...)
		ev.Dead = dead
		events = append(events, ev)
	}
	for range 3 {
		add(false, "kind", "id", "payload")
		add(false, "kind", "id", "payload")
		add(false, "id", "payload")
		add(false, "kind", "id")
		add(true, "kind", "id")
		add(true, "kind", "id")
		add(true, "kind", "id", cdc.DeadReason)
		add(false, "id", "kind")
		add(false, "id")
		add(false, names(64)...)
		add(false, names(64)...)
		add(false, names(mostFields)...)
	}
	for i := range 700 { // a NULL in every other row
		add(false, names(3)[i%2:]...)
	}
	for range 100 { // one run of more values than Lua's stack holds
		add(false, names(100)...)
	}
	return events
}

// fieldsOf are the fields of a stream's entries, in order.
func (f *fixture) fieldsOf(stream string) (entries [][]string) {
	f.t.Helper()
	reply, err := f.admin.Do(f.t.Context(), "XRANGE", stream, "-", "+").Slice()
	if err != nil {
		f.t.Fatal(err)
	}
	for _, entry := range reply {
		var fields []string
		for _, s := range entry.([]any)[1].([]any) {
			fields = append(fields, s.(string))
		}
		entries = append(entries, fields)
	}
	return entries
}

// wantEntries compares the stream and the dead stream with the events that were
// appended: the fields, their order, and the order of the entries.
func (f *fixture) wantEntries(events []cdc.Event) {
	f.t.Helper()
	want := map[string][][]string{}
	for _, ev := range events {
		var fields []string
		for _, field := range ev.Fields {
			fields = append(fields, field.Name, field.Value)
		}
		stream := "jobs"
		if ev.Dead {
			stream = "jobs:dead"
		}
		want[stream] = append(want[stream], fields)
	}
	for stream, want := range want {
		got := f.fieldsOf(stream)
		if len(got) != len(want) {
			f.t.Errorf("%s has %d entries, want %d", stream, len(got), len(want))
			continue
		}
		for i := range want {
			if !reflect.DeepEqual(got[i], want[i]) {
				f.t.Errorf("entry %d of %s is %.200q, want %.200q", i, stream, got[i], want[i])
			}
		}
	}
}

// Rows of every shape arrive as they are, whatever shape the rows before them
// have; the checkpoint knows the last of them, and how many there are.
func TestAppendOfRowsOfDifferentShapes(t *testing.T) {
	for _, maxLen := range []int64{0, 1_000_000} {
		t.Run(fmt.Sprint("at most ", maxLen), func(t *testing.T) {
			f := setUp(t, testservers.RedisOptions{}, maxLen)
			events := mixed()
			f.append(0, state(1, 10), events)
			f.wantEntries(events)
			check := func(n uint64) {
				t.Helper()
				cp, streams, err := f.pub.Load(t.Context(), key)
				if err != nil {
					t.Fatal(err)
				}
				s := streams["jobs"]
				if cp.Version != version(n) || cp.LastIDs["jobs"] != s.LastID || cp.Added["jobs"] != s.Added || len(cp.LastIDs) != 1 {
					t.Errorf("the checkpoint has %v, %v, %v; the stream %+v", cp.Version, cp.LastIDs, cp.Added, s)
				}
			}
			check(1)
			f.append(1, state(2, 20), nil)
			again := mixed()[:40]
			f.append(2, state(3, 30), again)
			f.wantEntries(append(events, again...))
			check(3)
		})
	}
}

// The last entry of a long run, of another shape than most, is refused: all that
// came before is taken back, of both streams.
func TestAppendTakesRunsBack(t *testing.T) {
	f := setUp(t, testservers.RedisOptions{}, 0)
	kept := []cdc.Event{shaped(1, "id"), shaped(2, "id")}
	kept[1].Dead = true
	f.append(0, state(1, 10), kept)
	events := append(mixed(), cdc.Event{ID: "none"}, cdc.Event{ID: "none"}) // XADD needs a field
	if _, err := f.pub.Append(t.Context(), key, version(1), state(2, 20), events); err == nil || !strings.Contains(err.Error(), "while running XADD") {
		t.Errorf("got %v", err)
	}
	f.wantEntries(kept)
	f.wantVersion(1)
	cp, _, err := f.pub.Load(t.Context(), key)
	if err != nil || cp.Covered != 10 {
		t.Errorf("the checkpoint is %+v, %v", cp, err)
	}
	if _, err := f.pub.Publish(t.Context(), events); err == nil {
		t.Error("an entry without fields was taken")
	}
	f.wantEntries(kept)
}

// A poller's rows arrive likewise; to it none is dead.
func TestPublishOfRowsOfDifferentShapes(t *testing.T) {
	for _, maxLen := range []int64{0, 1_000_000} {
		t.Run(fmt.Sprint("at most ", maxLen), func(t *testing.T) {
			f := setUp(t, testservers.RedisOptions{}, maxLen)
			events := mixed()
			for i := range events {
				events[i].Dead = false
			}
			if refused, err := f.pub.Publish(t.Context(), events); err != nil || refused != "" {
				t.Fatal(refused, err)
			}
			f.wantEntries(events)
			wide := make([]cdc.Field, mostFields+1)
			refused, err := f.pub.Publish(t.Context(), []cdc.Event{events[0], {ID: "wide", Fields: wide}})
			if err != nil || refused == "" {
				t.Errorf("%d fields: %q, %v", len(wide), refused, err)
			}
			f.wantEntries(events)
		})
	}
}

// Several goroutines append at a time, each to its own source.
func TestAppendsAtATime(t *testing.T) {
	f := setUp(t, testservers.RedisOptions{}, 0)
	const sources, rounds = 4, 20
	failed := make(chan error, sources)
	for s := range sources {
		go func() {
			failed <- func() error {
				for n := range uint64(rounds) {
					events := []cdc.Event{shaped(s, "source", fmt.Sprint("round", n)), shaped(s, "source", fmt.Sprint("round", n))}
					res, err := f.pub.Append(t.Context(), fmt.Sprint(key, s), version0(n), state(n+1, 0), events)
					if err != nil || !res.Done {
						return fmt.Errorf("%+v, %w", res, err)
					}
				}
				return nil
			}()
		}()
	}
	for range sources {
		if err := <-failed; err != nil {
			t.Error(err)
		}
	}
	next := make([]int, sources)
	for _, fields := range f.fieldsOf("jobs") {
		var s int
		_, _ = fmt.Sscanf(fields[1], "source of %d", &s)
		if round := fmt.Sprint("round", next[s]/2); fields[2] != round || fields[3] != fmt.Sprintf("%s of %d", round, s) {
			t.Fatalf("the next of source %d is %q, want %s", s, fields, round)
		}
		next[s]++
	}
	if want := []int{2 * rounds, 2 * rounds, 2 * rounds, 2 * rounds}; !reflect.DeepEqual(next, want) {
		t.Errorf("there are %v entries, want %v", next, want)
	}
}
