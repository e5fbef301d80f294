package health

import (
	"encoding/json"
	"math"
	"reflect"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/stagedoor/walrelay/cdc"
)

func TestDocumentAsJSON(t *testing.T) {
	full := healthy()
	full.Slot.SafeWALSize = ptr[int64](-5)
	full.Slot.UnconfirmedBytes = ptr[int64](-1)
	full.Slot.ConfirmedFlush = 0x1A_0000_00FF
	full.OldestAge = ptr(1.5)

	lost := healthy()
	lost.Slot = &Slot{Name: "walrelay", WALStatus: "lost", ConfirmedFlush: 1}
	lost.OldestAge = ptr(-1.0)

	noStatus := healthy()
	noStatus.Slot.WALStatus = ""
	noStatus.OldestAge = ptr(math.NaN())

	all := healthy()
	all.Slot.ActivePID = 31
	all.Slot.Sender = &Sender{Started: ptr(now), LastReply: ptr(ago(time.Second))}
	all.Slot.Spill = &Spill{Transactions: 1, Times: 2, Bytes: 3}
	all.Slot.InactiveSince, all.Slot.InvalidationReason = now, "idle_timeout"
	all.Other = &Other{Name: "replica", Kind: "physical", Restart: 1, RetainedBytes: 9}
	all.Started, all.SampledAt, all.RedisSeenAt = ago(time.Hour), ago(time.Second), ago(2*time.Second)
	all.RedisAwaySince, all.RedisError, all.RedisStopped = ago(3*time.Second), "WRONGTYPE", true
	all.DatabaseError = "old"
	all.Connection = &Connection{Since: ptr(ago(time.Minute)), LastReceive: ptr(now)}
	all.Connections = 2
	all.Witness = &Witness{LookedAt: ptr(now), Unmarked: 3, Until: ptr(cdc.LSN(16))}

	const rest = `"stream":null,"at":"2025-03-01T03:00:00Z","started":null,` +
		`"rates":{"written_bytes_per_second":null,"confirmed_bytes_per_second":null,"unconfirmed_bytes_per_second":null,"retained_bytes_per_second":null},` +
		`"other_slot":null,"connection":null,"connections_total":0,` +
		`"postgresql":{"seen_at":null,"away_since":null,"last_error":null},"redis":{"seen_at":null,"away_since":null,"last_error":null},"witness":null}`
	for _, c := range []struct {
		name string
		in   Input
		want string
	}{
		{
			"streaming", healthy(),
			`{"status":"ok","reasons":[],"role":"streaming","ready":true,"cause":null,"runway_seconds":null,` +
				`"slot":{"name":"walrelay","active":true,"wal_status":"reserved","confirmed_flush_lsn":"0/16B3748","restart_lsn":"0/16B3700","unconfirmed_bytes":0,"retained_bytes":72,"safe_wal_size":null,"inactive_since":null,"invalidation_reason":null,"active_pid":null,"sender":null,"spill":null},` +
				`"oldest_unpublished_age_seconds":0.25,"published_total":7,` + rest,
		},
		{
			"no lag is below zero, but a budget is", full,
			`{"status":"ok","reasons":[],"role":"streaming","ready":true,"cause":null,"runway_seconds":null,` +
				`"slot":{"name":"walrelay","active":true,"wal_status":"reserved","confirmed_flush_lsn":"1A/FF","restart_lsn":"0/16B3700","unconfirmed_bytes":0,"retained_bytes":72,"safe_wal_size":-5,"inactive_since":null,"invalidation_reason":null,"active_pid":null,"sender":null,"spill":null},` +
				`"oldest_unpublished_age_seconds":1.5,"published_total":7,` + rest,
		},
		{
			"nothing known",
			Input{},
			`{"status":"warn","reasons":["The relay has been starting: no row is published yet."],"role":"starting","ready":false,"cause":null,"runway_seconds":null,"slot":null,"oldest_unpublished_age_seconds":null,"published_total":0,` + strings.Replace(rest, `"2025-03-01T03:00:00Z"`, "null", 1),
		},
		{
			"a lost slot has no restart_lsn", lost,
			`{"status":"critical","reasons":["PostgreSQL removed WAL that slot \"walrelay\" still needed (wal_status lost): rows that were not published yet cannot come from this slot any more."],"role":"streaming","ready":true,"cause":null,"runway_seconds":null,` +
				`"slot":{"name":"walrelay","active":false,"wal_status":"lost","confirmed_flush_lsn":"0/1","restart_lsn":null,"unconfirmed_bytes":null,"retained_bytes":null,"safe_wal_size":null,"inactive_since":null,"invalidation_reason":null,"active_pid":null,"sender":null,"spill":null},` +
				`"oldest_unpublished_age_seconds":0,"published_total":7,` + rest,
		},
		{
			"all there is", all,
			`{"status":"ok","reasons":[],"role":"streaming","ready":true,"cause":"Redis has been unreachable since 2025-03-01 02:59:57 UTC (last error: WRONGTYPE): rows that it has not taken are not confirmed, so PostgreSQL keeps their WAL.","runway_seconds":null,` +
				`"slot":{"name":"walrelay","active":true,"wal_status":"reserved","confirmed_flush_lsn":"0/16B3748","restart_lsn":"0/16B3700","unconfirmed_bytes":0,"retained_bytes":72,"safe_wal_size":null,` +
				`"inactive_since":"2025-03-01T03:00:00Z","invalidation_reason":"idle_timeout","active_pid":31,"sender":{"started":"2025-03-01T03:00:00Z","last_reply":"2025-03-01T02:59:59Z"},"spill":{"transactions":1,"times":2,"bytes":3}},` +
				`"oldest_unpublished_age_seconds":0.25,"published_total":7,"stream":null,"at":"2025-03-01T03:00:00Z","started":"2025-03-01T02:00:00Z",` +
				`"rates":{"written_bytes_per_second":null,"confirmed_bytes_per_second":null,"unconfirmed_bytes_per_second":null,"retained_bytes_per_second":null},` +
				`"other_slot":{"name":"replica","type":"physical","database":"","active":false,"restart_lsn":"0/1","retained_bytes":9,"inactive_since":null},` +
				`"connection":{"since":"2025-03-01T02:59:00Z","last_receive":"2025-03-01T03:00:00Z","last_status_sent":null},"connections_total":2,` +
				`"postgresql":{"seen_at":"2025-03-01T02:59:59Z","away_since":null,"last_error":null},"redis":{"seen_at":"2025-03-01T02:59:58Z","away_since":"2025-03-01T02:59:57Z","last_error":"WRONGTYPE"},` +
				`"witness":{"looked_at":"2025-03-01T03:00:00Z","unmarked_rows":3,"until_lsn":"0/10"}}`,
		},
		{
			"no wal_status, and an age that is no number", noStatus,
			`{"status":"ok","reasons":[],"role":"streaming","ready":true,"cause":null,"runway_seconds":null,` +
				`"slot":{"name":"walrelay","active":true,"wal_status":null,"confirmed_flush_lsn":"0/16B3748","restart_lsn":"0/16B3700","unconfirmed_bytes":0,"retained_bytes":72,"safe_wal_size":null,"inactive_since":null,"invalidation_reason":null,"active_pid":null,"sender":null,"spill":null},` +
				`"oldest_unpublished_age_seconds":null,"published_total":7,` + rest,
		},
	} {
		t.Run(c.name, func(t *testing.T) {
			doc := Judge(c.in)
			got, err := json.Marshal(doc)
			if err != nil {
				t.Fatal(err)
			}
			if string(got) != c.want {
				t.Errorf("got  %s\nwant %s", got, c.want)
			}
			var back Document
			if err := json.Unmarshal(got, &back); err != nil {
				t.Fatal(err)
			}
			doc.Causes, doc.Leftover, doc.Stages = nil, nil, nil // for metrics and the page alone
			if !reflect.DeepEqual(back, doc) {
				t.Errorf("read back as %+v, want %+v", back, doc)
			}
		})
	}
}

func TestSlotJSONRefusesWhatIsNoLSN(t *testing.T) {
	for _, text := range []string{`{"restart_lsn":"x"}`, `[]`} {
		if err := json.Unmarshal([]byte(text), new(Slot)); err == nil {
			t.Errorf("%s was read", text)
		}
	}
}

func TestLevels(t *testing.T) {
	levels := Statuses()
	if want := []Status{StatusOK, StatusWarn, StatusCritical}; !slices.Equal(levels, want) {
		t.Fatalf("levels %q, want %q", levels, want)
	}
	for i, code := range []int{200, 200, 503} {
		if got := levels[i].HTTPCode(); got != code {
			t.Errorf("%s is answered with %d, want %d", levels[i], got, code)
		}
		if i > 0 && levels[i].severity() <= levels[i-1].severity() {
			t.Errorf("%s is no worse than %s", levels[i], levels[i-1])
		}
	}
}

// Every text that an Input can hold is given a password: a field that is added
// and forgotten in Judge shows up here.
func TestNoTextOfAnInputLeaksAPassword(t *testing.T) {
	const leak = "dial postgres://user:s3cret@host/db: refused"
	in := healthy()
	in.Role, in.Streaming = RoleStandby, false
	v := reflect.ValueOf(&in).Elem()
	texts := 0
	for i := range v.NumField() {
		switch f := v.Field(i).Addr().Interface().(type) {
		case *string:
			*f, texts = leak, texts+1
		case *[]string:
			*f, texts = []string{leak, leak}, texts+1
		}
	}
	if texts < 9 {
		t.Fatalf("only %d texts in Input", texts)
	}
	for _, role := range Roles() {
		in.Role = role
		in.RedisAwaySince, in.DatabaseAwaySince, in.StreamingAwaySince = ago(1), ago(1), ago(1)
		doc := Judge(in)
		all := strings.Join(doc.Reasons, "\n")
		if doc.Cause != nil {
			all += *doc.Cause
		}
		if strings.Contains(all, "s3cret") {
			t.Errorf("%s leaks the password:\n%s", role, all)
		}
		if !strings.Contains(all, "postgres://user:xxxxx@host/db: refused") {
			t.Errorf("%s lost the host:\n%s", role, all)
		}
	}
	if in.Problems[0] != leak {
		t.Error("Judge wrote into its input")
	}
}

func TestZeroLSNIsNull(t *testing.T) {
	var s Slot
	if err := json.Unmarshal([]byte(`{"name":"a","confirmed_flush_lsn":null,"restart_lsn":"0/10"}`), &s); err != nil {
		t.Fatal(err)
	}
	if s.ConfirmedFlush != 0 || s.Restart != cdc.LSN(16) {
		t.Errorf("read as %+v", s)
	}
}
