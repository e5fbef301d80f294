package main

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/stagedoor/walrelay/internal/shop"
)

// errDied is what the second worker dies of.
var errDied = errors.New("died between its work and its XACK")

// work is one worker's life.
func (d *demo) work(ctx context.Context, name string) error {
	conn, err := d.connect(ctx, name)
	if err != nil {
		if ctx.Err() != nil {
			return nil
		}
		return err
	}
	defer conn.Close(context.WithoutCancel(ctx))
	w := &shop.Worker{
		Conn: conn, Redis: d.redis, Stream: shop.Stream, Group: group, Name: name, MinIdle: claim,
		Observe: func(delivery shop.Delivery) { d.observe(name, delivery) },
	}
	if name == "worker-2" {
		w.BeforeAck = func(e shop.Entry) error {
			if !d.dying.Load() {
				return nil
			}
			d.screen.say(name, "%s", d.screen.red(fmt.Sprintf("dies between its work and its XACK (outbox id %s)", e.OutboxID)))
			return errDied
		}
	}
	err = w.Run(ctx)
	if errors.Is(err, errDied) {
		d.dying.Store(false)
		return nil
	}
	return err
}

// observe counts and shows what is out of the ordinary.
func (d *demo) observe(name string, delivery shop.Delivery) {
	if delivery.Early {
		d.early.Add(1)
	}
	switch delivery.Result {
	case shop.Again:
		d.again.Add(1)
		d.screen.say(name, "claims outbox id %s: done before, so only the XACK is left", delivery.Entry.OutboxID)
	case shop.NotYet:
		d.notYet.Add(1)
	case shop.Refused:
		d.screen.say(name, "%s", d.screen.red(fmt.Sprintf("cannot do outbox id %s: %v", delivery.Entry.OutboxID, delivery.Err)))
	case shop.Done:
	}
}

// watch draws the status and shows, now and then, an entry that has arrived.
func (d *demo) watch(ctx context.Context) error {
	conn, err := d.connect(ctx, "demo")
	if err != nil {
		if ctx.Err() != nil {
			return nil
		}
		return err
	}
	defer conn.Close(context.WithoutCancel(ctx))
	tick := time.NewTicker(200 * time.Millisecond)
	defer tick.Stop()
	sample := time.NewTicker(d.open() / 15)
	defer sample.Stop()
	shown := ""
	for {
		select {
		case <-ctx.Done():
			d.screen.status("")
			return nil
		case <-tick.C:
			tally := d.buyers.Tally()
			d.screen.status(fmt.Sprintf("%d orders, %d rolled back, %d refunds; %d entries, %d on their way",
				before+tally.Committed, tally.RolledBack(), tally.Refunds,
				d.arrivals.entries(), max(0, d.rows()-d.arrivals.distinct())))
		case <-sample.C:
			e := d.arrivals.last()
			if e.ID == shown || time.Since(e.Arrived) > 300*time.Millisecond {
				continue
			}
			shown = e.ID
			if err := d.show(ctx, conn, e); err != nil && ctx.Err() == nil {
				return err
			}
		}
	}
}

// show prints an entry and how old its row was when it arrived.
func (d *demo) show(ctx context.Context, conn *pgx.Conn, e shop.Entry) error {
	var created time.Time
	err := conn.QueryRow(ctx, `SELECT created_at FROM outbox WHERE id = $1`, e.OutboxID).Scan(&created)
	if errors.Is(err, pgx.ErrNoRows) {
		return nil // an entry of a row that is not there: the account will tell
	}
	if err != nil {
		return err
	}
	d.screen.say("entry", "outbox_id %-5s %-14s %s after created_at", e.OutboxID, e.Kind, short(e.Arrived.Sub(created)))
	return nil
}

// short prints a duration with as many digits as one reads.
func short(t time.Duration) string {
	switch {
	case t < 10*time.Millisecond:
		return fmt.Sprintf("%.1f ms", float64(t)/float64(time.Millisecond))
	case t < time.Second:
		return fmt.Sprintf("%d ms", t.Milliseconds())
	default:
		return fmt.Sprintf("%.2f s", t.Seconds())
	}
}
