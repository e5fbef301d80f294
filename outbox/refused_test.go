package outbox

import (
	"errors"
	"fmt"
	"strings"
	"testing"

	"github.com/stagedoor/walrelay/cdc"
	"github.com/stagedoor/walrelay/internal/pg"
)

// TestRefusedMarks: what lasts until an operator acts says so, and how; once it
// is repaired, marks go on.
func TestRefusedMarks(t *testing.T) {
	shared := newDB(t)
	const trigger = `CREATE FUNCTION f() RETURNS trigger LANGUAGE plpgsql AS $$BEGIN %s; END$$;
		CREATE TRIGGER t BEFORE UPDATE OR DELETE ON outbox FOR EACH ROW EXECUTE FUNCTION f()`
	for _, test := range []struct {
		name   string
		mark   MarkMode
		sql    string // ROLE is the relay's
		fix    string
		repair string // if not fix
	}{
		{name: "revoked", sql: "REVOKE UPDATE ON outbox FROM ROLE", fix: `GRANT UPDATE ("published_at") ON "public"."outbox" TO ROLE`},
		{name: "revoked delete", mark: MarkDelete, sql: "REVOKE DELETE ON outbox FROM ROLE", fix: `GRANT DELETE, UPDATE ("id") ON "public"."outbox" TO ROLE`},
		{name: "revoked locks", mark: MarkDelete, sql: "REVOKE UPDATE ON outbox FROM ROLE", fix: `GRANT DELETE, UPDATE ("id") ON "public"."outbox" TO ROLE`},
		{name: "revoked select", sql: "REVOKE SELECT ON outbox FROM ROLE", fix: `GRANT SELECT ON "public"."outbox" TO ROLE`},
		{
			name: "row-level security", sql: "ALTER TABLE outbox ENABLE ROW LEVEL SECURITY",
			fix: "ALTER ROLE ROLE BYPASSRLS",
		},
		{
			name: "the column is renamed", sql: "ALTER TABLE outbox RENAME published_at TO sent_at",
			fix: "published_at", repair: "ALTER TABLE outbox RENAME sent_at TO published_at",
		},
		{
			name: "a publication wants an identity", sql: "ALTER TABLE outbox DROP CONSTRAINT outbox_pkey; CREATE PUBLICATION p FOR ALL TABLES",
			fix: "REPLICA IDENTITY FULL", repair: "ALTER TABLE outbox REPLICA IDENTITY FULL; DROP PUBLICATION p",
		},
		{
			name: "a trigger raises", sql: fmt.Sprintf(trigger, "RAISE 'no'"),
			fix: "triggers", repair: "DROP TRIGGER t ON outbox",
		},
		{
			name: "a trigger swallows", sql: fmt.Sprintf(trigger, "RETURN NULL"),
			fix: "triggers", repair: "DROP TRIGGER t ON outbox",
		},
		{
			name: "a trigger swallows deletes", mark: MarkDelete, sql: fmt.Sprintf(trigger, "RETURN NULL"),
			fix: "triggers", repair: "DROP TRIGGER t ON outbox",
		},
		{
			name: "a trigger resets", sql: fmt.Sprintf(trigger, "NEW.published_at = NULL; RETURN NEW"),
			fix: "triggers", repair: "DROP TRIGGER t ON outbox",
		},
		{
			name: "a constraint", sql: "ALTER TABLE outbox ADD CONSTRAINT c CHECK (published_at IS NULL)",
			fix: "constraints", repair: "ALTER TABLE outbox DROP CONSTRAINT c",
		},
		{
			name: "a foreign key", mark: MarkDelete, sql: "CREATE TABLE attempts (id bigint REFERENCES outbox); INSERT INTO attempts VALUES (1)",
			fix: "constraints", repair: "DROP TABLE attempts",
		},
	} {
		t.Run(test.name, func(t *testing.T) {
			d := shared.anew(t)
			d.fillOutbox(1)
			role := d.role("GRANT SELECT, UPDATE, DELETE ON outbox TO %s")
			table := d.checked(Config{Conn: d.config(role), Mark: test.mark})
			named := strings.NewReplacer("TO ROLE", "TO "+role, "FROM ROLE", "FROM "+role, "ROLE ROLE", "ROLE "+role).Replace
			d.exec(named(test.sql))
			// Twice, since the second time it is on a new connection.
			for range 2 {
				states, err := table.Mark(d.ctx(), []cdc.Mark{{ID: "1"}})
				if !errors.Is(err, ErrMarkRefused) || states != nil {
					t.Fatalf("states %v, error %v, want %v", states, err, ErrMarkRefused)
				}
				wantFault(t, err, "outbox", named(test.fix))
			}
			if test.repair == "" {
				test.repair = named(test.fix)
			}
			d.exec(test.repair)
			if got := mark(d, table, 1); got[0] != ok {
				t.Errorf("state %v after the repair", got)
			}
			if got := d.text(unmarked); got != "" {
				t.Errorf("unmarked %q after the repair", got)
			}
		})
	}
}

// TestMarksOfATableThatIsGone are not refused: there is nothing to confirm past.
func TestMarksOfATableThatIsGone(t *testing.T) {
	d := newOutbox(t)
	table := d.checked(Config{})
	d.exec("ALTER TABLE outbox RENAME TO elsewhere")
	_, err := table.Mark(d.ctx(), []cdc.Mark{{ID: "1"}})
	if errors.Is(err, ErrMarkRefused) {
		t.Errorf("error %v", err)
	}
	wantFault(t, err, `no table "public"."outbox"`, "--table")
	d.exec("ALTER TABLE elsewhere RENAME TO outbox; INSERT INTO outbox (id, kind, payload) VALUES (1, 'k', '{}')")
	if got := mark(d, table, 1); got[0] != ok {
		t.Errorf("state %v", got)
	}
	d.exec("ALTER TABLE outbox RENAME TO elsewhere")
	if _, err := table.Mark(d.ctx(), []cdc.Mark{{ID: "1"}}); pg.Code(err) != "42P01" || errors.Is(err, ErrMarkRefused) {
		t.Errorf("error %v, want the table to be undefined", err)
	}
}
