package outbox

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/stagedoor/walrelay/cdc"
	"github.com/stagedoor/walrelay/internal/fault"
	"github.com/stagedoor/walrelay/internal/pg"
)

// slotLook is how often it is looked how far the slot has come.
const slotLook = 200 * time.Millisecond

// published waits until everything that was read before is on the stream: until
// the slot has confirmed a position that the log reaches now. It is false when
// the pass is to end.
func (p *purgePass) published(ctx context.Context) (bool, error) {
	end, err := p.position(ctx)
	if err != nil {
		return false, err
	}
	began := time.Now()
	for {
		slot, err := p.confirmed(ctx)
		if err != nil {
			return false, err
		}
		if slot.confirmed >= end {
			return true, nil
		}
		if p.patience > 0 && time.Since(began) >= p.patience {
			// Without positions: this is logged where it is another than before.
			return false, fmt.Errorf("rows that are not marked are deleted when they are confirmed, and the slot %q has not come that far in %v", p.cfg.Slot, p.patience)
		}
		if time.Since(p.said) >= purgeSay {
			p.said = time.Now()
			p.log.Info("rows that are not marked are deleted when they are confirmed", "waiting", slot.waiting(p.cfg.Slot, end), "deleted", p.done.Deleted)
		}
		rest(ctx, slotLook)
		if p.interrupted(ctx) {
			return false, ctx.Err()
		}
	}
}

// position is one of the log that lies behind the commits of all rows that were
// read before. It is that of a record which this writes: a relay confirms it
// within its confirm delay, also where nothing else is written, and nobody has
// confirmed it yet. So it takes a relay that works, and a slot that somebody
// made or moved by hand does not do.
//
// A transaction's record makes the server write the log to disk soon, which it
// otherwise does when it has some reason to.
func (p *purgePass) position(ctx context.Context) (cdc.LSN, error) {
	ctx, cancel := statement(ctx)
	defer cancel()
	var text string
	err := p.conn.QueryRow(ctx, "SELECT pg_logical_emit_message(true, 'walrelay', 'purge')::text").Scan(&text)
	if pg.Code(err) == "42501" { // somebody took that privilege from everybody
		err = p.conn.QueryRow(ctx, "SELECT pg_current_wal_insert_lsn()::text").Scan(&text)
	}
	if err != nil {
		return 0, p.explain(err)
	}
	return cdc.ParseLSN(text)
}

// slotState is how far a slot has come.
type slotState struct {
	confirmed cdc.LSN
	pid       int // who reads it; 0 for nobody
}

// waiting says what is waited for.
func (s slotState) waiting(name string, end cdc.LSN) string {
	if s.pid == 0 {
		return fmt.Sprintf("nobody reads the slot %q: start walrelay run; it has confirmed %s and has to confirm %s", name, s.confirmed, end)
	}
	return fmt.Sprintf("the slot %q has confirmed %s and has to confirm %s (read by PostgreSQL process %d)", name, s.confirmed, end, s.pid)
}

// confirmed looks at the slot. One that does not tell what is on the stream is
// an error.
func (p *purgePass) confirmed(ctx context.Context) (slotState, error) {
	ctx, cancel := statement(ctx)
	defer cancel()
	name := p.cfg.Slot
	var s slotState
	var plugin, database, here, status, confirmed string
	err := p.conn.QueryRow(ctx, `
		SELECT coalesce(plugin, ''), coalesce(database, ''), current_database(), coalesce(wal_status, ''),
		  coalesce(confirmed_flush_lsn, '0/0')::text, coalesce(active_pid, 0)
		FROM pg_replication_slots WHERE slot_name = $1`, name).
		Scan(&plugin, &database, &here, &status, &confirmed, &s.pid)
	problem, fix := "", "start walrelay run, or correct --slot"
	switch {
	case errors.Is(err, pgx.ErrNoRows):
		problem = fmt.Sprintf("there is no slot %q", name)
	case err != nil:
		return s, err
	case plugin != "pgoutput" || database != here:
		problem = fmt.Sprintf("the slot %q is of another database or another plugin", name)
		fix = "correct --slot"
	case status == "lost":
		problem = fmt.Sprintf("the slot %q has lost its part of the log", name)
		fix = "start walrelay run, which heals that"
	}
	if problem != "" {
		return s, &fault.Error{
			Problem: strings.Join([]string{"rows of", p.table.table.String(), "are not marked, so that the slot tells which are published, and", problem}, " "),
			Fix:     fix,
		}
	}
	s.confirmed, err = cdc.ParseLSN(confirmed)
	return s, err
}
