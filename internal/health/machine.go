package health

import (
	"cmp"
	"time"

	"github.com/stagedoor/walrelay/cdc"
)

// Machine judges one input after the other. It remembers what a single input
// cannot tell: the rates of the last minutes, and which levels were reached. It
// has no clock, and the same inputs give the same documents. It is not safe for
// use by several goroutines at once.
type Machine struct {
	age, unconfirmed, retained, short latch

	ageSeen       float64 // seconds, when the age was last known
	history       history
	forecast      runway    // at the last sample that gave one
	forecastAt    time.Time // of that
	runway        runway    // now
	shortSince    time.Time // since when it is short; zero while it is not
	dire          bool      // it has been for long enough to be critical
	hold          hold
	inactiveSince time.Time // zero while the slot is active
	sawActive     bool      // so that the samples tell when that ended
}

// Step judges by what is known now, of which the sample may be an older one.
func (m *Machine) Step(in Input) Document {
	in = clean(in)
	m.sample(&in)
	m.runway = m.forecast.later(in.Now.Sub(m.forecastAt))
	m.levels(&in)
	return judge(in, m)
}

// Judge judges a single input.
func Judge(in Input) Document { return new(Machine).Step(in) }

// sample takes what is new in a sample. While there is none, the forecast is the
// last one, as slot and age are.
func (m *Machine) sample(in *Input) {
	if in.SampledAt.IsZero() {
		return
	}
	p := point{at: in.SampledAt, timeline: in.Timeline, end: in.WALEnd}
	s := in.Slot
	if s == nil {
		s = in.Leftover
	}
	if s != nil {
		p.confirmed, p.restart, p.pinned = s.ConfirmedFlush, s.Restart, s.Restart
	}
	if o := in.Other; o != nil && (p.pinned == 0 || o.Restart < p.pinned) {
		p.pinned = o.Restart
	}
	if in.FullPages != nil {
		p.pages = cdc.LSN(*in.FullPages) + 1
	}
	m.history.round = min(cmp.Or(in.CheckpointEvery, roundUsual), roundMost)
	added, anew := m.history.add(p)
	if !added {
		return
	}
	switch {
	case s == nil || s.Active:
		m.inactiveSince, m.sawActive = time.Time{}, s != nil
	case !s.InactiveSince.IsZero():
		m.inactiveSince, m.sawActive = s.InactiveSince, true
	case m.inactiveSince.IsZero():
		m.inactiveSince = in.SampledAt
	}
	if ended := m.hold.step(in.SampledAt, held(in, s)); anew || ended {
		m.forecast = runway{}
	}
	budgets := budgets(in, s, p)
	if r := m.history.runway(budgets, m.hold); r.known || len(budgets) == 0 {
		m.forecast, m.forecastAt = r, in.SampledAt
	}
}

// budgets are the limits that there are.
func budgets(in *Input, s *Slot, p point) (all []budget) {
	if s != nil && s.SafeWALSize != nil && s.WALStatus != "lost" {
		all = append(all, budget{
			left: *s.SafeWALSize, position: func(p point) cdc.LSN { return p.restart }, ours: true,
			what: "max_slot_wal_keep_size has PostgreSQL remove WAL that slot " + quoted(s.Name) + " still needs",
		})
	}
	if most := in.Thresholds.DiskBudget; most > 0 && p.pinned != 0 && p.end >= p.pinned {
		all = append(all, budget{
			left: most - int64(p.end-p.pinned), position: func(p point) cdc.LSN { return p.pinned }, ours: p.pinned == p.restart,
			what: "the WAL that slots keep is more than --disk-budget, " + size(most),
		})
	}
	return all
}

// held says that it is known why nothing is released.
func held(in *Input, s *Slot) bool {
	return s != nil && !s.Active || !in.RedisAwaySince.IsZero() || !in.StreamingAwaySince.IsZero() ||
		len(in.Problems) > 0 || in.LockedRow != "" || in.SlotPinnedBy != ""
}

// levels steps the latches. A value that is not known has no level, but for the
// age while the table cannot be looked at: its rows do not go away by that.
func (m *Machine) levels(in *Input) {
	limits := in.Thresholds
	switch {
	case in.OldestAge != nil:
		m.ageSeen = *in.OldestAge
		m.age.step(m.ageSeen, limits.AgeWarn.Seconds(), limits.AgeCritical.Seconds())
	case in.TableUnseen == "":
		m.age.reset()
	}
	for _, lag := range []struct {
		latch *latch
		bytes *int64
	}{{&m.unconfirmed, in.unconfirmed()}, {&m.retained, in.retained()}} {
		if lag.bytes == nil {
			lag.latch.reset()
		} else {
			lag.latch.step(float64(*lag.bytes), float64(limits.LagWarn), float64(limits.LagCritical))
		}
	}
	if limit := limits.RunwayCritical; limit <= 0 || !m.runway.ends {
		m.short.reset()
	} else {
		// How many times it fits into the limit, so that less is more.
		m.short.step(limit.Seconds()/max(m.runway.after.Seconds(), 1e-3), 0, 1)
	}
	switch {
	case m.short.level() == StatusOK:
		m.shortSince, m.dire = time.Time{}, false
		return
	case m.shortSince.IsZero():
		m.shortSince = in.Now
	}
	m.dire = m.dire || in.Now.Sub(m.shortSince) >= patience(m.runway.after)
}
