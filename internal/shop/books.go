package shop

import (
	"context"
	"fmt"

	"github.com/jackc/pgx/v5"
)

// Books is what the shop's own tables say about the work.
type Books struct {
	Orders   int // committed
	Refunds  int // committed
	Outbox   int // rows; with marks, of which
	Unmarked int // rows no relay has marked as published
	JobsDone int

	// TwiceDone counts orders whose tickets were rendered, or whose money was
	// paid out, more than once; NotDone those where it is still to do.
	TwiceDone int
	NotDone   int
}

// ReadBooks reads them in one snapshot.
func ReadBooks(ctx context.Context, conn *pgx.Conn) (Books, error) {
	var b Books
	err := conn.QueryRow(ctx, `
		WITH work AS (
			SELECT refunded_at,
			       (SELECT min(renders) FROM tickets WHERE order_id = orders.id) AS least,
			       (SELECT max(renders) FROM tickets WHERE order_id = orders.id) AS most,
			       (SELECT count(*) FROM payouts WHERE order_id = orders.id) AS payouts
			  FROM orders
		)
		SELECT count(*), count(refunded_at),
		       (SELECT count(*) FROM outbox),
		       (SELECT count(*) FROM outbox WHERE published_at IS NULL),
		       (SELECT count(*) FROM jobs_done),
		       count(*) FILTER (WHERE most > 1 OR payouts > (refunded_at IS NOT NULL)::int),
		       count(*) FILTER (WHERE least = 0 OR payouts < (refunded_at IS NOT NULL)::int)
		  FROM work`).
		Scan(&b.Orders, &b.Refunds, &b.Outbox, &b.Unmarked, &b.JobsDone, &b.TwiceDone, &b.NotDone)
	if err != nil {
		return b, fmt.Errorf("read the shop's books: %w", err)
	}
	return b, nil
}
