package main

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"strings"
	"time"

	"github.com/stagedoor/walrelay/internal/shop"
)

// close asks the relay how it is, stops it, and prints the account.
func (d *demo) close(ctx context.Context) (exact bool, err error) {
	code, health, err := d.relay.Health(ctx)
	if err != nil {
		return false, fmt.Errorf("ask the relay for its health: %w%s", err, d.relay.LogTail())
	}
	if !d.keep { // before the account, so that a last entry would be seen
		if err := d.relay.Stop(); err != nil {
			return false, err
		}
		d.screen.say("relay", "stopped by SIGTERM, exit code 0")
	}
	r, err := d.account(ctx)
	if err != nil {
		return false, err
	}
	d.screen.line(r.text(d.screen))
	d.screen.line("\n" + d.screen.bold("Health") + fmt.Sprintf(", from GET %s before the end: %d\n", d.relay.HealthURL(), code))
	var pretty bytes.Buffer
	if json.Indent(&pretty, health, "", "  ") == nil {
		health = pretty.Bytes()
	}
	d.screen.line(indent(string(health)) + "\n")
	d.screen.line(r.verdict(d.screen))
	if d.keep {
		d.screen.line("\n" + d.howToLook())
		<-ctx.Done()
		if err := d.relay.Stop(); err != nil {
			return false, err
		}
	}
	return r.exact(), nil
}

// report is what the account is printed from.
type report struct {
	shop.Account
	books          shop.Books
	tally          shop.Tally
	again          int
	early          int
	notYet         int
	steady, outage shop.Spread
	all            shop.Spread
	window         [2]string // the restart window, as printed
}

// account compares what PostgreSQL says was committed with the stream.
func (d *demo) account(ctx context.Context) (*report, error) {
	conn, err := d.connect(ctx, "demo")
	if err != nil {
		return nil, err
	}
	defer conn.Close(context.WithoutCancel(ctx))
	rows, err := shop.ReadOracle(ctx, conn, oracle)
	if err != nil {
		return nil, err
	}
	entries, err := shop.ReadStream(ctx, d.redis, shop.Stream)
	if err != nil {
		return nil, err
	}
	d.arrivals.stamp(entries)
	r := &report{
		Account: shop.Reconcile(rows, entries),
		tally:   d.buyers.Tally(),
		again:   int(d.again.Load()),
		early:   int(d.early.Load()),
		notYet:  int(d.notYet.Load()),
		window:  [2]string{strings.TrimSpace(d.screen.at(d.killed)), strings.TrimSpace(d.screen.at(d.caughtUp))},
	}
	if r.books, err = shop.ReadBooks(ctx, conn); err != nil {
		return nil, err
	}
	// A row is of the restart window if it was on its way at any time in it.
	inWindow := func(committed, arrived time.Time) bool {
		return committed.Before(d.caughtUp) && arrived.After(d.killed)
	}
	measure := func(under func(committed, arrived time.Time) bool) shop.Spread {
		return shop.Measure(shop.Latencies(rows, entries, func(committed, arrived time.Time) bool {
			return committed.After(d.opened) && under(committed, arrived)
		}))
	}
	r.all = measure(func(time.Time, time.Time) bool { return true })
	r.outage = measure(inWindow)
	r.steady = measure(func(committed, arrived time.Time) bool { return !inWindow(committed, arrived) })
	return r, nil
}

// exact reports whether the stream is right, and what the workers made of it.
func (r *report) exact() bool {
	return r.Exact() && r.books.TwiceDone == 0 && r.books.NotDone == 0
}

// text is the account, at most 80 columns wide.
func (r *report) text(s *screen) string {
	var b strings.Builder
	count := func(name string, n int, note string) {
		fmt.Fprintf(&b, "%s\n", strings.TrimRight(fmt.Sprintf("  %-29s%7d  %s", name, n, note), " "))
	}
	fault := func(name string, ids []string, note string) {
		if len(ids) > 0 {
			note = s.red("outbox ids " + some(ids))
		}
		count(name, len(ids), note)
	}

	fmt.Fprintf(&b, "\n%s\n\n", s.bold("The account"))
	count("orders committed", r.books.Orders, fmt.Sprintf("%d of them before the relay first ran", before))
	count("orders rolled back", r.tally.RolledBack(), fmt.Sprintf("%d sold out, %d payments refused", r.tally.SoldOut, r.tally.Refused))
	count("refunds committed", r.books.Refunds, "")
	count("outbox rows committed", r.Rows, "says PostgreSQL's test_decoding")
	count("entries on the stream", r.Entries, "")
	b.WriteString("\n")
	fault("lost", r.Lost, "")
	fault("duplicated", r.Duplicated, "")
	fault("out of order", r.OutOfOrder, "of commits")
	fault("altered", r.Altered, "")
	fault("rolled back, yet on stream", r.NeverCommitted, "")
	fault("refunds before their tickets", r.BeforeTickets, "")
	b.WriteString("\n")
	count("outbox ids overtaken", r.IDsOvertaken, "by greater ids that committed first")
	count("jobs done", r.books.JobsDone, "by the workers")
	count("delivered again", r.again, "and found done, so not done twice")
	count("quicker than the commit", r.early, "read before the commit could be seen")
	count("refunds put off", r.notYet, "while the other worker had the tickets")
	if r.books.TwiceDone > 0 {
		count("orders worked on twice", r.books.TwiceDone, s.red("the worker is not idempotent"))
	}
	if r.books.NotDone > 0 {
		count("orders with work left", r.books.NotDone, s.red("their jobs did not arrive, or failed"))
	}

	fmt.Fprintf(&b, "\n%s%s\n\n", s.bold("From commit to arrival"), "            rows       p50       p99       max")
	spread := func(name string, l shop.Spread) {
		fmt.Fprintf(&b, "  %-29s%7d%10s%10s%10s\n", name, l.N, short(l.P50), short(l.P99), short(l.Max))
	}
	spread("without the restart window", r.steady)
	spread("in the restart window", r.outage)
	spread("all", r.all)
	fmt.Fprintf(&b, "\n  The window is from the kill at %s until %s, when what had waited was\n"+
		"  there. The %d rows of the backfill are not counted.", r.window[0], r.window[1], before)
	return b.String()
}

// verdict is the last word.
func (r *report) verdict(s *screen) string {
	if r.exact() {
		return s.green("Nothing lost, nothing doubled, everything in commit order.")
	}
	return s.red("NOT exactly once and in commit order: see the account above.")
}

// some prints the first few of a list.
func some(ids []string) string {
	const most = 5
	if len(ids) <= most {
		return strings.Join(ids, ", ")
	}
	return strings.Join(ids[:most], ", ") + " …"
}

// howToLook is for --keep.
func (d *demo) howToLook() string {
	commands := [][2]string{
		{"table", "psql '" + d.postgres.DSN(database) + "'"},
		{"slot", `SELECT * FROM pg_replication_slots (in psql)`},
		{"stream", "redis-cli -u " + d.redisURL + " XREVRANGE " + shop.Stream + " + - COUNT 3"},
		{"health", "curl " + d.relay.HealthURL()},
		{"metrics", "curl " + d.relay.MetricsURL()},
		{"log", "tail -f " + d.relay.Log()},
	}
	var b strings.Builder
	b.WriteString("Everything stays up until Ctrl-C. To look at it:\n\n")
	for _, c := range commands {
		fmt.Fprintf(&b, "  %-8s %s\n", c[0], c[1])
	}
	return b.String()
}
