package health

import (
	"errors"
	"flag"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"
	"unicode"

	"github.com/stagedoor/walrelay/cdc"
)

var update = flag.Bool("update", false, "write the files in testdata anew")

// Each file in testdata is a script with what comes of it: inputs that follow
// one another, the document after each, and what the journal says of them.
//
//	limits KEY=VALUE…      the thresholds, from here on
//	step [xN] +5s [KEY=VALUE…]   so much later, N times; the last document is shown
//	probe +1s [KEY=VALUE…]       the same without a new sample
//
// The keys, which hold until they are set anew:
//
//	role, streaming, redis, database   the latter three are there or away
//	error="TEXT"                 why one of them is away
//	wal=10MiB                    written with each step; -10MiB goes back
//	confirm, restart             follow, hold, or how far behind
//	slot                         active, inactive or none
//	status, invalidation         of the slot
//	budget=1GiB                  max_slot_wal_keep_size
//	age                          grows, a duration, or unknown
//	pinned, problem, locked, waiting, unseen   "TEXT"
//	other=1GiB                   kept by another slot; none
//	unread                       yes or no
//	heard                        the replication connection: now, or silent from here on
//	timeline, inactive-since
func TestTranscripts(t *testing.T) {
	files, err := filepath.Glob("testdata/*.txt")
	if err != nil || len(files) == 0 {
		t.Fatalf("%d scripts, %v", len(files), err)
	}
	for _, file := range files {
		t.Run(strings.TrimSuffix(filepath.Base(file), ".txt"), func(t *testing.T) {
			text, err := os.ReadFile(file)
			if err != nil {
				t.Fatal(err)
			}
			got, err := newScript().run(string(text))
			if err != nil {
				t.Fatal(err)
			}
			if *update {
				if err := os.WriteFile(file, []byte(got), 0o644); err != nil {
					t.Fatal(err)
				}
				return
			}
			if got != string(text) {
				t.Errorf("%s is another now; -update writes it anew:\n%s", file, firstDifference(string(text), got))
			}
		})
	}
}

func firstDifference(want, got string) string {
	w, g := strings.Split(want, "\n"), strings.Split(got, "\n")
	for i := range min(len(w), len(g)) {
		if w[i] != g[i] {
			return fmt.Sprintf("line %d\nwant %s\ngot  %s", i+1, w[i], g[i])
		}
	}
	return fmt.Sprintf("%d lines, want %d", len(g), len(w))
}

// script is the state of a run.
type script struct {
	machine Machine
	journal Journal
	in      Input
	slot    Slot
	there   bool // the slot
	written int64
	budget  int64
	confirm string
	restart string
	age     string
	other   int64
	error   string
	silent  bool // the replication connection
}

func newScript() *script {
	s := &script{
		in: Input{
			Now: now, Role: RoleStreaming, Streaming: true, Timeline: 1, WALEnd: 16 << 30,
			Thresholds: Thresholds{
				AgeWarn: 5 * time.Second, AgeCritical: time.Minute,
				LagWarn: 256 << 20, LagCritical: gib, RunwayCritical: time.Hour,
			},
			OldestAge: ptr(0.0),
		},
		there: true, confirm: "follow", restart: "follow",
		slot: Slot{Name: "walrelay", Active: true, WALStatus: "reserved"},
	}
	s.slot.ConfirmedFlush, s.slot.Restart = s.in.WALEnd, s.in.WALEnd
	return s
}

// run repeats the script with what comes of it now.
func (s *script) run(text string) (string, error) {
	var out strings.Builder
	result := false
	for i, line := range strings.Split(strings.TrimRight(text, "\n"), "\n") {
		switch {
		case line == "":
			result = false
			fmt.Fprintln(&out)
		case line == "----":
			result = true
		case result: // is written anew
		default:
			fmt.Fprintln(&out, line)
			said, err := s.command(line)
			if err != nil {
				return "", fmt.Errorf("line %d: %q: %w", i+1, line, err)
			}
			if said != "" {
				fmt.Fprintf(&out, "----\n%s", said)
			}
		}
	}
	return out.String(), nil
}

func (s *script) command(line string) (string, error) {
	words, err := split(line)
	if err != nil || len(words) == 0 || words[0] == "#" {
		return "", err
	}
	times, sampled := 1, true
	var after time.Duration
	switch name, args := words[0], words[1:]; name {
	case "limits":
		for _, arg := range args {
			if err := s.limit(arg); err != nil {
				return "", err
			}
		}
		return "", nil
	case "probe", "step":
		sampled = name == "step"
		for _, arg := range args {
			var err error
			switch {
			case strings.HasPrefix(arg, "+"):
				after, err = time.ParseDuration(arg)
			case arg[0] == 'x':
				times, err = strconv.Atoi(arg[1:])
			default:
				key, value, _ := strings.Cut(arg, "=")
				err = s.set(key, value)
			}
			if err != nil {
				return "", err
			}
		}
	default:
		return "", errors.New("unknown command")
	}
	var out strings.Builder
	var doc Document
	for range times {
		s.step(after, sampled)
		doc = s.machine.Step(s.in)
		if e, ok := s.journal.Step(s.in.Now, doc); ok {
			again := ""
			if e.Again {
				again = " again"
			}
			fmt.Fprintf(&out, "%s log: %s%s, after %s of %s\n", s.in.Now.Format(time.TimeOnly), e.Status, again, duration(e.Lasted), e.Before)
		}
	}
	runway, ready := "", "not ready"
	if doc.Runway != nil {
		runway = ", runway " + duration(seconds(*doc.Runway))
	}
	if doc.Ready {
		ready = "ready"
	}
	fmt.Fprintf(&out, "%s %s, %s%s\n", s.in.Now.Format(time.TimeOnly), doc.Status, ready, runway)
	if doc.Cause != nil {
		fmt.Fprintf(&out, "cause %s: %s\n", doc.Causes, *doc.Cause)
	}
	for _, r := range doc.Reasons {
		fmt.Fprintf(&out, "- %s\n", r)
	}
	return out.String(), nil
}

// step lets time go on, with a sample or without.
func (s *script) step(after time.Duration, sampled bool) {
	s.in.Now = s.in.Now.Add(after)
	if s.in.Connection != nil && !s.silent {
		s.in.Connection.LastReceive = ptr(s.in.Now)
	}
	switch d, err := time.ParseDuration(s.age); {
	case s.age == "grows":
		s.in.OldestAge = ptr(*s.in.OldestAge + after.Seconds())
	case s.age == "unknown":
		s.in.OldestAge = nil
	case err == nil:
		s.in.OldestAge = ptr(d.Seconds())
	}
	if !sampled {
		return
	}
	s.in.SampledAt = s.in.Now
	s.in.WALEnd = cdc.LSN(int64(s.in.WALEnd) + s.written)
	move := func(position *cdc.LSN, how string) {
		behind, err := parseSize(how)
		switch {
		case how == "follow":
			*position = s.in.WALEnd
		case err == nil:
			*position = s.in.WALEnd - cdc.LSN(behind)
		}
	}
	move(&s.slot.ConfirmedFlush, s.confirm)
	move(&s.slot.Restart, s.restart)
	s.in.Slot, s.in.Leftover, s.in.Other = nil, nil, nil
	if s.there {
		slot := s.slot
		slot.UnconfirmedBytes = ptr(int64(s.in.WALEnd - slot.ConfirmedFlush))
		slot.RetainedBytes = ptr(int64(s.in.WALEnd - slot.Restart))
		if s.budget > 0 {
			slot.SafeWALSize = ptr(s.budget - *slot.RetainedBytes)
		}
		if s.in.Role == RolePolling {
			s.in.Leftover = &slot
		} else {
			s.in.Slot = &slot
		}
	}
	if s.other > 0 {
		s.other += s.written
		s.in.Other = &Other{Name: "replica", Kind: "physical", Restart: s.in.WALEnd - cdc.LSN(s.other), RetainedBytes: s.other}
	}
}

func (s *script) set(key, value string) (err error) {
	away := func(since *time.Time, text *string) error {
		switch {
		case value == "there":
			*since, *text = time.Time{}, ""
		case value != "away":
			return fmt.Errorf("%s is there or away", key)
		case since.IsZero():
			*since, *text = s.in.Now, s.error
		}
		return nil
	}
	in := &s.in
	switch key {
	case "role":
		in.Role = Role(value)
		in.Streaming = in.Role == RoleStreaming || in.Role == RolePolling
		in.Holder = ""
		if in.Role == RoleStandby {
			in.Holder = "the slot is in use by process 4711"
		}
	case "holder":
		in.Holder = value
	case "streaming":
		in.Streaming = value == "there"
		return away(&in.StreamingAwaySince, &in.StreamingError)
	case "redis":
		return away(&in.RedisAwaySince, &in.RedisError)
	case "database":
		return away(&in.DatabaseAwaySince, &in.DatabaseError)
	case "error":
		s.error = value
	case "wal":
		negative := strings.HasPrefix(value, "-")
		s.written, err = parseSize(strings.TrimPrefix(value, "-"))
		if negative {
			s.written = -s.written
		}
	case "confirm":
		s.confirm = value
	case "restart":
		s.restart = value
	case "slot":
		s.there, s.slot.Active = value != "none", value == "active"
	case "status":
		s.slot.WALStatus = value
	case "invalidation":
		s.slot.InvalidationReason = value
	case "budget":
		s.budget, err = parseSize(value)
	case "age":
		s.age = value
		if value == "grows" && in.OldestAge == nil {
			in.OldestAge = ptr(0.0)
		}
	case "pinned":
		in.SlotPinnedBy = value
	case "locked":
		in.LockedRow = value
	case "waiting":
		in.Waiting = value
	case "heard":
		if value == "now" || in.Connection == nil {
			in.Connection = &Connection{LastReceive: ptr(in.Now)}
		}
		s.silent = value != "now"
	case "unread":
		in.Unread = value == "yes"
	case "unseen":
		in.TableUnseen = value
	case "problem":
		in.Problems = nil
		if value != "" {
			in.Problems = []string{value}
		}
	case "other":
		s.other = 0
		if value != "none" {
			s.other, err = parseSize(value)
		}
	case "timeline":
		var n int
		n, err = strconv.Atoi(value)
		in.Timeline = uint32(n)
	case "inactive-since":
		s.slot.InactiveSince, err = time.Parse(time.RFC3339, value)
	default:
		return fmt.Errorf("unknown key %q", key)
	}
	return err
}

func (s *script) limit(arg string) (err error) {
	t := &s.in.Thresholds
	key, value, _ := strings.Cut(arg, "=")
	switch key {
	case "age-warn":
		t.AgeWarn, err = time.ParseDuration(value)
	case "age-critical":
		t.AgeCritical, err = time.ParseDuration(value)
	case "lag-warn":
		t.LagWarn, err = parseSize(value)
	case "lag-critical":
		t.LagCritical, err = parseSize(value)
	case "runway-critical":
		t.RunwayCritical, err = time.ParseDuration(value)
	case "disk-budget":
		t.DiskBudget, err = parseSize(value)
	default:
		return fmt.Errorf("unknown limit %q", key)
	}
	return err
}

func parseSize(text string) (int64, error) {
	for i, unit := range []string{"KiB", "MiB", "GiB", "TiB"} {
		if number, ok := strings.CutSuffix(text, unit); ok {
			f, err := strconv.ParseFloat(number, 64)
			return int64(f * float64(int64(1)<<(10*(i+1)))), err
		}
	}
	return strconv.ParseInt(text, 10, 64)
}

// split takes a line apart at its spaces, but for those in quotes.
func split(line string) (words []string, err error) {
	quotes := false
	words = strings.FieldsFunc(line, func(r rune) bool {
		if r == '"' {
			quotes = !quotes
		}
		return unicode.IsSpace(r) && !quotes
	})
	if quotes {
		return nil, errors.New("a quote is not closed")
	}
	for i := range words {
		words[i] = strings.ReplaceAll(words[i], `"`, "")
	}
	return words, nil
}

// Every kind of cause is caused in some script.
func TestTranscriptsHaveEveryCause(t *testing.T) {
	files, err := filepath.Glob("testdata/*.txt")
	if err != nil {
		t.Fatal(err)
	}
	seen := map[CauseKind]bool{}
	for _, file := range files {
		text, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		for _, line := range strings.Split(string(text), "\n") {
			if kinds, ok := strings.CutPrefix(line, "cause ["); ok {
				kinds, _, _ = strings.Cut(kinds, "]")
				for _, kind := range strings.Fields(kinds) {
					seen[CauseKind(kind)] = true
				}
			}
		}
	}
	for _, kind := range CauseKinds() {
		if !seen[kind] {
			t.Errorf("no script is about the cause %s", kind)
		}
		delete(seen, kind)
	}
	if len(seen) > 0 {
		t.Errorf("not among the kinds: %v", seen)
	}
}
