package cdc

// Witness is the table's word against the slot's. Rows are marked after they
// are appended and before they are confirmed. So a row that is not marked,
// although everything up to a position behind it is confirmed, was missed, for
// whatever reason. It belongs to one connection, like [Progress].
type Witness struct {
	ids []string
	end LSN
}

// Look notes rows that are not marked. The end is where WAL was inserted, read
// after the snapshot was taken that the rows were seen in, by the same statement
// or a later one: their commits lie before it, also those that the server has not
// written to its disk yet.
func (w *Witness) Look(ids []string, end LSN) { w.ids, w.end = ids, end }

// Due returns the rows that have to be looked at again: what was confirmed has
// passed them. None when there is nothing to look at, or not yet.
func (w *Witness) Due(confirmed LSN) []string {
	if len(w.ids) == 0 || confirmed < w.end {
		return nil
	}
	return w.ids
}

// Pending reports whether rows wait for what is confirmed to pass them.
func (w *Witness) Pending(confirmed LSN) bool { return len(w.ids) > 0 && confirmed < w.end }

// Missed ends the look: of the rows that were due, those that are still not
// marked, but for the ones that only wait for their mark.
func (w *Witness) Missed(unmarked []string, waiting func(id string) bool) []string {
	w.ids, w.end = nil, 0
	var missed []string
	for _, id := range unmarked {
		if !waiting(id) {
			missed = append(missed, id)
		}
	}
	return missed
}
