package outbox

import (
	"context"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/stagedoor/walrelay/internal/finding"
)

// findTimeout bounds what Findings asks the server: a few questions to the
// catalogue.
const findTimeout = 10 * time.Second

// Findings are what Check looks for, all of it, and nothing is logged or kept.
// Where purge is set, they have what purging needs. Without conn it uses a
// connection of its own.
func (t *Table) Findings(ctx context.Context, conn *pgx.Conn, purge bool) []finding.Finding {
	ctx, cancel := context.WithTimeout(ctx, findTimeout)
	defer cancel()
	l, err := t.look(ctx, conn)
	if err != nil {
		return []finding.Finding{finding.Of("table", "", err)}
	}
	var found []finding.Finding
	for _, r := range t.rules(l) {
		found = append(found, finding.Of(r.name, r.good, r.err))
	}
	why, err := t.settle(l)
	switch {
	case err != nil:
		// How rows are marked decides what else is looked for.
		return append(found, finding.Of("marks", "", err))
	case why != "":
		found = append(found, finding.Warning("marks", "rows are not marked, so nothing will show rows that were missed: "+why, t.marksFix(l)))
	default:
		found = append(found, finding.Good("marks", marksText[l.marks]))
	}
	for _, w := range t.weaknesses(l) {
		if w.problem == "" {
			found = append(found, finding.Good(w.name, w.good))
		} else {
			found = append(found, finding.Warning(w.name, w.problem, w.fix))
		}
	}
	if purge {
		f := finding.Of("purge", "published rows can be purged", t.refusePurge(l))
		if f.Level == finding.Fail {
			f.Level = finding.Warn // rows are carried without
		}
		found = append(found, f)
	}
	return found
}

var marksText = map[MarkMode]string{
	MarkPublishedAt: "published_at is set, which the role may do",
	MarkDelete:      "published rows are deleted, which the role may do",
	MarkNone:        "rows are not marked, as asked for",
}

// marksFix has rows marked.
func (t *Table) marksFix(l *layout) string {
	name := t.mapping.PublishedAt
	if l.has(name) && !l.columns[name].generated {
		return t.grant(l, MarkPublishedAt)
	}
	return "name a timestamptz column with --column-published-at"
}

// look is read, with a connection of its own where there is none.
func (t *Table) look(ctx context.Context, conn *pgx.Conn) (*layout, error) {
	if conn == nil {
		own, err := t.connect(ctx)
		if err != nil {
			return nil, err
		}
		defer hangUp(own)
		conn = own
	}
	return t.read(ctx, conn)
}
