package health

import (
	"fmt"
	"strings"
	"testing"
	"time"
)

// A stage's state is a level only for what has one, and what was not seen is
// never ok.
func TestStagesFollowARow(t *testing.T) {
	now := time.Date(2026, 11, 29, 12, 0, 0, 0, time.UTC)
	ago := func(d time.Duration) time.Time { return now.Add(-d) }
	bytes := func(n int64) *int64 { return &n }
	count := func(n int) *int { return &n }
	age := func(s float64) *float64 { return &s }
	base := func() Input {
		return Input{
			Now: now, SampledAt: now, WALEnd: 1 << 30, Timeline: 1, OldestAge: age(0),
			Thresholds: Thresholds{AgeWarn: 5 * time.Second, AgeCritical: time.Minute, LagWarn: 1 << 20, LagCritical: 1 << 30},
			Role:       RoleStreaming, Streaming: true,
			Slot: &Slot{Name: "walrelay", Active: true, WALStatus: "reserved", UnconfirmedBytes: bytes(0), RetainedBytes: bytes(2048)},
		}
	}
	for _, c := range []struct {
		name string
		with func(*Input)
		want []string
	}{
		{"healthy", func(*Input) {}, []string{
			"writers ok: PostgreSQL answers", "wal ok: 2.0 KiB kept for the slot", "connection ok: streaming", "relay ok: streaming", "redis ok: takes entries", "groups unknown: not seen",
		}},
		{"Redis is away", func(in *Input) { in.RedisAwaySince = ago(10 * time.Second) }, []string{
			"redis warn: away since 11:59:50", "relay ok: streaming",
		}},
		{"Redis takes nothing", func(in *Input) {
			in.RedisAwaySince, in.RedisStopped, in.Problems = ago(time.Second), true, []string{"WRONGTYPE"}
		}, []string{"redis critical: takes no entries since 11:59:59"}},
		{"the stream is seen", func(in *Input) {
			in.Stream = &Stream{Length: 1, GroupCount: count(2), Groups: []Group{{Lag: bytes(3), Pending: 1}, {Lag: bytes(0), Pending: 1}}}
		}, []string{"redis ok: 1 entry", "groups ok: 2 groups, 3 to come, 2 pending"}},
		{"a group's lag is not known", func(in *Input) {
			in.Stream = &Stream{Length: 1234567, GroupCount: count(1), Groups: []Group{{Pending: 1}}}
		}, []string{"redis ok: 1,234,567 entries", "groups ok: 1 group"}},
		{"nothing waits", func(in *Input) { in.Stream = &Stream{GroupCount: count(1), Groups: []Group{{Lag: bytes(0)}}} }, []string{"groups ok: 1 group, nothing waits"}},
		{"there is no group, and Redis is away", func(in *Input) {
			in.Stream, in.RedisAwaySince = &Stream{GroupCount: count(0)}, ago(time.Second)
		}, []string{"groups unknown: no consumer group, as last seen"}},
		{"groups may not be read", func(in *Input) { in.Stream = &Stream{} }, []string{"groups unknown: not seen"}},
		{"Redis is away for long", func(in *Input) { in.RedisAwaySince = ago(time.Minute) }, []string{"redis critical: away since 11:59:00"}},
		{"the slot is lost", func(in *Input) { in.Slot.WALStatus, in.Role, in.Streaming = "lost", RoleStarting, false }, []string{
			"wal critical: the slot has lost WAL", "connection warn: not connected yet", "relay warn: starting",
		}},
		{"the slot is about to be lost", func(in *Input) { in.Slot.WALStatus = "unreserved" }, []string{"wal critical: the slot is about to lose WAL"}},
		{"much is kept", func(in *Input) { in.Slot.RetainedBytes = bytes(2 << 20) }, []string{"wal warn: 2.0 MiB kept for the slot"}},
		{"extended", func(in *Input) { in.Slot.WALStatus = "extended" }, []string{"wal warn: 2.0 KiB kept for the slot"}},
		{"the monitor is blind", func(in *Input) { in.DatabaseAwaySince = ago(time.Second) }, []string{
			"writers unknown: not seen", "wal unknown: 2.0 KiB kept for the slot, as last seen", "connection ok: streaming",
		}},
		{"blind, with a lost slot", func(in *Input) { in.DatabaseAwaySince, in.Slot.WALStatus = ago(time.Second), "lost" }, []string{
			"writers unknown: not seen", "wal critical: the slot has lost WAL, as last seen",
		}},
		{"streaming is interrupted", func(in *Input) { in.Streaming, in.StreamingAwaySince = false, ago(2*time.Second) }, []string{
			"connection warn: interrupted since 11:59:58", "relay ok: streaming",
		}},
		{"nothing was seen yet", func(in *Input) { in.Role, in.Streaming, in.SampledAt, in.Slot = "", false, time.Time{}, nil }, []string{
			"writers unknown: not seen", "wal unknown: not seen yet", "connection warn: not connected yet", "relay warn: starting",
		}},
		{"a standby", func(in *Input) {
			in.Role, in.Streaming, in.Holder = RoleStandby, false, "the slot is in use by process 4711"
		}, []string{
			"connection idle: another relay has it", "relay ok: stands by", "redis ok: answers",
		}},
		{"a standby without an active relay", func(in *Input) {
			in.Role, in.Streaming, in.Slot.Active, in.StreamingAwaySince = RoleStandby, false, false, ago(2*time.Minute)
		}, []string{"connection critical: no relay has it since 11:58:00"}},
		{"a standby that cannot see", func(in *Input) {
			in.Role, in.Streaming, in.DatabaseAwaySince = RoleStandby, false, ago(time.Second)
		}, []string{"connection unknown: not seen"}},
		{"a first backfill", func(in *Input) { in.Role, in.Streaming, in.Slot = RoleBackfill, false, nil }, []string{
			"wal idle: the slot is being made", "connection idle: after the backfill", "relay ok: backfill: reading the table",
		}},
		{"a backfill that waits", func(in *Input) { in.Role, in.Streaming, in.Waiting = RoleBackfill, false, "for pid 1" }, []string{
			"connection warn: waits for a transaction",
		}},
		{"a heal", func(in *Input) { in.Role, in.Streaming, in.Healing = RoleBackfill, false, "the slot was dropped" }, []string{
			"relay warn: puts rows back: reading the table",
		}},
		{"a problem", func(in *Input) {
			in.Streaming, in.StreamingAwaySince, in.Problems = false, ago(time.Second), []string{"a column is gone"}
		}, []string{"connection critical: interrupted since 11:59:59", "relay critical: stopped until somebody acts"}},
		{"marks are refused", func(in *Input) { in.MarksRefused = "no" }, []string{"relay critical: streaming, marks are refused"}},
		{"a row is locked", func(in *Input) { in.LockedRow = "row 1" }, []string{"relay warn: streaming, a row is locked"}},
		{"a poller", func(in *Input) { in.Role, in.Slot = RolePolling, nil }, []string{
			"writers ok: PostgreSQL answers", "table ok: every row is published", "relay ok: polling", "redis ok: takes entries",
		}},
		{"a poller that is behind", func(in *Input) { in.Role, in.Slot, in.OldestAge = RolePolling, nil, age(61) }, []string{
			"table critical: the oldest row waits for 1 min 1 s",
		}},
		{"a poller that is cut off", func(in *Input) {
			in.Role, in.Slot, in.OldestAge, in.Streaming, in.StreamingAwaySince = RolePolling, nil, nil, false, ago(time.Second)
		}, []string{"table unknown: not seen", "relay warn: polling is interrupted since 11:59:59"}},
	} {
		t.Run(c.name, func(t *testing.T) {
			in := base()
			c.with(&in)
			var got []string
			for _, s := range Judge(in).Stages {
				line := fmt.Sprintf("%s %s: %s", s.Name, s.State, s.Text)
				if s.Since != nil {
					line += " since " + s.Since.Format(time.TimeOnly)
				}
				got = append(got, line)
			}
			for _, want := range c.want {
				if all := "\n" + strings.Join(got, "\n") + "\n"; !strings.Contains(all, "\n"+want+"\n") {
					t.Errorf("%q is not in%s", want, all)
				}
			}
		})
	}
}
