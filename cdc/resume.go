package cdc

import (
	"errors"
	"fmt"
)

// ErrHistory says that the WAL is not the one the checkpoint was written from:
// a backup or a volume snapshot was restored, which keeps the system's id and
// its timeline.
var ErrHistory = errors.New("the server's WAL is another history than the checkpoint's")

// Resume tells the rows that the stream has from those that it lacks, when a
// slot delivers again what an earlier connection had already appended.
//
// Where the slot must deliver the checkpoint's own transaction again, that
// very transaction has to be met before anything beyond it.
type Resume struct {
	last   Position
	commit Commit

	// Invariant: while unmet is true, nothing beyond last was let through.
	unmet bool
}

// NewResume resumes at a checkpoint, as it counts on this server (see
// [Checkpoint.On]), over a slot that was confirmed up to the
// given LSN: it delivers each transaction whose commit starts there or later.
func NewResume(cp Checkpoint, confirmed LSN) *Resume {
	return &Resume{
		last:   cp.Last,
		commit: cp.LastCommit,
		unmet:  cp.LastCommit.LSN != 0 && cp.Last.LSN >= confirmed,
	}
}

// Begin takes note of a transaction.
func (r *Resume) Begin(c Commit) error {
	if !r.unmet || c.LSN < r.last.LSN {
		return nil
	}
	if !c.Equal(r.commit) {
		return r.history(fmt.Sprintf("met transaction %d of %s at %s", c.XID, c.Time, c.LSN))
	}
	r.unmet = false
	return nil
}

// Keepalive takes note that everything before lsn has been delivered.
func (r *Resume) Keepalive(lsn LSN) error {
	if r.unmet && lsn > r.last.LSN {
		return r.history("and the server passed it")
	}
	return nil
}

func (r *Resume) history(met string) error {
	return fmt.Errorf("%w: expected the transaction %d of %s at %s, %s",
		ErrHistory, r.commit.XID, r.commit.Time, r.commit.LSN, met)
}

// Appended reports whether the stream has this row already.
func (r *Resume) Appended(p Position) bool { return p.Compare(r.last) <= 0 }

// Expected is the transaction that has to be met.
func (r *Resume) Expected() Commit { return r.commit }

// Met reports whether rows that the stream has may be marked: the checkpoint's
// transaction was met, or did not have to be.
func (r *Resume) Met() bool { return !r.unmet }
