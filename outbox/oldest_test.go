package outbox

import (
	"fmt"
	"strings"
	"testing"
	"time"
)

func TestAgeOfTheOldestUnmarkedRow(t *testing.T) {
	shared := newDB(t)
	noCreated := DefaultMapping()
	noCreated.CreatedAt = ""
	const rows = `INSERT INTO outbox (id, kind, payload, created_at, published_at) VALUES
		(1, 'k', '1', now() - interval '9 hours', now()),
		(2, 'k', '2', now() - interval '3 hours', NULL),
		(3, 'k', '3', now() - interval '8 hours', NULL),
		(4, 'k', '4', now() + interval '2 hours', NULL)`
	for _, test := range []struct {
		name    string
		mark    MarkMode
		mapping Mapping
		sql     string
		except  []string
		want    time.Duration // -1 for not found
	}{
		{name: "the first id", want: 3 * time.Hour},
		{name: "but for one that waits", except: []string{"2"}, want: 8 * time.Hour},
		{name: "created in the future", except: []string{"3", "2", "77"}, want: 0},
		{name: "all wait", except: []string{"2", "3", "4"}, want: -1},
		{name: "a creation time that is none", sql: "UPDATE outbox SET created_at = 'infinity' WHERE id = 2", want: 8 * time.Hour},
		{name: "no creation time", mapping: noCreated, want: -1},
		{name: "no marks", mark: MarkNone, want: -1},
		{name: "delete", mark: MarkDelete, want: 3 * time.Hour},
		{name: "delete without a column", mark: MarkDelete, sql: "ALTER TABLE outbox DROP published_at", want: 9 * time.Hour},
		{
			name: "no zone", want: 3 * time.Hour,
			sql: "ALTER TABLE outbox ALTER created_at TYPE timestamp USING created_at AT TIME ZONE 'UTC'",
		},
	} {
		t.Run(test.name, func(t *testing.T) {
			d := shared.anew(t)
			d.exec(rows)
			if test.sql != "" {
				d.exec(test.sql)
			}
			table := d.checked(Config{Mapping: test.mapping, Mark: test.mark})
			seen, err := table.LookNow(d.ctx(), d.conn, 100, test.except)
			age, found := seen.Age, seen.Found
			if err != nil || found != (test.want >= 0) {
				t.Fatalf("found %v, %v, want %v", found, err, test.want >= 0)
			}
			// The rows grow older while the test runs.
			if found && (age < test.want || age > test.want+5*time.Minute) {
				t.Errorf("age %v, want %v", age, test.want)
			}
		})
	}
}

// TestPlans: what runs all the time is a matter of an index, also where the
// planner believes that the table is small.
func TestPlans(t *testing.T) {
	d := newOutbox(t)
	d.exec("ALTER TABLE outbox SET (autovacuum_enabled = off)")
	table := d.checked(Config{})
	mark(d, table, 1)
	d.exec("INSERT INTO outbox (id, kind, payload, published_at) SELECT n, 'k', '{}', now() FROM generate_series(1, 20000) n")
	d.exec("UPDATE outbox SET published_at = NULL WHERE id % 100 = 0")
	var batch []string
	for i := range markBatch {
		batch = append(batch, fmt.Sprint(i+1))
	}
	explain := func(sql string) string {
		d.t.Helper()
		var plan []string
		err := rows(d.ctx(), table.marker.conn, "EXPLAIN "+sql, [][]byte{[]byte("{" + strings.Join(batch, ",") + "}")}, func(row [][]byte) error {
			plan = append(plan, string(row[0]))
			return nil
		})
		if err != nil {
			d.t.Fatal(err)
		}
		return strings.Join(plan, "\n")
	}
	for _, when := range []string{"before", "after"} {
		for _, mode := range []MarkMode{MarkPublishedAt, MarkDelete} {
			if plan := explain(table.markSQL(mode, "bigint", table.checked.Load().oid)); strings.Contains(plan, "Seq Scan on outbox") {
				t.Errorf("%s, %s ANALYZE, reads the whole table:\n%s", mode, when, plan)
			}
		}
		d.exec("ANALYZE outbox")
	}
}
