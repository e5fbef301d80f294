package shop

import (
	"context"
	"errors"
	"strconv"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
)

var errDied = errors.New("killed")

func TestWorkerDoesAnEntryOnceHoweverOftenItIsDelivered(t *testing.T) {
	s := open(t)
	s.refund(s.order())
	s.relay()
	entries, err := ReadStream(s.ctx, s.rdb, Stream)
	if err != nil {
		t.Fatal(err)
	}
	for _, e := range entries { // a relay that is not ours doubled them
		s.add(e)
	}
	w, seen := s.worker("one")
	s.work(w)
	if got := results(*seen); got != "[done done done before done before]" {
		t.Errorf("the deliveries ended as %s", got)
	}
	if n := s.value(`SELECT count(*) FROM tickets WHERE void`); n != 2 {
		t.Errorf("%d tickets are void after the refund, want 2", n)
	}
	if b := s.books(); b.TwiceDone != 0 || b.NotDone != 0 || b.JobsDone != 2 {
		t.Errorf("the books say %+v", b)
	}
	if n := s.pending(); n != 0 {
		t.Errorf("%d entries are pending", n)
	}
}

func TestWorkerKilledBetweenWorkAndAck(t *testing.T) {
	s := open(t)
	s.order()
	s.order()
	s.relay()

	dead, _ := s.worker("dead")
	dead.BeforeAck = func(Entry) error { return errDied }
	if _, err := dead.Work(s.ctx); !errors.Is(err, errDied) {
		t.Fatalf("the worker ended with %v", err)
	}
	if b := s.books(); b.JobsDone != 1 {
		t.Fatalf("%d jobs are done, want the one it died after", b.JobsDone)
	}

	heir, seen := s.worker("heir")
	heir.MinIdle = time.Hour
	s.claim(heir)
	if len(*seen) != 0 {
		t.Errorf("claimed %+v from a worker that may be alive", *seen)
	}
	heir.MinIdle = 0
	s.claim(heir)
	if got := results(*seen); got != "[done before done]" {
		t.Errorf("the claimed entries ended as %s", got)
	}
	for _, d := range *seen {
		if !d.Claimed {
			t.Errorf("%+v was claimed and does not say so", d)
		}
	}
	if b := s.books(); b.TwiceDone != 0 || b.NotDone != 0 {
		t.Errorf("the books say %+v", b)
	}
	if n := s.pending(); n != 0 {
		t.Errorf("%d entries are pending", n)
	}
}

func TestClaimGoesThroughMoreThanAPage(t *testing.T) {
	const orders = 25
	s := open(t)
	for range orders {
		s.order()
	}
	s.relay()
	dead, _ := s.worker("dead")
	dead.BeforeAck = func(Entry) error { return errDied }
	for range 3 { // it comes back, and dies again, with ten more in hand each time
		if _, err := dead.Work(s.ctx); !errors.Is(err, errDied) {
			t.Fatalf("the worker ended with %v", err)
		}
	}
	heir, seen := s.worker("heir")
	s.claim(heir)
	if len(*seen) != orders {
		t.Errorf("claimed %d entries, want %d", len(*seen), orders)
	}
	if b := s.books(); b.JobsDone != orders || b.TwiceDone != 0 {
		t.Errorf("the books say %+v", b)
	}
}

// The stream is in commit order, the workers of a group are not: a refund waits
// for its tickets.
func TestRefundWaitsForTheWorkerThatHasItsTickets(t *testing.T) {
	s := open(t)
	order := s.order()
	s.relay()
	slow, _ := s.worker("slow")
	tx, err := s.conn.Begin(s.ctx) // the slow worker's job waits for this one
	if err != nil {
		t.Fatal(err)
	}
	if _, err := tx.Exec(s.ctx, `SELECT FROM tickets FOR UPDATE`); err != nil {
		t.Fatal(err)
	}
	ended := make(chan error, 1)
	go func() {
		_, err := slow.Work(s.ctx)
		ended <- err
	}()
	for s.pending() == 0 && s.ctx.Err() == nil {
		time.Sleep(5 * time.Millisecond)
	}

	other := s.connect()
	if err := Refund(s.ctx, other, order, NewRequest()); err != nil {
		t.Fatal(err)
	}
	var refund Entry
	err = other.QueryRow(s.ctx, `SELECT id::text, kind, payload::text FROM outbox WHERE published_at IS NULL`).
		Scan(&refund.OutboxID, &refund.Kind, &refund.Payload)
	if err != nil {
		t.Fatal(err)
	}
	s.add(refund)
	quick, seen := s.worker("quick")
	s.work(quick)
	if got := results(*seen); got != "[not yet]" {
		t.Fatalf("the refund ended as %s", got)
	}

	if err := tx.Rollback(s.ctx); err != nil {
		t.Fatal(err)
	}
	if err := <-ended; err != nil {
		t.Fatal(err)
	}
	s.claim(quick)
	if got := results(*seen); got != "[not yet done]" {
		t.Errorf("the refund ended as %s", got)
	}
	if b := s.books(); b.NotDone != 0 || b.TwiceDone != 0 {
		t.Errorf("the books say %+v", b)
	}
}

// The log is ahead of what other sessions see: here by as long as it takes the
// worker to look twice.
func TestWorkerWaitsForACommitToBeSeen(t *testing.T) {
	s := open(t)
	tx, err := s.conn.Begin(s.ctx)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := PlaceOrder(s.ctx, tx, Order{Show: 2, Customer: 1, Seats: 2, Request: NewRequest()}); err != nil {
		t.Fatal(err)
	}
	var e Entry
	if err := tx.QueryRow(s.ctx, `SELECT id::text, kind, payload::text FROM outbox`).Scan(&e.OutboxID, &e.Kind, &e.Payload); err != nil {
		t.Fatal(err)
	}
	s.add(e)
	w, seen := s.worker("one")
	pauses := 0
	w.pause = func() {
		if pauses++; pauses == 2 {
			if err := tx.Commit(s.ctx); err != nil {
				t.Error(err)
			}
		}
	}
	s.work(w)
	if got := results(*seen); got != "[done]" || !(*seen)[0].Early {
		t.Errorf("the deliveries were %+v", *seen)
	}
	if b := s.books(); b.NotDone != 0 || b.JobsDone != 1 || pauses != 2 {
		t.Errorf("after %d pauses the books say %+v", pauses, b)
	}
}

func TestWorkerLeavesWhatItDoesNotKnowPending(t *testing.T) {
	s := open(t)
	order := s.order()
	s.add(Entry{OutboxID: "100", Kind: "paint_the_hall", Payload: `{}`})
	s.add(Entry{OutboxID: "101", Kind: RenderTickets, Payload: `[1`})
	const nobodys = `{"order": "00000000-0000-0000-0000-000000000000"}`
	s.add(Entry{OutboxID: "102", Kind: RenderTickets, Payload: nobodys})
	s.add(Entry{OutboxID: "103", Kind: RefundOrder, Payload: nobodys})
	if err := s.rdb.XAdd(s.ctx, &redis.XAddArgs{Stream: Stream, Values: []string{"greeting", "hello"}}).Err(); err != nil {
		t.Fatal(err)
	}
	s.relay()
	w, seen := s.worker("one")
	w.pause = func() {}
	s.work(w)
	if got := results(*seen); got != "[refused refused not yet not yet refused done]" {
		t.Errorf("the deliveries ended as %s", got)
	}
	for _, d := range (*seen)[:5] {
		if d.Err == nil {
			t.Errorf("%+v has no reason", d.Entry)
		}
	}
	if n := s.pending(); n != 5 {
		t.Errorf("%d entries are pending, want the 5 that are not done", n)
	}
	if b := s.books(); b.JobsDone != 1 || b.NotDone != 0 {
		t.Errorf("the books say %+v after order %s", b, order)
	}
}

func TestRunStopsWithNothingInHand(t *testing.T) {
	for name, claimed := range map[string]bool{"while it works": false, "while it claims": true} {
		t.Run(name, func(t *testing.T) {
			s := open(t)
			for range 8 {
				s.order()
			}
			s.relay()
			if claimed {
				dead, _ := s.worker("dead")
				dead.BeforeAck = func(Entry) error { return errDied }
				if _, err := dead.Work(s.ctx); !errors.Is(err, errDied) {
					t.Fatalf("the worker ended with %v", err)
				}
			}
			w, _ := s.worker("one")
			ctx, stop := context.WithCancel(s.ctx)
			w.BeforeAck = func(Entry) error { stop(); return nil } // in the middle of a batch
			if err := w.Run(ctx); err != nil {
				t.Fatal(err)
			}
			if n := s.pending(); n != 0 {
				t.Errorf("%d entries are pending after a stop", n)
			}
		})
	}
}

func TestReadStreamGoesThroughMoreThanAPage(t *testing.T) {
	const entries = 2500
	s := open(t)
	p := s.rdb.Pipeline()
	for i := range entries {
		p.XAdd(s.ctx, &redis.XAddArgs{Stream: Stream, Values: []string{"kind", "k", "outbox_id", strconv.Itoa(i), "payload", "{}"}})
	}
	if _, err := p.Exec(s.ctx); err != nil {
		t.Fatal(err)
	}
	got, err := ReadStream(s.ctx, s.rdb, Stream)
	if err != nil || len(got) != entries {
		t.Fatalf("read %d entries (%v), want %d", len(got), err, entries)
	}
	for i, e := range got {
		if e.OutboxID != strconv.Itoa(i) {
			t.Fatalf("entry %d has outbox id %s", i, e.OutboxID)
		}
	}
}

func TestFollowSeesWhatIsThereAndWhatComes(t *testing.T) {
	s := open(t)
	first := s.order()
	s.relay()
	ctx, stop := context.WithCancel(s.ctx)
	defer stop()
	seen := make(chan Entry, 2)
	ended := make(chan error, 1)
	go func() { ended <- Follow(ctx, s.rdb, Stream, func(e Entry) { seen <- e }) }()
	second := ""
	for _, want := range []*string{&first, &second} {
		if *want == "" {
			*want = s.order()
			s.relay()
		}
		select {
		case e := <-seen:
			job, err := e.Job()
			if err != nil || job.Order != *want || e.Arrived.IsZero() {
				t.Errorf("saw %+v (%v), want order %s", e, err, *want)
			}
		case err := <-ended:
			t.Fatalf("ended with %v", err)
		}
	}
	stop()
	if err := <-ended; err != nil {
		t.Error(err)
	}
}
