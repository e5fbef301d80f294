package main

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/stagedoor/walrelay/cdc"
	"github.com/stagedoor/walrelay/internal/fault"
	"github.com/stagedoor/walrelay/internal/pg"
	"github.com/stagedoor/walrelay/publisher"
	"github.com/stagedoor/walrelay/relay"
	"github.com/stagedoor/walrelay/slot"
)

const (
	// healTries is how often a request is repeated while a relay writes the
	// checkpoint, or Redis does not answer.
	healTries = 50
	// healLook is how often it is looked whether the heal is done, healSay how
	// often that is reported.
	healLook = 250 * time.Millisecond
	healSay  = 5 * time.Second
)

// healCmd asks for a heal.
type healCmd struct {
	Since     moment `type:"moment" placeholder:"TIME" help:"Also publish again what was marked as published then or later and is not on the stream: a time such as 2026-07-31T18:00:00Z, or how long ago, such as 24h. Default: since the time up to which the checkpoint knows that nothing is missing."`
	AcceptGap bool   `help:"Publish nothing; accept that entries from before a loss of Redis' memory may be gone, so that health is well again."`
	NoWait    bool   `help:"Do not wait until it is done."`
}

// Help is printed by --help.
func (healCmd) Help() string {
	return `heal has the relay compare the table with the stream and publish what is missing: rows that are not marked as published, and those that were marked since a time. Nothing that is on the stream is published again. The relay heals what it finds by itself; this is for --heal=manual, for a gap that only a person can know of, and for a relay that waits after it has healed the same gap twice.

It only leaves the request, in the checkpoint. The relay that works, or the next one that is started, does it, and continues from a new slot. heal waits until the relay streams again. Interrupted, it leaves the request standing.

Exit codes: 0 the relay streams again; with --no-wait, the request is made; with --accept-gap, nothing is left to accept. 1 it could not be asked for, or the waiting was interrupted.

Examples:

    walrelay heal --config walrelay.yaml
    walrelay heal --config walrelay.yaml --since 2026-07-31T18:00:00Z
    walrelay heal --config walrelay.yaml --accept-gap`
}

// Run is called by main.
func (c *healCmd) Run(ctx context.Context, p *process) error {
	if c.AcceptGap && !c.Since.isZero() {
		return usagef("--accept-gap publishes nothing, and --since says what to publish: give one of them")
	}
	h, err := newHealing(ctx, p)
	if err != nil {
		return err
	}
	defer h.close()
	if c.AcceptGap {
		return h.accept(ctx)
	}
	if err := h.ask(ctx, c.Since.time(h.now)); err != nil {
		return err
	}
	if c.NoWait {
		return nil
	}
	return h.wait(ctx)
}

// healing is a request to the relay, by way of the checkpoint.
type healing struct {
	*process
	redis *publisher.Publisher // without streams: one that is gone is no reason not to ask
	close func()

	server cdc.Server
	slot   *cdc.Slot
	now    time.Time // PostgreSQL's clock
	key    string    // of the checkpoint

	instance string // versions are of this process
	counter  uint64
}

func newHealing(ctx context.Context, p *process) (*healing, error) {
	client, err := publisher.Connect(p.cfg.Redis.URL())
	if err != nil {
		return nil, err
	}
	h := &healing{
		process: p, close: func() { client.Close() }, instance: rand.Text(),
		redis: publisher.New(client, 0),
	}
	if err := h.look(ctx); err != nil {
		h.close()
		return nil, err
	}
	return h, nil
}

// look asks the server what a relay would. The slot may be in use.
func (h *healing) look(ctx context.Context) error {
	session, err := slot.New(slotConfig(h.cfg), h.log).Open(ctx)
	if err != nil {
		return err
	}
	defer session.Close()
	h.server = session.Server()
	h.key = publisher.Key(h.server.SystemID, h.server.Database, h.cfg.Slot)
	if h.slot, err = session.Slot(ctx); err != nil {
		return err
	}
	h.now, err = session.Clock(ctx)
	return err
}

// replace replaces the checkpoint by what change makes of it, nil for none. A
// change that returns false leaves it as it is. A relay that works writes it
// every second, so that another try may be needed.
func (h *healing) replace(ctx context.Context, change func(cp *cdc.Checkpoint) (cdc.Checkpoint, bool, error)) error {
	for try := 1; ; try++ {
		cp, err := h.load(ctx)
		if err != nil {
			return err
		}
		next, changed, err := change(cp)
		if err != nil || !changed {
			return err
		}
		var expected cdc.Version
		if cp != nil {
			expected = cp.Version
		}
		h.counter++
		next.Format = cdc.CheckpointFormat
		next.Version = cdc.Version{Instance: h.instance, Counter: h.counter}
		next.LastIDs = nil // as they are
		done, err := h.write(ctx, expected, next)
		switch {
		case done:
			return nil
		case try == healTries && err == nil:
			return errors.New("a relay writes the checkpoint all the time; try again")
		case err != nil:
			return err
		}
	}
}

// load reads the checkpoint, which another release may have written.
func (h *healing) load(ctx context.Context) (*cdc.Checkpoint, error) {
	ctx, cancel := context.WithTimeout(ctx, redisPatience)
	defer cancel()
	cp, _, err := h.redis.Load(ctx, h.key)
	if err == nil && cp != nil && cp.Format != cdc.CheckpointFormat {
		return nil, &fault.Error{
			Problem: fmt.Sprintf("the checkpoint has format %d, this release knows %d", cp.Format, cdc.CheckpointFormat),
			Fix:     "run heal of the release that wrote it, or of a newer one",
			Err:     cdc.ErrFormat,
		}
	}
	return cp, err
}

// write is false where another checkpoint is there than was expected. Where the
// answer is lost it is repeated, which finds out whether it was written.
func (h *healing) write(ctx context.Context, expected cdc.Version, next cdc.Checkpoint) (bool, error) {
	var err error
	for range 3 {
		var res cdc.AppendResult
		tried, cancel := context.WithTimeout(ctx, redisPatience)
		res, err = h.redis.Append(tried, h.key, expected, next, nil)
		cancel()
		switch {
		case err == nil:
			return res.Done || res.Held != nil && res.Held.Version == next.Version, nil
		case fault.As(err) != nil || ctx.Err() != nil:
			return false, err
		}
	}
	return false, fmt.Errorf("it is not known whether the request was made, try again: %w", err)
}

// ask leaves the request. Since zero is what the checkpoint knows.
func (h *healing) ask(ctx context.Context, since time.Time) error {
	var asked *cdc.Since
	err := h.replace(ctx, func(cp *cdc.Checkpoint) (cdc.Checkpoint, bool, error) {
		if cp == nil && h.slot == nil && since.IsZero() {
			return cdc.Checkpoint{}, false, &fault.Error{
				Problem: fmt.Sprintf("there is neither a slot %q nor a checkpoint %q", h.cfg.Slot, h.key),
				Fix:     "correct --slot, --postgres or --redis; if it is as it should be, walrelay run publishes what is not marked",
			}
		}
		next := request(h.server, cp, since)
		if cp == nil && since.IsZero() {
			// The relay cannot see any more that it was so. It knows since when.
			next.Doubt = &cdc.Doubt{Reason: fmt.Sprintf("the slot %q existed and Redis had no checkpoint for it: Redis lost its data, or is another one than before", h.cfg.Slot)}
		}
		asked = next.Since
		return next, true, nil
	})
	switch {
	case err != nil:
		return err
	case asked == nil:
		fmt.Fprintln(h.stdout, "asked for a heal: rows that are not marked as published, and those that the slot still has")
	default:
		fmt.Fprintf(h.stdout, "asked for a heal: rows that are not marked as published, and those marked since %s\n", asked.Time.UTC().Format(time.RFC3339Nano))
	}
	return nil
}

// request is a checkpoint that asks for a backfill. It keeps all that the relay
// can still make use of.
func request(server cdc.Server, cp *cdc.Checkpoint, since time.Time) cdc.Checkpoint {
	next := cdc.Checkpoint{Timeline: server.Timeline, History: server.History.Recent()}
	if cp != nil {
		next = *cp
		if cp.Phase == cdc.PhaseStreaming || cp.Since != nil {
			known := cdc.SinceOf(cp)
			next.Since = &known
		}
		if cp.Timeline > server.Timeline {
			// Asked for on a server that was failed over from: it counts now.
			next.Timeline, next.History = server.Timeline, server.History.Recent()
		}
	}
	// What the relay knows to be in question stays so, whatever is asked for.
	if !since.IsZero() && (next.Since == nil || since.Before(next.Since.Time)) {
		next.Since = &cdc.Since{Time: since}
	}
	next.Phase, next.Token = cdc.PhaseBackfill, rand.Text()
	return next
}

// accept clears the doubt.
func (h *healing) accept(ctx context.Context) error {
	var accepted *cdc.Doubt
	err := h.replace(ctx, func(cp *cdc.Checkpoint) (cdc.Checkpoint, bool, error) {
		if cp == nil || cp.Doubt == nil {
			return cdc.Checkpoint{}, false, nil
		}
		accepted = cp.Doubt
		next := *cp
		next.Doubt = nil
		return next, true, nil
	})
	switch {
	case err != nil:
		return err
	case accepted == nil:
		fmt.Fprintln(h.stdout, "there is nothing to accept")
	default:
		fmt.Fprintf(h.stdout, "accepted: entries of rows that were marked before %s may be gone (%s)\n", accepted.Before.UTC().Format(time.RFC3339), accepted.Reason)
	}
	return nil
}

// wait waits until a relay streams again.
func (h *healing) wait(ctx context.Context) error {
	watch := watcher{healing: h}
	defer watch.hangUp()
	said := time.Time{}
	for {
		state, done, err := watch.look(ctx)
		switch {
		case ctx.Err() != nil:
			return errors.New("interrupted; the request stands, and the relay heals when it comes to it")
		case err == nil && done:
			fmt.Fprintln(h.stdout, "healed: "+state)
			if watch.doubt != nil {
				fmt.Fprintln(h.stdout, "what it could not know: "+relay.InDoubt(watch.doubt))
			}
			return nil
		case time.Since(said) >= healSay:
			said = time.Now()
			if err != nil {
				h.log.Warn("waiting for the heal", "err", err)
			} else {
				h.log.Info("waiting for the heal", "state", state)
			}
		}
		select {
		case <-time.After(healLook):
		case <-ctx.Done():
		}
	}
}

// watcher looks how far a heal is.
type watcher struct {
	*healing
	conn  *pgx.Conn  // nil while there is none
	doubt *cdc.Doubt // as last seen
}

// look says how far it is, and whether it is done.
func (w *watcher) look(ctx context.Context) (state string, done bool, err error) {
	cp, err := w.load(ctx)
	if err != nil {
		return "", false, err
	}
	there, pid, locked, err := w.lookAtSlot(ctx)
	if err != nil {
		w.hangUp()
		return "", false, err
	}
	w.doubt = nil
	if cp != nil {
		w.doubt = cp.Doubt
	}
	atWork := "no relay is at work: start walrelay run, which heals"
	switch {
	case locked != 0:
		atWork = fmt.Sprintf("a relay heals (PostgreSQL process %d)", locked)
	case pid != 0:
		atWork = fmt.Sprintf("a relay is at work (PostgreSQL process %d)", pid)
	}
	switch {
	case cp == nil:
		return "Redis has no checkpoint; " + atWork, false, nil
	case cp.Phase != cdc.PhaseStreaming || !there:
		return atWork, false, nil
	case pid == 0:
		return "the slot is made, and the relay is about to stream from it", true, nil
	}
	return fmt.Sprintf("the relay streams (PostgreSQL process %d)", pid), true, nil
}

// lookAtSlot says whether there is a slot, who reads it, and who has the lock of
// its name, which a relay holds while it heals.
func (w *watcher) lookAtSlot(ctx context.Context) (there bool, pid, locked int, err error) {
	ctx, cancel := context.WithTimeout(ctx, redisPatience)
	defer cancel()
	if w.conn == nil {
		if w.conn, err = pg.Connect(ctx, w.cfg.Postgres); err != nil {
			w.conn = nil
			return false, 0, 0, err
		}
	}
	err = w.conn.QueryRow(ctx, `
		SELECT count(*) > 0, coalesce(max(active_pid), 0), coalesce((`+slotLockHolderSQL+`), 0)
		FROM pg_replication_slots WHERE slot_name = $1`, w.cfg.Slot).Scan(&there, &pid, &locked)
	return there, pid, locked, err
}

func (w *watcher) hangUp() {
	if w.conn != nil {
		closeConn(w.conn)
		w.conn = nil
	}
}
