package audit

import "strconv"

// joined is what a part shows: its rows with the entries that are of them, and
// the entries that are of none.
type joined struct {
	rows      []rowState
	strangers []stranger
}

// rowState is a row and what there is of it.
type rowState struct {
	record
	entries []string // ids of the entries that are of the row, in the stream's order
	dead    bool     // the stream of dead rows has it
	other   []string // ids of entries with the row's id and other values, of none of the rows with that id
}

// stranger is an entry that is of no row.
type stranger struct {
	record
	known  bool     // there are rows with its id, and all of them have entries
	change bool     // there is a row with its id that has no entry
	equal  []string // ids of the entries that equal it, itself included; on the first of them
}

// entryID is the id of an entry in its stream.
func (r *record) entryID() string {
	return strconv.FormatUint(uint64(r.time), 10) + "-" + strconv.FormatUint(r.seq, 10)
}

// join compares the rows and the entries of a part, each as a spill loads them.
//
// An entry counts for one row: of several rows that are the same, for one with
// the fewest.
func join(rows, entries []byte) joined {
	var j joined
	type bucket struct{ rows []int }
	byID := map[string]*bucket{}
	for len(rows) > 0 {
		var r record
		r, rows = next(rows)
		b := byID[string(r.id)]
		if b == nil {
			b = &bucket{}
			byID[string(r.id)] = b
		}
		b.rows = append(b.rows, len(j.rows))
		j.rows = append(j.rows, rowState{record: r})
	}
	equal := map[string]int{} // strangers by all that makes them the same
	for len(entries) > 0 {
		var e record
		e, entries = next(entries)
		best := -1
		b := byID[string(e.id)]
		if b != nil {
			for _, i := range b.rows {
				if row := &j.rows[i]; row.is(&e) && (best < 0 || len(row.entries) < len(j.rows[best].entries)) {
					best = i
				}
			}
		}
		switch {
		case e.flags&flagDead != 0:
			if best >= 0 {
				j.rows[best].dead = true
			}
		case best >= 0:
			j.rows[best].entries = append(j.rows[best].entries, e.entryID())
		default:
			key := string(e.id) + "\x00" + strconv.FormatUint(e.has, 16) + "\x00" + string(e.hashes)
			if first, ok := equal[key]; ok {
				j.strangers[first].equal = append(j.strangers[first].equal, e.entryID())
			} else {
				equal[key] = len(j.strangers)
				j.strangers = append(j.strangers, stranger{record: e, known: b != nil, equal: []string{e.entryID()}})
			}
		}
	}
	for i := range j.strangers {
		s := &j.strangers[i]
		if !s.known {
			continue
		}
		for _, n := range byID[string(s.id)].rows {
			if row := &j.rows[n]; len(row.entries) == 0 && !row.dead {
				row.other = append(row.other, s.equal...)
				s.known, s.change = false, true
			}
		}
	}
	return j
}
