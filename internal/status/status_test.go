package status

import (
	"bytes"
	"encoding/json"
	"errors"
	"flag"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"
	"unicode/utf8"

	"github.com/stagedoor/walrelay/cdc"
	"github.com/stagedoor/walrelay/internal/fault"
	"github.com/stagedoor/walrelay/internal/health"
)

var update = flag.Bool("update", false, "write the files in testdata anew")

var now = time.Date(2025, 3, 1, 3, 0, 0, 0, time.UTC)

func ptr[T any](v T) *T { return &v }

func ago(d time.Duration) time.Time { return now.Add(-d) }

const mib = 1 << 20

var limits = health.Thresholds{
	AgeWarn: 5 * time.Second, AgeCritical: time.Minute, LagWarn: 256 * mib, LagCritical: 1024 * mib, RunwayCritical: time.Hour,
}

// streaming is a look at a relay that streams, with all that there can be.
func streaming() *Look {
	return &Look{
		At: now, Slot: "walrelay", Publication: "walrelay", Table: `"public"."outbox"`, Stream: "jobs", HTTP: "127.0.0.1:9476",
		Database: Database{
			SeenAt: now, Clock: now, Version: 170002, Name: "shop", WALEnd: 0x16_B374_8000, Timeline: 1, Check: "psql -h db -p 5432 -U walrelay -d shop -c 'SELECT 1'",
			Slot: &health.Slot{
				Name: "walrelay", Active: true, WALStatus: "reserved", ConfirmedFlush: 0x16_B374_7000, Restart: 0x16_B364_7000,
				UnconfirmedBytes: ptr[int64](4096), RetainedBytes: ptr[int64](mib + 4096), SafeWALSize: ptr[int64](5 << 30),
				ActivePID: 4711, Sender: &health.Sender{Started: ptr(ago(76 * time.Hour))},
			},
			Plugin: "pgoutput", Database: "shop", Published: true, OldestAge: ptr(0.0),
		},
		Redis: Redis{
			SeenAt: now, Check: "redis-cli -h redis -p 6379 time", Asked: true,
			Checkpoint: &cdc.Checkpoint{
				Version: cdc.Version{Instance: "c1ecae3d74eead28", Counter: 9}, Format: 1, Timeline: 1, Phase: cdc.PhaseStreaming,
				Last: cdc.Position{LSN: 0x16_B374_6000, Ordinal: 2}, Covered: 0x16_B374_7800, CoveredTime: ago(90 * time.Second), WrittenAt: ago(700 * time.Millisecond),
			},
			Stream: &health.Stream{
				Name: "jobs", Length: 1234567, LastID: ptr("1740798000000-0"), GroupCount: ptr(3), Groups: []health.Group{
					{Name: "audit", Pending: 0, LastDelivered: "0-0"},
					{Name: "mail", Consumers: 12, Pending: 3, Lag: ptr[int64](0), LastDelivered: "1740798000000-0"},
					{Name: "a-group-whose-name-is-longer-than-its-column", Consumers: 1, Lag: ptr[int64](1234567), LastDelivered: "0-0"},
				},
			},
		},
	}
}

// alone is one without a relay.
func alone() *Look {
	l := streaming()
	s := l.Database.Slot
	s.Active, s.ActivePID, s.Sender = false, 0, nil
	s.InactiveSince = ago(200 * time.Minute)
	l.Redis.Checkpoint.CoveredTime, l.Redis.Checkpoint.WrittenAt = ago(200*time.Minute), ago(200*time.Minute)
	l.Judgement = &cdc.Judgement{Verdict: cdc.Stream}
	return l
}

// never is one of an outbox that no relay has worked with.
func never() *Look {
	l := streaming()
	l.Database.Slot, l.Database.Plugin, l.Database.Database, l.Redis.Checkpoint, l.Database.Published = nil, "", "", nil, false
	l.Redis.Stream = &health.Stream{Name: "jobs", GroupCount: ptr(0), Groups: []health.Group{}}
	return l
}

// The text of a look, and of one after others, as it is on the screen.
func TestText(t *testing.T) {
	for name, looks := range map[string]func() []*Look{
		"streaming": func() []*Look { return []*Look{streaming()} },
		"rates": func() []*Look { // 10 MB/s are written, and half of it is confirmed
			var all []*Look
			for i := range 5 {
				l := streaming()
				s := l.Database.Slot
				written := int64(i) * 50 * mib
				l.At = now.Add(time.Duration(i) * 5 * time.Second)
				l.Database.SeenAt, l.Database.Clock = l.At, l.At
				l.Redis.Checkpoint.CoveredTime, l.Redis.Checkpoint.WrittenAt = l.At, l.At
				l.Database.WALEnd += cdc.LSN(written)
				s.ConfirmedFlush += cdc.LSN(written / 2)
				s.UnconfirmedBytes, s.RetainedBytes = ptr(4096+written/2), ptr(mib+4096+written)
				*s.SafeWALSize -= written
				l.Database.OldestAge, l.Database.Waiting = ptr(7.5), 100
				all = append(all, l)
			}
			return all
		},
		"no-relay": func() []*Look {
			l := alone()
			l.Database.OldestAge, l.Database.Waiting = ptr(11999.5), 12
			l.Database.Slot.WALStatus = "extended"
			*l.Database.Slot.UnconfirmedBytes, *l.Database.Slot.RetainedBytes = 1200*mib, 1300*mib
			return []*Look{l}
		},
		"no-relay-before-17": func() []*Look {
			l := alone()
			l.Database.Version, l.Database.Slot.InactiveSince, l.Database.Slot.SafeWALSize = 150018, time.Time{}, nil
			// The server's clock is an hour ahead.
			l.Database.Clock = now.Add(time.Hour)
			l.Redis.Checkpoint.CoveredTime = now.Add(time.Hour - 200*time.Minute)
			return []*Look{l}
		},
		"lost": func() []*Look {
			l := alone()
			s := l.Database.Slot
			s.WALStatus, s.InvalidationReason, s.Restart, s.RetainedBytes, s.SafeWALSize = "lost", "wal_removed", 0, nil, nil
			l.Judgement = &cdc.Judgement{Verdict: cdc.Gap, Kind: cdc.SlotLost}
			return []*Look{l}
		},
		"polled-beside-a-slot": func() []*Look {
			l := alone()
			l.Redis.Checkpoint.LastIDs = map[string]string{"jobs": "1740790000000-0"}
			l.Database.OldestAge, l.Database.Waiting = ptr(0.04), 1
			return []*Look{l}
		},
		"never": func() []*Look { return []*Look{never()} },
		"polled": func() []*Look {
			l := never()
			l.Database.OldestAge, l.Database.Waiting = ptr(0.04), 1
			l.Redis.Asked, l.Redis.CheckpointUnknown = false, "NOPERM this user has no permissions to run the 'hgetall' command"
			l.Redis.Stream, l.Redis.StreamUnknown = nil, "NOPERM this user has no permissions to run the 'xinfo' command"
			return []*Look{l}
		},
		"backfill": func() []*Look {
			l := never()
			l.Database.LockPID = 31
			l.Redis.Checkpoint = &cdc.Checkpoint{Version: cdc.Version{Instance: "c1ecae3d74eead28", Counter: 9}, Phase: cdc.PhaseBackfill}
			l.Database.Waits, l.Database.EndWait = `the transaction of PID 99 (user "app", database "shop", open since 2025-03-01 02:00:00 UTC)`, "SELECT pg_terminate_backend(99);"
			return []*Look{l}
		},
		"nobody-answers": func() []*Look {
			l := never()
			l.Database = Database{AwaySince: ago(4 * time.Second), Error: "no answer in time", Check: l.Database.Check}
			l.Redis = Redis{AwaySince: ago(4 * time.Second), Error: "no answer from Redis: dial tcp redis:6379: connect: connection refused", Check: l.Redis.Check, CheckpointUnknown: "Redis does not answer"}
			return []*Look{l}
		},
		"away-after-a-look": func() []*Look {
			l := streaming()
			l.At = now.Add(time.Minute)
			l.Database.AwaySince, l.Database.Error = now.Add(5*time.Second), `failed to connect to "user=walrelay password=secret": no`
			l.Redis.AwaySince, l.Redis.Error = now.Add(5*time.Second), "no answer from Redis: i/o timeout"
			return []*Look{streaming(), l}
		},
		"no-stamps": func() []*Look {
			l := streaming()
			l.Redis.Checkpoint.WrittenAt = ago(90 * time.Second)
			l.Redis.StillSince = ago(90 * time.Second)
			return []*Look{l}
		},
		"stopped": func() []*Look {
			l := streaming()
			l.Redis.Checkpoint.Blocked = &cdc.Blocked{Row: "4711", Reason: "it is too large"}
			l.Problems = []error{&fault.Error{Problem: "the row 4711 cannot be published: it is too large", Fix: "walrelay skip --id 4711"}}
			l.Database.Publication = errors.New(`the publication "walrelay" has a row filter`)
			l.Database.Slot.WALStatus, l.Database.Slot.SafeWALSize = "unreserved", ptr[int64](-mib)
			l.Doubt = "the stream was deleted"
			return []*Look{l}
		},
		"stopped-between-two-tries": func() []*Look {
			l := alone()
			l.Redis.Checkpoint.Blocked = &cdc.Blocked{Row: "4711", Reason: "it is too large"}
			l.Problems = []error{&fault.Error{Problem: "the row 4711 cannot be published: it is too large", Fix: "walrelay skip --id 4711"}}
			return []*Look{l}
		},
		"another-slot": func() []*Look {
			l := streaming()
			l.Database.Other = &health.Other{Name: "old_replica", Kind: "physical", Restart: 1, RetainedBytes: 9 << 30}
			l.Database.Slot.SafeWALSize, l.DiskBudget = nil, 20<<30
			l.Database.OldestAge, l.Database.Unseen = nil, "permission denied for table outbox"
			l.Redis.Stream.Groups, l.Redis.Stream.GroupCount, l.Redis.Stream.GroupError = nil, nil, ptr("the Redis user relay may not look: ACL SETUSER relay +xinfo|groups")
			return []*Look{l}
		},
	} {
		t.Run(name, func(t *testing.T) {
			var machine health.Machine
			var report *Report
			for _, l := range looks() {
				report = NewReport(l, machine.Step(l.Input(limits)))
			}
			var plain, coloured bytes.Buffer
			if err := report.WriteText(&plain, false); err != nil {
				t.Fatal(err)
			}
			if err := report.WriteText(&coloured, true); err != nil {
				t.Fatal(err)
			}
			got := plain.String()
			file := filepath.Join("testdata", name+".txt")
			if *update {
				if err := os.WriteFile(file, []byte(got), 0o644); err != nil {
					t.Fatal(err)
				}
			}
			want, err := os.ReadFile(file)
			if err != nil || got != string(want) {
				t.Errorf("%v; it is another text now, -update writes it anew:\n%s", err, got)
			}
			for line := range strings.Lines(got) {
				if n := utf8.RuneCountInString(strings.TrimRight(line, "\n")); n > width {
					t.Errorf("%d columns: %s", n, line)
				}
			}
			if strings.Contains(got, "secret") || strings.Contains(got, "\x1b") {
				t.Errorf("it shows:\n%s", got)
			}
			bare := strings.NewReplacer("\x1b[1;32m", "", "\x1b[1;33m", "", "\x1b[1;31m", "", "\x1b[0m", "").Replace(coloured.String())
			if bare != got || coloured.Len() == plain.Len() {
				t.Errorf("with colours it is:\n%q", coloured.String())
			}
		})
	}
}

// The names in the JSON are a promise.
func TestJSON(t *testing.T) {
	l := streaming()
	text, err := json.MarshalIndent(NewReport(l, health.Judge(l.Input(limits))), "", "  ")
	if err != nil {
		t.Fatal(err)
	}
	const file = "testdata/streaming.json"
	if *update {
		if err := os.WriteFile(file, append(text, '\n'), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	want, err := os.ReadFile(file)
	if err != nil || string(want) != string(text)+"\n" {
		t.Errorf("%v; it is another document now, -update writes it anew:\n%s", err, text)
	}
}

// The exit code: what is critical and who does not answer make it 1.
func TestHealthy(t *testing.T) {
	for name, c := range map[string]struct {
		change  func(l *Look)
		healthy bool
	}{
		"streaming":              {func(*Look) {}, true},
		"a warning":              {func(l *Look) { l.Database.OldestAge = ptr(6.0) }, true},
		"critical":               {func(l *Look) { l.Database.OldestAge = ptr(60.0) }, false},
		"PostgreSQL is away":     {func(l *Look) { l.Database.AwaySince = now }, false},
		"Redis is away":          {func(l *Look) { l.Redis.AwaySince = now }, false},
		"no relay for a minute":  {func(l *Look) { *l = *alone(); l.Database.Slot.InactiveSince = ago(time.Minute) }, false},
		"no relay for a moment":  {func(l *Look) { *l = *alone(); l.Database.Slot.InactiveSince = ago(time.Second) }, true},
		"no relay ever":          {func(l *Look) { *l = *never() }, true},
		"somebody else's slot":   {func(l *Look) { l.Database.Foreign = true; l.Problems = []error{errors.New("it is")} }, false},
		"an idle database":       {func(l *Look) { l.Redis.Checkpoint.CoveredTime = ago(time.Hour) }, true},
		"nothing is written":     {func(l *Look) { l.Redis.StillSince = ago(16 * time.Second) }, true},
		"not for a minute":       {func(l *Look) { l.Redis.StillSince = ago(time.Minute) }, false},
		"a relay is about to":    {func(l *Look) { *l = *alone(); l.Database.LockPID = 31 }, true},
		"a backfill is not done": {func(l *Look) { *l = *alone(); l.Database.Slot = nil; l.Redis.Checkpoint.Phase = cdc.PhaseBackfill }, false},
	} {
		l := streaming()
		c.change(l)
		if r := NewReport(l, health.Judge(l.Input(limits))); r.Healthy() != c.healthy {
			t.Errorf("%s: healthy is %t: %s %q", name, r.Healthy(), r.Status, r.Reasons)
		}
	}
}
