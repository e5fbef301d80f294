package outbox

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/stagedoor/walrelay/cdc"
	"github.com/stagedoor/walrelay/internal/fault"
)

// claims takes rows and returns their ids.
func (d *db) claims(c *Claimer, limit int) (ids []string) {
	d.t.Helper()
	n, err := c.Claim(d.ctx(), limit, func(ev cdc.Event, _ time.Time) error {
		ids = append(ids, ev.ID)
		return nil
	})
	if err != nil || n != len(ids) {
		d.t.Fatalf("%d rows, %v, after %q", n, err, ids)
	}
	return ids
}

func (d *db) done(c *Claimer, n int) {
	d.t.Helper()
	if err := c.Done(d.ctx(), n); err != nil {
		d.t.Fatal(err)
	}
}

// TestClaimedRowsAreOneClaimers until it is done with them or gone.
func TestClaimedRowsAreOneClaimers(t *testing.T) {
	for name, tt := range map[string]struct {
		table, unpublished string
		mark               MarkMode
	}{
		"marked":              {"", "SELECT id FROM outbox WHERE published_at IS NULL ORDER BY id", MarkPublishedAt},
		"deleted":             {"", "SELECT id FROM outbox ORDER BY id", MarkDelete},
		"partitioned":         {"DROP TABLE outbox; CREATE TABLE outbox (LIKE old_outbox INCLUDING ALL) PARTITION BY HASH (id); CREATE TABLE p0 PARTITION OF outbox FOR VALUES WITH (MODULUS 2, REMAINDER 0); CREATE TABLE p1 PARTITION OF outbox FOR VALUES WITH (MODULUS 2, REMAINDER 1)", "SELECT id FROM outbox WHERE published_at IS NULL ORDER BY id", MarkPublishedAt},
		"without a time zone": {"ALTER TABLE outbox ALTER published_at TYPE timestamp", "SELECT id FROM outbox WHERE published_at IS NULL ORDER BY id", MarkAuto},
	} {
		t.Run(name, func(t *testing.T) {
			d := newOutbox(t)
			d.exec("CREATE TABLE old_outbox (LIKE outbox INCLUDING ALL); " + tt.table)
			d.exec(`INSERT INTO outbox (id, kind, payload, published_at) VALUES (1, 'old', '{}', now())`)
			if tt.mark == MarkDelete {
				d.exec("DELETE FROM outbox")
			}
			d.exec(`INSERT INTO outbox (id, kind, payload) SELECT i, 'k', to_jsonb(i) FROM generate_series(2, 9) i ORDER BY random()`)
			table := d.open(Config{Mark: tt.mark})
			first, second := table.Claimer(), table.Claimer()
			defer first.Close()
			defer second.Close()

			locked := d.connect()
			d.on(locked, "BEGIN; SELECT FROM outbox WHERE id = 3 FOR KEY SHARE") // as a foreign key does
			if tt.mark == MarkDelete {
				d.on(locked, "ROLLBACK")
			}
			if ids := d.claims(first, 3); !slices.Equal(ids, []string{"2", "3", "4"}) {
				t.Errorf("the first has %q", ids)
			}
			if ids := d.claims(second, 3); !slices.Equal(ids, []string{"5", "6", "7"}) {
				t.Errorf("the second has %q", ids)
			}
			d.done(first, 2)
			if tt.mark != MarkDelete {
				d.on(locked, "ROLLBACK")
			}
			if left := d.text(tt.unpublished); left != "4 5 6 7 8 9" {
				t.Errorf("2 of 3 were marked, and left are %s", left)
			}
			second.Close()
			d.wait(`SELECT count(*) FROM pg_stat_activity WHERE datname = current_database() AND state = 'idle in transaction'`, "0")
			if ids := d.claims(first, 100); !slices.Equal(ids, []string{"4", "5", "6", "7", "8", "9"}) {
				t.Errorf("what the second gave back is not there: %q", ids)
			}
			d.done(first, 6)
			if ids := d.claims(first, 100); len(ids) > 0 {
				t.Errorf("there are rows left: %q", ids)
			}
			d.done(first, 0)
		})
	}
}

// TestClaimMarksTheRowsThatItHas and no other with the same id.
func TestClaimMarksTheRowsThatItHas(t *testing.T) {
	d := newDB(t)
	d.exec(`CREATE TABLE outbox (id text, kind text, payload text, created_at timestamptz, published_at timestamptz, n int);
		INSERT INTO outbox (id, n) VALUES ('a "b', 1), ('a "b', 2)`)
	c := d.open(Config{}).Claimer()
	defer c.Close()
	d.claims(c, 1)
	d.done(c, 1)
	if marked := d.text("SELECT count(*) FROM outbox WHERE published_at IS NOT NULL"); marked != "1" {
		t.Errorf("%s rows are marked", marked)
	}
}

// TestClaimAfterAnErrorOfItsCaller keeps what was claimed, and reads the rest off
// the connection.
func TestClaimAfterAnErrorOfItsCaller(t *testing.T) {
	d := newOutbox(t)
	d.exec(`INSERT INTO outbox (kind, payload) SELECT 'k', to_jsonb(repeat('x', 10000)) FROM generate_series(1, 100)`)
	c := d.open(Config{}).Claimer()
	defer c.Close()
	stop := errors.New("enough")
	seen := 0
	_, err := c.Claim(d.ctx(), 100, func(cdc.Event, time.Time) error {
		if seen++; seen == 3 {
			return stop
		}
		return nil
	})
	if !errors.Is(err, stop) {
		t.Fatal(err)
	}
	d.done(c, 2)
	if left := d.text("SELECT count(*) FROM outbox WHERE published_at IS NULL"); left != "98" {
		t.Errorf("%s rows are left", left)
	}
}

// TestRehearsalChangesNothing, and finds what would keep rows from being marked.
func TestRehearsalChangesNothing(t *testing.T) {
	d := newOutbox(t)
	c := d.open(Config{}).Claimer()
	defer c.Close()
	rehearse := func() (int, error) { return c.Rehearse(d.ctx(), 100) }
	if n, err := rehearse(); n != 0 || err != nil {
		t.Errorf("without rows: %d, %v", n, err)
	}
	d.exec(`INSERT INTO outbox (kind, payload) VALUES ('k', '{}'), ('k', '{}')`)
	if n, err := rehearse(); n != 2 || err != nil {
		t.Errorf("with rows: %d, %v", n, err)
	}
	if left := d.text("SELECT count(*) FROM outbox WHERE published_at IS NULL"); left != "2" {
		t.Errorf("%s rows are left", left)
	}
	d.exec(`ALTER TABLE outbox ADD CHECK (published_at IS NULL)`)
	if _, err := rehearse(); !errors.Is(err, ErrMarkRefused) || fault.As(err) == nil {
		t.Errorf("against a constraint: %v", err)
	}
}

// TestNoClaimWithoutMarks: a poller goes by them.
func TestNoClaimWithoutMarks(t *testing.T) {
	d := newOutbox(t)
	d.exec(`INSERT INTO outbox (kind, payload) VALUES ('k', '{}')`)
	reader := d.role("GRANT USAGE ON SCHEMA public TO %s", "GRANT SELECT ON outbox TO %s")
	unnamed := DefaultMapping()
	unnamed.PublishedAt = ""
	for fix, cfg := range map[string]Config{
		"--mark published-at or delete": {Mark: MarkNone},
		"--column-published-at":         {Mapping: unnamed},
		fmt.Sprintf(`GRANT UPDATE ("published_at") ON "public"."outbox" TO %s`, reader): {Conn: d.config(reader)},
		fmt.Sprintf(`GRANT DELETE, UPDATE ("id") ON "public"."outbox" TO %s`, reader):   {Conn: d.config(reader), Mark: MarkDelete},
	} {
		c := d.open(cfg).Claimer()
		_, err := c.Claim(d.ctx(), 1, func(cdc.Event, time.Time) error { return nil })
		c.Close()
		if f := fault.As(err); f == nil || !strings.Contains(f.Fix, fix) {
			t.Errorf("%v; want %s", err, fix)
		}
	}
}

// TestListenHearsWhatIsNotified, first of all that it listens.
func TestListenHearsWhatIsNotified(t *testing.T) {
	d := newOutbox(t)
	table := d.open(Config{})
	ctx, cancel := context.WithCancel(d.ctx())
	woken, ended := make(chan struct{}), make(chan error)
	go func() {
		ended <- table.Listen(ctx, `my "channel`, func() { woken <- struct{}{} })
	}()
	<-woken
	d.exec(`NOTIFY "my ""channel"`)
	<-woken
	cancel()
	if err := <-ended; !errors.Is(err, context.Canceled) {
		t.Errorf("it ended with %v", err)
	}
}

// TestClaimedRowsTellWhenTheyWereCreated where they can, and none is left out
// because of what it tells.
func TestClaimedRowsTellWhenTheyWereCreated(t *testing.T) {
	d := newOutbox(t)
	created := func() (known []bool) {
		t.Helper()
		c := d.open(Config{Mark: MarkPublishedAt}).Claimer()
		defer c.Close()
		_, err := c.Claim(d.ctx(), 100, func(_ cdc.Event, at time.Time) error {
			if ago := time.Since(at); !at.IsZero() && (ago < time.Hour || ago > 2*time.Hour) {
				t.Errorf("created %v ago, want an hour", ago)
			}
			known = append(known, !at.IsZero())
			return nil
		})
		if err != nil {
			t.Fatal(err)
		}
		return known
	}
	d.exec(`ALTER TABLE outbox ALTER created_at DROP NOT NULL;
		INSERT INTO outbox (id, kind, payload, created_at) VALUES
		(1, 'k', '1', now() - interval '1 hour'), (2, 'k', '2', NULL), (3, 'k', '3', '-infinity'),
		(4, 'k', '4', '294276-12-31 23:59:59.999999+00'), (5, 'k', '5', '4713-01-01 00:00:00+00 BC')`)
	want := []bool{true, false, false, false, false}
	if got := created(); !slices.Equal(got, want) {
		t.Errorf("known are %v, want %v", got, want)
	}
	d.exec(`SET timezone = 'UTC'; ALTER TABLE outbox ALTER created_at TYPE timestamp`)
	if got := created(); !slices.Equal(got, want) {
		t.Errorf("without a time zone, known are %v, want %v", got, want)
	}
}
