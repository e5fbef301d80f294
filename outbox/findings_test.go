package outbox

import (
	"maps"
	"slices"
	"testing"

	"github.com/stagedoor/walrelay/internal/fault"
	"github.com/stagedoor/walrelay/internal/finding"
)

// byName has the findings of a check that begins now.
func byName(d *db, cfg Config, purge bool) map[string]finding.Finding {
	d.t.Helper()
	found := map[string]finding.Finding{}
	for _, f := range d.open(cfg).Findings(d.ctx(), nil, purge) {
		found[f.Name] = f
	}
	if s := d.logs.String(); s != "" {
		d.t.Errorf("it logged: %s", s)
	}
	return found
}

// Findings go on where Check stops, and never disagree with it: one fails
// exactly where Check does, with its problem and its repair, and one warns where
// Check logs.
func TestFindingsAgreeWithCheck(t *testing.T) {
	shared := newDB(t)
	const grant = "GRANT SELECT, UPDATE (published_at) ON outbox TO %s"
	for _, test := range []struct {
		name  string
		sql   string
		grant string
		cfg   Config
		want  map[string]finding.Level // those that are not ok
	}{
		{name: "all there", grant: grant},
		{name: "no table", sql: "DROP TABLE outbox", grant: "", want: map[string]finding.Level{"table": finding.Fail}},
		{
			name: "all wrong", sql: `ALTER TABLE outbox SET UNLOGGED; ALTER TABLE outbox ENABLE ROW LEVEL SECURITY;
				ALTER TABLE outbox DROP payload; ALTER TABLE outbox DROP CONSTRAINT outbox_pkey; DROP INDEX outbox_id_idx`,
			want: map[string]finding.Level{
				"table": finding.Fail, "table_privileges": finding.Fail, "row_security": finding.Fail, "columns": finding.Fail,
				"marks": finding.Warn, "unique_id": finding.Warn,
			},
		},
		{name: "no index for marks", sql: "DROP INDEX outbox_id_idx", grant: grant, want: map[string]finding.Level{"unpublished_index": finding.Warn}},
		{
			name: "an index that begins with something else", grant: grant,
			sql: `DROP TABLE outbox; CREATE TABLE outbox (id bigint, kind text, payload jsonb, created_at timestamptz, published_at timestamptz,
				PRIMARY KEY (created_at, id)) PARTITION BY RANGE (created_at); CREATE INDEX ON outbox (id) WHERE published_at IS NULL`,
			want: map[string]finding.Level{"id_index": finding.Warn},
		},
		{name: "no marks", grant: "GRANT SELECT ON outbox TO %s", want: map[string]finding.Level{"marks": finding.Warn}},
		{name: "no marks wanted", grant: "GRANT SELECT ON outbox TO %s", cfg: Config{Mark: MarkNone}},
		{name: "marks wanted", grant: "GRANT SELECT ON outbox TO %s", cfg: Config{Mark: MarkPublishedAt}, want: map[string]finding.Level{"marks": finding.Fail}},
		{name: "deletes wanted", grant: "GRANT SELECT, DELETE ON outbox TO %s", cfg: Config{Mark: MarkDelete}, want: map[string]finding.Level{"marks": finding.Fail}},
	} {
		t.Run(test.name, func(t *testing.T) {
			d := shared.anew(t)
			if test.sql != "" {
				d.exec(test.sql)
			}
			var grants []string
			if test.grant != "" {
				grants = append(grants, test.grant)
			}
			role := d.role(grants...)
			test.cfg.Conn = d.config(role)
			found := byName(d, test.cfg, false)
			got := map[string]finding.Level{}
			fixes := map[string]bool{}
			for name, f := range found {
				if f.Level != finding.OK {
					got[name] = f.Level
				}
				if f.Level != finding.OK && f.Fix == "" {
					t.Errorf("%s has no repair: %+v", name, f)
				}
				if f.Level == finding.Fail {
					fixes[f.Fix] = true
				}
			}
			if !maps.Equal(got, test.want) {
				t.Errorf("it found %v, want %v: %+v", got, test.want, found)
			}
			err := d.open(test.cfg).Check(d.ctx(), nil)
			if e := fault.As(err); len(fixes) > 0 && (e == nil || !fixes[e.Fix]) || len(fixes) == 0 && err != nil {
				t.Errorf("Check says %v, and the repairs are %q", err, slices.Collect(maps.Keys(fixes)))
			}
		})
	}
}

// The repair of each finding repairs it.
func TestRepairsOfFindings(t *testing.T) {
	d := newOutbox(t)
	d.exec(`ALTER TABLE outbox SET UNLOGGED; ALTER TABLE outbox DROP CONSTRAINT outbox_pkey; DROP INDEX outbox_id_idx;
		ALTER TABLE outbox ENABLE ROW LEVEL SECURITY; REVOKE USAGE ON SCHEMA public FROM public`)
	role := d.role()
	cfg := Config{Conn: d.config(role)}
	names := map[string]bool{}
	for range 20 {
		found := byName(d, cfg, true)
		repaired := false
		for _, name := range slices.Sorted(maps.Keys(found)) {
			f := found[name]
			if f.Level == finding.OK {
				continue
			}
			if name == "table" { // the rest of that is a remark
				f.Fix = `ALTER TABLE "public"."outbox" SET LOGGED`
			}
			d.exec(f.Fix)
			names[name], repaired = true, true
			break
		}
		if !repaired {
			break
		}
	}
	want := []string{"marks", "purge", "row_security", "table", "table_privileges", "unique_id", "unpublished_index"}
	if got := slices.Sorted(maps.Keys(names)); !slices.Equal(got, want) {
		t.Errorf("repaired %v, want %v", got, want)
	}
	for name, f := range byName(d, cfg, true) {
		if f.Level != finding.OK {
			t.Errorf("still %s: %+v", name, f)
		}
	}
}

// A table that cannot be reached is a finding, too.
func TestFindingsWithoutAServer(t *testing.T) {
	d := newDB(t)
	found := byName(d, Config{Conn: d.config("nobody")}, false)
	if f := found["table"]; f.Level != finding.Fail || len(found) != 1 {
		t.Errorf("it found %+v", found)
	}
}
