package audit

import (
	"bytes"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"runtime"
	"testing"

	"github.com/stagedoor/walrelay/cdc"
	"github.com/stagedoor/walrelay/internal/fault"
)

// What is spilled comes back, in the order of each part, and what belongs
// together is in one part.
func TestSpilledRecordsComeBack(t *testing.T) {
	t.Setenv("TMPDIR", t.TempDir())
	const n = 50_000
	s := newSpill(16)
	s.size = 1000
	defer s.close()
	long := bytes.Repeat([]byte("x"), 3000)
	want := func(i int) *record {
		r := &record{id: fmt.Append(nil, "row ", i/2), flags: byte(i % 4), time: int64(i) - n/2, seq: uint64(i), has: uint64(i % 8)}
		if i%1000 == 0 {
			r.id = append(long, r.id...)
		}
		for range 8 * [8]int{0, 1, 1, 2, 1, 2, 2, 3}[r.has] {
			r.hashes = append(r.hashes, byte(i))
		}
		return r
	}
	for i := range n {
		if err := s.add(want(i)); err != nil {
			t.Fatal(err)
		}
	}
	if s.file == nil {
		t.Fatal("nothing went to the file")
	}
	if left, err := os.ReadDir(os.TempDir()); err != nil || len(left) > 0 {
		t.Errorf("the file has a name: %v, %v", left, err)
	}
	seen := 0
	parts := map[string]int{}
	for p := range 16 {
		data, err := s.load(nil, p)
		if err != nil {
			t.Fatal(err)
		}
		last := int64(-n)
		for len(data) > 0 {
			var r record
			r, data = next(data)
			i := int(r.seq)
			if w := want(i); !bytes.Equal(r.id, w.id) || r.flags != w.flags || r.time != w.time || r.has != w.has || !bytes.Equal(r.hashes, w.hashes) {
				t.Fatalf("record %d is %+v", i, r)
			}
			if r.time <= last {
				t.Fatalf("record %d comes after a later one", i)
			}
			last = r.time
			if in, ok := parts[string(r.id)]; ok && in != p {
				t.Fatalf("%s is in two parts", r.id)
			}
			parts[string(r.id)] = p
			seen++
		}
	}
	if seen != n {
		t.Errorf("%d of %d came back", seen, n)
	}
}

// A directory that cannot be written to is an error that says what to do, and
// only where it is needed.
func TestNoRoomForTheAudit(t *testing.T) {
	t.Setenv("TMPDIR", t.TempDir()+"/gone")
	s := newSpill(16)
	if err := s.add(&record{id: []byte("1")}); err != nil {
		t.Fatal(err)
	}
	s.size = 10
	err := s.add(&record{id: []byte("1"), has: 1, hashes: make([]byte, 8)})
	if fault.As(err) == nil || !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("the error is %v", err)
	}
}

// Many rows and entries take little memory: what grows with them is on disk.
func TestAuditOfManyRowsIsBounded(t *testing.T) {
	if testing.Short() {
		t.Skip("takes a while")
	}
	const n = 300_000
	s, e := newSpill(parts(n)), newSpill(parts(n))
	defer s.close()
	defer e.close()
	var before, most runtime.MemStats
	runtime.GC()
	runtime.ReadMemStats(&before)
	hashes := make([]byte, 24)
	for i := range n {
		id := fmt.Append(nil, i)
		if err := errors.Join(s.add(&record{id: id, has: 7, hashes: hashes, time: 1}), e.add(&record{id: id, has: 7, hashes: hashes, time: 1, seq: uint64(i)})); err != nil {
			t.Fatal(err)
		}
	}
	check := func(what string) {
		runtime.GC()
		runtime.ReadMemStats(&most)
		if grown := int64(most.HeapAlloc) - int64(before.HeapAlloc); grown > 30<<20 {
			t.Errorf("%s: %d MiB more than before", what, grown>>20)
		}
	}
	check("spilled")
	rows := 0
	for p := range s.buffers {
		a, err := s.load(nil, p)
		if err != nil {
			t.Fatal(err)
		}
		b, err := e.load(nil, p)
		if err != nil {
			t.Fatal(err)
		}
		j := join(a, b)
		if p == 0 {
			check("joined")
		}
		rows += len(j.rows)
		for _, r := range j.rows {
			if len(r.entries) != 1 {
				t.Fatalf("row %s has the entries %v", r.id, r.entries)
			}
		}
	}
	if rows != n {
		t.Errorf("%d rows of %d", rows, n)
	}
}

func TestRecordOfARowAndAnEntry(t *testing.T) {
	fields := (&listed{}).Fields()
	of := func(pairs ...string) *record {
		e := cdc.Entry{Values: map[string]string{}}
		for i := 0; i < len(pairs); i += 2 {
			e.Values[pairs[i]] = pairs[i+1]
		}
		v, _ := fields.OfEntry(e)
		return &record{has: v.Has, hashes: hashes(fields, v)}
	}
	whole := of("kind", "a", "outbox_id", "1", "payload", "[1.0]")
	for _, tt := range []struct {
		row, entry *record
		want       bool
	}{
		{whole, of("kind", "a", "outbox_id", "1", "payload", "[1]"), true},
		{whole, of("outbox_id", "1", "payload", "[1]"), true},
		{whole, of("kind", "a", "outbox_id", "1"), true},
		{whole, of("kind", "b", "outbox_id", "1"), false},
		{whole, of("kind", "a", "outbox_id", "1", "payload", "[2]"), false},
		{of("outbox_id", "1"), of("kind", "a", "outbox_id", "1"), false},
		{of("outbox_id", "1", "payload", "a"), of("kind", "a", "outbox_id", "1"), false},
	} {
		if got := tt.row.is(tt.entry); got != tt.want {
			t.Errorf("%b and %b: %v", tt.row.has, tt.entry.has, got)
		}
	}
}
