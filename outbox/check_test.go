package outbox

import (
	"errors"
	"maps"
	"slices"
	"strings"
	"testing"

	"github.com/stagedoor/walrelay/cdc"
	"github.com/stagedoor/walrelay/internal/fault"
	"github.com/stagedoor/walrelay/migrations"
)

func TestCheckNamesWhatIsWrong(t *testing.T) {
	shared := newDB(t)
	named := func(change func(*Mapping)) Mapping {
		m := DefaultMapping()
		change(&m)
		return m
	}
	for _, test := range []struct {
		name    string
		sql     string // on a database with the default table
		table   cdc.Table
		mapping Mapping
		mark    MarkMode
		problem string // in the error, "" for none
		fix     string // in the repair
	}{
		{name: "the default table"},
		{
			name: "no table", table: cdc.Table{Schema: "public", Name: "jobs"},
			problem: `no table "public"."jobs"`, fix: "--create-table",
		},
		{
			name: "another case", table: cdc.Table{Schema: "Public", Name: "Outbox"},
			problem: `there is "public"."outbox"; case counts`, fix: `--table '"public"."outbox"'`,
		},
		{
			name: "a view", sql: "CREATE VIEW v AS SELECT * FROM outbox", table: cdc.Table{Schema: "public", Name: "v"},
			problem: "is not a table", fix: "--table",
		},
		{
			name: "unlogged", sql: "ALTER TABLE outbox SET UNLOGGED",
			problem: "not in the write-ahead log", fix: `ALTER TABLE "public"."outbox" SET LOGGED`,
		},
		{
			name: "inheritance", sql: "CREATE TABLE child () INHERITS (outbox)",
			problem: "inherit", fix: "NO INHERIT",
		},
		{
			name: "no column", sql: `ALTER TABLE outbox RENAME kind TO "Kind"`,
			problem: `no column "kind" (there is "Kind"; case counts)`, fix: "--column-kind",
		},
		{
			name: "no column of a field", mapping: named(func(m *Mapping) { m.Fields = []FieldColumn{{"trace", "trace_id"}} }),
			problem: `no column "trace_id"`, fix: "--field trace=COLUMN",
		},
		{
			name: "no creation time", sql: "ALTER TABLE outbox DROP created_at",
			problem: `no column "created_at"`, fix: `--column-created-at=""`,
		},
		{
			name: "no creation time, and said so", sql: "ALTER TABLE outbox DROP created_at",
			mapping: named(func(m *Mapping) { m.CreatedAt = "" }),
		},
		{
			name: "a creation time of numbers", sql: "ALTER TABLE outbox DROP created_at, ADD created_at bigint",
			problem: "is bigint, not a timestamp", fix: "--column-created-at",
		},
		{
			name: "marks of another type", sql: "ALTER TABLE outbox DROP published_at, ADD published_at bool",
			problem: "is boolean, not a timestamp", fix: "--column-published-at",
		},
		{
			name: "timestamps behind domains, and without a zone",
			sql: `CREATE DOMAIN moment AS timestamptz; CREATE DOMAIN later AS moment CHECK (VALUE > '1970-01-01');
				ALTER TABLE outbox ALTER created_at TYPE later, ALTER published_at TYPE timestamp`,
		},
		{
			name: "a generated column", sql: "ALTER TABLE outbox DROP kind, ADD kind text GENERATED ALWAYS AS (payload->>'kind') STORED",
			problem: `column "kind" of "public"."outbox" is generated`, fix: "--column-kind",
		},
		{
			name: "marks wanted, no column", sql: "ALTER TABLE outbox DROP published_at", mark: MarkPublishedAt,
			problem: `no column "published_at"`, fix: "--column-published-at",
		},
		{
			name: "marks wanted, no name", mapping: named(func(m *Mapping) { m.PublishedAt = "" }), mark: MarkPublishedAt,
			problem: "cannot be marked", fix: "--mark=delete or none",
		},
		{
			name: "a named column for marks that is not there", mapping: named(func(m *Mapping) { m.PublishedAt = "sent_at" }),
			problem: `no column "sent_at"`, fix: "--column-published-at",
		},
	} {
		t.Run(test.name, func(t *testing.T) {
			d := shared.anew(t)
			if test.sql != "" {
				d.exec(test.sql)
			}
			table := d.open(Config{Table: test.table, Mapping: test.mapping, Mark: test.mark})
			wantFault(t, table.Check(d.ctx(), d.conn), test.problem, test.fix)
		})
	}
}

// wantFault compares an operator's error; no problem wants no error.
func wantFault(t *testing.T, err error, problem, fix string) {
	t.Helper()
	if problem == "" {
		if err != nil {
			t.Errorf("unexpected error: %v", err)
		}
		return
	}
	e := fault.As(err)
	if e == nil {
		t.Fatalf("error %v, want one that says how to repair it", err)
	}
	if !strings.Contains(e.Error(), problem) {
		t.Errorf("error %q does not say %q", e, problem)
	}
	if !strings.Contains(e.Fix, fix) {
		t.Errorf("the repair %q does not have %q", e.Fix, fix)
	}
}

func TestMissingColumnIsTyped(t *testing.T) {
	d := newOutbox(t)
	d.exec("ALTER TABLE outbox RENAME payload TO body")
	err := d.open(Config{}).Check(d.ctx(), nil)
	var missing *MissingColumnError
	if !errors.As(err, &missing) || missing.Column != "payload" || missing.Table != public {
		t.Errorf("error %v, want the missing column by name", err)
	}
}

// TestCheckLeastPrivileges repairs one missing privilege after the other with
// the SQL that Check names.
func TestCheckLeastPrivileges(t *testing.T) {
	for _, mode := range []MarkMode{MarkPublishedAt, MarkDelete} {
		t.Run(string(mode), func(t *testing.T) {
			d := newDB(t)
			name := cdc.Table{Schema: `My "app"`, Name: "Out box"}
			d.exec(`CREATE SCHEMA "My ""app"""`)
			d.exec(migrations.Table(name))
			d.exec(`ALTER TABLE ` + name.String() + ` ENABLE ROW LEVEL SECURITY`)
			role := d.role()
			table := d.open(Config{Conn: d.config(role), Table: name, Mark: mode})
			var done []string
			for {
				err := table.Check(d.ctx(), nil)
				if err == nil {
					break
				}
				e := fault.As(err)
				if e == nil || slices.Contains(done, e.Fix) {
					t.Fatalf("after %q: %v", done, err)
				}
				d.exec(e.Fix)
				done = append(done, e.Fix)
			}
			want := []string{
				`GRANT USAGE ON SCHEMA "My ""app""" TO ` + role,
				`GRANT SELECT ON "My ""app"""."Out box" TO ` + role,
				`ALTER ROLE ` + role + ` BYPASSRLS`,
				`GRANT UPDATE ("published_at") ON "My ""app"""."Out box" TO ` + role,
			}
			if mode == MarkDelete {
				want[3] = `GRANT DELETE, UPDATE ("id") ON "My ""app"""."Out box" TO ` + role
			}
			if !slices.Equal(done, want) {
				t.Errorf("repaired with %q, want %q", done, want)
			}
			// And that is enough to mark.
			d.exec(`INSERT INTO ` + name.String() + ` (kind, payload) VALUES ('k', '1'), ('k', '2')`)
			if states := mark(d, table, 1, 2); !slices.Equal(states, done2) {
				t.Errorf("states %v, want both marked", states)
			}
		})
	}
}

func TestRowLevelSecurityOfAnOwner(t *testing.T) {
	d := newOutbox(t)
	role := d.role()
	d.exec("ALTER TABLE outbox OWNER TO " + role)
	d.exec("ALTER TABLE outbox ENABLE ROW LEVEL SECURITY")
	table := d.open(Config{Conn: d.config(role)})
	if err := table.Check(d.ctx(), nil); err != nil {
		t.Fatalf("an owner sees all rows: %v", err)
	}
	d.exec("ALTER TABLE outbox FORCE ROW LEVEL SECURITY")
	wantFault(t, table.Check(d.ctx(), nil), "row-level security", "ALTER ROLE "+role+" BYPASSRLS")
}

func TestMarksAreResolved(t *testing.T) {
	shared := newDB(t)
	noName := DefaultMapping()
	noName.PublishedAt = ""
	for _, test := range []struct {
		name    string
		sql     string
		mapping Mapping
		mark    MarkMode
		grant   string // to the relay's role, beside SELECT
		want    MarkMode
		logged  string
	}{
		{name: "all there", grant: "UPDATE", want: MarkPublishedAt},
		{name: "one column is enough", grant: "UPDATE (published_at)", want: MarkPublishedAt},
		{name: "no privilege", want: MarkNone, logged: `GRANT UPDATE (\"published_at\")`},
		{name: "another column does not do", grant: "UPDATE (payload)", want: MarkNone, logged: `GRANT UPDATE (\"published_at\")`},
		{name: "no column", sql: "ALTER TABLE outbox DROP published_at", grant: "UPDATE", want: MarkNone, logged: "there is no column"},
		{name: "no name", mapping: noName, grant: "UPDATE", want: MarkNone, logged: "--column-published-at"},
		{name: "none wanted", mark: MarkNone, grant: "UPDATE", want: MarkNone},
		{name: "delete", mark: MarkDelete, grant: "DELETE, UPDATE (id)", want: MarkDelete},
		{name: "delete without a column", mapping: noName, mark: MarkDelete, grant: "DELETE, UPDATE (id)", want: MarkDelete},
	} {
		t.Run(test.name, func(t *testing.T) {
			d := shared.anew(t)
			role := d.role("GRANT SELECT ON outbox TO %s")
			if test.grant != "" {
				d.exec("GRANT " + test.grant + " ON outbox TO " + role)
			}
			if test.sql != "" {
				d.exec(test.sql)
			}
			table := d.open(Config{Conn: d.config(role), Mapping: test.mapping, Mark: test.mark})
			for range 2 {
				if err := table.Check(d.ctx(), nil); err != nil {
					t.Fatal(err)
				}
			}
			if got := table.Marks(); got != test.want {
				t.Errorf("marks %s, want %s", got, test.want)
			}
			times := strings.Count(d.logs.String(), "rows are not marked")
			if want := len(test.logged) > 0; times > 1 || (times == 1) != want || !strings.Contains(d.logs.String(), test.logged) {
				t.Errorf("want it said once that %q; logged: %s", test.logged, d.logs)
			}
		})
	}
}

// TestMarksStayWhenThePrivilegeGoes: a relay that marked goes on trying, so that
// it is noticed.
func TestMarksStayWhenThePrivilegeGoes(t *testing.T) {
	for _, test := range []struct{ mark, want MarkMode }{
		{MarkAuto, MarkPublishedAt}, {MarkPublishedAt, MarkPublishedAt}, {MarkDelete, MarkDelete},
	} {
		d := newOutbox(t)
		role := d.role("GRANT SELECT, UPDATE, DELETE ON outbox TO %s")
		table := d.checked(Config{Conn: d.config(role), Mark: test.mark})
		d.exec("REVOKE UPDATE, DELETE ON outbox FROM " + role)
		if err := table.Check(d.ctx(), nil); err != nil {
			t.Errorf("%s: %v", test.mark, err)
		}
		if got := table.Marks(); got != test.want {
			t.Errorf("%s: marks %s, want %s still", test.mark, got, test.want)
		}
	}
}

func TestCheckWarnsOfMissingIndexes(t *testing.T) {
	shared := newDB(t)
	const unique, leading, partial = "is not unique", "no index starts with", "no index finds unpublished"
	for _, test := range []struct {
		name string
		sql  string
		want []string
	}{
		{"the default table", "", nil},
		{"no primary key", "ALTER TABLE outbox DROP CONSTRAINT outbox_pkey", []string{unique}},
		{"an index that is not unique", "ALTER TABLE outbox DROP CONSTRAINT outbox_pkey; CREATE INDEX ON outbox (id)", []string{unique}},
		{"a unique index that holds more", "ALTER TABLE outbox DROP CONSTRAINT outbox_pkey; CREATE UNIQUE INDEX ON outbox (id, kind)", []string{unique}},
		{"a unique index of some rows", "ALTER TABLE outbox DROP CONSTRAINT outbox_pkey; CREATE UNIQUE INDEX ON outbox (id) WHERE kind = 'k'", []string{unique}},
		{"no partial index", "DROP INDEX outbox_id_idx", []string{partial}},
		{"another partial index", "DROP INDEX outbox_id_idx; CREATE INDEX ON outbox (id) WHERE published_at IS NOT NULL", []string{partial}},
		{
			"partitions", `DROP TABLE outbox; CREATE TABLE outbox (id bigint, kind text, payload jsonb, created_at timestamptz, published_at timestamptz,
				PRIMARY KEY (id, created_at)) PARTITION BY RANGE (created_at); CREATE INDEX ON outbox (id) WHERE published_at IS NULL`, nil,
		},
		{
			"partitions with the key first", `DROP TABLE outbox; CREATE TABLE outbox (id bigint, kind text, payload jsonb, created_at timestamptz, published_at timestamptz,
				PRIMARY KEY (created_at, id)) PARTITION BY RANGE (created_at); CREATE INDEX ON outbox (id) WHERE published_at IS NULL`, []string{leading},
		},
	} {
		t.Run(test.name, func(t *testing.T) {
			d := shared.anew(t)
			if test.sql != "" {
				d.exec(test.sql)
			}
			d.checked(Config{})
			for _, warning := range []string{unique, leading, partial} {
				want := slices.Contains(test.want, warning)
				if got := strings.Contains(d.logs.String(), warning); got != want {
					t.Errorf("%q logged: %v, want %v; %s", warning, got, want, d.logs)
				}
			}
		})
	}
}

func TestJSONFieldsAreKnownByType(t *testing.T) {
	d := newOutbox(t)
	d.exec(`CREATE DOMAIN document AS jsonb CHECK (VALUE IS NOT NULL);
		ALTER TABLE outbox ADD a json, ADD b text, ADD c document DEFAULT '{}', ADD d jsonb[]`)
	m := DefaultMapping()
	m.Fields = []FieldColumn{{"p", "payload"}, {"A", "a"}, {"B", "b"}, {"C", "c"}, {"D", "d"}}
	got := slices.Sorted(maps.Keys(d.checked(Config{Mapping: m}).JSONFields()))
	if want := []string{"A", "C", "p"}; !slices.Equal(got, want) {
		t.Errorf("JSON fields %v, want %v", got, want)
	}
}
