package protocol

import (
	"slices"
	"strconv"

	"github.com/stagedoor/walrelay/cdc"
)

const jobs = "jobs"

// entry is one entry of the stream.
type entry struct{ id, row int8 }

// redis holds a stream and the checkpoint beside it. Its values are never
// changed in place, so a copy is a dump.
type redis struct {
	stream  bool
	entries []entry
	last    int8 // the last id ever generated
	cp      *cdc.Checkpoint
}

// request is one call of the append script.
type request struct {
	expected cdc.Version
	next     *cdc.Checkpoint
	rows     []int8
	force    bool // of a planted bug: compare nothing
}

// reply is what the script answers.
type reply struct {
	done    bool
	missing bool
	held    *cdc.Checkpoint
}

var idNames = func() (names [128]string) {
	for i := range names {
		names[i] = strconv.Itoa(i) + "-0"
	}
	return names
}()

// lastIDs are shared: nobody changes them.
var lastIDs = func() (ids [128]map[string]string) {
	for i := range ids {
		ids[i] = map[string]string{jobs: idNames[i]}
	}
	ids[0][jobs] = "" // forget it
	return ids
}()

// run is publisher/append.lua.
func (r *redis) run(q *request, nextID *int8) *reply {
	var held cdc.Version
	var known bool // the checkpoint has an entry of this stream
	if r.cp != nil {
		held = r.cp.Version
		_, known = r.cp.LastIDs[jobs]
	}
	if held != q.expected && !q.force {
		return &reply{held: r.cp}
	}
	id, set := q.next.LastIDs[jobs]
	forget := set && id == ""
	if !r.stream && known && !forget {
		return &reply{missing: true}
	}
	next := *q.next
	switch {
	case forget:
		next.LastIDs = nil
	case !set && r.cp != nil:
		next.LastIDs = r.cp.LastIDs
	}
	for _, row := range q.rows {
		*nextID++
		r.stream, r.last = true, *nextID
		r.entries = append(slices.Clip(r.entries), entry{r.last, row})
		next.LastIDs = lastIDs[r.last]
	}
	r.cp = &next
	return &reply{done: true}
}

// load is publisher.Load.
func (r *redis) load() (*cdc.Checkpoint, map[string]cdc.StreamState) {
	s := cdc.StreamState{Exists: r.stream}
	if r.stream {
		s.LastID = idNames[r.last]
		s.Length = int64(len(r.entries))
		s.Added = s.Length
		if len(r.entries) > 0 {
			s.FirstID = idNames[r.entries[0].id]
		}
	}
	return r.cp, map[string]cdc.StreamState{jobs: s}
}

// lastID is what the relay writes of the stream as it finds it: see
// relay.lastIDs.
func (r *redis) lastID() map[string]string {
	if !r.stream {
		return lastIDs[0]
	}
	return lastIDs[r.last]
}

func (r *redis) has(row int8) bool {
	return slices.ContainsFunc(r.entries, func(e entry) bool { return e.row == row })
}
