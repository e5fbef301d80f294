package main

import (
	"encoding/json"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/stagedoor/walrelay/bench/internal/progress"
	"github.com/stagedoor/walrelay/internal/relayprocess"
)

// quick is a measurement of a second or two in some modes.
func quick(t *testing.T, walrelay string, modes ...string) options {
	t.Helper()
	o := options{rate: 50, seconds: 1, idle: 1, walrelay: walrelay, patience: 30 * time.Second}
	for _, m := range allModes() {
		if slices.Contains(modes, m.name) {
			o.modes = append(o.modes, m)
		}
	}
	if len(o.modes) != len(modes) {
		t.Fatalf("some of the modes %q are not there", modes)
	}
	return o
}

// build builds the relay as this test was built, so that most of it is there.
func build(t *testing.T) string {
	t.Helper()
	binary, err := relayprocess.Build(t.Context(), t.TempDir(), relayprocess.Flags()...)
	if err != nil {
		t.Fatal(err)
	}
	return binary
}

func quiet(t *testing.T) *progress.Progress {
	t.Helper()
	out, err := os.Create(filepath.Join(t.TempDir(), "progress"))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { out.Close() })
	return progress.New(out)
}

// The numbers agree with what was written, and show what tells the ways apart.
func TestCostIsCounted(t *testing.T) {
	r, err := measure(t.Context(), quick(t, build(t), "no relay", "poll --listen", "run"), quiet(t))
	if err != nil {
		t.Fatal(err)
	}
	alone, poll, run := r.Modes[0], r.Modes[1], r.Modes[2]
	for _, c := range r.Modes {
		if c.Load.Counters[inserted] != 50 || c.LoadDifference[inserted] != 0 {
			t.Errorf("%s: %d rows inserted, %d more than without a relay", c.Mode, c.Load.Counters[inserted], c.LoadDifference[inserted])
		}
		if c.Load.Counters[walBytes] < 50*200 {
			t.Errorf("%s: only %d bytes of WAL", c.Mode, c.Load.Counters[walBytes])
		}
	}
	// Two writers connect and prepare, each in a transaction; nobody else is counted.
	if n := alone.Load.Counters; n[updated] != 0 || n[committed] < 50 || n[committed] > 50+2*2 || alone.Load.Entries != 0 {
		t.Errorf("without a relay: %v, %d entries", n, alone.Load.Entries)
	}
	for _, c := range []*cost{poll, run} {
		n := c.LoadDifference
		if n[updated] < 50 || n[dead] < 50 || n[committed] < 1 || n[walBytes] < 50*50 || n[indexScans] < 1 || n[blocksHit] < 1 {
			t.Errorf("%s: %v more than without a relay", c.Mode, n)
		}
		if c.Load.Entries != 50 || c.Load.Marked != 50 {
			t.Errorf("%s: %d entries, %d rows marked", c.Mode, c.Load.Entries, c.Load.Marked)
		}
	}

	var text, markdown, asJSON strings.Builder
	for _, err := range []error{r.writeText(&text), r.writeMarkdown(&markdown), r.writeJSON(&asJSON)} {
		if err != nil {
			t.Fatal(err)
		}
	}
	t.Logf("%s\n%s", text.String(), markdown.String())
	for _, want := range []string{"no relay", "poll --listen", "run", "transactions", "WAL", "index growth", "Idle", "50 rows/s"} {
		if !strings.Contains(text.String(), want) || !strings.Contains(markdown.String(), want) {
			t.Errorf("%q is not in the tables", want)
		}
	}
	var parsed struct {
		Modes []struct {
			Mode string
			Load struct {
				Rows     int
				Counters map[string]int64
			}
		}
	}
	if err := json.Unmarshal([]byte(asJSON.String()), &parsed); err != nil {
		t.Fatal(err)
	}
	if m := parsed.Modes[2]; m.Mode != "run" || m.Load.Rows != 50 || m.Load.Counters["tuples_inserted"] != 50 || len(m.Load.Counters) != int(quantities) {
		t.Errorf("JSON: %+v", m)
	}
}

func TestCostSaysWhyTheRelayEnded(t *testing.T) {
	script := filepath.Join(t.TempDir(), "walrelay")
	if err := os.WriteFile(script, []byte("#!/bin/sh\necho the sky is too low >&2\nexit 3\n"), 0o700); err != nil {
		t.Fatal(err)
	}
	_, err := measure(t.Context(), quick(t, script, "poll"), quiet(t))
	if err == nil || !strings.Contains(err.Error(), "exit status 3") || !strings.Contains(err.Error(), "the sky is too low") {
		t.Errorf("ended with %v", err)
	}
}

func TestUsage(t *testing.T) {
	for args, want := range map[string]string{
		"-rate 0":         "from 1 to 100000",
		"-seconds 3601":   "from 1 to 3600",
		"-idle 0":         "from 1 to 3600",
		"-settle -1":      "from 0 to 3600",
		"-idle soon":      "-help",
		"-fast":           "-help",
		"now":             "flags only",
		"-json -markdown": "exclude",
	} {
		if _, err := parse(strings.Fields(args), &strings.Builder{}); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: says %v, want %q", args, err, want)
		}
	}
	if o, err := parse([]string{"-rate", "50", "-seconds", "3"}, &strings.Builder{}); err != nil || o.rows() != 150 {
		t.Errorf("%d rows, %v", o.rows(), err)
	}
}

func TestNumbersAsPrinted(t *testing.T) {
	for want, got := range map[string]string{
		"1,234,567": grouped(1234567),
		"1,002":     grouped(1002),
		"−1,002":    grouped(-1002),
		"999":       inPieces.text(999),
		"12.3 kB":   inBytes.text(12345),
		"999 B":     inBytes.text(999),
		"1.2 MB":    inBytes.text(1234567),
		"1.23 s":    inMilliseconds.text(1230),
		"+5":        signed(5, inPieces),
		"−12.3 kB":  signed(-12345, inBytes),
		"0":         signed(0, inMilliseconds),
	} {
		if got != want {
			t.Errorf("%q, want %q", got, want)
		}
	}
}
