package outbox

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stagedoor/walrelay/cdc"
	"github.com/stagedoor/walrelay/internal/fault"
)

// purger deletes what is older than a week, in batches of two.
func (d *db) purger(cfg Config) *Purger {
	d.t.Helper()
	table := d.open(cfg)
	return NewPurger(table, PurgeConfig{OlderThan: 168 * time.Hour, Batch: 2, Slot: "purge_" + d.text("SELECT current_database()")}, table.log)
}

// purge makes a pass.
func (d *db) purge(p *Purger) Purged {
	d.t.Helper()
	done, err := p.Pass(d.ctx())
	if err != nil {
		d.t.Fatal(err)
	}
	return done
}

// fillPublished inserts rows from first to last that were published so long ago.
func (d *db) fillPublished(first, last int, ago string) {
	d.t.Helper()
	d.exec(fmt.Sprintf(`INSERT INTO outbox (id, kind, payload, created_at, published_at)
		SELECT n, 'k', '{}', now() - interval '%[3]s', now() - interval '%[3]s' FROM generate_series(%[1]d, %[2]d) n`, first, last, ago))
}

const outboxIDs = "SELECT id FROM outbox ORDER BY id"

// TestPurgeDeletesWhatWasPublishedLongAgo, and nothing else, whatever the table
// is like.
func TestPurgeDeletesWhatWasPublishedLongAgo(t *testing.T) {
	shared := newDB(t)
	odd := Mapping{ID: `The "Id"`, Kind: "kind", Payload: "payload", CreatedAt: "made; at", PublishedAt: `Sent ' At`}
	for _, test := range []struct {
		name, create string
		table        cdc.Table
		mapping      Mapping
		ids          [6]string // in order
	}{
		{
			name: "numbers", create: `CREATE TABLE outbox (id int PRIMARY KEY, kind text, payload jsonb, created_at timestamptz, published_at timestamptz)`,
			table: public, mapping: DefaultMapping(), ids: [6]string{"-5", "0", "7", "8", "9", "11"},
		},
		{
			name: "uuids, without time zone", create: `CREATE TABLE outbox (id uuid PRIMARY KEY, kind text, payload jsonb, created_at timestamp, published_at timestamp)`,
			table: public, mapping: DefaultMapping(),
			ids: [6]string{
				"00000000-0000-0000-0000-000000000000", "00000000-0000-0000-0000-00000000000a", "10000000-0000-0000-0000-000000000000",
				"20000000-0000-0000-0000-000000000000", "f0000000-0000-0000-0000-000000000000", "ffffffff-ffff-ffff-ffff-ffffffffffff",
			},
		},
		{
			name: "texts, odd names, without created_at",
			create: `CREATE SCHEMA "Odd.Schema"; CREATE TABLE "Odd.Schema"."Out ""Box" ("The ""Id""" varchar(9) COLLATE "C" UNIQUE, kind text, payload jsonb,
				"made; at" timestamptz, "Sent ' At" timestamptz)`,
			table:   cdc.Table{Schema: "Odd.Schema", Name: `Out "Box`},
			mapping: Mapping{ID: odd.ID, Kind: odd.Kind, Payload: odd.Payload, PublishedAt: odd.PublishedAt},
			ids:     [6]string{"", "A", "\\", `a"b`, "b'", "é{}"},
		},
		{
			name: "partitions, ids that are not unique", create: `CREATE TABLE outbox (id bigint, kind text, payload jsonb, created_at timestamptz, published_at timestamptz)
				PARTITION BY RANGE (published_at);
				CREATE TABLE outbox_old PARTITION OF outbox FOR VALUES FROM ('1990-01-01') TO ('2020-01-01');
				CREATE TABLE outbox_new PARTITION OF outbox DEFAULT;
				CREATE INDEX ON outbox (id)`,
			table: public, mapping: DefaultMapping(), ids: [6]string{"1", "1", "2", "2", "2", "2"},
		},
	} {
		t.Run(test.name, func(t *testing.T) {
			d := shared.anew(t)
			d.exec("DROP TABLE outbox;" + test.create)
			m := test.mapping
			columns := strings.NewReplacer("{table}", test.table.String(), "{id}", cdc.QuoteIdent(m.ID), "{published}", cdc.QuoteIdent(m.PublishedAt))
			for i, published := range []string{
				"'2019-12-31 23:00'", "now() - interval '9 days'", "now() - interval '167 hours'", "NULL", "'infinity'", "'2010-01-01'",
			} {
				d.exec(columns.Replace("INSERT INTO {table} ({id}, kind, {published}) VALUES (" + cdc.QuoteLiteral(test.ids[i]) + ", '" + fmt.Sprint(i+1) + "', " + published + ")"))
			}
			p := d.purger(Config{Table: test.table, Mapping: m})
			if done := d.purge(p); done != (Purged{Deleted: 3}) || p.Deleted() != 3 {
				t.Errorf("%+v, in all %d", done, p.Deleted())
			}
			if got := d.text(columns.Replace("SELECT kind FROM {table} ORDER BY kind")); got != "3 4 5" {
				t.Errorf("left are %q, want those published lately, never, and some day", got)
			}
			if done := d.purge(p); done != (Purged{}) {
				t.Errorf("again: %+v", done)
			}
		})
	}
}

// TestPurgeLeavesRowsInUse: it waits for nobody, and the rows next to them go.
func TestPurgeLeavesRowsInUse(t *testing.T) {
	shared := newDB(t)
	for _, test := range []struct{ before, lock string }{
		{"", "SELECT FROM outbox WHERE id = 4 FOR UPDATE"},
		{"", "SELECT FROM outbox WHERE id = 4 FOR KEY SHARE"},
		{"", "UPDATE outbox SET published_at = NULL WHERE id = 4"},
		{"", "UPDATE outbox SET id = 44 WHERE id = 4"},
		{"", "INSERT INTO attempts VALUES (4)"},
		{"INSERT INTO attempts VALUES (4)", ""},
		{"ALTER TABLE attempts ALTER CONSTRAINT attempts_outbox_id_fkey DEFERRABLE INITIALLY DEFERRED; INSERT INTO attempts VALUES (4)", ""},
		{"INSERT INTO notes VALUES (4)", "SELECT FROM notes FOR UPDATE"},
		{"CREATE TRIGGER keep BEFORE DELETE ON outbox FOR EACH ROW WHEN (old.id = 4) EXECUTE FUNCTION refuse()", ""},
	} {
		t.Run(test.before+test.lock, func(t *testing.T) {
			d := shared.anew(t)
			d.exec(`CREATE TABLE attempts (outbox_id bigint REFERENCES outbox);
				CREATE TABLE notes (outbox_id bigint REFERENCES outbox ON DELETE CASCADE);
				CREATE FUNCTION refuse() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN RAISE 'kept'; END $$`)
			d.fillPublished(1, 7, "9 days")
			p := d.purger(Config{})
			p.cfg.Batch = 1000
			p.log = slog.New(slog.NewTextHandler(d.logs, &slog.HandlerOptions{Level: slog.LevelDebug}))
			holder := d.connect()
			d.exec(test.before)
			d.on(holder, "BEGIN;"+test.lock)
			if done := d.purge(p); done != (Purged{Deleted: 6, Kept: 1}) {
				t.Errorf("%+v", done)
			}
			if got := d.text(outboxIDs); got != "4" {
				t.Errorf("left are %q, want row 4", got)
			}
			// What is only locked is not even tried.
			if tried, want := strings.Contains(d.logs.String(), "cannot be deleted"), test.before != ""; tried != want {
				t.Errorf("tried alone: %v, want %v", tried, want)
			}
			d.on(holder, "ROLLBACK; DROP TABLE attempts, notes; DROP FUNCTION refuse CASCADE")
			if done := d.purge(p); done != (Purged{Deleted: 1}) {
				t.Errorf("%+v when the lock is gone", done)
			}
		})
	}
}

// TestPurgeWaitsForATable that somebody holds, and says so; it goes on afterwards.
func TestPurgeWaitsForATable(t *testing.T) {
	d := newOutbox(t)
	d.fillPublished(1, 3, "9 days")
	holder := d.connect()
	// A DELETE waits for the one, reading for the other, too.
	for _, lock := range []string{"SHARE", "ACCESS EXCLUSIVE"} {
		d.fillPublished(4, 4, "9 days")
		d.on(holder, "BEGIN; LOCK TABLE outbox IN "+lock+" MODE")
		p := d.purger(Config{})
		pass := &purgePass{Purger: p, may: func() bool {
			if !p.said.IsZero() {
				d.on(holder, "ROLLBACK")
			}
			return true
		}}
		if err := pass.run(d.ctx()); err != nil || pass.done.Kept != 0 || p.said.IsZero() {
			t.Errorf("%s: %+v %v", lock, pass.done, err)
		}
		if got := d.text(outboxIDs); got != "" {
			t.Errorf("%s: left are %q", lock, got)
		}
	}
	if !strings.Contains(d.logs.String(), "has locked the table") {
		t.Errorf("it does not say so: %s", d.logs)
	}
}

// TestPurgeStopsBetweenBatches, by a relay that no longer works, and by the end
// of its context, and keeps what is done.
func TestPurgeStopsBetweenBatches(t *testing.T) {
	d := newOutbox(t)
	d.fillPublished(1, 7, "9 days")
	p := d.purger(Config{})
	pass := &purgePass{Purger: p, may: func() bool { return p.Deleted() == 0 }}
	if err := pass.run(d.ctx()); err != nil || pass.done.Deleted != 2 {
		t.Errorf("%+v %v, want a batch of two", pass.done, err)
	}
	ctx, cancel := context.WithCancel(d.ctx())
	defer cancel()
	pass = &purgePass{Purger: p, may: func() bool {
		if p.Deleted() == 4 {
			cancel()
		}
		return true
	}}
	if err := pass.run(ctx); !errors.Is(err, context.Canceled) || pass.done.Deleted != 2 {
		t.Errorf("%+v %v, want a batch of two", pass.done, err)
	}
	if got := d.text(outboxIDs); got != "5 6 7" {
		t.Errorf("left are %q", got)
	}
}

// TestPurgeLeavesRowsThatChangedSinceTheyWereRead, to what is not published and
// to what is another row with the same id.
func TestPurgeLeavesRowsThatChangedSinceTheyWereRead(t *testing.T) {
	shared := newDB(t)
	for name, change := range map[string]string{
		"not published": "UPDATE outbox SET published_at = NULL WHERE id = 2",
		"another row":   `DELETE FROM outbox WHERE id = 2; INSERT INTO outbox (id, kind, payload, published_at) VALUES (2, 'other', '{}', '2001-01-01')`,
		"moved":         "ALTER TABLE outbox DROP CONSTRAINT outbox_pkey; INSERT INTO outbox SELECT * FROM outbox WHERE id = 2; DELETE FROM outbox WHERE id = 2 AND ctid = '(0,2)'",
	} {
		t.Run(name, func(t *testing.T) {
			d := shared.anew(t)
			d.exec("CREATE INDEX ON outbox (id)")
			d.fillPublished(1, 3, "9 days")
			pass := &purgePass{Purger: d.purger(Config{}), conn: d.connect()}
			if err := pass.prepare(d.ctx()); err != nil {
				t.Fatal(err)
			}
			c, err := pass.next(d.ctx(), nil)
			if err != nil || len(c.old) != 3 {
				t.Fatalf("%+v %v", c, err)
			}
			d.exec(change)
			if n, err := pass.deleteBatch(d.ctx(), c.old); err != nil || n != 2 {
				t.Errorf("%d deleted, %v", n, err)
			}
			if got := d.text(outboxIDs); got != "2" {
				t.Errorf("left are %q, want row 2", got)
			}
		})
	}
}

// TestPurgeWalksNoFurtherThanNeeded: with ids that grow a pass ends where all
// rows are young, and not where they are not published. With others, old rows
// may be anywhere.
func TestPurgeWalksNoFurtherThanNeeded(t *testing.T) {
	shared := newDB(t)
	for idType, want := range map[string]string{"bigint": "19000", "text": ""} {
		t.Run(idType, func(t *testing.T) {
			d := shared.anew(t)
			d.exec("ALTER TABLE outbox ALTER id DROP IDENTITY; ALTER TABLE outbox ALTER id TYPE " + idType)
			d.fillPublished(10001, 10100+purgeChunk, "9 days")
			d.exec("UPDATE outbox SET published_at = NULL")
			d.fillPublished(12001, 12005, "9 days")
			d.fillPublished(13001, 13001+2*purgeChunk, "1 hour")
			d.fillPublished(19000, 19000, "9 days")
			p := d.purger(Config{})
			p.cfg.Batch = 1000
			d.purge(p)
			if got := d.text("SELECT id FROM outbox WHERE published_at < now() - interval '8 days'"); got != want {
				t.Errorf("left of the old ones are %q, want %q", got, want)
			}
		})
	}
}

// TestPurgeWithoutMarks deletes only what the slot confirms as published, and
// only the rows that were read before.
func TestPurgeWithoutMarks(t *testing.T) {
	for name, create := range map[string]string{
		"without published_at": "ALTER TABLE outbox DROP published_at",
		"--mark=none":          "",
		"partitions": `DROP TABLE outbox; CREATE TABLE outbox (id bigint PRIMARY KEY, kind text, payload jsonb, created_at timestamptz, published_at timestamptz)
			PARTITION BY RANGE (id);
			CREATE TABLE outbox_1 PARTITION OF outbox FOR VALUES FROM (1) TO (3); CREATE TABLE outbox_2 PARTITION OF outbox DEFAULT`,
	} {
		t.Run(name, func(t *testing.T) {
			d := newOutbox(t)
			d.exec(create)
			d.exec(`INSERT INTO outbox (id, kind, payload, created_at) SELECT n, 'k', '{}', now() - interval '9 days' FROM generate_series(1, 5) n;
				INSERT INTO outbox (id, kind, payload, created_at) VALUES (6, 'young', '{}', now())`)
			p := d.purger(Config{Mark: MarkNone})
			slot := cdc.QuoteLiteral(p.cfg.Slot)
			d.exec("SELECT pg_create_logical_replication_slot(" + slot + ", 'pgoutput')")
			defer d.exec("SELECT pg_drop_replication_slot(" + slot + ")")

			var done Purged
			var err error
			var pass sync.WaitGroup
			pass.Go(func() { done, err = p.Pass(d.t.Context()) })
			defer pass.Wait()
			for deadline := time.Now().Add(patience); !strings.Contains(d.logs.String(), "nobody reads the slot"); {
				if time.Now().After(deadline) {
					t.Fatalf("it does not say what it waits for: %s", d.logs)
				}
				time.Sleep(5 * time.Millisecond)
			}
			// It has read the rows, and what is new now is not on the stream yet.
			d.exec(`DELETE FROM outbox WHERE id = 2; INSERT INTO outbox (id, kind, payload, created_at) VALUES (2, 'another', '{}', '2001-01-01');
				UPDATE outbox SET kind = 'changed' WHERE id = 4;
				INSERT INTO outbox (id, kind, payload, created_at) VALUES (0, 'late', '{}', '2001-01-01')`)
			// It looks at the slot again, and only then.
			d.wait("SELECT bool_or(query_start > '"+d.text("SELECT clock_timestamp()")+"') FROM pg_stat_activity WHERE datname = current_database() AND pid <> pg_backend_pid() AND query LIKE '%FROM pg_replication_slots%'", "t")
			if got := d.text(outboxIDs); got != "0 1 2 3 4 5 6" {
				t.Errorf("left are %q before anything is confirmed", got)
			}
			d.exec("SELECT pg_replication_slot_advance(" + slot + ", pg_current_wal_insert_lsn())")
			pass.Wait()
			if err != nil || done != (Purged{Deleted: 3, Kept: 2}) {
				t.Errorf("%+v %v", done, err)
			}
			if got := d.text(outboxIDs); got != "0 2 4 6" {
				t.Errorf("left are %q, want what was new or changed, and the young one", got)
			}
		})
	}
}

// TestPurgeSaysWhatItLacks, and deletes nothing.
func TestPurgeSaysWhatItLacks(t *testing.T) {
	shared := newDB(t)
	timeless := DefaultMapping()
	timeless.CreatedAt = ""
	for _, test := range []struct {
		name   string
		cfg    Config
		before string
		grants []string // of a role of its own
		fix    string
	}{
		{name: "the privilege to delete", grants: []string{"UPDATE (published_at)"}, fix: `GRANT DELETE ON {table} TO {role}`},
		{name: "the privilege to lock", cfg: Config{Mark: MarkNone}, grants: []string{"DELETE"}, fix: `GRANT UPDATE ("id") ON {table} TO {role}`},
		{name: "both", cfg: Config{Mark: MarkNone}, grants: []string{}, fix: `GRANT DELETE, UPDATE ("id") ON {table} TO {role}`},
		{name: "the privilege to mark", grants: []string{"DELETE", "UPDATE (id)"}, fix: `GRANT UPDATE ("published_at") ON {table} TO {role}`},
		{name: "rows", cfg: Config{Mark: MarkDelete}, fix: "leave it out"},
		{name: "an index", before: "ALTER TABLE outbox DROP CONSTRAINT outbox_pkey", fix: `CREATE INDEX CONCURRENTLY ON {table} ("id")`},
		{name: "a time", cfg: Config{Mark: MarkNone, Mapping: timeless}, fix: "--column-created-at"},
		{name: "a slot", cfg: Config{Mark: MarkNone}, fix: "start walrelay run"},
	} {
		t.Run(test.name, func(t *testing.T) {
			d := shared.anew(t)
			d.exec(test.before)
			d.fillPublished(1, 2, "9 days")
			role := ""
			if test.grants != nil {
				role = d.role()
				for _, grant := range append(slices.Clone(test.grants), "SELECT") {
					d.exec("GRANT " + grant + " ON outbox TO " + role)
				}
				test.cfg.Conn = d.config(role)
			}
			_, err := d.purger(test.cfg).Pass(d.ctx())
			if e := fault.As(err); e == nil || !strings.Contains(e.Fix, strings.NewReplacer("{role}", role, "{table}", public.String()).Replace(test.fix)) {
				t.Errorf("%v, want one with %s", err, test.fix)
			}
			if got := d.text(outboxIDs); got != "1 2" {
				t.Errorf("left are %q", got)
			}
		})
	}
}
