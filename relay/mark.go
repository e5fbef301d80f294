package relay

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/stagedoor/walrelay/cdc"
)

// lockReport is how long rows have to be stuck until it is looked up who holds
// them.
const lockReport = 5 * time.Second

// mark marks the rows that are on the stream until the publisher has ended and
// none is left, or flight ends. It never gives up: until a row is marked,
// nothing beyond it is confirmed.
func (s *streaming) mark(flight context.Context) error {
	beat, done := s.loop("marker")
	defer done()
	var retry backoff
	var (
		againAt    time.Time // when rows that were stuck are tried again
		pausedTill time.Time // nothing is tried before, after a failure
		stuckSince time.Time
		reported   time.Time
	)
	for {
		fresh, stuck := s.marks.counts()
		stopping := isClosed(s.published)
		if stopping && fresh == 0 {
			// What is stuck is marked after the next start: the slot delivers
			// it again, since nothing beyond it is confirmed.
			close(s.marked)
			return nil
		}
		now := time.Now()
		again := stuck > 0 && !now.Before(againAt) && !now.Before(pausedTill)
		if !again && (fresh == 0 || (now.Before(pausedTill) && !stopping)) {
			beat()
			if err := s.waitForMarks(flight, waitUntil(now, againAt, pausedTill)); err != nil {
				return err
			}
			continue
		}
		if !again && fresh < markBatch && !stopping && !sleep(flight, markLinger) {
			return context.Cause(flight)
		}

		s.step(StepMark)
		rows := s.marks.take(markBatch, again)
		s.status.marksTried()
		settled := keepBeating(beat)
		states, err := s.cfg.Table.Mark(flight, rows)
		settled()
		if flight.Err() != nil {
			return context.Cause(flight)
		}
		s.marks.settle(states)
		beat()
		if err != nil {
			refused := errors.Is(err, ErrMarkRefused)
			s.marks.setRefused(refused)
			s.status.marksFailed(err, refused)
			s.complain("marking", err)
			pausedTill = time.Now().Add(retry.next())
			continue
		}
		retry.reset()
		if s.status.marksWork() {
			s.marks.setRefused(false)
			if dropped := s.marks.takeDropped(); dropped > 0 {
				s.log.Warn("some rows that are published stay unmarked, more than could be remembered while marking was refused", "rows", dropped)
			}
			s.recovered("marking")
		}
		s.step(StepMarked)
		s.status.marked.Add(uint64(countMarked(states)))
		if again || stuck == 0 {
			// Not after each batch of fresh rows: while the table is written to
			// there is no end of them.
			againAt = time.Now().Add(markRetry)
		}
		if _, stuck := s.marks.counts(); stuck == 0 {
			if !stuckSince.IsZero() && !reported.IsZero() {
				s.status.rowLocked("")
				s.recovered("marking")
			}
			stuckSince, reported = time.Time{}, time.Time{}
		} else if stuckSince.IsZero() {
			stuckSince = time.Now()
		} else if time.Since(stuckSince) > lockReport && time.Since(reported) > lockReport {
			reported = time.Now()
			if ids := s.marks.ids(1); len(ids) > 0 {
				s.reportLocker(flight, ids[0], "WAL from there on stays on the server until it is marked")
			}
		}
	}
}

// waitUntil is how long to wait for the first of the times that is to come, and
// not longer than a loop may stand still.
func waitUntil(now time.Time, times ...time.Time) time.Duration {
	wait := 5 * time.Second
	for _, t := range times {
		if t.After(now) {
			wait = min(wait, t.Sub(now))
		}
	}
	return wait
}

// waitForMarks waits for rows to mark, for as long as given.
func (s *streaming) waitForMarks(flight context.Context, wait time.Duration) error {
	select {
	case <-s.marks.ready:
	case <-s.published:
	case <-time.After(wait):
	case <-flight.Done():
		return context.Cause(flight)
	}
	return nil
}

// reportLocker says who holds a row that is published and cannot be marked, and
// what that keeps from going on.
func (r *Relay) reportLocker(ctx context.Context, id, consequence string) {
	who, err := r.cfg.Table.Locker(ctx, id)
	if err != nil || who == "" {
		who = fmt.Sprintf("the row with id %s is locked, and it is not known by whom", id)
	}
	r.status.rowLocked(who)
	r.complain("marking", fmt.Errorf("%s; %s", who, consequence))
}

func countMarked(states []cdc.MarkState) int {
	n := 0
	for _, state := range states {
		if state == cdc.Marked {
			n++
		}
	}
	return n
}
