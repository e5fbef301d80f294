package shop

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"sync"
	"time"

	"github.com/jackc/pgx/v5"
	"golang.org/x/sync/errgroup"
)

// orderTimeout bounds one order, which is seen to its end also when the buyers
// are told to go home.
const orderTimeout = 10 * time.Second

// refundOneIn is how often a buyer changes his mind after an order.
const refundOneIn = 10

// Buyers place orders at a steady rate. Each has a connection and a rhythm of
// its own, but they keep step, so that their transactions overlap: outbox ids
// then commit in another order than they were taken in.
type Buyers struct {
	Connect func(ctx context.Context) (*pgx.Conn, error)
	Count   int
	Rate    int // orders a second, of all buyers together, at most
	Seed    uint64

	mu    sync.Mutex
	tally Tally
}

// Tally counts how the buyers' attempts ended.
type Tally struct {
	Committed int // orders
	SoldOut   int // rolled back
	Refused   int // rolled back
	Refunds   int // committed
}

// RolledBack is the number of orders of which nothing is left.
func (t Tally) RolledBack() int { return t.SoldOut + t.Refused }

// Tally returns the counts so far.
func (b *Buyers) Tally() Tally {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.tally
}

// Run lets the buyers in and returns when ctx is done and the last order has
// ended, so that the counts are final. A buyer that is slower than his rhythm
// leaves beats out instead of catching up.
func (b *Buyers) Run(ctx context.Context) error {
	beat := time.Duration(b.Count) * time.Second / time.Duration(b.Rate)
	g, ctx := errgroup.WithContext(ctx)
	for i := range b.Count {
		g.Go(func() error {
			conn, err := b.Connect(ctx)
			if err != nil {
				if ctx.Err() != nil {
					return nil
				}
				return fmt.Errorf("buyer %d: %w", i+1, err)
			}
			defer conn.Close(context.WithoutCancel(ctx))
			r := rand.New(rand.NewPCG(b.Seed, uint64(i)))
			ticker := time.NewTicker(beat)
			defer ticker.Stop()
			for {
				select {
				case <-ctx.Done():
					return nil
				case <-ticker.C:
				}
				if ctx.Err() != nil {
					return nil // both had come
				}
				if err := b.buy(ctx, conn, r); err != nil {
					return fmt.Errorf("buyer %d: %w", i+1, err)
				}
			}
		})
	}
	return g.Wait()
}

// buy is one visit to the shop.
func (b *Buyers) buy(ctx context.Context, db Beginner, r *rand.Rand) error {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), orderTimeout)
	defer cancel()
	publicID, err := PlaceOrder(ctx, db, Order{
		Show:     1 + r.IntN(shows),
		Customer: 1 + r.IntN(customers),
		Seats:    1 + r.IntN(4),
		Request:  NewRequest(),
	})
	switch {
	case errors.Is(err, ErrSoldOut):
		b.count(func(t *Tally) { t.SoldOut++ })
		return nil
	case errors.Is(err, ErrPaymentRefused):
		b.count(func(t *Tally) { t.Refused++ })
		return nil
	case err != nil:
		return err
	}
	b.count(func(t *Tally) { t.Committed++ })
	if r.IntN(refundOneIn) != 0 {
		return nil
	}
	if err := Refund(ctx, db, publicID, NewRequest()); err != nil {
		return err
	}
	b.count(func(t *Tally) { t.Refunds++ })
	return nil
}

func (b *Buyers) count(add func(*Tally)) {
	b.mu.Lock()
	defer b.mu.Unlock()
	add(&b.tally)
}
