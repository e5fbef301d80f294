package main

import (
	"context"
	"fmt"

	"github.com/jackc/pgx/v5"
)

// load writes the rows of a shape into the outbox, with ids from first to last,
// in as many transactions as the shape says. One session commits them, so that
// their order is that of the ids. It does not wait for the disk at each commit;
// the log is the same.
func load(ctx context.Context, conn *pgx.Conn, s shape, first, last int, show func(rows int)) error {
	// What the transactions are made of comes first, past the log, so that the
	// log holds them alone.
	const staging = `
		SET synchronous_commit = off;
		CREATE UNLOGGED TABLE IF NOT EXISTS staged (id bigint PRIMARY KEY, payload jsonb NOT NULL);
		TRUNCATE staged`
	if err := simple(ctx, conn, staging); err != nil {
		return err
	}
	next := first
	_, err := conn.CopyFrom(ctx, pgx.Identifier{"staged"}, []string{"id", "payload"}, pgx.CopyFromFunc(func() ([]any, error) {
		if next > last {
			return nil, nil
		}
		next++
		return []any{next - 1, s.payload(next - 1)}, nil
	}))
	if err != nil {
		return err
	}
	// In portions, so that there is something to show.
	portion := max(s.Transaction, 20_000/s.Transaction*s.Transaction)
	for from := first; from <= last; from += portion {
		show(from - first)
		to := min(from+portion-1, last)
		err := simple(ctx, conn, fmt.Sprintf(`DO $$ BEGIN
			FOR n IN %d..%d BY %d LOOP
				INSERT INTO outbox (id, kind, payload) SELECT id, '%s', payload FROM staged
				WHERE id >= n AND id < n + %d AND id <= %d ORDER BY id;
				COMMIT;
			END LOOP;
		END $$`, from, to, s.Transaction, kind, s.Transaction, to))
		if err != nil {
			return err
		}
	}
	return simple(ctx, conn, "DROP TABLE staged; RESET synchronous_commit")
}

// simple runs statements that are not prepared: one may be of several, or end
// transactions.
func simple(ctx context.Context, conn *pgx.Conn, sql string) error {
	_, err := conn.PgConn().Exec(ctx, sql).ReadAll()
	return err
}
