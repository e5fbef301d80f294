package outbox

import (
	"context"
	"fmt"

	"github.com/jackc/pgx/v5"

	"github.com/stagedoor/walrelay/cdc"
	"github.com/stagedoor/walrelay/internal/fault"
)

// Check verifies that the table is there, that it can be read whole, and that
// it has the mapped columns; it learns their types and settles how rows are
// marked. It belongs before every start, since all of that can change while
// the relay is away. Without conn it uses a connection of its own.
//
// What an operator has to repair is a fault.Error with the exact SQL; what is
// merely slow or dubious is logged, once.
func (t *Table) Check(ctx context.Context, conn *pgx.Conn) error {
	if conn == nil {
		own, err := t.connect(ctx)
		if err != nil {
			return err
		}
		defer hangUp(own)
		conn = own
	}
	l, err := t.read(ctx, conn)
	if err != nil {
		return err
	}
	if err := t.verify(l); err != nil {
		return err
	}
	if err := t.resolve(l); err != nil {
		return err
	}
	t.warn(l)
	t.checked.Store(l)
	return nil
}

// rule is one thing that has to be so for the table to be fit to be read.
type rule struct {
	name string // of the finding
	good string
	err  error
}

// rules are all of them, the most basic first.
func (t *Table) rules(l *layout) []rule {
	return []rule{
		{"table", fmt.Sprintf("%s is there", t.table), t.verifyKind(l)},
		{"table_privileges", fmt.Sprintf("the role %s may read it", l.role), t.verifyReadable(l)},
		{"row_security", "no policy hides rows from the role", t.verifyWhole(l)},
		{"columns", "all that are named are there", t.verifyColumns(l)},
	}
}

// verify returns the first fault that makes the table unfit to be read.
func (t *Table) verify(l *layout) error {
	for _, r := range t.rules(l) {
		if r.err != nil {
			return r.err
		}
	}
	return nil
}

func (t *Table) verifyKind(l *layout) error {
	switch {
	case l.kind != "r" && l.kind != "p":
		return &fault.Error{
			Problem: fmt.Sprintf("%s is not a table", t.table),
			Fix:     "name a table with --table SCHEMA.TABLE: only tables are in the write-ahead log",
		}
	case l.unlogged:
		return &fault.Error{
			Problem: fmt.Sprintf("%s is not in the write-ahead log", t.table),
			Fix:     fmt.Sprintf("ALTER TABLE %s SET LOGGED; a temporary table cannot be an outbox", t.table),
		}
	case l.children:
		return &fault.Error{
			Problem: fmt.Sprintf("other tables inherit from %s, and their rows would not arrive under its name", t.table),
			Fix:     "use declarative partitioning, or take them out with ALTER TABLE CHILD NO INHERIT " + t.table.String(),
		}
	}
	return nil
}

func (t *Table) verifyReadable(l *layout) error {
	switch {
	case !l.usage:
		return &fault.Error{
			Problem: fmt.Sprintf("the role may not use schema %s", cdc.QuoteIdent(t.table.Schema)),
			Fix:     fmt.Sprintf("GRANT USAGE ON SCHEMA %s TO %s", cdc.QuoteIdent(t.table.Schema), l.role),
		}
	case !l.selectable:
		return &fault.Error{
			Problem: fmt.Sprintf("the role may not read %s", t.table),
			Fix:     fmt.Sprintf("GRANT SELECT ON %s TO %s", t.table, l.role),
		}
	}
	return nil
}

func (t *Table) verifyWhole(l *layout) error {
	if !l.hidden {
		return nil
	}
	return &fault.Error{
		Problem: fmt.Sprintf("row-level security of %s applies to the role and could hide rows from it", t.table),
		Fix:     fmt.Sprintf("ALTER ROLE %s BYPASSRLS", l.role),
	}
}

func (t *Table) verifyColumns(l *layout) error {
	entry := []string{t.mapping.ID}
	for _, f := range t.fields {
		entry = append(entry, f.Column)
	}
	for _, name := range entry {
		if !l.has(name) {
			return t.missing(name, l.names)
		}
		if l.columns[name].generated {
			return &fault.Error{
				Problem: fmt.Sprintf("column %s of %s is generated, and generated columns are not replicated", cdc.QuoteIdent(name), t.table),
				Fix:     "name another column with " + t.mapping.flag(name),
			}
		}
	}
	if name := t.mapping.CreatedAt; name != "" {
		if !l.has(name) {
			return t.missing(name, l.names)
		}
		if err := t.verifyTime(l, name); err != nil {
			return err
		}
	}
	if name := t.mapping.PublishedAt; l.has(name) {
		return t.verifyTime(l, name)
	}
	return nil
}

func (t *Table) verifyTime(l *layout, name string) error {
	c := l.columns[name]
	if c.timestamp() {
		return nil
	}
	flag := t.mapping.flag(name)
	return &fault.Error{
		Problem: fmt.Sprintf("column %s of %s is %s, not a timestamp", cdc.QuoteIdent(name), t.table, c.typ),
		Fix:     fmt.Sprintf(`name a timestamptz column with %s, or %s="" for none`, flag, flag),
	}
}

// resolve settles how rows are marked, and logs why they are not.
func (t *Table) resolve(l *layout) error {
	why, err := t.settle(l)
	if why != "" && err == nil {
		t.once("rows are not marked, so nothing will show rows that were missed", "table", t.table.String(), "why", why, "fix", t.marksFix(l))
	}
	return err
}

// settle settles how rows are marked. Why is why they are not, where it was left
// to the relay.
//
// Once rows were marked, they go on being marked, also where the privilege has
// gone: then Mark says so for as long as it lasts, and catches up afterwards. A
// relay that silently stopped to mark would lose its witness.
func (t *Table) settle(l *layout) (why string, err error) {
	name := t.mapping.PublishedAt
	switch {
	case name == "":
		why = "no column is named with --column-published-at"
	case !l.has(name):
		why = fmt.Sprintf("there is no column %s", cdc.QuoteIdent(name))
	case l.columns[name].generated:
		why = fmt.Sprintf("column %s is generated", cdc.QuoteIdent(name))
	}
	before := t.Marks()
	switch t.mark {
	case MarkNone:
		l.marks = MarkNone
	case MarkDelete:
		l.marks = MarkDelete
		if (!l.deletable || !l.updatable) && before != MarkDelete {
			return "", &fault.Error{
				Problem: fmt.Sprintf("--mark=delete: the role may not delete rows of %s, or not lock them", t.table),
				Fix:     t.grant(l, MarkDelete),
			}
		}
	case MarkPublishedAt:
		l.marks = MarkPublishedAt
		if name != "" && !l.has(name) {
			return "", t.missing(name, l.names)
		}
		if why != "" {
			return "", &fault.Error{
				Problem: fmt.Sprintf("--mark=published-at: rows of %s cannot be marked: %s", t.table, why),
				Fix:     "name a timestamptz column with --column-published-at, or take --mark=delete or none",
			}
		}
		if !l.columns[name].updatable && before != MarkPublishedAt {
			return "", &fault.Error{
				Problem: fmt.Sprintf("--mark=published-at: the role may not update column %s of %s", cdc.QuoteIdent(name), t.table),
				Fix:     t.grant(l, MarkPublishedAt),
			}
		}
	default:
		l.marks = MarkPublishedAt
		if name != "" && name != DefaultMapping().PublishedAt && !l.has(name) {
			return "", t.missing(name, l.names) // it was named, so it is a mistake
		}
		if why == "" && !l.columns[name].updatable && before != MarkPublishedAt {
			why = fmt.Sprintf("the role may not update column %s", cdc.QuoteIdent(name))
		}
		if why != "" {
			l.marks = MarkNone
			return why, nil
		}
	}
	return "", nil
}

// grant is the SQL that lets the role mark rows. Locking a row takes UPDATE on
// some column of it.
func (t *Table) grant(l *layout, mode MarkMode) string {
	if mode == MarkDelete {
		return fmt.Sprintf("GRANT DELETE, UPDATE (%s) ON %s TO %s", cdc.QuoteIdent(t.mapping.ID), t.table, l.role)
	}
	return fmt.Sprintf("GRANT UPDATE (%s) ON %s TO %s", cdc.QuoteIdent(t.mapping.PublishedAt), t.table, l.role)
}

// warn logs what makes the relay slow or its marks ambiguous.
func (t *Table) warn(l *layout) {
	for _, w := range t.weaknesses(l) {
		if w.problem != "" {
			t.once(w.problem, "table", t.table.String(), "fix", w.fix)
		}
	}
}

// weakness is what makes the relay slow or its marks ambiguous; without a
// problem, it is not so.
type weakness struct {
	name, good, problem, fix string
}

// weaknesses are all that can be looked for. How rows are marked has to be
// settled.
func (t *Table) weaknesses(l *layout) []weakness {
	id := cdc.QuoteIdent(t.mapping.ID)
	unique := weakness{name: "unique_id", good: "the outbox id is unique"}
	if !l.uniqueID {
		unique.problem = "the outbox id is not unique: rows with the same id are marked together"
		unique.fix = fmt.Sprintf("ALTER TABLE %s ADD UNIQUE (%s)", t.table, id)
	}
	all := []weakness{unique}
	if l.marks == MarkNone {
		return all
	}
	if l.uniqueID {
		index := weakness{name: "id_index", good: "an index starts with the outbox id"}
		if !l.indexedID {
			index.problem = "no index starts with the outbox id: each mark reads the whole table"
			index.fix = fmt.Sprintf("CREATE INDEX ON %s (%s)", t.table, id)
		}
		all = append(all, index)
	}
	if l.marks != MarkPublishedAt {
		return all
	}
	partial := weakness{name: "unpublished_index", good: "an index finds unpublished rows"}
	if !l.unpublished {
		concurrently := " CONCURRENTLY"
		if l.partitioned() {
			concurrently = ""
		}
		partial.problem = "no index finds unpublished rows: looking for the oldest one reads the published ones too"
		partial.fix = fmt.Sprintf("CREATE INDEX%s ON %s (%s) WHERE %s IS NULL", concurrently, t.table, id, cdc.QuoteIdent(t.mapping.PublishedAt))
	}
	return append(all, partial)
}

// once logs a warning that was not logged before.
func (t *Table) once(msg string, args ...any) {
	if _, said := t.said.LoadOrStore(fmt.Sprint(msg, args), true); !said {
		t.log.Warn(msg, args...)
	}
}
