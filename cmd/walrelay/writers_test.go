package main

import (
	"context"
	"fmt"
	"maps"
	"math/rand/v2"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
)

// writers are applications that write orders and messages, each over a
// connection of its own, and go on after every error.
type writers struct {
	t    *testing.T
	dsn  string
	stop context.CancelFunc
	done sync.WaitGroup
	mu   sync.Mutex
	did  map[string]int // transactions that ended as meant, by kind

	kinds map[string]transaction
	pace  time.Duration // the longest pause between two transactions
}

// startWriters lets n applications write until end is called. Beside them, one
// writes to another table and one to another database. Some kinds of
// transactions may be left out.
func (w *world) startWriters(n int, seed uint64, without ...string) *writers {
	w.t.Helper()
	kinds := maps.Clone(outboxKinds)
	for _, kind := range without {
		delete(kinds, kind)
	}
	return w.startWritersOf(kinds, n, seed)
}

// startWritersOf is startWriters with these transactions.
func (w *world) startWritersOf(kinds map[string]transaction, n int, seed uint64) *writers {
	w.t.Helper()
	w.exec(`CREATE TABLE IF NOT EXISTS busy (id serial, filler text)`)
	if w.query(`SELECT count(*) FROM pg_database WHERE datname = 'elsewhere'`) == "0" {
		w.exec(`CREATE DATABASE elsewhere`)
	}
	other := w.pg.DSN("elsewhere")
	if w.pace == 0 {
		w.pace = 40 * time.Millisecond
	}
	ctx, cancel := context.WithCancel(context.Background())
	ws := &writers{t: w.t, dsn: w.dsn, stop: cancel, did: map[string]int{}, kinds: kinds, pace: w.pace}
	w.t.Cleanup(ws.end)
	for i := range n {
		rng := rand.New(rand.NewPCG(seed, uint64(i)))
		ws.done.Go(func() { ws.write(ctx, ws.dsn, rng, ws.kinds) })
	}
	ws.done.Go(func() { ws.write(ctx, ws.dsn, rand.New(rand.NewPCG(seed, 1000)), map[string]transaction{"busy": busy}) })
	ws.done.Go(func() {
		ws.write(ctx, other, rand.New(rand.NewPCG(seed, 1001)), map[string]transaction{"elsewhere": elsewhere})
	})
	return ws
}

// end stops the writers and waits for them.
func (ws *writers) end() {
	ws.stop()
	ws.done.Wait()
}

// wrote waits until each kind of transaction was done so many times.
func (ws *writers) wrote(times int) {
	ws.t.Helper()
	eventually(ws.t, fmt.Sprintf("%d transactions of each kind", times), func() error {
		ws.mu.Lock()
		defer ws.mu.Unlock()
		for kind := range ws.kinds {
			if ws.did[kind] < times {
				return fmt.Errorf("%d of kind %s", ws.did[kind], kind)
			}
		}
		return nil
	})
}

// goOn waits until each kind of transaction was done so many times from now on.
func (ws *writers) goOn(times int) {
	ws.t.Helper()
	ws.mu.Lock()
	clear(ws.did)
	ws.mu.Unlock()
	ws.wrote(times)
}

func (ws *writers) write(ctx context.Context, dsn string, rng *rand.Rand, kinds map[string]transaction) {
	var names []string
	for name := range kinds {
		names = append(names, name)
	}
	slices.Sort(names)
	var conn *pgx.Conn
	defer func() {
		if conn != nil {
			conn.Close(context.Background())
		}
	}()
	for ctx.Err() == nil {
		if conn == nil || conn.IsClosed() {
			var err error
			if conn, err = pgx.Connect(ctx, dsn); err != nil {
				conn = nil
				pause(ctx, 50*time.Millisecond)
				continue
			}
		}
		name := names[rng.IntN(len(names))]
		// To the end: a statement that is called off may commit all the same,
		// and then later than whoever called end has looked.
		if err := kinds[name](context.WithoutCancel(ctx), conn, rng); err != nil {
			conn.Close(context.Background())
			continue
		}
		ws.mu.Lock()
		ws.did[name]++
		ws.mu.Unlock()
		pause(ctx, time.Duration(rng.Int64N(int64(ws.pace))))
	}
}

func pause(ctx context.Context, d time.Duration) {
	select {
	case <-time.After(d):
	case <-ctx.Done():
	}
}

type transaction func(context.Context, *pgx.Conn, *rand.Rand) error

// payload is a document that is easily spoiled.
func payload(rng *rand.Rand) string {
	return fmt.Sprintf(`{"n": %d, "text": "it's \"é\" 🎟 \\n\n%s", "big": 12345678901234567890.5000, "list": [null, {}, []]}`,
		rng.Int64(), strings.Repeat("x", rng.IntN(300)))
}

const insertRow = `INSERT INTO outbox (kind, payload) VALUES ($1, $2)`

// steps runs statements in one transaction, those with a $1 as rows of a kind.
func steps(kind string, statements ...string) transaction {
	return func(ctx context.Context, conn *pgx.Conn, rng *rand.Rand) error {
		for _, s := range statements {
			var err error
			if strings.Contains(s, "$1") {
				_, err = conn.Exec(ctx, s, kind, strings.ReplaceAll(payload(rng), "\n", ""))
			} else {
				_, err = conn.Exec(ctx, s)
			}
			if err != nil {
				return err
			}
		}
		return nil
	}
}

var outboxKinds = map[string]transaction{
	"single":   steps("single", insertRow),
	"rollback": steps("ghost", "BEGIN", insertRow, "ROLLBACK"),
	"savepoint": steps("savepoint", "BEGIN", insertRow, "SAVEPOINT s", `INSERT INTO outbox (kind, payload) SELECT 'ghost', '{}' FROM generate_series(1, 20)`,
		"ROLLBACK TO s", insertRow, "RELEASE s", insertRow, "COMMIT"),
	// Other transactions commit between the insert and the commit: ids are
	// not in the order of commits.
	"slow":             steps("slow", "BEGIN", insertRow, "SELECT pg_sleep(0.05)", insertRow, "COMMIT"),
	"many":             steps("many", `INSERT INTO outbox (kind, payload) SELECT 'many', jsonb_build_object('i', i, 'r', random()) FROM generate_series(1, 40) i`),
	"spilled":          steps("spilled", `INSERT INTO outbox (kind, payload) SELECT 'spilled', jsonb_build_object('i', i, 'r', random(), 'filler', repeat('y', 400)) FROM generate_series(1, 400) i`),
	"update in it":     steps("updated", "BEGIN", insertRow, `UPDATE outbox SET payload = '"changed"' WHERE id = currval('outbox_id_seq')`, "COMMIT"),
	"delete in it":     steps("deleted", "BEGIN", insertRow, `DELETE FROM outbox WHERE id = currval('outbox_id_seq')`, "COMMIT"),
	"update another":   steps("", `UPDATE outbox SET kind = kind WHERE id = (SELECT max(id) - 5 FROM outbox)`),
	"delete published": steps("", `DELETE FROM outbox WHERE id IN (SELECT id FROM outbox WHERE published_at IS NOT NULL ORDER BY id LIMIT 2)`),
	"on conflict": steps("upserted", `INSERT INTO outbox (id, kind, payload) OVERRIDING SYSTEM VALUE SELECT max(id), 'ghost', '{}' FROM outbox HAVING max(id) IS NOT NULL
		ON CONFLICT (id) DO UPDATE SET kind = outbox.kind`),
	"copy": func(ctx context.Context, conn *pgx.Conn, rng *rand.Rand) error {
		n := 1 + rng.IntN(100)
		_, err := conn.CopyFrom(ctx, pgx.Identifier{"outbox"}, []string{"kind", "payload"}, pgx.CopyFromSlice(n, func(i int) ([]any, error) {
			return []any{"copy", fmt.Sprintf(`{"i": %d, "n": %d}`, i, rng.Int64())}, nil
		}))
		return err
	},
	"two-phase": func(ctx context.Context, conn *pgx.Conn, rng *rand.Rand) error {
		gid := fmt.Sprintf("'order-%d'", rng.Int64())
		end := "COMMIT PREPARED "
		if rng.IntN(3) == 0 {
			end = "ROLLBACK PREPARED "
		}
		return steps("two-phase", "BEGIN", insertRow, insertRow, "PREPARE TRANSACTION "+gid, "SELECT pg_sleep(0.02)", end+gid)(ctx, conn, rng)
	},
}

func busy(ctx context.Context, conn *pgx.Conn, _ *rand.Rand) error {
	_, err := conn.Exec(ctx, `INSERT INTO busy (filler) SELECT repeat('z', 200) FROM generate_series(1, 20)`)
	return err
}

func elsewhere(ctx context.Context, conn *pgx.Conn, _ *rand.Rand) error {
	if _, err := conn.Exec(ctx, `CREATE TABLE IF NOT EXISTS elsewhere (filler text)`); err != nil {
		return err
	}
	_, err := conn.Exec(ctx, `INSERT INTO elsewhere SELECT repeat('z', 200) FROM generate_series(1, 20)`)
	return err
}

// endPrepared commits what the writers left prepared.
func (w *world) endPrepared() {
	w.t.Helper()
	conn := w.connect()
	defer conn.Close(context.Background())
	rows, err := conn.Query(context.Background(), `SELECT gid FROM pg_prepared_xacts WHERE database = current_database()`)
	if err != nil {
		w.t.Fatal(err)
	}
	gids, err := pgx.CollectRows(rows, pgx.RowTo[string])
	if err != nil {
		w.t.Fatal(err)
	}
	for _, gid := range gids {
		w.exec(`COMMIT PREPARED '` + gid + `'`)
	}
}
