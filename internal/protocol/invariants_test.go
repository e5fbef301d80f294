package protocol

import "github.com/stagedoor/walrelay/cdc"

// check is what must hold in every state.
func (w *world) check() {
	t := w.pg.table()
	w.checkStream(&t)
	if w.heals > w.mayHeal {
		w.broken("%d heals began, and %d faults make a gap", w.heals, w.mayHeal)
	}
	if w.mayHeal > 0 {
		return
	}
	if !w.lossy {
		for _, r := range t.all() {
			// After a failover an id is issued again, and a relay that does not
			// know of it yet can mark the new row: the slot still has it.
			if r.marked && !w.redis.has(r.row) && (w.pg.timeline == 1 || r.lsn < w.pg.slot.confirmed) {
				w.broken("row %d is marked, and not on the stream", r.row)
			}
		}
	}
	if s := w.pg.slot; s.exists {
		for _, r := range t.all() {
			if r.lsn < s.confirmed && !(r.marked && w.redis.has(r.row)) {
				w.broken("row %d at %s: %s is confirmed, and it is not both on the stream and marked", r.row, lsnText(r.lsn), lsnText(s.confirmed))
			}
		}
		cp := w.redis.cp
		if cp == nil {
			w.broken("%s is confirmed, and there is no checkpoint", lsnText(s.confirmed))
		} else if c := cp.On(w.pg.server()); c.Phase == cdc.PhaseStreaming && c.Covered < s.confirmed {
			w.broken("%s is confirmed, and only %s is covered", lsnText(s.confirmed), lsnText(c.Covered))
		}
	}
}

// checkStream sees that no row is on the stream twice, and that those that are
// there are in commit order.
func (w *world) checkStream(t *table) {
	var seen uint16
	var before *row
	for _, e := range w.redis.entries {
		if seen&(1<<e.row) != 0 {
			w.broken("row %d is on the stream twice", e.row)
		}
		seen |= 1 << e.row
		for k := range t.all() {
			r := &t.rows[k]
			if r.row != e.row || r.hidden {
				continue
			}
			if before != nil && before.row > r.row {
				w.broken("row %d is on the stream after row %d", r.row, before.row)
			}
			before = r
		}
	}
}

// lacking says what is not yet as it has to be when all has come to rest.
func (w *world) lacking() string {
	t := w.pg.table()
	for _, r := range t.all() {
		switch {
		case w.redis.has(r.row):
		case w.excused&(1<<r.row) == 0:
			return rowText(&r) + " is not on the stream"
		case !w.both && w.redis.cp != nil && w.redis.cp.Doubt == nil:
			return rowText(&r) + " is not on the stream, and nothing says so"
		}
		switch {
		case !r.marked:
			return rowText(&r) + " is not marked"
		}
	}
	s := w.pg.slot
	switch {
	case !s.exists || s.holder == 0 || w.relay[s.holder-1].pc != pcStream || w.relay[s.holder-1].stopping:
		return "nobody streams"
	case w.redis.cp == nil || w.redis.cp.Phase != cdc.PhaseStreaming:
		return "the checkpoint does not say streaming"
	case len(t.all()) > 0 && s.confirmed <= t.rows[t.n-1].lsn:
		return "the slot is not confirmed"
	}
	return ""
}
