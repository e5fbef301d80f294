package status

import (
	"fmt"
	"slices"

	"github.com/stagedoor/walrelay/cdc"
	"github.com/stagedoor/walrelay/internal/fault"
	"github.com/stagedoor/walrelay/internal/health"
)

// steps are what to do, the most urgent first.
func (l *Look) steps(doc health.Document) []Step {
	d, r := &l.Database, &l.Redis
	steps := []Step{}
	add := func(text, command string) { steps = append(steps, Step{text, command}) }
	if !d.AwaySince.IsZero() {
		add("see whether PostgreSQL answers", d.Check)
	}
	if !r.AwaySince.IsZero() {
		add("see whether Redis answers", r.Check)
	}
	for _, p := range l.Problems {
		if f := fault.As(p); f != nil && f.Fix != "" {
			add("repair what stops the line", f.Fix)
		}
	}
	if d.SeenAt.IsZero() {
		return steps
	}
	role := l.role()
	if s := d.Slot; s != nil && s.WALStatus == "unreserved" {
		add("have PostgreSQL keep the slot's WAL, as far as the disk allows", "ALTER SYSTEM SET max_slot_wal_keep_size = '50GB'; SELECT pg_reload_conf();")
	}
	if role == health.RoleNone && l.expected() {
		if l.others() {
			add("stop the poller, if one works: rows that it and a relay take at the same time are doubled", "")
		}
		add("see why the relay does not stream (its log, its /healthz); if it does not run, start it, with the settings of this command", "walrelay run")
		if d.Slot != nil && d.Slot.WALStatus != "lost" && r.AwaySince.IsZero() && !l.blocked() {
			add("or, if none is to come back, drop the slot, so that PostgreSQL can remove the WAL", "walrelay teardown")
		}
	}
	if role == health.RoleNone && !l.expected() && doc.Status != health.StatusOK && !l.oldest().IsZero() {
		add("start a relay, after a look whether it would work; or a poller", "walrelay check")
	}
	if d.Waits != "" && role == health.RoleBackfill {
		add("end "+d.Waits, d.EndWait)
	}
	if slices.Contains(doc.Causes, health.CauseTransaction) && d.Holder != "" {
		add("end "+d.Holder, d.EndHold)
	}
	if o := d.Other; slices.Contains(doc.Causes, health.CauseOtherSlot) && o != nil && !o.Active {
		add(fmt.Sprintf("drop the slot %q, if nobody needs it", o.Name), fmt.Sprintf("SELECT pg_drop_replication_slot(%s);", cdc.QuoteLiteral(o.Name)))
	}
	if role == health.RoleStreaming && doc.Status != health.StatusOK && len(steps) == 0 && l.HTTP != "" {
		add("ask the relay itself, on its machine", "curl http://"+l.HTTP+"/healthz")
	}
	return steps
}
