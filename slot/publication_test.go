package slot

import (
	"errors"
	"fmt"
	"strings"
	"testing"

	"github.com/stagedoor/walrelay/cdc"
	"github.com/stagedoor/walrelay/internal/fault"
)

// Every wrong publication is told, and the SQL that comes with it repairs it.
func TestPublicationIsVerifiedAndTheFixRepairsIt(t *testing.T) {
	w := onCommon(t)
	version := w.open().Server().Version
	tests := []struct {
		name  string
		since int
		sql   string // NAME, TABLE and OPTIONS are replaced
		says  string
	}{
		{"missing", 0, ``, "does not exist"},
		{"without the table", 0, `CREATE PUBLICATION NAME WITH (OPTIONS)`, "does not name the table"},
		{"with another table", 0, `CREATE TABLE "Other"(); CREATE PUBLICATION NAME FOR TABLE TABLE, "Other" WITH (OPTIONS)`, `public."Other"`},
		{"with another table only", 0, `CREATE TABLE other(); CREATE PUBLICATION NAME FOR TABLE other WITH (OPTIONS)`, "does not name the table"},
		{"for all tables", 0, `CREATE PUBLICATION NAME FOR ALL TABLES WITH (OPTIONS)`, "all tables"},
		{"for a schema", 150000, `CREATE PUBLICATION NAME FOR TABLES IN SCHEMA public WITH (OPTIONS)`, "whole schemas: public"},
		{"with a schema beside the table", 150000, `CREATE PUBLICATION NAME FOR TABLE TABLE, TABLES IN SCHEMA public WITH (OPTIONS)`, "whole schemas: public"},
		{"with a row filter", 150000, `CREATE PUBLICATION NAME FOR TABLE TABLE WHERE (id > 10) WITH (OPTIONS)`, "row filter"},
		{"with a column list", 150000, `CREATE PUBLICATION NAME FOR TABLE TABLE (id) WITH (OPTIONS)`, "column list"},
		{"without inserts", 0, `CREATE PUBLICATION NAME FOR TABLE TABLE WITH (publish = 'update', publish_via_partition_root = true)`, "does not publish inserts"},
		{"without the root", 0, `CREATE PUBLICATION NAME FOR TABLE TABLE`, "partitions"},
		{"with all of it", 150000, `CREATE TABLE other(); CREATE PUBLICATION NAME FOR TABLE other, TABLE (id) WHERE (id > 10) WITH (publish = '')`, "row filter, has a column list, holds other tables: public.other, does not publish inserts, publishes partitions"},
	}
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			if version < test.since {
				t.Skipf("PostgreSQL %d cannot", version)
			}
			w := w.fresh(t, odd)
			sql := strings.NewReplacer(
				"FOR TABLE TABLE", "FOR TABLE "+w.cfg.Table.String(),
				", TABLE (", ", "+w.cfg.Table.String()+" (",
				"NAME", cdc.QuoteIdent(w.cfg.Publication), "OPTIONS", publishOptions).Replace(test.sql)
			w.exec(sql)
			s := w.open()
			err := s.EnsurePublication(w.ctx(), false)
			wantFault(t, err, ErrPublication, "PUBLICATION")
			if !strings.Contains(err.Error(), test.says) {
				t.Errorf("%q does not say %q", err, test.says)
			}
			if test.sql != "" { // an existing one is not changed behind the operator's back
				wantFault(t, s.EnsurePublication(w.ctx(), true), ErrPublication, "PUBLICATION")
			}
			if f := fault.As(err); f != nil {
				w.exec(f.Fix)
			}
			if err := s.EnsurePublication(w.ctx(), false); err != nil {
				t.Errorf("after the fix: %v", err)
			}
		})
	}
}

func TestPublicationOfOddTables(t *testing.T) {
	w := onCommon(t)
	t.Run("created once", func(t *testing.T) {
		w := w.fresh(t, odd)
		s := w.open()
		for range 2 {
			if err := s.EnsurePublication(w.ctx(), true); err != nil {
				t.Error(err)
			}
		}
	})
	t.Run("partitioned", func(t *testing.T) {
		w := w.fresh(t, w.cfg)
		w.exec(`DROP TABLE outbox; CREATE TABLE outbox (id bigint) PARTITION BY RANGE (id); CREATE TABLE p1 PARTITION OF outbox DEFAULT`)
		if err := w.open().EnsurePublication(w.ctx(), true); err != nil {
			t.Error(err)
		}
	})
	t.Run("missing", func(t *testing.T) {
		w := w.fresh(t, w.cfg)
		w.exec(`DROP TABLE outbox`)
		wantFault(t, w.open().EnsurePublication(w.ctx(), true), ErrPublication, "walrelay setup --create-table")
	})
	t.Run("a view", func(t *testing.T) {
		w := w.fresh(t, w.cfg)
		w.exec(`DROP TABLE outbox; CREATE VIEW outbox AS SELECT 1 AS id`)
		wantFault(t, w.open().EnsurePublication(w.ctx(), false), ErrPublication, "--table")
	})
	t.Run("unlogged", func(t *testing.T) {
		w := w.fresh(t, w.cfg)
		w.exec(`ALTER TABLE outbox SET UNLOGGED`)
		err := w.open().EnsurePublication(w.ctx(), false)
		wantFault(t, err, ErrPublication, "SET LOGGED")
	})
	t.Run("somebody else's", func(t *testing.T) {
		w := w.fresh(t, w.cfg)
		w.cfg.Conn = w.parse(w.as(w.role("LOGIN REPLICATION")))
		err := w.open().EnsurePublication(w.ctx(), true)
		wantFault(t, err, ErrPublication, createPublicationSQL(w.cfg))
		w.exec(createPublicationSQL(w.cfg))
		if err := w.open().EnsurePublication(w.ctx(), true); err != nil {
			t.Error(err)
		}
	})
}

// The grants that are printed are enough for everything that a relay does, and
// running all of it twice is fine.
func TestSetupAndTeardownWithLeastPrivileges(t *testing.T) {
	w := onCommon(t)
	w = w.fresh(t, odd)
	role := w.role("LOGIN")
	w.exec(`REVOKE ALL ON SCHEMA public FROM PUBLIC;
		DO $$ BEGIN EXECUTE format('REVOKE ALL ON DATABASE %I FROM PUBLIC', current_database()); END $$`)
	super := w.cfg
	w.cfg.Conn = w.parse(w.as(role))
	sql := SetupSQL(w.cfg, `UPDATE ("payload")`)
	for _, s := range sql {
		w.exec(s)
	}
	s := w.open()
	if err := s.EnsurePublication(w.ctx(), true); err != nil {
		t.Fatal(err)
	}
	snap, err := s.CreateTemporary(w.ctx(), func(string) {})
	if err != nil {
		t.Fatal(err)
	}
	if err := s.Keep(w.ctx(), snap); err != nil {
		t.Fatal(err)
	}
	s.Close()
	s = w.open()
	if _, err := s.Start(w.ctx()); err != nil {
		t.Fatal(err)
	}

	_, err = w.source().Teardown(w.ctx())
	wantFault(t, err, ErrSlotInUse, "stop the relay")
	s.Close()
	done, err := w.source().Teardown(w.ctx())
	wantFault(t, err, nil, "DROP PUBLICATION") // it is the DBA's
	if len(done) != 1 || !strings.HasPrefix(done[0], "dropped the slot") {
		t.Errorf("teardown did %q", done)
	}
	w.cfg = super
	for _, want := range []string{"dropped the publication", "there is no publication"} {
		done, err := w.source().Teardown(w.ctx())
		if err != nil || len(done) != 2 || !strings.HasPrefix(done[1], want) {
			t.Errorf("teardown did %q (%v), want %s", done, err, want)
		}
	}
	for _, want := range []bool{true, false} {
		if created, err := w.source().CreatePublication(w.ctx()); err != nil || created != want {
			t.Errorf("CreatePublication gave %v (%v), want %v", created, err, want)
		}
	}
	w.exec(fmt.Sprintf(`CREATE TABLE public.other(); ALTER PUBLICATION %s ADD TABLE public.other`, cdc.QuoteIdent(odd.Publication)))
	if _, err := w.source().CreatePublication(w.ctx()); !errors.Is(err, ErrPublication) {
		t.Errorf("a wrong publication: %v", err)
	}
	_, err = w.source().Teardown(w.ctx())
	wantFault(t, err, ErrPublication, "DROP PUBLICATION")
}

// What was granted can be taken away while the relay runs.
func TestRevokedReplication(t *testing.T) {
	w := onCommon(t)
	role := w.role("LOGIN REPLICATION")
	w.cfg.Conn = w.parse(w.as(role))
	s := w.open()
	snap, err := s.CreateTemporary(w.ctx(), func(string) {})
	if err != nil {
		t.Fatal(err)
	}
	w.exec(`ALTER ROLE ` + cdc.QuoteIdent(role) + ` NOREPLICATION`)
	w.exec(`SELECT pg_create_logical_replication_slot('walrelay', 'pgoutput')`)
	fix := `ALTER ROLE ` + cdc.QuoteIdent(role) + ` REPLICATION`
	wantFault(t, s.Keep(w.ctx(), snap), nil, fix)
	wantFault(t, s.Drop(w.ctx()), nil, fix)
	_, err = w.source().Teardown(w.ctx())
	wantFault(t, err, nil, fix)
	_, err = w.source().Open(w.ctx())
	wantFault(t, err, nil, fix)
}
