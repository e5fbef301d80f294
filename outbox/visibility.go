package outbox

import (
	"fmt"
	"slices"
	"strconv"
	"strings"
)

// snapshot is what a statement could see, as pg_current_snapshot prints it.
// https://www.postgresql.org/docs/current/functions-info.html#FUNCTIONS-PG-SNAPSHOT
type snapshot struct {
	xmax    uint64   // the first transaction that had not been assigned yet, or later
	running []uint64 // those before xmax that were in progress; top-level ones only
}

// parseSnapshot reads XMIN:XMAX:XID,XID,…
func parseSnapshot(s string) (snapshot, error) {
	parts := strings.Split(s, ":")
	if len(parts) != 3 {
		return snapshot{}, fmt.Errorf("snapshot %q: want XMIN:XMAX:XIDS", s)
	}
	xmax, err := strconv.ParseUint(parts[1], 10, 64)
	if err != nil {
		return snapshot{}, fmt.Errorf("snapshot %q: %w", s, err)
	}
	snap := snapshot{xmax: xmax}
	if parts[2] == "" {
		return snap, nil
	}
	for _, part := range strings.Split(parts[2], ",") {
		xid, err := strconv.ParseUint(part, 10, 64)
		if err != nil {
			return snapshot{}, fmt.Errorf("snapshot %q: %w", s, err)
		}
		snap.running = append(snap.running, xid)
	}
	return snap, nil
}

// over reports whether the statement could see what a transaction did: a row
// of it that the statement does not see is gone. Otherwise the row may yet
// become visible. That is so while its commit, which is in the write-ahead log
// already, waits for a synchronous standby.
//
// The log has the lower half of a transaction's number. The upper half is that
// of the nearest such number to xmax: PostgreSQL itself keeps all transactions
// that it can tell apart within 2^31 of each other.
func (s snapshot) over(xid uint32) bool {
	distance := int64(int32(xid - uint32(s.xmax)))
	full := uint64(int64(s.xmax) + distance)
	return full < s.xmax && !slices.Contains(s.running, full)
}
