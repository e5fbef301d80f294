package slot

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"strings"

	"github.com/jackc/pgx/v5"

	"github.com/stagedoor/walrelay/cdc"
	"github.com/stagedoor/walrelay/internal/fault"
	"github.com/stagedoor/walrelay/internal/pg"
)

// publishOptions are what a publication of ours needs: new rows, and those of
// partitions under the name of the partitioned table.
// https://www.postgresql.org/docs/current/sql-createpublication.html
const publishOptions = "publish = 'insert', publish_via_partition_root = true"

// EnsurePublication verifies that the publication holds the outbox, nothing
// else, and all of its inserts. Where it is missing, create makes it. Each
// failure is a fault with the SQL that repairs it and wraps ErrPublication.
//
// It must be right before the slot is created: rows are decoded with the
// publication as it was when they were written.
func (s *Session) EnsurePublication(ctx context.Context, create bool) error {
	return s.within(ctx, changeTimeout, func(ctx context.Context, conn *pgx.Conn) error {
		_, err := ensurePublication(ctx, conn, s.cfg, create)
		return err
	})
}

func ensurePublication(ctx context.Context, conn *pgx.Conn, cfg Config, create bool) (created bool, err error) {
	state, err := readPublication(ctx, conn, cfg)
	if err != nil {
		return false, err
	}
	if state.missing() && create {
		err := createPublication(ctx, conn, cfg)
		switch {
		case err == nil:
			created = true
		case pg.Code(err) != codeDuplicateObject: // else somebody was quicker
			if pg.Code(err) == "" || shutdown(err) {
				return false, fmt.Errorf("create the publication %q: %w", cfg.Publication, err)
			}
			return false, createFault(cfg, pg.Code(err), err)
		}
		if state, err = readPublication(ctx, conn, cfg); err != nil {
			return created, err
		}
	}
	return created, state.verify(cfg)
}

func createPublication(ctx context.Context, conn *pgx.Conn, cfg Config) error {
	_, err := conn.Exec(ctx, createPublicationSQL(cfg))
	return err
}

func createPublicationSQL(cfg Config) string {
	return fmt.Sprintf("CREATE PUBLICATION %s FOR TABLE %s WITH (%s);", cdc.QuoteIdent(cfg.Publication), cfg.Table, publishOptions)
}

// createFault says why the server does not create a publication, by SQLSTATE.
func createFault(cfg Config, code string, err error) error {
	e := &fault.Error{
		Problem: fmt.Sprintf("the publication %s cannot be created", cdc.QuoteIdent(cfg.Publication)),
		Fix:     createPublicationSQL(cfg),
		Err:     fmt.Errorf("%w: %w", ErrPublication, err),
	}
	switch code {
	case codeInsufficientPrivilege:
		e.Fix += " -- as the owner of the table, who needs CREATE on the database, or as a superuser"
	case codeReadOnlyTransaction:
		e.Fix += " (on the primary)"
	}
	return e
}

// publication is what the catalogue says of the publication and the outbox.
type publication struct {
	Relation  string   `json:"relation"` // pg_class.relkind and relpersistence; empty: no such table
	Exists    bool     `json:"exists"`
	AllTables bool     `json:"all_tables"`
	Insert    bool     `json:"insert"`
	ViaRoot   bool     `json:"via_root"`
	Holds     bool     `json:"holds"`   // the outbox, by name
	Filter    bool     `json:"filter"`  // a row filter on the outbox
	Columns   bool     `json:"columns"` // a column list on the outbox
	Others    []string `json:"others"`  // other tables
	Schemas   []string `json:"schemas"` // published whole
}

// missing reports whether there is a table to publish and no publication yet.
func (p publication) missing() bool { return !p.Exists && p.Relation != "" }

// publicationSQL is a query of the state as JSON, by the version of the server.
// Its parameters are the names of the publication, the schema and the table. Row
// filters and column lists came with 15 and are read by name.
func publicationSQL(version int) string {
	schemas := `ARRAY[]::text[]`
	if version >= 150000 {
		schemas = `ARRAY (
			SELECT quote_ident(n.nspname)
			FROM pg_publication_namespace pn JOIN p ON pn.pnpubid = p.oid JOIN pg_namespace n ON n.oid = pn.pnnspid
			ORDER BY 1 LIMIT 4
		)`
	}
	return `
	WITH p AS (SELECT * FROM pg_publication WHERE pubname = $1),
	t AS (
		SELECT c.oid, c.relkind::text || c.relpersistence::text AS relation
		FROM pg_class c JOIN pg_namespace n ON n.oid = c.relnamespace
		WHERE n.nspname = $2 AND c.relname = $3
	),
	r AS (SELECT to_jsonb(pr) AS rel, pr.prrelid FROM pg_publication_rel pr JOIN p ON pr.prpubid = p.oid)
	SELECT json_build_object(
		'relation', coalesce((SELECT relation FROM t), ''),
		'exists', EXISTS (SELECT FROM p),
		'all_tables', EXISTS (SELECT FROM p WHERE puballtables),
		'insert', EXISTS (SELECT FROM p WHERE pubinsert),
		'via_root', EXISTS (SELECT FROM p WHERE pubviaroot),
		'holds', EXISTS (SELECT FROM r JOIN t ON r.prrelid = t.oid),
		'filter', EXISTS (SELECT FROM r JOIN t ON r.prrelid = t.oid WHERE r.rel ->> 'prqual' IS NOT NULL),
		'columns', EXISTS (SELECT FROM r JOIN t ON r.prrelid = t.oid WHERE r.rel ->> 'prattrs' IS NOT NULL),
		'others', ARRAY (
			SELECT format('%I.%I', n.nspname, c.relname)
			FROM r JOIN pg_class c ON c.oid = r.prrelid JOIN pg_namespace n ON n.oid = c.relnamespace
			WHERE r.prrelid NOT IN (SELECT oid FROM t) ORDER BY 1 LIMIT 4
		),
		'schemas', ` + schemas + `)::text`
}

// mayCreateSQL reads whether the role may create a publication of the table, and
// whether anybody may, now and here.
// https://www.postgresql.org/docs/current/logical-replication-security.html
const mayCreateSQL = `
	SELECT has_database_privilege(current_database(), 'CREATE'),
		coalesce((SELECT pg_has_role(c.relowner, 'USAGE')
			FROM pg_class c JOIN pg_namespace n ON n.oid = c.relnamespace
			WHERE n.nspname = $1 AND c.relname = $2), false),
		current_setting('transaction_read_only')::bool`

// mayCreate returns the fault that creating the publication would meet. It
// creates none.
func mayCreate(ctx context.Context, conn *pgx.Conn, cfg Config) error {
	var create, owner, readOnly bool
	err := conn.QueryRow(ctx, mayCreateSQL, cfg.Table.Schema, cfg.Table.Name).Scan(&create, &owner, &readOnly)
	switch {
	case err != nil:
		return fmt.Errorf("read the privileges to create the publication %q: %w", cfg.Publication, err)
	case readOnly:
		return createFault(cfg, codeReadOnlyTransaction, errors.New("transactions are read-only here"))
	case !owner:
		return createFault(cfg, codeInsufficientPrivilege, fmt.Errorf("the role does not own the table %s", cfg.Table))
	case !create:
		return createFault(cfg, codeInsufficientPrivilege, errors.New("the role may not create anything in the database"))
	}
	return nil
}

// created is what it would be after createPublication.
func (p publication) created() publication {
	p.Exists, p.Insert, p.ViaRoot, p.Holds = true, true, true, true
	return p
}

func readPublication(ctx context.Context, conn *pgx.Conn, cfg Config) (p publication, err error) {
	var state string
	err = conn.QueryRow(ctx, publicationSQL(pg.ServerVersion(conn.PgConn())), cfg.Publication, cfg.Table.Schema, cfg.Table.Name).Scan(&state)
	if err == nil {
		err = json.Unmarshal([]byte(state), &p)
	}
	if err != nil {
		return publication{}, fmt.Errorf("read the publication %q: %w", cfg.Publication, err)
	}
	return p, nil
}

// verify returns the fault of a publication that would lose rows or deliver
// foreign ones.
func (p publication) verify(cfg Config) error {
	name := cdc.QuoteIdent(cfg.Publication)
	wrong := func(problem, fix string) error {
		return &fault.Error{Problem: problem, Fix: fix, Err: ErrPublication}
	}
	recreate := fmt.Sprintf("BEGIN; DROP PUBLICATION %s; %s COMMIT;", name, createPublicationSQL(cfg))
	switch {
	case p.Relation == "":
		return wrong(fmt.Sprintf("the table %s does not exist", cfg.Table),
			"walrelay setup --create-table, or correct --table")
	case p.Relation[0] != 'r' && p.Relation[0] != 'p':
		return wrong(fmt.Sprintf("%s is not a table", cfg.Table), "correct --table")
	case p.Relation[1] != 'p':
		return wrong(fmt.Sprintf("the table %s is unlogged or temporary, so that its rows are not in the WAL", cfg.Table),
			fmt.Sprintf("ALTER TABLE %s SET LOGGED;", cfg.Table))
	case !p.Exists:
		return wrong(fmt.Sprintf("the publication %s does not exist", name), createPublicationSQL(cfg))
	case p.AllTables:
		return wrong(fmt.Sprintf("the publication %s holds all tables; it must hold %s alone", name, cfg.Table), recreate)
	}

	var problems, fixes []string
	switch {
	case !p.Holds:
		problems = append(problems, fmt.Sprintf("does not name the table %s", cfg.Table))
	case p.Filter:
		problems = append(problems, "has a row filter")
	}
	if p.Columns {
		problems = append(problems, "has a column list")
	}
	if len(p.Others) > 0 {
		problems = append(problems, "holds other tables: "+strings.Join(p.Others, ", "))
	}
	if len(p.Schemas) > 0 {
		problems = append(problems, "holds whole schemas: "+strings.Join(p.Schemas, ", "))
	}
	if len(problems) > 0 {
		fixes = append(fixes, fmt.Sprintf("ALTER PUBLICATION %s SET TABLE %s;", name, cfg.Table))
	}
	if !p.Insert || !p.ViaRoot {
		if !p.Insert {
			problems = append(problems, "does not publish inserts")
		}
		if !p.ViaRoot {
			problems = append(problems, "publishes partitions under their own names")
		}
		fixes = append(fixes, fmt.Sprintf("ALTER PUBLICATION %s SET (%s);", name, publishOptions))
	}
	if len(problems) == 0 {
		return nil
	}
	return wrong(fmt.Sprintf("the publication %s %s", name, strings.Join(problems, ", ")), strings.Join(fixes, " "))
}

// foreign reports whether the publication serves others as well.
func (p publication) foreign() bool {
	return p.AllTables || len(p.Schemas) > 0 || len(p.Others) > 0
}
