package slot

import (
	"context"
	"fmt"

	"github.com/stagedoor/walrelay/cdc"
)

// failoverVersion is the first that can keep a slot on a standby.
const failoverVersion = 170000

// ensureFailover lets standbys keep a copy of the slot, so that it is there
// after a promotion. A temporary slot and its copy cannot have the property, so
// it is given here.
// https://www.postgresql.org/docs/current/logicaldecoding-explanation.html#LOGICALDECODING-REPLICATION-SLOTS-SYNCHRONIZATION
func (s *Session) ensureFailover(ctx context.Context) error {
	if s.server.Version < failoverVersion || s.server.Standby {
		return nil
	}
	var failover bool
	if err := s.ask(ctx, `SELECT coalesce(bool_and(failover), true) FROM pg_replication_slots WHERE slot_name = $1`, []any{s.cfg.Slot}, &failover); err != nil {
		return fmt.Errorf("read slot %q: %w", s.cfg.Slot, err)
	}
	if failover {
		return nil
	}
	ctx, cancel := context.WithTimeout(ctx, changeTimeout)
	defer cancel()
	_, err := s.repl.Exec(ctx, "ALTER_REPLICATION_SLOT "+cdc.QuoteIdent(s.cfg.Slot)+" (FAILOVER true)").ReadAll()
	if err != nil && s.repl.IsClosed() {
		return s.commandError("let standbys keep the slot", err)
	}
	if err != nil {
		// It streams without. Why it cannot, such as being lost or in use, is
		// said when it is started.
		s.log.Warn("standbys cannot keep the slot", "slot", s.cfg.Slot, "error", err)
	}
	return nil
}
