package main

import (
	"context"
	"flag"
	"fmt"
	"net/http"
	"os"
	"os/signal"
	"syscall"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/redis/go-redis/v9"

	"github.com/stagedoor/walrelay/internal/shop"
)

// standinEnv has the test binary be a relay, and says what it does wrong:
// "exact", "lose" or "double".
const standinEnv = "WALDEMO_STANDIN"

func TestMain(m *testing.M) {
	if fault := os.Getenv(standinEnv); fault != "" {
		if err := standin(os.Args[2:], fault); err != nil {
			fmt.Fprintln(os.Stderr, "stand-in:", err)
			os.Exit(1)
		}
		os.Exit(0)
	}
	os.Exit(m.Run())
}

// standin is a relay for small streams: it reads its slot from the start each
// time and appends what is not there yet. It shows that the demo sees faults,
// which the real relay should not have.
func standin(args []string, fault string) error {
	flags := flag.NewFlagSet("run", flag.ContinueOnError)
	stream := flags.String("stream", "", "")
	address := flags.String("http", "", "")
	if err := flags.Parse(args); err != nil {
		return err
	}
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGTERM)
	defer stop()
	options, err := redis.ParseURL(os.Getenv("WALRELAY_REDIS"))
	if err != nil {
		return err
	}
	rdb := redis.NewClient(options)
	conn, err := pgx.Connect(ctx, os.Getenv("WALRELAY_POSTGRES"))
	if err != nil {
		return err
	}
	appendRow := func(p redis.Pipeliner, r shop.Row) {
		p.XAdd(ctx, &redis.XAddArgs{Stream: *stream, Values: []string{
			"kind", r.Kind, "outbox_id", r.OutboxID, "payload", r.Payload,
		}})
	}

	copies := map[string]int{"lose": 0, "exact": 1, "double": 2}
	const slot, appended = "standin", "standin:appended"
	if rdb.Exists(ctx, appended).Val() == 0 {
		if err := shop.CreateOracle(ctx, conn, slot); err != nil {
			return err
		}
		rows, err := conn.Query(ctx, `UPDATE outbox SET published_at = now() RETURNING id::text, kind, payload::text, now(), ''`)
		if err != nil {
			return err
		}
		table, err := pgx.CollectRows(rows, pgx.RowToStructByPos[shop.Row])
		if err != nil {
			return err
		}
		p := rdb.TxPipeline()
		for _, r := range table {
			appendRow(p, r)
		}
		p.Set(ctx, appended, 0, 0)
		if _, err := p.Exec(ctx); err != nil {
			return err
		}
	}
	go func() {
		_ = http.ListenAndServe(*address, http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
			fmt.Fprint(w, `{"status":"ok","reasons":[],"role":"streaming"}`)
		}))
	}()

	for ctx.Err() == nil {
		time.Sleep(10 * time.Millisecond)
		rows, err := shop.ReadOracle(ctx, conn, slot)
		if err != nil {
			continue // the session of a killed one may still read
		}
		have, err := rdb.Get(ctx, appended).Int()
		if err != nil {
			return err
		}
		var ids []string
		for i, r := range rows {
			if i >= have {
				p := rdb.TxPipeline()
				times := 1
				if i == 7 {
					times = copies[fault]
				}
				for range times {
					appendRow(p, r)
				}
				p.Incr(ctx, appended)
				if _, err := p.Exec(ctx); err != nil {
					return err
				}
			}
			ids = append(ids, r.OutboxID)
		}
		_, err = conn.Exec(ctx, `UPDATE outbox SET published_at = now() WHERE published_at IS NULL AND id = ANY($1::text[]::bigint[])`, ids)
		if err != nil && ctx.Err() == nil {
			return err
		}
	}
	return nil
}
