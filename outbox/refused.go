package outbox

import (
	"context"
	"fmt"
	"strings"

	"github.com/jackc/pgx/v5"

	"github.com/stagedoor/walrelay/cdc"
	"github.com/stagedoor/walrelay/internal/fault"
	"github.com/stagedoor/walrelay/internal/pg"
)

// refused tells the failures of a mark that last until an operator acts from
// those that pass. grants is asked for the SQL that gives the role what it lacks.
func (t *Table) refused(mode MarkMode, err error, grants func() string) error {
	if fault.As(err) != nil {
		return err
	}
	verb, column := "update", cdc.QuoteIdent(t.mapping.PublishedAt)
	if mode == MarkDelete {
		verb = "delete"
	}
	e := &fault.Error{
		Problem: fmt.Sprintf("the server does not %s rows of %s", verb, t.table),
		Err:     fmt.Errorf("%w: %w", ErrMarkRefused, err),
	}
	switch code := pg.Code(err); {
	case code == "42501": // insufficient_privilege
		e.Fix = grants()
	case code == "42703": // undefined_column
		e.Fix = fmt.Sprintf("bring column %s back, or name another one with --column-published-at", column)
	case code == "55000": // object_not_in_prerequisite_state
		e.Fix = fmt.Sprintf("a publication with updates or deletes has the table, which takes a primary key: ALTER TABLE %s ADD PRIMARY KEY (%s), or ALTER TABLE %s REPLICA IDENTITY FULL",
			t.table, cdc.QuoteIdent(t.mapping.ID), t.table)
	case code == "P0001" || strings.HasPrefix(code, "23"): // raise_exception, integrity violations
		e.Fix = "have the table's triggers and constraints pass what the relay does to mark a row"
	default:
		return err
	}
	return e
}

// missingGrant is the SQL that gives the role what it lacks, which need not be
// the privilege to update. conn may be nil, or of no use any more.
func (t *Table) missingGrant(ctx context.Context, conn *pgx.Conn, mode MarkMode) string {
	if conn == nil || conn.IsClosed() {
		return ""
	}
	l, err := t.read(ctx, conn)
	if err != nil {
		return ""
	}
	if e := fault.As(t.verify(l)); e != nil {
		return e.Fix
	}
	return t.grant(l, mode)
}
