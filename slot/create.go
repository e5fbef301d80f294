package slot

import (
	"context"
	"crypto/rand"
	"encoding/hex"
	"fmt"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/stagedoor/walrelay/cdc"
	"github.com/stagedoor/walrelay/internal/fault"
	"github.com/stagedoor/walrelay/internal/pg"
)

// slotsNeeded is what a backfill takes: the temporary slot and its copy.
const slotsNeeded = 2

// backfillPrefix is how the names of temporary slots begin.
const backfillPrefix = "walrelay_backfill_"

// CreateTemporary makes a temporary slot and exports its snapshot. Slot and
// snapshot last as long as the session, and the snapshot only until the next
// command on the replication connection: until then only Slot, WALEnd, Clock,
// Drop and Keep may be called.
//
// PostgreSQL finishes a slot when all transactions have ended that were open
// before it, in any database of the server, so this can take as long as the
// oldest of them. Every two seconds of that, waiting is told which one it is
// and how to end it. When ctx is done the creation is called off at once.
func (s *Session) CreateTemporary(ctx context.Context, waiting func(text string)) (cdc.Snapshot, error) {
	if err := s.checkFreeSlots(ctx); err != nil {
		return cdc.Snapshot{}, err
	}
	random := make([]byte, 8)
	rand.Read(random)
	name := backfillPrefix + hex.EncodeToString(random)

	type result struct {
		row [][]byte
		err error
	}
	created := make(chan result, 1)
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	go func() {
		row, err := oneRow(s.repl.Exec(ctx, "CREATE_REPLICATION_SLOT "+name+" TEMPORARY LOGICAL "+outputPlugin+" EXPORT_SNAPSHOT").ReadAll())
		created <- result{row, err}
	}()

	tick := time.NewTicker(s.lookEvery)
	defer tick.Stop()
	for {
		select {
		case r := <-created:
			return s.snapshot(name, r.row, r.err)
		case <-tick.C:
			text, err := s.waitsFor(ctx)
			if err != nil {
				// The replication connection is silent while it waits, so a
				// server that froze shows on the other one.
				cancel()
				if r := <-created; r.err == nil {
					return s.snapshot(name, r.row, nil)
				}
				return cdc.Snapshot{}, fmt.Errorf("create a temporary slot: %w", err)
			}
			waiting(text)
		}
	}
}

// snapshot reads the answer to CREATE_REPLICATION_SLOT.
func (s *Session) snapshot(name string, row [][]byte, err error) (cdc.Snapshot, error) {
	switch {
	case pg.Code(err) == codeConfigurationLimitExceeded:
		return cdc.Snapshot{}, slotLimitFault(err)
	case pg.Code(err) == codeInsufficientPrivilege:
		return cdc.Snapshot{}, replicationFault(s.cfg.Conn.User, err)
	case err != nil:
		return cdc.Snapshot{}, s.commandError("create a temporary slot", err)
	case len(row) < 3 || string(row[0]) != name:
		return cdc.Snapshot{}, fmt.Errorf("create a temporary slot: the server answered with %q", row)
	}
	consistent, err := cdc.ParseLSN(string(row[1]))
	if err != nil {
		return cdc.Snapshot{}, fmt.Errorf("create a temporary slot: %w", err)
	}
	return cdc.Snapshot{Name: string(row[2]), Slot: name, Consistent: consistent}, nil
}

// waitsFor says what the creation of a slot waits for.
func (s *Session) waitsFor(ctx context.Context) (string, error) {
	var h *Holder
	var what string
	err := s.within(ctx, s.askTimeout, func(ctx context.Context, conn *pgx.Conn) (err error) {
		h, what, err = readWaitedFor(ctx, conn, s.repl.PID())
		return err
	})
	switch {
	case err != nil:
		return "", err
	case h != nil:
		return fmt.Sprintf("creating the slot waits for %s; to end that: %s", h, h.Command()), nil
	case what != "" && what != "transactionid":
		return fmt.Sprintf("creating the slot waits for a lock of the kind %s; to see whose: SELECT pg_blocking_pids(%d);", what, s.repl.PID()), nil
	}
	return "creating the slot takes its time; no transaction is seen that it waits for (on a standby it waits for the primary: SELECT pg_log_standby_snapshot(); there)", nil
}

// checkFreeSlots makes sure that the copy at the end of a backfill has a place,
// too.
func (s *Session) checkFreeSlots(ctx context.Context) error {
	var free int
	err := s.ask(ctx, `SELECT current_setting('max_replication_slots')::int - count(*)::int FROM pg_replication_slots`, nil, &free)
	if err != nil {
		return fmt.Errorf("count the replication slots: %w", err)
	}
	return roomFault(free)
}

// roomFault is the fault of too few free slots for a backfill.
func roomFault(free int) error {
	if free >= slotsNeeded {
		return nil
	}
	return slotLimitFault(nil)
}

func slotLimitFault(cause error) error {
	return &fault.Error{
		Problem: fmt.Sprintf("a backfill needs %d free replication slots, and there are fewer", slotsNeeded),
		Fix:     "raise max_replication_slots and restart PostgreSQL, or drop slots that nobody uses: SELECT slot_name, database, restart_lsn FROM pg_replication_slots WHERE NOT active;",
		Err:     cause,
	}
}

// Keep copies the temporary slot to the slot, which is permanent and begins at
// the same consistent point.
func (s *Session) Keep(ctx context.Context, snap cdc.Snapshot) error {
	err := s.within(ctx, changeTimeout, func(ctx context.Context, conn *pgx.Conn) error {
		_, err := conn.Exec(ctx, `SELECT pg_copy_logical_replication_slot($1, $2, false)`, snap.Slot, s.cfg.Slot)
		return err
	})
	switch pg.Code(err) {
	case "":
	case codeConfigurationLimitExceeded:
		return slotLimitFault(err)
	case codeDuplicateObject:
		return inUse(s.cfg.Slot, 0, err)
	case codeUndefinedObject, codeObjectNotInPrerequisiteState, codeUndefinedFile:
		return fmt.Errorf("%w: the temporary slot was gone before the backfill was finished: %w", ErrSlotLost, err)
	case codeInsufficientPrivilege:
		return replicationFault(s.cfg.Conn.User, err)
	}
	if err != nil {
		return fmt.Errorf("keep the slot: %w", err)
	}
	slot, err := s.Slot(ctx)
	switch {
	case err != nil:
		return err
	case slot == nil:
		return missing(s.cfg.Slot, nil)
	case slot.ConfirmedFlush != snap.Consistent:
		// Rows between the two would be in neither the backfill nor the slot.
		return fmt.Errorf("keep the slot: it begins at %s, the snapshot ends at %s", slot.ConfirmedFlush, snap.Consistent)
	}
	return nil
}

// Drop removes the slot. None is fine; one that is active is ErrSlotInUse, and
// one that is somebody else's is a fault.
func (s *Session) Drop(ctx context.Context) error {
	slot, err := s.Slot(ctx)
	switch {
	case err != nil:
		return err
	case slot == nil:
		return nil
	case slot.Active:
		return inUse(slot.Name, slot.ActivePID, nil)
	}
	err = s.within(ctx, changeTimeout, func(ctx context.Context, conn *pgx.Conn) error {
		return dropSlot(ctx, conn, s.cfg.Slot)
	})
	if pg.Code(err) == codeInsufficientPrivilege {
		return replicationFault(s.cfg.Conn.User, err)
	}
	return err
}

// dropSlot looks once more in the same statement, since a slot can be dropped
// and made again by others at any time.
func dropSlot(ctx context.Context, conn *pgx.Conn, name string) error {
	_, err := conn.Exec(ctx, `
		SELECT pg_drop_replication_slot(slot_name) FROM pg_replication_slots
		WHERE slot_name = $1 AND plugin = $2 AND database = current_database()`, name, outputPlugin)
	switch pg.Code(err) {
	case codeUndefinedObject:
		return nil
	case codeObjectInUse:
		return inUse(name, 0, err)
	}
	if err != nil {
		return fmt.Errorf("drop slot %q: %w", name, err)
	}
	return nil
}
