package slot

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/stagedoor/walrelay/cdc"
	"github.com/stagedoor/walrelay/internal/fault"
	"github.com/stagedoor/walrelay/internal/pg"
)

// peekSQL decodes up to the first transaction with something to deliver, and
// consumes nothing. Later versions leave out transactions without a row of the
// publication; before 15 the first one may be one of those.
// https://www.postgresql.org/docs/current/functions-admin.html#FUNCTIONS-REPLICATION
const peekSQL = `
	SELECT data FROM pg_logical_slot_peek_binary_changes($1, NULL, 1, 'proto_version', '1', 'publication_names', $2)
	LIMIT 1`

// FirstCommit is when the first transaction of the outbox was committed that
// the slot still delivers, or, before 15, maybe one that came before it; false
// when there is none. It moves nothing. A slot that another process holds is ErrSlotInUse. What the
// slot cannot deliver is ErrSlotLost or ErrPublication, which wait for no other
// attempt: its WAL is gone, or the publication was not there when a row was
// written. (PostgreSQL 18 leaves such rows out.)
//
// It takes as long as PostgreSQL takes to decode the WAL up to there, and only
// ctx bounds that, or a server that answers to nothing. The connection that
// waits is one of its own.
func (s *Session) FirstCommit(ctx context.Context) (time.Time, bool, error) {
	slot, err := s.Slot(ctx) // a foreign one is not touched
	switch {
	case err != nil:
		return time.Time{}, false, err
	case slot == nil:
		return time.Time{}, false, missing(s.cfg.Slot, nil)
	}
	o, err := dial(ctx, s.here)
	if err != nil {
		return time.Time{}, false, err
	}
	defer o.close()

	type result struct {
		data []byte
		err  error
	}
	peeked := make(chan result, 1)
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	go func() {
		var r result
		r.err = o.conn.QueryRow(ctx, peekSQL, s.cfg.Slot, cdc.QuoteIdent(s.cfg.Publication)).Scan(&r.data)
		peeked <- r
	}()
	tick := time.NewTicker(s.lookEvery)
	defer tick.Stop()
	for {
		select {
		case r := <-peeked:
			return s.firstCommit(ctx, r.data, r.err)
		case <-tick.C:
			// The other connection is silent while it waits, so a server that
			// froze shows here.
			if err := s.ask(ctx, `SELECT 1`, nil, new(int)); err != nil {
				cancel()
				<-peeked
				return time.Time{}, false, fmt.Errorf("look into slot %q: %w", s.cfg.Slot, err)
			}
		}
	}
}

// firstCommit reads the first message of the slot.
func (s *Session) firstCommit(ctx context.Context, data []byte, err error) (time.Time, bool, error) {
	switch {
	case errors.Is(err, pgx.ErrNoRows):
		return time.Time{}, false, nil
	case err != nil && ctx.Err() != nil:
		return time.Time{}, false, fmt.Errorf("look into slot %q: %w", s.cfg.Slot, err)
	case pg.Code(err) == codeConfigurationLimitExceeded:
		return time.Time{}, false, &fault.Error{
			Problem: fmt.Sprintf("PostgreSQL may not keep the first transaction of slot %q in a temporary file, to look at it", s.cfg.Slot),
			Fix:     fmt.Sprintf("ALTER ROLE %s SET temp_file_limit = -1; -- as a superuser", cdc.QuoteIdent(s.cfg.Conn.User)),
			Err:     err,
		}
	case err != nil:
		slot, lookErr := s.Slot(ctx)
		if pg.Code(err) == codeUndefinedObject && lookErr == nil && slot != nil {
			return time.Time{}, false, unpublished(s.cfg.Slot, s.cfg.Publication, err)
		}
		return time.Time{}, false, s.startError(err, slot)
	}
	msg, err := cdc.NewDecoder().Decode(data)
	if err != nil {
		return time.Time{}, false, fmt.Errorf("look into slot %q: %w", s.cfg.Slot, err)
	}
	begin, ok := msg.(*cdc.Begin)
	if !ok {
		return time.Time{}, false, fmt.Errorf("look into slot %q: it starts with %T, not with a transaction", s.cfg.Slot, msg)
	}
	return begin.Commit.Time, true, nil
}
