package audit

import (
	"context"
	"time"
)

// judgeRows says what each row's entries, or their absence, mean.
func (a *auditing) judgeRows(ctx context.Context, rows []rowState) error {
	marks, _ := a.Table.Marks()
	var open []*rowState // neither on the stream nor marked, as the snapshot sees them
	for i := range rows {
		row := &rows[i]
		switch {
		case len(row.entries) > 1:
			a.report.Duplicated.add(a.Show, &row.record, row.entries...)
		case len(row.entries) == 1:
		case row.dead:
			a.report.Dead.add(a.Show, &row.record)
		case row.flags&flagMarked != 0 || !marks && a.mayBePublished(row):
			a.without(row)
		default:
			open = append(open, row)
		}
	}
	for len(open) > 0 {
		n := min(len(open), lookUp)
		if err := a.judgeOpen(ctx, open[:n]); err != nil {
			return err
		}
		open = open[n:]
	}
	return nil
}

// mayBePublished says of a row, where none are marked, whether the relay has come
// to it, as far as that is known.
func (a *auditing) mayBePublished(row *rowState) bool {
	return a.report.Covered || row.created().Before(a.covered) && a.remains.of(string(row.id), row.created()) == trimmed
}

// judgeOpen looks at rows once more that the snapshot saw unmarked: they may
// have been published since, and their entries trimmed.
func (a *auditing) judgeOpen(ctx context.Context, open []*rowState) error {
	now := map[string]bool{} // marked, by id
	ids := make([]string, len(open))
	for i, row := range open {
		ids[i] = string(row.id)
	}
	looked, err := a.again(ctx, ids, func(row Row) error {
		now[row.Event.ID] = now[row.Event.ID] || row.Marked
		return nil
	})
	if err != nil {
		return err
	}
	for _, row := range open {
		marked, found := now[string(row.id)]
		switch {
		case looked && !found: // deleted since
		case marked:
			a.without(row)
		case !a.report.Covered:
			a.report.Waiting.add(a.Show, &row.record)
		default:
			a.unpublished(row)
		}
	}
	return nil
}

// again looks rows up, unless that would take a scan of the table too often.
func (a *auditing) again(ctx context.Context, ids []string, fn func(Row) error) (bool, error) {
	if !a.rows.IndexedID() {
		if a.lookedUp += len(ids); a.lookedUp > lookUnindexed {
			return false, nil
		}
	}
	return true, a.rows.Again(ctx, ids, fn)
}

// without judges a row that was published and has no entry.
func (a *auditing) without(row *rowState) {
	if own := a.own(row); len(own) > 0 {
		a.report.Changed.add(a.Show, &row.record, own...)
		return
	}
	switch a.remains.of(string(row.id), row.created()) {
	case trimmed:
		a.report.Trimmed.add(a.Show, &row.record)
	case deletable:
		a.missing(row)
		a.report.Missing.Deletable++
	default:
		a.missing(row)
	}
}

// own are the entries with the row's id and other values that were its own. One
// that is older than the row was not: then the id was issued twice, as it is
// after a failover that lost its first use.
func (a *auditing) own(row *rowState) []string {
	var own []string
	for _, id := range row.other {
		at, ok := entryTime(id)
		if !ok || row.created().IsZero() || !at.Add(time.Millisecond).Before(row.created().Add(a.ahead)) {
			own = append(own, id)
		}
	}
	return own
}

// unpublished judges a row that is not marked though a relay has passed it. Its
// mark may take a moment longer than what is covered.
func (a *auditing) unpublished(row *rowState) {
	if own := a.own(row); len(own) > 0 {
		a.report.Changed.add(a.Show, &row.record, own...)
		return
	}
	a.missing(row)
}

func (a *auditing) missing(row *rowState) {
	a.report.Missing.add(a.Show, &row.record)
	created := row.created()
	switch {
	case created.IsZero():
		a.missingUnknown = true
	case a.missingOldest.IsZero() || created.Before(a.missingOldest):
		a.missingOldest = created
	}
}

func (r *rowState) created() time.Time {
	if r.time == 0 {
		return time.Time{}
	}
	return time.UnixMicro(r.time).UTC()
}

// judgeStrangers says what entries without rows are.
func (a *auditing) judgeStrangers(ctx context.Context, strangers []stranger) error {
	var open []*stranger
	for i := range strangers {
		s := &strangers[i]
		if len(s.equal) > 1 {
			a.report.Duplicated.add(a.Show, &s.record, s.equal...)
		}
		switch {
		case s.change: // said of the row
		case s.flags&flagLate != 0: // of a row that was committed later
		case a.part && time.UnixMilli(s.record.time).Before(a.Since.Add(a.ahead)): // of a row that is not compared
		default:
			open = append(open, s)
		}
	}
	for len(open) > 0 {
		n := min(len(open), lookUp)
		if err := a.judgeOpenStrangers(ctx, open[:n]); err != nil {
			return err
		}
		open = open[n:]
	}
	return nil
}

// judgeOpenStrangers looks for the rows as they are now.
func (a *auditing) judgeOpenStrangers(ctx context.Context, open []*stranger) error {
	var ids []string
	for _, s := range open {
		if !a.purged(s) {
			ids = append(ids, string(s.id))
		}
	}
	now := map[string][]*record{}
	older := map[string]bool{} // rows that are not compared
	looked := len(ids) == 0
	if len(ids) > 0 {
		var err error
		looked, err = a.again(ctx, ids, func(row Row) error {
			if !row.Created.IsZero() && row.Created.Before(a.Since) {
				older[row.Event.ID] = true
				return nil
			}
			r, err := a.record(row)
			now[row.Event.ID] = append(now[row.Event.ID], r)
			return err
		})
		if err != nil {
			return err
		}
	}
	for _, s := range open {
		found := older[string(s.id)]
		for _, r := range now[string(s.id)] {
			found = found || r.is(&s.record)
		}
		_, known := now[string(s.id)]
		switch {
		case found: // visible only now, or not compared
		case !looked:
			a.report.Gone++
		default:
			a.foreign(s, known || s.known)
		}
	}
	return nil
}

// purged reports whether a stranger's row may have been deleted, without any
// sign of its own.
func (a *auditing) purged(s *stranger) bool {
	if s.known || !a.Since.IsZero() {
		return false
	}
	_, deletes := a.Table.Marks()
	return deletes || a.whole.IsZero() || s.record.time < timeIDs || time.UnixMilli(s.record.time).Before(a.whole)
}

// foreign judges an entry of no row. Known says that there is a row with its id,
// so that it is not for want of the row.
func (a *auditing) foreign(s *stranger, known bool) {
	entry := s.entryID()
	_, deletes := a.Table.Marks()
	switch {
	case known:
		a.report.Foreign.add(a.Show, &s.record, entry)
	case deletes || a.whole.IsZero() || s.record.time < timeIDs:
		a.report.Gone++
	case time.UnixMilli(s.record.time).Before(a.whole):
		a.before++
	case time.UnixMilli(s.record.time).Before(a.whole.Add(purgeMargin)):
		a.edge.add(a.Show, &s.record, entry)
	default:
		a.report.Foreign.add(a.Show, &s.record, entry)
	}
}

// settlePurged decides about entries from shortly after the time since when the
// table may be whole. If there are entries of older rows that are not in the
// table, or such entries could not be seen, rows are deleted from its beginning.
func (a *auditing) settlePurged() {
	oldest, ok := entryTime(a.oldest)
	unseen := (!ok || !oldest.Before(a.whole)) && (a.part || a.remains.state.Added != a.remains.state.Length)
	a.report.Gone += a.before
	if a.before > 0 || unseen {
		a.report.Gone += a.edge.Count
		return
	}
	f := &a.report.Foreign
	f.Count += a.edge.Count
	for _, one := range a.edge.List {
		f.keep(a.Show, one)
	}
}
