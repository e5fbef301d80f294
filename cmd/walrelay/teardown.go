package main

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/redis/go-redis/v9"

	"github.com/stagedoor/walrelay/cdc"
	"github.com/stagedoor/walrelay/internal/fault"
	"github.com/stagedoor/walrelay/internal/pg"
	"github.com/stagedoor/walrelay/publisher"
	"github.com/stagedoor/walrelay/slot"
)

// closePatience bounds the goodbye to a server that may be frozen.
const closePatience = time.Second

// redisPatience bounds the questions to a Redis that may be frozen.
const redisPatience = 10 * time.Second

// teardownCmd drops what run and setup made.
type teardownCmd struct {
	Yes bool `short:"y" help:"Do not ask."`
}

// Help is printed by --help.
func (teardownCmd) Help() string {
	return `teardown drops the replication slot, so that PostgreSQL holds no log for it any more, the publication, and the checkpoint in Redis. The table, its rows and the stream stay. Stop the relay first: a slot in use is not dropped.

It shows what it is about to drop and asks; without a terminal it needs --yes.

Example:

    walrelay teardown --postgres 'postgres://walrelay@db.example.com:5432/shop'`
}

// Run is called by main.
func (c *teardownCmd) Run(ctx context.Context, p *process) error {
	if !c.Yes && !isTerminal(p.stdin) {
		return errNobodyToAsk()
	}
	conn, err := pg.Connect(ctx, p.cfg.Postgres)
	if err != nil {
		return err
	}
	defer release(conn)
	client, err := publisher.Connect(p.cfg.Redis.URL())
	if err != nil {
		return err
	}
	defer client.Close()

	found, err := look(ctx, conn, client, p.cfg)
	if err != nil {
		return err
	}
	if !c.Yes {
		if found.nothing() {
			fmt.Fprintf(p.stdout, "Nothing to drop:\n%s", found)
			return nil
		}
		yes, err := p.ask(fmt.Sprintf("This drops:\n%sThe table %s and the stream %q stay.\nDrop? [y/N] ", found, p.cfg.Table, p.cfg.Stream))
		if err != nil {
			return err
		}
		if !yes {
			return errors.New("nothing was dropped")
		}
	}
	// The slot comes before the checkpoint: a slot in use is refused, and then
	// its relay needs the checkpoint.
	done, err := slot.New(slotConfig(p.cfg), p.log).Teardown(ctx)
	for _, line := range done {
		fmt.Fprintln(p.stdout, line)
	}
	if len(done) == 0 {
		return err
	}
	return errors.Join(err, forget(ctx, p, client, found.key))
}

// forget drops the checkpoint.
func forget(ctx context.Context, p *process, client *redis.Client, key string) error {
	ctx, cancel := context.WithTimeout(ctx, redisPatience)
	defer cancel()
	dropped, err := publisher.New(client, p.cfg.MaxLen, p.cfg.Stream).Forget(ctx, key)
	switch {
	case err != nil:
		return fmt.Errorf("the checkpoint %q in %s was not dropped: %w", key, p.cfg.Redis, err)
	case dropped:
		fmt.Fprintf(p.stdout, "dropped the checkpoint %q\n", key)
	default:
		fmt.Fprintf(p.stdout, "there is no checkpoint %q\n", key)
	}
	return nil
}

// remains is what a relay left behind.
type remains struct {
	slot, publication, checkpoint string // what is to be said of each
	count                         int
	key                           string // of the checkpoint
}

func (r remains) nothing() bool { return r.count == 0 }

// String is one line for each.
func (r remains) String() string {
	var b strings.Builder
	for _, line := range []string{r.slot, r.publication, r.checkpoint} {
		b.WriteString("  " + line + "\n")
	}
	return b.String()
}

// look finds what is there, and keeps relays from starting meanwhile. It
// refuses what must not be dropped.
func look(ctx context.Context, conn *pgx.Conn, client *redis.Client, cfg *Config) (remains, error) {
	var r remains
	var database, systemID string
	var published, shared bool
	err := conn.QueryRow(ctx, `
		SELECT current_database(), (SELECT system_identifier::text FROM pg_control_system()),
			EXISTS (SELECT FROM pg_publication WHERE pubname = $1),
			EXISTS (SELECT FROM pg_replication_slots WHERE plugin = 'pgoutput' AND database = current_database()
				AND NOT temporary AND slot_name <> $2)`, cfg.Publication, cfg.Slot).Scan(&database, &systemID, &published, &shared)
	if err != nil {
		return r, fmt.Errorf("look at the publication: %w", err)
	}
	r.publication = fmt.Sprintf("publication %s: there is none", cdc.QuoteIdent(cfg.Publication))
	switch {
	case published && shared:
		r.publication = fmt.Sprintf("publication %s: kept, other slots of this database may use it", cdc.QuoteIdent(cfg.Publication))
	case published:
		r.publication = fmt.Sprintf("publication %s in database %s", cdc.QuoteIdent(cfg.Publication), cdc.QuoteIdent(database))
		r.count++
	}
	if err := r.lookAtSlot(ctx, conn, cfg.Slot, database); err != nil {
		return r, err
	}

	r.key = publisher.Key(systemID, database, cfg.Slot)
	ctx, cancel := context.WithTimeout(ctx, redisPatience)
	defer cancel()
	n, err := client.Exists(ctx, r.key).Result()
	switch {
	case err != nil:
		// The slot holds log on the primary's disk, so it must not depend on
		// Redis whether it can be dropped.
		r.checkpoint = fmt.Sprintf("checkpoint %q: %s does not answer: %v", r.key, cfg.Redis, err)
	case n == 0:
		r.checkpoint = fmt.Sprintf("checkpoint %q: there is none", r.key)
	default:
		r.checkpoint = fmt.Sprintf("checkpoint %q in %s", r.key, cfg.Redis)
		r.count++
	}
	return r, nil
}

// lookAtSlot refuses a slot that somebody uses, or that is not ours.
func (r *remains) lookAtSlot(ctx context.Context, conn *pgx.Conn, name, database string) error {
	var pid int
	var ours bool
	var of, confirmed string
	err := conn.QueryRow(ctx, `
		SELECT coalesce(active_pid, 0), coalesce(plugin = 'pgoutput' AND database = current_database(), false),
			coalesce(database, ''), coalesce(confirmed_flush_lsn::text, '0/0')
		FROM pg_replication_slots WHERE slot_name = $1`, name).Scan(&pid, &ours, &of, &confirmed)
	switch {
	case errors.Is(err, pgx.ErrNoRows):
		r.slot = fmt.Sprintf("slot %q: there is none", name)
	case err != nil:
		return fmt.Errorf("look at slot %q: %w", name, err)
	case !ours:
		return &fault.Error{
			Problem: fmt.Sprintf("slot %q is not a relay's slot of the database %s, so nothing is dropped", name, cdc.QuoteIdent(database)),
			Fix:     "correct --slot, or the database in --postgres",
			Err:     slot.ErrForeignSlot,
		}
	case pid != 0:
		return inUse(name, pid)
	default:
		r.slot = fmt.Sprintf("slot %q in database %s, confirmed up to %s", name, cdc.QuoteIdent(of), confirmed)
		r.count++
	}
	return lockSlot(ctx, conn, name)
}

// slotLockKey is the advisory lock of the slot's name, which is $1.
const slotLockKey = "hashtextextended('walrelay:' || $1, 0)"

// slotLockHolderSQL reads which process holds it.
const slotLockHolderSQL = `SELECT pid FROM pg_locks WHERE locktype = 'advisory' AND objsubid = 1 AND granted
	AND database = (SELECT oid FROM pg_database WHERE datname = current_database())
	AND (classid::int8 << 32 | objid::int8) = ` + slotLockKey + ` LIMIT 1`

// lockSlot takes the lock that a relay holds during a backfill, when its slot is
// not there yet. It lasts until release.
func lockSlot(ctx context.Context, conn *pgx.Conn, name string) error {
	var locked bool
	var pid int
	err := conn.QueryRow(ctx, `SELECT pg_try_advisory_lock(`+slotLockKey+`), coalesce((`+slotLockHolderSQL+`), 0)`, name).Scan(&locked, &pid)
	if err != nil {
		return fmt.Errorf("lock slot %q: %w", name, err)
	}
	if !locked {
		return inUse(name, pid)
	}
	return nil
}

// release ends the connection, and the lock at once: closing does not wait for
// the server, and whoever comes next would find the slot in use.
func release(conn *pgx.Conn) {
	ctx, cancel := context.WithTimeout(context.Background(), closePatience)
	defer cancel()
	_, _ = conn.Exec(ctx, "SELECT pg_advisory_unlock_all()") // else the end of the connection does it
	closeConn(conn)
}

// inUse says which process keeps the slot from being dropped.
func inUse(name string, pid int) error {
	return &fault.Error{
		Problem: fmt.Sprintf("a relay works with slot %q (server process %d), so nothing is dropped", name, pid),
		Fix:     fmt.Sprintf("stop the relay, then run teardown again; if it is gone and only its connection is left: SELECT pg_terminate_backend(%d);", pid),
		Err:     slot.ErrSlotInUse,
	}
}
