package shop

import (
	"context"
	"errors"
	"fmt"

	"github.com/jackc/pgx/v5"
)

// Why an order fails. Either way it leaves nothing behind.
var (
	ErrSoldOut        = errors.New("not enough seats are left")
	ErrPaymentRefused = errors.New("the payment was refused")
)

// ErrNotRefundable says that an order does not exist or was refunded before.
var ErrNotRefundable = errors.New("the order does not exist or was refunded")

// The kinds of jobs that the shop hands to its workers.
const (
	RenderTickets = "render_tickets"
	RefundOrder   = "refund_order"
)

// Payload is the outbox row's payload. It names the order by its public id, so
// that nothing outside of the database learns how many orders there are.
type Payload struct {
	Order       string `json:"order"`
	RequestID   string `json:"request_id"`
	TraceParent string `json:"traceparent"`
}

// Order is what a buyer asks for.
type Order struct {
	Show     int
	Customer int
	Seats    int
	Request  Request
}

// Beginner starts a transaction: a connection or a pool.
type Beginner interface {
	Begin(ctx context.Context) (pgx.Tx, error)
}

// PlaceOrder writes the order, its tickets and the outbox row that has them
// rendered, takes the money, and returns the order's public id. All of it is one
// transaction: on [ErrSoldOut] and [ErrPaymentRefused], and on any other error
// before its COMMIT, none of it has happened.
func PlaceOrder(ctx context.Context, db Beginner, o Order) (publicID string, err error) {
	err = pgx.BeginFunc(ctx, db, func(tx pgx.Tx) error {
		var price int
		err := tx.QueryRow(ctx, `
			UPDATE shows SET seats_left = seats_left - $2
			 WHERE id = $1 AND seats_left >= $2
			RETURNING price`, o.Show, o.Seats).Scan(&price)
		if errors.Is(err, pgx.ErrNoRows) {
			return ErrSoldOut
		}
		if err != nil {
			return fmt.Errorf("reserve the seats: %w", err)
		}

		var orderID int64
		err = tx.QueryRow(ctx, `
			INSERT INTO orders (show_id, customer_id, seats) VALUES ($1, $2, $3)
			RETURNING id, public_id::text`, o.Show, o.Customer, o.Seats).Scan(&orderID, &publicID)
		if err != nil {
			return fmt.Errorf("write the order: %w", err)
		}
		_, err = tx.Exec(ctx, `
			INSERT INTO tickets (order_id)
			SELECT $1 FROM generate_series(1, $2::int)`, orderID, o.Seats)
		if err != nil {
			return fmt.Errorf("write the tickets: %w", err)
		}

		if err := enqueue(ctx, tx, RenderTickets, publicID, o.Request); err != nil {
			return err
		}

		tag, err := tx.Exec(ctx, `
			UPDATE customers SET balance = balance - $2
			 WHERE id = $1 AND balance >= $2`, o.Customer, price*o.Seats)
		if err != nil {
			return fmt.Errorf("take the money: %w", err)
		}
		if tag.RowsAffected() == 0 {
			return ErrPaymentRefused
		}
		return nil
	})
	if err != nil {
		return "", err
	}
	return publicID, nil
}

// Refund takes an order back: the seats and the money are free again, and one
// outbox row has the tickets voided and the payout made.
func Refund(ctx context.Context, db Beginner, publicID string, r Request) error {
	return pgx.BeginFunc(ctx, db, func(tx pgx.Tx) error {
		var show, customer, seats int
		err := tx.QueryRow(ctx, `
			UPDATE orders SET refunded_at = now()
			 WHERE public_id = $1::text::uuid AND refunded_at IS NULL
			RETURNING show_id, customer_id, seats`, publicID).Scan(&show, &customer, &seats)
		if errors.Is(err, pgx.ErrNoRows) {
			return ErrNotRefundable
		}
		if err != nil {
			return fmt.Errorf("mark the order as refunded: %w", err)
		}

		// The same order of locks as in PlaceOrder: show, then customer.
		var price int
		err = tx.QueryRow(ctx, `
			UPDATE shows SET seats_left = seats_left + $2
			 WHERE id = $1
			RETURNING price`, show, seats).Scan(&price)
		if err != nil {
			return fmt.Errorf("free the seats: %w", err)
		}
		if err := enqueue(ctx, tx, RefundOrder, publicID, r); err != nil {
			return err
		}
		_, err = tx.Exec(ctx, `
			UPDATE customers SET balance = balance + $2
			 WHERE id = $1`, customer, price*seats)
		if err != nil {
			return fmt.Errorf("give the money back: %w", err)
		}
		return nil
	})
}

// enqueue writes the outbox row. It takes a transaction, not a connection: a row
// that is not of the same transaction as the work is what an outbox is against.
func enqueue(ctx context.Context, tx pgx.Tx, kind, publicID string, r Request) error {
	_, err := tx.Exec(ctx, `INSERT INTO outbox (kind, payload) VALUES ($1, $2)`,
		kind, Payload{Order: publicID, RequestID: r.ID, TraceParent: r.TraceParent})
	if err != nil {
		return fmt.Errorf("write the outbox row: %w", err)
	}
	return nil
}
