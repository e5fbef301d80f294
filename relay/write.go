package relay

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/stagedoor/walrelay/cdc"
	"github.com/stagedoor/walrelay/internal/fault"
)

// conflictError says that the checkpoint is not the one this relay wrote last,
// so what it knows of Redis is out of date and it has to judge anew.
type conflictError struct {
	conflict cdc.Conflict
	missing  string // a stream that is gone
}

func (e *conflictError) Error() string {
	if e.missing != "" {
		return fmt.Sprintf("the stream %q is gone", e.missing)
	}
	return e.conflict.String()
}

// writer appends and stamps under the version it wrote last.
//
// Invariant: every state it offers has a version that was never offered before,
// and it offers the next one only when it knows what became of the one before,
// or over the same version, so that at most one of the two is ever written.
type writer struct {
	relay   *Relay
	key     string
	held    cdc.Version // what Redis holds, as far as we know
	current cdc.Checkpoint
	sent    time.Time // when the last try began: Redis had not gone back then, if it succeeded
	beat    func()    // of the loop that writes
}

const (
	// largeBytes is the least that Redis can be told to hang up on, and what is
	// sent at once in any case.
	largeBytes = 1 << 20
	// hangUps is after how many hang-ups in a row, by a Redis that answers
	// otherwise, it is taken to be because of what is sent.
	hangUps = 3
)

// newWriter continues from a checkpoint; nil for none.
func (r *Relay) newWriter(server cdc.Server, cp *cdc.Checkpoint) *writer {
	w := &writer{relay: r, key: r.cfg.Key(server), beat: r.beat}
	if cp != nil {
		w.held, w.current = cp.Version, cp.On(server)
		w.current.Standby = server.Standby
		w.current.LastIDs = nil // the script knows them better
	}
	return w
}

// write replaces the checkpoint by next and appends the events. It repeats the
// same write, under the same version, until Redis answers. Cancelling ctx ends
// it between two tries, r.kill also in the middle of one.
func (w *writer) write(ctx context.Context, next cdc.Checkpoint, events []cdc.Event) error {
	r := w.relay
	next.Format = cdc.CheckpointFormat
	next.Version, next.WrittenAt = r.nextVersion(), time.Now().UTC().Truncate(time.Millisecond)
	var retry backoff
	hungUp := 0
	large := bytesOf(events) >= largeBytes
	for {
		settled := func() {}
		if large {
			settled = keepBeating(func() { w.beat(); r.askMeanwhile() })
		}
		w.sent = time.Now()
		res, err := r.cfg.Sink.Append(r.kill, w.key, w.held, next, events)
		settled()
		switch {
		case err == nil && res.Done:
		case err == nil && res.MissingStream != "":
			return &conflictError{conflict: cdc.Forgotten, missing: res.MissingStream}
		case err == nil && res.Refused != "":
			return &refusedError{reason: res.Refused}
		case err == nil:
			if c := cdc.JudgeConflict(next.Version, res.Held); c != cdc.OwnSuccess {
				return &conflictError{conflict: c}
			}
		default:
			if len(events) > 0 {
				r.status.appendRetries.Add(1)
			} else {
				r.status.stampRetries.Add(1)
			}
			r.status.sinkFailed(err, false)
			r.complain("Redis", err)
			if large {
				hungUp = w.countHangUps(hungUp, err)
			}
			if hungUp == hangUps {
				return &refusedError{reason: fmt.Sprintf("it hung up %d times in a row, and answers otherwise: %s", hungUp, err)}
			}
			select {
			case <-time.After(retry.next()):
				w.beat()
				continue
			case <-ctx.Done():
				return errors.Join(context.Cause(ctx), err)
			}
		}
		if r.status.sinkWorks() {
			r.recovered("Redis")
		}
		w.held, w.current = next.Version, next
		w.current.LastIDs = nil
		return nil
	}
}

// askMeanwhile has Redis show that it is there, while it takes its time for
// something large: how long that may take tells too late that it is frozen.
func (r *Relay) askMeanwhile() {
	if _, err := r.cfg.Sink.Clock(r.kill); errors.Is(err, cdc.ErrNoAnswer) && r.kill.Err() == nil {
		r.status.sinkFailed(err, false)
	}
}

// countHangUps counts a failure of an append if Redis did not answer it and
// answers otherwise. What became of the append stays open: whatever is written
// next expects the same version, so that only one of the two can succeed.
func (w *writer) countHangUps(n int, err error) int {
	if !errors.Is(err, cdc.ErrNoAnswer) {
		return 0
	}
	if _, _, err := w.relay.cfg.Sink.Load(w.relay.kill, w.key); err != nil {
		return 0
	}
	return n + 1
}

func bytesOf(events []cdc.Event) int {
	n := 0
	for _, ev := range events {
		n += ev.Bytes
	}
	return n
}

// permanent reports whether an error waits for an operator.
func permanent(err error) bool {
	return fault.As(err) != nil || errors.Is(err, cdc.ErrUnknownMessage)
}
