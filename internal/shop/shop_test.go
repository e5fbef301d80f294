package shop

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/redis/go-redis/v9"
	"go.uber.org/goleak"

	"github.com/stagedoor/walrelay/internal/testservers"
)

// servers are shared by the tests, which run one after the other, each with a
// database of its own and an empty Redis.
var servers struct {
	pg    *testservers.Postgres
	redis *testservers.Redis
}

func TestMain(m *testing.M) {
	goleak.VerifyTestMain(&testservers.Shared{M: m, Start: func(t testservers.TB) {
		servers.pg = testservers.StartPostgres(t, testservers.PostgresOptions{})
		servers.redis = testservers.StartRedis(t, testservers.RedisOptions{})
	}})
}

// site is a shop on real servers.
type site struct {
	t    *testing.T
	ctx  context.Context
	dsn  string
	conn *pgx.Conn
	rdb  *redis.Client
}

// open opens a shop.
func open(t *testing.T) *site {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	t.Cleanup(cancel)
	s := &site{t: t, ctx: ctx, dsn: servers.pg.NewDatabase(t), rdb: servers.redis.Client(t)}
	s.conn = s.connect()
	if err := s.rdb.FlushAll(ctx).Err(); err != nil {
		t.Fatal(err)
	}
	for range 2 { // a shop that is there already stays as it is
		if err := Migrate(ctx, s.conn); err != nil {
			t.Fatal(err)
		}
	}
	return s
}

func (s *site) connect() *pgx.Conn {
	s.t.Helper()
	conn, err := pgx.Connect(s.ctx, s.dsn)
	if err != nil {
		s.t.Fatal(err)
	}
	s.t.Cleanup(func() { _ = conn.Close(context.Background()) })
	return conn
}

// oracle creates one, which would keep its name and its WAL after the test.
func (s *site) oracle() {
	s.t.Helper()
	if err := CreateOracle(s.ctx, s.conn, "oracle"); err != nil {
		s.t.Fatal(err)
	}
	s.t.Cleanup(func() {
		if err := DropOracle(context.Background(), s.conn, "oracle"); err != nil {
			s.t.Error(err)
		}
	})
}

// order places an order that nothing speaks against.
func (s *site) order() string {
	s.t.Helper()
	id, err := PlaceOrder(s.ctx, s.conn, Order{Show: 2, Customer: 1, Seats: 2, Request: NewRequest()})
	if err != nil {
		s.t.Fatal(err)
	}
	return id
}

func (s *site) refund(order string) {
	s.t.Helper()
	if err := Refund(s.ctx, s.conn, order, NewRequest()); err != nil {
		s.t.Fatal(err)
	}
}

// relay stands in for the real one: it copies the rows that are not marked. It
// goes by ids, which is enough for writers that come one after the other.
func (s *site) relay() {
	s.t.Helper()
	rows, err := s.conn.Query(s.ctx, `
		UPDATE outbox SET published_at = now() WHERE published_at IS NULL
		RETURNING id::text, kind, payload::text`)
	if err != nil {
		s.t.Fatal(err)
	}
	entries, err := pgx.CollectRows(rows, func(row pgx.CollectableRow) (e Entry, err error) {
		return e, row.Scan(&e.OutboxID, &e.Kind, &e.Payload)
	})
	if err != nil {
		s.t.Fatal(err)
	}
	for _, e := range entries {
		s.add(e)
	}
}

func (s *site) add(e Entry) {
	s.t.Helper()
	err := s.rdb.XAdd(s.ctx, &redis.XAddArgs{
		Stream: Stream, Values: []string{"kind", e.Kind, "outbox_id", e.OutboxID, "payload", e.Payload},
	}).Err()
	if err != nil {
		s.t.Fatal(err)
	}
}

// worker is one that claims at once and tells what it did.
func (s *site) worker(name string) (*Worker, *[]Delivery) {
	s.t.Helper()
	var seen []Delivery
	w := &Worker{
		Conn: s.connect(), Redis: s.rdb, Stream: Stream, Group: "workers", Name: name,
		Observe: func(d Delivery) { seen = append(seen, d) },
	}
	if err := w.Join(s.ctx); err != nil {
		s.t.Fatal(err)
	}
	return w, &seen
}

// work has the worker do what is new, and says how that went.
func (s *site) work(w *Worker) {
	s.t.Helper()
	if _, err := w.Work(s.ctx); err != nil {
		s.t.Fatal(err)
	}
}

func (s *site) claim(w *Worker) {
	s.t.Helper()
	if _, err := w.Claim(s.ctx); err != nil {
		s.t.Fatal(err)
	}
}

func (s *site) pending() int64 {
	s.t.Helper()
	p, err := s.rdb.XPending(s.ctx, Stream, "workers").Result()
	if err != nil {
		s.t.Fatal(err)
	}
	return p.Count
}

func (s *site) books() Books {
	s.t.Helper()
	b, err := ReadBooks(s.ctx, s.conn)
	if err != nil {
		s.t.Fatal(err)
	}
	return b
}

// value reads one number.
func (s *site) value(sql string, args ...any) int {
	s.t.Helper()
	var n int
	if err := s.conn.QueryRow(s.ctx, sql, args...).Scan(&n); err != nil {
		s.t.Fatal(err)
	}
	return n
}

func results(deliveries []Delivery) string {
	var out []Result
	for _, d := range deliveries {
		out = append(out, d.Result)
	}
	return fmt.Sprint(out)
}

func TestOrderWritesOneOutboxRowWithItsTickets(t *testing.T) {
	s := open(t)
	request := NewRequest()
	order, err := PlaceOrder(s.ctx, s.conn, Order{Show: 2, Customer: 1, Seats: 3, Request: request})
	if err != nil {
		t.Fatal(err)
	}
	var kind, payload string
	if err := s.conn.QueryRow(s.ctx, `SELECT kind, payload::text FROM outbox`).Scan(&kind, &payload); err != nil {
		t.Fatal(err)
	}
	job, err := Entry{Payload: payload}.Job()
	if err != nil {
		t.Fatal(err)
	}
	want := Payload{Order: order, RequestID: request.ID, TraceParent: request.TraceParent}
	if kind != RenderTickets || job != want {
		t.Errorf("the outbox row is %s %+v, want %s %+v", kind, job, RenderTickets, want)
	}
	if n := s.value(`SELECT count(*) FROM tickets`); n != 3 {
		t.Errorf("%d tickets, want 3", n)
	}
}

func TestOrderThatFailsLeavesNothing(t *testing.T) {
	for name, c := range map[string]struct {
		order Order
		want  error
	}{
		"sold out":        {Order{Show: 1, Customer: 1, Seats: clubSeats + 1}, ErrSoldOut},
		"payment refused": {Order{Show: 2, Customer: 10, Seats: 4}, ErrPaymentRefused},
	} {
		t.Run(name, func(t *testing.T) {
			s := open(t)
			s.oracle()
			seats := s.value(`SELECT sum(seats_left) FROM shows`)
			if _, err := PlaceOrder(s.ctx, s.conn, c.order); !errors.Is(err, c.want) {
				t.Fatalf("the order ended with %v, want %v", err, c.want)
			}
			for _, table := range []string{"orders", "tickets", "outbox"} {
				if n := s.value(`SELECT count(*) FROM ` + table); n != 0 {
					t.Errorf("%d rows are left in %s", n, table)
				}
			}
			if n := s.value(`SELECT sum(seats_left) FROM shows`); n != seats {
				t.Errorf("%d seats are left, want %d", n, seats)
			}
			rows, err := ReadOracle(s.ctx, s.conn, "oracle")
			if err != nil || len(rows) != 0 {
				t.Errorf("the oracle has %v (%v), want nothing", rows, err)
			}
		})
	}
}

func TestRefundArrivesAfterItsTickets(t *testing.T) {
	s := open(t)
	first := s.order()
	second := s.order()
	s.refund(second)
	s.refund(first)
	if err := Refund(s.ctx, s.conn, first, NewRequest()); !errors.Is(err, ErrNotRefundable) {
		t.Errorf("a second refund ended with %v", err)
	}
	s.relay()
	entries, err := ReadStream(s.ctx, s.rdb, Stream)
	if err != nil {
		t.Fatal(err)
	}
	var got []string
	for _, e := range entries {
		job, err := e.Job()
		if err != nil {
			t.Fatal(err)
		}
		got = append(got, e.Kind+" "+job.Order)
	}
	want := []string{
		RenderTickets + " " + first, RenderTickets + " " + second,
		RefundOrder + " " + second, RefundOrder + " " + first,
	}
	if !slices.Equal(got, want) {
		t.Errorf("the stream has\n%q\nwant\n%q", got, want)
	}
	if n := s.value(`SELECT balance FROM customers WHERE id = 1`); n != 100000000 {
		t.Errorf("the customer has %d after both refunds", n)
	}
}

// Buyers that are told to go home finish, so that their counts are the truth.
func TestBuyersCountWhatIsCommitted(t *testing.T) {
	s := open(t)
	b := &Buyers{
		Connect: func(ctx context.Context) (*pgx.Conn, error) { return pgx.Connect(ctx, s.dsn) },
		Count:   4, Rate: 400, Seed: 1,
	}
	ctx, home := context.WithCancel(s.ctx)
	ended := make(chan error, 1)
	go func() { ended <- b.Run(ctx) }()
	for tally := b.Tally(); tally.SoldOut == 0 || tally.Refused == 0 || tally.Refunds == 0; tally = b.Tally() {
		if s.ctx.Err() != nil {
			t.Errorf("orders of every outcome: %+v", tally)
			break
		}
		time.Sleep(5 * time.Millisecond)
	}
	home()
	if err := <-ended; err != nil {
		t.Fatal(err)
	}
	tally, books := b.Tally(), s.books()
	if books.Orders != tally.Committed || books.Refunds != tally.Refunds {
		t.Errorf("the tables have %+v, the buyers counted %+v", books, tally)
	}
	if books.Outbox != tally.Committed+tally.Refunds {
		t.Errorf("%d outbox rows, want one for each of %d orders and %d refunds", books.Outbox, tally.Committed, tally.Refunds)
	}
}

// An order that is being placed when the shop closes is seen to its end: the
// buyer knows what became of it.
func TestBuyersFinishTheOrderInHand(t *testing.T) {
	s := open(t)
	tx, err := s.conn.Begin(s.ctx)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := tx.Exec(s.ctx, `SELECT FROM shows FOR UPDATE`); err != nil {
		t.Fatal(err)
	}
	b := &Buyers{
		Connect: func(ctx context.Context) (*pgx.Conn, error) { return pgx.Connect(ctx, s.dsn) },
		Count:   2, Rate: 200, Seed: 1,
	}
	ctx, home := context.WithCancel(s.ctx)
	ended := make(chan error, 1)
	go func() { ended <- b.Run(ctx) }()
	other := s.connect()
	for waiting := 0; waiting < 2; {
		err := other.QueryRow(s.ctx, `
			SELECT count(*) FROM pg_stat_activity
			 WHERE wait_event_type = 'Lock' AND datname = current_database()`).Scan(&waiting)
		if err != nil {
			t.Fatal(err)
		}
	}
	home()
	if err := tx.Rollback(s.ctx); err != nil {
		t.Fatal(err)
	}
	if err := <-ended; err != nil {
		t.Error(err)
	}
	tally := b.Tally()
	if tally.Committed+tally.RolledBack() != 2 || tally.Committed != s.books().Orders {
		t.Errorf("the buyers counted %+v, the tables have %+v", tally, s.books())
	}
}

func TestBooksTellWhatIsNotDoneAndWhatIsDoneTwice(t *testing.T) {
	s := open(t)
	s.order()
	s.refund(s.order())
	for _, step := range []struct {
		sql            string
		twice, notDone int
	}{
		{`SELECT`, 0, 2},
		{`UPDATE tickets SET renders = 1 WHERE id > 1`, 0, 2}, // one ticket of the first order is left
		{`UPDATE tickets SET renders = 1 WHERE id = 1`, 0, 1},
		{`INSERT INTO payouts (order_id) SELECT max(id) FROM orders`, 0, 0},
		{`UPDATE tickets SET renders = 2 WHERE id = 1`, 1, 0},
		{`INSERT INTO payouts (order_id) SELECT max(id) FROM orders`, 2, 0},
		{`UPDATE tickets SET renders = 1`, 1, 0},
	} {
		if _, err := s.conn.Exec(s.ctx, step.sql); err != nil {
			t.Fatal(err)
		}
		if b := s.books(); b.TwiceDone != step.twice || b.NotDone != step.notDone {
			t.Errorf("after %s: %+v, want %d twice and %d not done", step.sql, b, step.twice, step.notDone)
		}
	}
}
