package shop

import (
	"fmt"
	"testing"
	"time"
)

func TestOracleTellsWhatWasCommittedInCommitOrder(t *testing.T) {
	s := open(t)
	s.oracle()
	exec := func(sql string) {
		t.Helper()
		if _, err := s.conn.PgConn().Exec(s.ctx, sql).ReadAll(); err != nil {
			t.Fatal(err)
		}
	}
	const odd = `it's "quoted", a line
and id[bigint]:7 'x''y' null ]:`
	started := s.now()
	tx, err := s.connect().Begin(s.ctx) // takes id 1, commits second
	if err != nil {
		t.Fatal(err)
	}
	if _, err := tx.Exec(s.ctx, `INSERT INTO outbox (kind, payload) VALUES ('late', 'null')`); err != nil {
		t.Fatal(err)
	}
	if _, err := s.conn.Exec(s.ctx, `INSERT INTO outbox (kind, payload) VALUES ($1, jsonb_build_object('a', $1::text))`, odd); err != nil {
		t.Fatal(err)
	}
	if err := tx.Commit(s.ctx); err != nil {
		t.Fatal(err)
	}
	exec(`BEGIN; INSERT INTO outbox (kind, payload) VALUES ('gone', '1'); ROLLBACK`)
	exec(`UPDATE outbox SET published_at = now()`)
	exec(`DELETE FROM outbox WHERE kind = 'late'`)
	exec(`ALTER TABLE outbox ADD tags text[]`)
	exec(`CREATE SCHEMA other; CREATE TABLE other.outbox (LIKE outbox); INSERT INTO other.outbox SELECT * FROM outbox`)
	exec(`BEGIN; SAVEPOINT a; INSERT INTO outbox (kind, payload) VALUES ('undone', '1'); ROLLBACK TO a;
	      INSERT INTO outbox (kind, payload, tags) VALUES ('two', '{}', '{a,"b c"}'), ('three', '[]', NULL); COMMIT`)
	ended := s.now()

	for range 2 { // it looks without taking
		rows, err := ReadOracle(s.ctx, s.conn, "oracle")
		if err != nil {
			t.Fatal(err)
		}
		var got string
		before := started
		for _, r := range rows {
			got += fmt.Sprintf("%s %s %s\n", r.OutboxID, r.Kind, r.Payload)
			if r.Committed.Before(before) || r.Committed.After(ended) {
				t.Errorf("row %s was committed at %v, want between %v and %v", r.OutboxID, r.Committed, before, ended)
			}
			before = r.Committed
		}
		want := fmt.Sprintf("2 %s {\"a\": \"it's \\\"quoted\\\", a line\\nand id[bigint]:7 'x''y' null ]:\"}\n1 late null\n5 two {}\n6 three []\n", odd)
		if got != want {
			t.Fatalf("the oracle has\n%s\nwant\n%s", got, want)
		}
		// The last two are of one transaction.
		at := func(i int) time.Time { return rows[i].Committed }
		if !at(0).Before(at(1)) || !at(1).Before(at(2)) || !at(2).Equal(at(3)) {
			t.Errorf("the commits were at %v, %v, %v and %v", at(0), at(1), at(2), at(3))
		}
	}
}

// now is PostgreSQL's clock.
func (s *site) now() time.Time {
	s.t.Helper()
	var now time.Time
	if err := s.conn.QueryRow(s.ctx, `SELECT clock_timestamp()`).Scan(&now); err != nil {
		s.t.Fatal(err)
	}
	return now
}
