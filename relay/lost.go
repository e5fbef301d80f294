package relay

import (
	"context"
	"slices"
	"strings"

	"github.com/stagedoor/walrelay/cdc"
)

const (
	// lostPage is how many entries are compared with the table at a time.
	lostPage = 200
	// lostEntriesMost bounds the search.
	lostEntriesMost = 100_000
)

// lostWithDatabase reports whether rows may have been appended that the database
// does not have any more.
func lostWithDatabase(s state, server cdc.Server) bool {
	return s.checkpoint != nil && s.checkpoint.MayHaveLostOn(server) || s.Kind == cdc.OtherHistory || s.Kind == cdc.BeyondWAL
}

// reportLost says which entries are of rows that were lost with a database. It
// reads the stream from the checkpoint's last entry towards its beginning for as
// long as it meets some: they are the last ones that were appended.
func (r *Relay) reportLost(ctx context.Context, s state) error {
	last := s.checkpoint.LastIDs[r.cfg.Stream]
	if last == "" || r.reported == last {
		return nil
	}
	if !r.cfg.Table.KeepsRows() {
		r.log.Warn("the database lost the end of its WAL; which of the last entries are of rows that are lost with it is not known, since published rows are deleted", "last_entry", last)
		return nil
	}
	defer keepBeating(r.beat)()
	var page []cdc.Entry
	var lost []string
	read := 0
	look := func() (more bool, err error) {
		missing, err := r.notInTable(ctx, page)
		for _, id := range missing {
			if !r.lost[id] { // with a database before
				lost = append(lost, id)
			}
		}
		read += len(page)
		more = len(missing) > 0 && read < lostEntriesMost
		page = page[:0]
		return more, err
	}
	done := false
	err := r.cfg.Sink.EntriesBack(ctx, r.cfg.Stream, last, func(e cdc.Entry) (bool, error) {
		if !r.ours(e) {
			return true, nil
		}
		page = append(page, e)
		if len(page) < lostPage {
			return true, nil
		}
		more, err := look()
		done = !more
		return more, err
	})
	if err == nil && !done && len(page) > 0 {
		_, err = look()
	}
	if err != nil {
		return err
	}
	r.reported = last
	for len(lost) > 0 {
		n := min(len(lost), 50)
		for _, id := range lost[:n] {
			r.lost[id] = true
		}
		r.status.lostEntries.Add(uint64(n))
		r.log.Warn("entries are on the stream whose rows were lost with the database", "stream", r.cfg.Stream, "entries", strings.Join(lost[:n], " "))
		lost = lost[n:]
	}
	return nil
}

// ours reports whether an entry has our id field; others are somebody else's.
func (r *Relay) ours(e cdc.Entry) bool {
	_, ours := e.Values[r.idField()]
	return ours
}

// idField is the name of the field with the id.
func (r *Relay) idField() string {
	for _, f := range r.cfg.Table.Fields() {
		if f.ID {
			return f.Name
		}
	}
	return ""
}

// notInTable returns the ids of the entries that are of no row of the table.
func (r *Relay) notInTable(ctx context.Context, page []cdc.Entry) ([]string, error) {
	field := r.idField()
	ids := make([]string, len(page))
	for i, e := range page {
		ids[i] = e.Values[field]
	}
	rows, err := r.cfg.Table.Rows(ctx, ids)
	if err != nil {
		return nil, err
	}
	byID := make(map[string][]cdc.Event, len(rows))
	for _, ev := range rows {
		byID[ev.ID] = append(byID[ev.ID], ev)
	}
	var missing []string
	for i, e := range page {
		one := r.newTail(1)
		one.add(e)
		if !slices.ContainsFunc(byID[ids[i]], one.lookup) {
			missing = append(missing, e.ID)
		}
	}
	return missing, nil
}
