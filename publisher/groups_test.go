package publisher

import (
	"fmt"
	"strings"
	"testing"

	"github.com/stagedoor/walrelay/internal/finding"
	"github.com/stagedoor/walrelay/internal/testservers"
)

// stream reads it, and fails the test where that is not possible.
func (f *fixture) stream(pub *Publisher, name string) Stream {
	f.t.Helper()
	s, err := pub.Stream(f.t.Context(), name, true)
	if err != nil {
		f.t.Fatal(err)
	}
	return s
}

// show is a group in one line, with ? for what is not known.
func show(g Group) string {
	number := func(n *int64) string {
		if n == nil {
			return "?"
		}
		return fmt.Sprint(*n)
	}
	return fmt.Sprintf("%s: consumers %d, pending %d, lag %s, read %s, after %s", g.Name, g.Consumers, g.Pending, number(g.Lag), number(g.EntriesRead), g.LastDelivered)
}

func wantGroups(t *testing.T, s Stream, want ...string) {
	t.Helper()
	var got []string
	for _, g := range s.Groups {
		got = append(got, show(g))
	}
	if s.Groups == nil || s.GroupsProblem != "" || s.GroupCount != len(want) || strings.Join(got, "\n") != strings.Join(want, "\n") {
		t.Errorf("%d groups %q, problem %q; want %q", s.GroupCount, got, s.GroupsProblem, want)
	}
}

// A stream and its groups are read as Redis has them; what Redis does not know is
// not known, rather than zero; and a look leaves nothing behind.
func TestStreamAndItsGroups(t *testing.T) {
	f := setUp(t, testservers.RedisOptions{}, 0)
	if s := f.stream(f.pub, "jobs"); s.Exists || s.LastID != "" || s.Groups == nil || f.admin.Exists(t.Context(), "jobs").Val() != 0 {
		t.Errorf("without a stream it is %+v", s)
	}
	for i := 1; i <= 5; i++ {
		f.do("XADD", "jobs", fmt.Sprintf("%d-0", i), "outbox_id", i)
	}
	wantGroups(t, f.stream(f.pub, "jobs"))
	f.do("XGROUP", "CREATE", "jobs", "mail", "0")
	f.do("XGROUP", "CREATE", "jobs", "audit", "$")
	f.do("XREADGROUP", "GROUP", "mail", "one", "COUNT", 3, "STREAMS", "jobs", ">")
	f.do("XACK", "jobs", "mail", "1-0")
	s := f.stream(f.pub, "jobs")
	if !s.Exists || s.Length != 5 || s.LastID != "5-0" {
		t.Errorf("the stream is %+v", s)
	}
	wantGroups(t, s,
		"audit: consumers 0, pending 0, lag 0, read ?, after 5-0",
		"mail: consumers 1, pending 2, lag 2, read 3, after 3-0")
	// The last entry is deleted, and those between are not counted any more.
	f.do("XDEL", "jobs", "4-0")
	s = f.stream(f.pub, "jobs")
	if s.Length != 4 || s.LastID != "5-0" {
		t.Errorf("the stream is %+v", s)
	}
	wantGroups(t, s,
		"audit: consumers 0, pending 0, lag 0, read ?, after 5-0",
		"mail: consumers 1, pending 2, lag ?, read 3, after 3-0")
	if s, err := f.pub.Stream(t.Context(), "jobs", false); err != nil || s.Length != 4 || s.Groups != nil || s.GroupsProblem != "" {
		t.Errorf("without its groups it is %+v, %v", s, err)
	}

	f.acl("~jobs ~walrelay:* " + commands)
	pub := f.as("jobs")
	s = f.stream(pub, "jobs")
	if s.Length != 4 || s.LastID != "5-0" || s.Groups != nil || s.GroupsProblem != "the Redis user relay may not look: ACL SETUSER relay +xinfo|groups" {
		t.Errorf("to a user who may not see the groups it is %+v", s)
	}
	f.wantFinding(f.findings(pub), "redis_groups", finding.Warn, "+xinfo|groups", "ACL SETUSER relay +xinfo|groups")
	f.do("ACL", "SETUSER", "relay", "+xinfo|groups")
	if s = f.stream(pub, "jobs"); len(s.Groups) != 2 {
		t.Errorf("once it may, it is %+v", s)
	}
	f.wantFinding(f.findings(pub), "redis_groups", finding.OK, "", "")
	f.do("ACL", "SETUSER", "relay", "-xinfo")
	if s, err := pub.Stream(t.Context(), "jobs", true); err == nil || !strings.Contains(err.Error(), "ACL SETUSER") {
		t.Errorf("to a user who may not see the stream it is %+v, %v", s, err)
	}
	f.do("SET", "jobs:dead", "no stream")
	if s, err := f.pub.Stream(t.Context(), "jobs:dead", true); err == nil || !strings.Contains(err.Error(), "WRONGTYPE") {
		t.Errorf("a key that is no stream is %+v, %v", s, err)
	}
}

// Of more groups than anybody reads, those that are behind are shown.
func TestOfTooManyGroupsThoseThatAreBehind(t *testing.T) {
	f := setUp(t, testservers.RedisOptions{}, 0)
	f.do("XADD", "jobs", "*", "a", "b")
	pipe := f.admin.Pipeline()
	for i := range GroupsMost + 20 {
		pipe.XGroupCreate(t.Context(), "jobs", fmt.Sprintf("g%03d", i), "$")
	}
	if _, err := pipe.Exec(t.Context()); err != nil {
		t.Fatal(err)
	}
	f.do("XGROUP", "CREATE", "jobs", "zz", "0")
	s := f.stream(f.pub, "jobs")
	if last := s.Groups[len(s.Groups)-1]; s.GroupCount != GroupsMost+21 || len(s.Groups) != GroupsMost || last.Name != "zz" || *last.Lag != 1 {
		t.Errorf("%d of %d groups, the last is %s", len(s.Groups), s.GroupCount, show(last))
	}
}

// Redis before 7.0 tells neither how far behind a group is nor what it has read.
func TestGroupsOfAnOldRedis(t *testing.T) {
	s, err := parseStream("jobs", []any{int64(2), "2-0", []any{
		[]any{"name", "mail", "consumers", int64(1), "pending", int64(2), "last-delivered-id", "2-0"},
	}})
	if err != nil {
		t.Fatal(err)
	}
	wantGroups(t, s, "mail: consumers 1, pending 2, lag ?, read ?, after 2-0")
	for _, reply := range [][]any{{"x"}, {int64(1)}, {int64(1), "1-0", []any{[]any{"name"}}}} {
		if s, err := parseStream("jobs", reply); err == nil {
			t.Errorf("%v is read as %+v", reply, s)
		}
	}
}
