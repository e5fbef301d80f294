package outbox

import (
	"context"
	"fmt"
	"strings"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgtype"

	"github.com/stagedoor/walrelay/cdc"
	"github.com/stagedoor/walrelay/internal/fault"
)

// layout is what the catalogue says of the table and of the role.
type layout struct {
	oid         uint32
	kind        string // r or p, as in pg_class.relkind
	unlogged    bool
	children    bool // it has children that are not partitions
	hidden      bool // row-level security applies to the role
	usage       bool // of the schema
	selectable  bool
	updatable   bool // some column, which locking a row takes
	deletable   bool
	role        string // quoted
	columns     map[string]column
	names       []string // in the table's order
	uniqueID    bool
	indexedID   bool // an index starts with the id
	unpublished bool // the partial index on unpublished rows is there

	marks MarkMode // resolved
}

// column is one column of the table.
type column struct {
	name      string
	typ       string // as in a cast, such as character varying(20)
	base      uint32 // the type's OID, or that of the type behind a domain
	generated bool
	updatable bool // by the role
}

func (c column) json() bool { return c.base == pgtype.JSONOID || c.base == pgtype.JSONBOID }

// zoned reports whether the column's value is a moment. A timestamp without a
// time zone is one in a zone that nobody but its writer knows.
func (c column) zoned() bool { return c.base == pgtype.TimestamptzOID }

func (c column) timestamp() bool {
	return c.base == pgtype.TimestamptzOID || c.base == pgtype.TimestampOID
}

func (l *layout) partitioned() bool { return l.kind == "p" }

// has reports whether the table has a column; never for a name that is empty.
func (l *layout) has(name string) bool {
	_, ok := l.columns[name]
	return ok && name != ""
}

const layoutSQL = `
SELECT c.oid, c.relkind::text, c.relpersistence <> 'p',
  c.relkind <> 'p' AND EXISTS (SELECT FROM pg_inherits WHERE inhparent = c.oid),
  row_security_active(c.oid),
  has_schema_privilege(n.oid, 'USAGE'),
  has_table_privilege(c.oid, 'SELECT'),
  has_any_column_privilege(c.oid, 'UPDATE'),
  has_table_privilege(c.oid, 'DELETE'),
  quote_ident(current_user)
FROM pg_class c JOIN pg_namespace n ON n.oid = c.relnamespace
WHERE n.nspname = $1 AND c.relname = $2`

const columnsSQL = `
SELECT a.attname::text, format_type(a.atttypid, a.atttypmod),
  (WITH RECURSIVE base AS (
     SELECT a.atttypid AS oid
     UNION ALL
     SELECT d.typbasetype FROM base JOIN pg_type d ON d.oid = base.oid WHERE d.typtype = 'd')
   SELECT base.oid FROM base JOIN pg_type b ON b.oid = base.oid WHERE b.typtype <> 'd'),
  a.attgenerated <> '',
  has_column_privilege(a.attrelid, a.attnum, 'UPDATE')
FROM pg_attribute a
WHERE a.attrelid = $1::oid AND a.attnum > 0 AND NOT a.attisdropped
ORDER BY a.attnum`

// On a partitioned table a unique index has to hold the partition key, so
// there one that holds the id counts.
//
// The predicate is compared as PostgreSQL stores it, since pg_get_expr waits
// for whoever has locked the table, and nothing else here does.
const indexesSQL = `
SELECT
  coalesce(bool_or(i.indisunique AND i.indpred IS NULL AND CASE c.relkind
    WHEN 'p' THEN a.attnum = ANY (i.indkey::int2[])
    ELSE i.indnkeyatts = 1 AND i.indkey[0] = a.attnum END), false),
  coalesce(bool_or(i.indpred IS NULL AND i.indkey[0] = a.attnum), false),
  coalesce(bool_or(i.indkey[0] = a.attnum AND i.indpred::text LIKE
    '{NULLTEST :arg {VAR :varno 1 :varattno ' || m.attnum || ' %} :nulltesttype 0 %'), false)
FROM pg_index i
JOIN pg_class c ON c.oid = i.indrelid
JOIN pg_attribute a ON a.attrelid = i.indrelid AND a.attname = $2
LEFT JOIN pg_attribute m ON m.attrelid = i.indrelid AND m.attname = $3
WHERE i.indrelid = $1::oid AND i.indisvalid`

// read asks the catalogue.
func (t *Table) read(ctx context.Context, conn *pgx.Conn) (*layout, error) {
	l := &layout{columns: map[string]column{}}
	err := conn.QueryRow(ctx, layoutSQL, t.table.Schema, t.table.Name).Scan(
		&l.oid, &l.kind, &l.unlogged, &l.children, &l.hidden, &l.usage,
		&l.selectable, &l.updatable, &l.deletable, &l.role)
	if err == pgx.ErrNoRows {
		return nil, t.notThere(ctx, conn)
	}
	if err != nil {
		return nil, err
	}
	cols, err := conn.Query(ctx, columnsSQL, l.oid)
	if err != nil {
		return nil, err
	}
	var c column
	_, err = pgx.ForEachRow(cols, []any{&c.name, &c.typ, &c.base, &c.generated, &c.updatable}, func() error {
		l.columns[c.name] = c
		l.names = append(l.names, c.name)
		return nil
	})
	if err != nil {
		return nil, err
	}
	err = conn.QueryRow(ctx, indexesSQL, l.oid, t.mapping.ID, t.mapping.PublishedAt).
		Scan(&l.uniqueID, &l.indexedID, &l.unpublished)
	return l, err
}

// notThere is the operator's error for a table that is missing, with those
// whose names differ only in case.
func (t *Table) notThere(ctx context.Context, conn *pgx.Conn) error {
	found, err := conn.Query(ctx, `
		SELECT n.nspname::text, c.relname::text
		FROM pg_class c JOIN pg_namespace n ON n.oid = c.relnamespace
		WHERE lower(n.nspname) = lower($1) AND lower(c.relname) = lower($2) AND c.relkind IN ('r', 'p')
		ORDER BY 1, 2`, t.table.Schema, t.table.Name)
	if err != nil {
		return err
	}
	similar, err := pgx.CollectRows(found, func(row pgx.CollectableRow) (string, error) {
		var other cdc.Table
		err := row.Scan(&other.Schema, &other.Name)
		return other.String(), err
	})
	if err != nil {
		return err
	}
	e := &fault.Error{
		Problem: fmt.Sprintf("there is no table %s in this database", t.table),
		Fix:     "name the table with --table SCHEMA.TABLE, or create it with walrelay setup --create-table",
	}
	if len(similar) > 0 {
		e.Problem += fmt.Sprintf(" (there is %s; case counts)", strings.Join(similar, " and "))
		e.Fix = "--table '" + similar[0] + "'"
	}
	return e
}
