package outbox

import (
	"context"
	"time"
)

const (
	// Between two passes lies a tenth of what rows are kept for, within bounds.
	purgeEvery = 10
	purgeLeast = time.Second
	purgeMost  = time.Hour
	// walkShare bounds the part of the time in which the table is walked over.
	walkShare = 20
	// slotPatience is how long a pass waits for the slot. The next one begins anew.
	slotPatience = time.Minute
	// purgeAgain is when a pass that failed or was cut short is made again, at
	// most.
	purgeAgain = time.Minute
	// purgeLook is how often it is looked whether it is time.
	purgeLook = time.Second
)

// Run makes a pass again and again until ctx ends: every tenth of
// PurgeConfig.OlderThan, at least every hour, at most every second, and more
// seldom where a walk over the table takes long. Only while may says so, which
// is asked between batches, too: for one of several relays, that which works.
//
// A pass that fails is logged when the reason is new, and never an error. With an
// OlderThan of 0 there is nothing to do.
func (p *Purger) Run(ctx context.Context, may func() bool) error {
	if p.cfg.OlderThan == 0 {
		return nil
	}
	every := min(max(p.cfg.OlderThan/purgeEvery, purgeLeast), purgeMost)
	var next time.Time
	failing := ""
	for rest(ctx, purgeLook) {
		if time.Now().Before(next) || !may() {
			continue
		}
		began := time.Now()
		pass := &purgePass{Purger: p, patience: slotPatience, may: may}
		err := pass.run(ctx)
		pause := every
		if err != nil || pass.cut {
			pause = min(every, purgeAgain)
		}
		next = time.Now().Add(max(pause, walkShare*pass.reading))
		switch {
		case ctx.Err() != nil:
		case err != nil && err.Error() != failing:
			failing = err.Error()
			p.log.Warn("purging published rows fails", "err", err, "deleted", pass.done.Deleted)
		case err == nil && !pass.cut:
			if failing != "" {
				failing = ""
				p.log.Info("purging published rows works again")
			}
			p.log.Debug("purged published rows", "deleted", pass.done.Deleted, "kept", pass.done.Kept, "took", time.Since(began).Round(time.Millisecond))
		}
	}
	return nil
}
