package health

import (
	"cmp"
	"encoding/json"
	"math"
	"slices"
	"strings"
	"testing"
	"time"
)

const gib = 1 << 30

var now = time.Date(2025, 3, 1, 3, 0, 0, 0, time.UTC)

func ago(d time.Duration) time.Time { return now.Add(-d) }

func ptr[T any](v T) *T { return &v }

// healthy is a relay that streams, with the default thresholds.
func healthy() Input {
	return Input{
		Now:        now,
		Thresholds: Thresholds{AgeCritical: time.Minute, LagCritical: gib},
		Role:       RoleStreaming,
		Streaming:  true,
		Slot: &Slot{
			Name: "walrelay", Active: true, WALStatus: "reserved",
			ConfirmedFlush: 0x16B3748, Restart: 0x16B3700,
			UnconfirmedBytes: ptr[int64](0), RetainedBytes: ptr[int64](72),
		},
		OldestAge: ptr(0.25),
		Published: 7,
	}
}

// The rules, one a line: what differs from healthy, and what comes out.
func TestJudge(t *testing.T) {
	type change = func(*Input)
	const (
		age       = "The oldest unpublished row is 1 min old (critical from 1 min)."
		starting  = "The relay has been starting for 3.0 s: no row is published yet."
		backfill  = "A backfill is running: 10 of 20 rows appended."
		standby   = "Stands by: the slot is in use by process 4711."
		redisAway = "Redis has been away for 59 s (last error: connection refused); rows wait in PostgreSQL, which keeps their WAL."
	)
	toRedisAway := func(d time.Duration) change {
		return func(in *Input) { in.RedisAwaySince, in.RedisError = ago(d), "connection refused" }
	}
	toStreamingAway := func(d time.Duration) change {
		return func(in *Input) {
			in.Streaming, in.StreamingAwaySince, in.StreamingError = false, ago(d), "FATAL: 57P03"
		}
	}
	toDatabaseAway := func(d time.Duration) change {
		return func(in *Input) { in.DatabaseAwaySince, in.DatabaseError = ago(d), "i/o timeout" }
	}
	toAge := func(seconds float64) change { return func(in *Input) { in.OldestAge = &seconds } }
	toUnconfirmed := func(n int64) change { return func(in *Input) { in.Slot.UnconfirmedBytes = &n } }
	toRetained := func(n int64) change { return func(in *Input) { in.Slot.RetainedBytes = &n } }
	toWALStatus := func(s string) change { return func(in *Input) { in.Slot.WALStatus = s } }
	toBackfill := func(in *Input) {
		in.Role, in.Streaming, in.Slot, in.BackfillProgress = RoleBackfill, false, nil, "10 of 20 rows appended"
	}
	toStandby := func(in *Input) {
		in.Role, in.Streaming, in.Holder = RoleStandby, false, "the slot is in use by process 4711"
	}
	toAlone := func(in *Input) { toStandby(in); in.Holder, in.Slot.Active = "", false }
	toStarting := func(in *Input) {
		in.Role, in.Streaming, in.StreamingAwaySince, in.Slot = RoleStarting, false, ago(3*time.Second), nil
	}
	toNone := func(in *Input) { in.Role, in.Streaming, in.Slot.Active = RoleNone, false, false }
	toPolling := func(in *Input) { in.Role, in.Slot = RolePolling, nil }
	toLeftover := func(active bool) change {
		return func(in *Input) {
			in.Leftover = &Slot{Name: "walrelay", Active: active, RetainedBytes: ptr[int64](3 * gib / 2)}
		}
	}
	off := func(in *Input) { in.Thresholds = Thresholds{} }

	for _, c := range []struct {
		name    string
		changes []change
		status  Status
		reasons []string
	}{
		{"streaming", nil, StatusOK, nil},
		{"nothing seen yet of slot and age", []change{func(in *Input) { in.Slot, in.OldestAge = nil, nil }}, StatusOK, nil},
		{"slot not active for a look", []change{func(in *Input) { in.Slot.Active = false }}, StatusOK, nil},

		// Polling
		{"polling", []change{toPolling}, StatusOK, nil},
		{"polling, and Redis is away", []change{toPolling, toRedisAway(0)}, StatusWarn, []string{
			"Redis has been away for 0.0 s (last error: connection refused); rows wait in the table.",
		}},
		{"polling is interrupted", []change{toPolling, toStreamingAway(time.Minute)}, StatusCritical, []string{
			"Polling has been interrupted for 1 min (last error: FATAL: 57P03).",
		}},
		{"polling beside a slot that nobody reads", []change{toPolling, toLeftover(false)}, StatusWarn, []string{
			"PostgreSQL keeps 1.5 GiB of WAL, and more with every change, for slot \"walrelay\", which nobody reads: go back to walrelay run, or drop the slot with walrelay teardown.",
		}},
		{"polling beside a relay", []change{toPolling, toLeftover(true)}, StatusWarn, []string{
			"A relay streams from slot \"walrelay\" beside this poller, so that rows may be published twice: stop one of the two.",
		}},

		// Redis
		{"Redis just went away", []change{toRedisAway(0)}, StatusWarn, []string{
			"Redis has been away for 0.0 s (last error: connection refused); rows wait in PostgreSQL, which keeps their WAL.",
		}},
		{"Redis away under the threshold", []change{toRedisAway(time.Minute - 1)}, StatusWarn, []string{redisAway}},
		{"Redis away for the threshold", []change{toRedisAway(time.Minute)}, StatusCritical, []string{
			"Redis has been away for 1 min (last error: connection refused); rows wait in PostgreSQL, which keeps their WAL.",
		}},
		{"Redis away in the future", []change{toRedisAway(-time.Hour)}, StatusWarn, []string{
			"Redis has been away for 0.0 s (last error: connection refused); rows wait in PostgreSQL, which keeps their WAL.",
		}},
		{"Redis away without an error", []change{toRedisAway(90 * time.Minute), func(in *Input) { in.RedisError = "" }}, StatusCritical, []string{
			"Redis has been away for 1 h 30 min; rows wait in PostgreSQL, which keeps their WAL.",
		}},
		{"an old error while Redis is there", []change{func(in *Input) { in.RedisError = "old" }}, StatusOK, nil},
		{"Redis away, age at the threshold", []change{toRedisAway(59 * time.Second), toAge(60)}, StatusCritical, []string{redisAway, age}},
		{"Redis away, unconfirmed at the threshold", []change{toRedisAway(59 * time.Second), toUnconfirmed(gib)}, StatusCritical, []string{
			redisAway, `1.0 GiB of WAL are not confirmed on slot "walrelay" (critical from 1.0 GiB).`,
		}},
		{"Redis away, retained at the threshold", []change{toRedisAway(59 * time.Second), toRetained(gib)}, StatusCritical, []string{
			redisAway, `PostgreSQL keeps 1.0 GiB of WAL for slot "walrelay" (critical from 1.0 GiB).`,
		}},
		{"Redis away, thresholds off", []change{off, toRedisAway(59 * time.Second), toAge(1e6), toUnconfirmed(9 * gib), toRetained(9 * gib)}, StatusWarn, []string{redisAway}},

		// Streaming
		{"streaming just went away", []change{toStreamingAway(0)}, StatusWarn, []string{
			"Streaming from PostgreSQL has been interrupted for 0.0 s (last error: FATAL: 57P03).",
		}},
		{"streaming away under the threshold", []change{toStreamingAway(time.Minute - 1)}, StatusWarn, []string{
			"Streaming from PostgreSQL has been interrupted for 59 s (last error: FATAL: 57P03).",
		}},
		{"streaming away for the threshold", []change{toStreamingAway(time.Minute)}, StatusCritical, []string{
			"Streaming from PostgreSQL has been interrupted for 1 min (last error: FATAL: 57P03).",
		}},
		{"streaming away, age at the threshold", []change{toStreamingAway(0), toAge(60)}, StatusCritical, []string{
			"Streaming from PostgreSQL has been interrupted for 0.0 s (last error: FATAL: 57P03).", age,
		}},
		{"streaming away since nobody knows when", []change{func(in *Input) { in.Streaming = false }}, StatusWarn, []string{
			"Streaming from PostgreSQL has been interrupted.",
		}},
		{"streaming again", []change{toStreamingAway(time.Hour), func(in *Input) { in.Streaming = true }}, StatusOK, nil},

		// The monitor
		{"the monitor's connection went away", []change{toDatabaseAway(time.Second)}, StatusWarn, []string{
			"PostgreSQL has not answered the monitor for 1.0 s (last error: i/o timeout); slot and age are as last seen.",
		}},
		{"the monitor's connection away for the threshold", []change{toDatabaseAway(time.Minute)}, StatusCritical, []string{
			"PostgreSQL has not answered the monitor for 1 min (last error: i/o timeout); slot and age are as last seen.",
		}},
		{"PostgreSQL and Redis away", []change{toDatabaseAway(time.Second), toStreamingAway(time.Second), toRedisAway(59 * time.Second)}, StatusWarn, []string{
			"PostgreSQL has not answered the monitor for 1.0 s (last error: i/o timeout); slot and age are as last seen.",
			"Streaming from PostgreSQL has been interrupted for 1.0 s (last error: FATAL: 57P03).",
			redisAway,
		}},
		{"the worse of two comes first", []change{toDatabaseAway(time.Second), toRedisAway(time.Minute)}, StatusCritical, []string{
			"Redis has been away for 1 min (last error: connection refused); rows wait in PostgreSQL, which keeps their WAL.",
			"PostgreSQL has not answered the monitor for 1.0 s (last error: i/o timeout); slot and age are as last seen.",
		}},

		// Age and lag with nothing away
		{"age under the threshold", []change{toAge(59.999)}, StatusOK, nil},
		{"age at the threshold", []change{toAge(60)}, StatusCritical, []string{age}},
		{"age unknown", []change{func(in *Input) { in.OldestAge = nil }}, StatusOK, nil},
		{"age in the future", []change{toAge(-3600)}, StatusOK, nil},
		{"age of centuries", []change{toAge(1e300)}, StatusCritical, []string{
			"The oldest unpublished row is 104166 d 16 h old (critical from 1 min).",
		}},
		{"age threshold off", []change{toAge(1e6), func(in *Input) { in.Thresholds.AgeCritical = 0 }}, StatusOK, nil},
		{"unconfirmed under the threshold", []change{toUnconfirmed(gib - 1)}, StatusOK, nil},
		{"unconfirmed at the threshold", []change{toUnconfirmed(gib)}, StatusCritical, []string{
			`1.0 GiB of WAL are not confirmed on slot "walrelay" (critical from 1.0 GiB).`,
		}},
		{"retained under the threshold", []change{toRetained(gib - 1)}, StatusOK, nil},
		{"retained at the threshold", []change{toRetained(gib)}, StatusCritical, []string{
			`PostgreSQL keeps 1.0 GiB of WAL for slot "walrelay" (critical from 1.0 GiB).`,
		}},
		{"lag threshold off", []change{toUnconfirmed(9 * gib), toRetained(9 * gib), func(in *Input) { in.Thresholds.LagCritical = 0 }}, StatusOK, nil},
		{"retained, and who holds it back", []change{toRetained(3*gib + gib/2), func(in *Input) { in.SlotPinnedBy = "process 99" }}, StatusCritical, []string{
			`PostgreSQL keeps 3.5 GiB of WAL for slot "walrelay" (critical from 1.0 GiB); held back by process 99.`,
		}},
		{"held back, and not much", []change{func(in *Input) { in.SlotPinnedBy = "process 99" }}, StatusOK, []string{"WAL is held back by process 99."}},
		{"lag on an idle slot", []change{toUnconfirmed(gib), func(in *Input) { in.Slot.Active = false }}, StatusCritical, []string{
			`1.0 GiB of WAL are not confirmed on slot "walrelay" (critical from 1.0 GiB); nobody reads from the slot.`,
		}},

		// wal_status
		{"no wal_status", []change{toWALStatus("")}, StatusOK, nil},
		{"extended", []change{toWALStatus("extended")}, StatusWarn, []string{
			`Slot "walrelay" makes PostgreSQL keep more WAL than max_wal_size (wal_status extended).`,
		}},
		{"extended with a budget", []change{toWALStatus("extended"), func(in *Input) { in.Slot.SafeWALSize = ptr[int64](16 << 20) }}, StatusWarn, []string{
			`Slot "walrelay" makes PostgreSQL keep more WAL than max_wal_size (wal_status extended); 16.0 MiB more can be written before the slot loses WAL.`,
		}},
		{"unreserved", []change{toWALStatus("unreserved")}, StatusCritical, []string{
			`PostgreSQL removes WAL that slot "walrelay" still needs at its next checkpoint (wal_status unreserved): raise max_slot_wal_keep_size now, or see that the relay catches up.`,
		}},
		{"lost", []change{toWALStatus("lost"), func(in *Input) { in.Slot.RetainedBytes, in.Slot.UnconfirmedBytes = nil, nil }}, StatusCritical, []string{
			`PostgreSQL removed WAL that slot "walrelay" still needed (wal_status lost): rows that were not published yet cannot come from this slot any more.`,
		}},
		{"a wal_status of a later PostgreSQL", []change{toWALStatus("odd")}, StatusWarn, []string{`Slot "walrelay" has the unknown wal_status "odd".`}},

		// What stops the line
		{"a gap", []change{func(in *Input) { in.Problems = []string{"Redis lost 3 s.\nTo repair: do"} }}, StatusCritical, []string{
			"The line has stopped until somebody acts: Redis lost 3 s. To repair: do",
		}},
		{"a problem comes before all else", []change{toAge(60), toWALStatus("lost"), toRedisAway(time.Minute), func(in *Input) { in.Problems = []string{"a", "b"} }}, StatusCritical, []string{
			"The line has stopped until somebody acts: a",
			"The line has stopped until somebody acts: b",
			`PostgreSQL removed WAL that slot "walrelay" still needed (wal_status lost): rows that were not published yet cannot come from this slot any more.`,
			"Redis has been away for 1 min (last error: connection refused); rows wait in PostgreSQL, which keeps their WAL.",
			age,
		}},
		{"a problem on a standby", []change{toStandby, func(in *Input) { in.Problems = []string{"a"} }}, StatusCritical, []string{
			"The line has stopped until somebody acts: a", standby,
		}},
		{"marks refused", []change{func(in *Input) { in.MarksRefused = "permission denied; GRANT UPDATE" }}, StatusCritical, []string{
			"Published rows cannot be marked, so that rows that are missed go unnoticed; publishing goes on: permission denied; GRANT UPDATE",
		}},

		// Held up
		{"a locked row", []change{func(in *Input) { in.LockedRow = "row 7 is locked by process 12" }}, StatusWarn, []string{
			"Published rows cannot be marked, and WAL is not confirmed: row 7 is locked by process 12.",
		}},

		// Starting
		{"starting", []change{toStarting}, StatusWarn, []string{starting}},
		{"no role is starting", []change{toStarting, func(in *Input) { in.Role = "" }}, StatusWarn, []string{starting}},
		{"starting for the threshold", []change{toStarting, toStreamingAway(time.Minute)}, StatusCritical, []string{
			"The relay has been starting for 1 min (last error: FATAL: 57P03): no row is published yet.",
		}},
		{"starting, age at the threshold", []change{toStarting, toAge(60)}, StatusCritical, []string{starting, age}},
		{"starting and connected", []change{toStarting, func(in *Input) { in.Streaming = true }}, StatusWarn, []string{"The relay is starting."}},

		// Backfill
		{"backfill", []change{toBackfill}, StatusOK, []string{backfill}},
		{"backfill that has not read yet", []change{toBackfill, func(in *Input) { in.BackfillProgress = "" }}, StatusOK, []string{
			"A backfill is running: reading the table.",
		}},
		{"backfill does not stream, for hours", []change{toBackfill, func(in *Input) { in.StreamingAwaySince = ago(5 * time.Hour) }}, StatusOK, []string{backfill}},
		{"backfill without its connection", []change{toBackfill, toStreamingAway(time.Second)}, StatusWarn, []string{
			"The backfill has not reached PostgreSQL for 1.0 s (last error: FATAL: 57P03).", backfill,
		}},
		{"backfill without its connection for the threshold", []change{toBackfill, toStreamingAway(time.Minute)}, StatusCritical, []string{
			"The backfill has not reached PostgreSQL for 1 min (last error: FATAL: 57P03).", backfill,
		}},
		{"backfill after an error", []change{toBackfill, func(in *Input) { in.StreamingError = "old" }}, StatusOK, []string{backfill}},
		{"backfill of old rows", []change{toBackfill, toAge(3 * 3600)}, StatusCritical, []string{
			"The oldest unpublished row is 3 h old (critical from 1 min).", backfill,
		}},
		{"backfill while Redis is away", []change{toBackfill, toRedisAway(59 * time.Second)}, StatusWarn, []string{redisAway, backfill}},
		{"backfill that waits for a transaction", []change{toBackfill, func(in *Input) { in.Waiting = "it waits for process 31, idle in transaction" }}, StatusWarn, []string{
			"The slot is not created yet: it waits for process 31, idle in transaction.", backfill,
		}},

		// Standby
		{"standby", []change{toStandby}, StatusOK, []string{standby}},
		{"standby beside a backfill", []change{toStandby, func(in *Input) { in.Slot = nil }}, StatusOK, []string{standby}},
		{"standby does not stream, for hours", []change{toStandby, toStreamingAway(5 * time.Hour)}, StatusOK, []string{standby}},
		{"standby that knows the other from the slot", []change{toStandby, func(in *Input) { in.Holder = "" }}, StatusOK, []string{
			"Stands by: another relay is active.",
		}},
		{"standby, age at the threshold", []change{toStandby, toAge(60)}, StatusCritical, []string{age, standby}},
		{"standby, unconfirmed at the threshold", []change{toStandby, toUnconfirmed(gib)}, StatusCritical, []string{
			`1.0 GiB of WAL are not confirmed on slot "walrelay" (critical from 1.0 GiB).`, standby,
		}},
		{"standby, retained at the threshold", []change{toStandby, toRetained(gib)}, StatusCritical, []string{
			`PostgreSQL keeps 1.0 GiB of WAL for slot "walrelay" (critical from 1.0 GiB).`, standby,
		}},
		{"standby that does not reach Redis", []change{toStandby, toRedisAway(59 * time.Second)}, StatusWarn, []string{redisAway, standby}},
		{"standby with nobody active", []change{toAlone}, StatusWarn, []string{
			"Stands by, but no relay has been active: no row is published.",
		}},
		{"standby with nobody active for a while", []change{toAlone, func(in *Input) { in.StreamingAwaySince = ago(59 * time.Second) }}, StatusWarn, []string{
			"Stands by, but no relay has been active for 59 s: no row is published.",
		}},
		{"standby with nobody active for the threshold", []change{toAlone, func(in *Input) { in.StreamingAwaySince = ago(time.Minute) }}, StatusCritical, []string{
			"Stands by, but no relay has been active for 1 min: no row is published.",
		}},
		{"standby that last saw an active slot", []change{toAlone, toDatabaseAway(time.Second), func(in *Input) { in.Slot.Active = true }}, StatusWarn, []string{
			"PostgreSQL has not answered the monitor for 1.0 s (last error: i/o timeout); slot and age are as last seen.",
		}},
		{"standby with nobody active, then no database", []change{toAlone, toDatabaseAway(time.Second), func(in *Input) { in.StreamingAwaySince = ago(time.Minute) }}, StatusCritical, []string{
			"Stands by, but no relay has been active for 1 min: no row is published.",
			"PostgreSQL has not answered the monitor for 1.0 s (last error: i/o timeout); slot and age are as last seen.",
		}},

		// From outside
		{"no relay", []change{toNone}, StatusWarn, []string{`No relay is connected to slot "walrelay".`}},
		{"no relay for the threshold", []change{toNone, func(in *Input) { in.StreamingAwaySince = ago(time.Minute) }}, StatusCritical, []string{
			`No relay is connected to slot "walrelay" for 1 min.`,
		}},
		{"no relay and no slot", []change{toNone, func(in *Input) { in.Slot, in.StreamingAwaySince = nil, ago(time.Second) }}, StatusWarn, []string{
			"No relay is at work for 1.0 s, and there is no slot.",
		}},
		{"no relay, and none is expected", []change{toNone, toRedisAway(time.Second), func(in *Input) { in.Slot, in.Streaming = nil, true }}, StatusWarn, []string{
			"Redis has been away for 1.0 s (last error: connection refused); rows wait in the table.",
		}},
		{"nobody answers", []change{toNone, toDatabaseAway(time.Second), func(in *Input) { in.Slot = nil }}, StatusWarn, []string{
			"PostgreSQL has not answered for 1.0 s (last error: i/o timeout).",
		}},
	} {
		t.Run(c.name, func(t *testing.T) {
			in := healthy()
			for _, change := range c.changes {
				change(&in)
			}
			got := Judge(in)
			if got.Status != c.status {
				t.Errorf("status %q, want %q", got.Status, c.status)
			}
			if !slices.Equal(got.Reasons, c.reasons) {
				t.Errorf("reasons\n\t%s\nwant\n\t%s", strings.Join(got.Reasons, "\n\t"), strings.Join(c.reasons, "\n\t"))
			}
			if got.Role != cmp.Or(in.Role, RoleStarting) || got.Published != in.Published {
				t.Errorf("role %q and published %d, want %q and %d", got.Role, got.Published, in.Role, in.Published)
			}
			if _, err := json.Marshal(got); err != nil {
				t.Errorf("not JSON: %v", err)
			}
		})
	}
}

func TestHowARelayIsSetUpColoursNothing(t *testing.T) {
	for _, limits := range []Thresholds{{}, {AgeCritical: 1, LagCritical: 1}, {AgeCritical: math.MaxInt64, LagCritical: math.MaxInt64}} {
		in := healthy()
		in.Thresholds = limits
		in.OldestAge, in.Slot.UnconfirmedBytes, in.Slot.RetainedBytes = ptr(0.0), ptr[int64](0), ptr[int64](0)
		if got := Judge(in); got.Status != StatusOK {
			t.Errorf("thresholds %+v: %q with %q", limits, got.Status, got.Reasons)
		}
	}
}

func TestDocumentIsACopy(t *testing.T) {
	in := healthy()
	in.Slot.SafeWALSize = ptr[int64](5)
	got := Judge(in)
	in.Slot.Name = "other"
	*in.Slot.UnconfirmedBytes, *in.Slot.RetainedBytes, *in.Slot.SafeWALSize, *in.OldestAge = 9, 9, 9, 9
	if got.Slot.Name != "walrelay" || *got.Slot.UnconfirmedBytes != 0 || *got.Slot.RetainedBytes != 72 || *got.Slot.SafeWALSize != 5 || *got.OldestAge != 0.25 {
		t.Errorf("the document changed with its input: %+v", got)
	}
}
