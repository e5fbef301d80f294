package shop

import (
	"context"
	_ "embed"
	"fmt"

	"github.com/jackc/pgx/v5"

	"github.com/stagedoor/walrelay/cdc"
	"github.com/stagedoor/walrelay/migrations"
)

//go:embed schema.sql
var schema string

// The names that the shop and whoever relays its outbox have to agree on.
const (
	OutboxSchema = "public"
	OutboxTable  = "outbox"
	Stream       = "jobs"
)

// A shop that is open for a minute should see orders fail for both reasons, and
// most of them succeed: one show in ten is a club that is full at once, and one
// customer in ten is nearly broke.
const (
	shows     = 10
	customers = 500
	clubSeats = 20
)

// Migrate creates the outbox, the shop's tables, its shows and its customers.
// It may be called again.
func Migrate(ctx context.Context, conn *pgx.Conn) error {
	outbox := migrations.Table(cdc.Table{Schema: OutboxSchema, Name: OutboxTable})
	for _, sql := range []string{outbox, schema} {
		// The simple protocol takes several statements at once.
		if _, err := conn.PgConn().Exec(ctx, sql).ReadAll(); err != nil {
			return fmt.Errorf("create the shop's tables: %w", err)
		}
	}
	_, err := conn.Exec(ctx, `
		INSERT INTO shows (id, title, price, seats_left)
		SELECT n, CASE n WHEN 1 THEN 'The Club' ELSE 'Hall ' || n END, 1500 + 100 * n,
		       CASE n WHEN 1 THEN $2::int ELSE 1000000 END
		  FROM generate_series(1, $1::int) n
		ON CONFLICT DO NOTHING`, shows, clubSeats)
	if err != nil {
		return fmt.Errorf("stock the shows: %w", err)
	}
	_, err = conn.Exec(ctx, `
		INSERT INTO customers (id, balance)
		SELECT n, CASE n % 10 WHEN 0 THEN 2000 ELSE 100000000 END
		  FROM generate_series(1, $1::int) n
		ON CONFLICT DO NOTHING`, customers)
	if err != nil {
		return fmt.Errorf("invite the customers: %w", err)
	}
	return nil
}
