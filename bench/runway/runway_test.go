package main

import (
	"io"
	"strings"
	"testing"
	"time"
)

// A runway is compared with what was left when it was foretold; when little is
// left, what goes by between two looks is no fault.
func TestReportJudgesEachRunway(t *testing.T) {
	began := time.Date(2026, 3, 1, 3, 0, 0, 0, time.UTC)
	at := func(after int, runway float64) looked {
		return looked{wal: wal{at: began.Add(time.Duration(after) * time.Second), status: "reserved"}, status: "critical", runway: &runway}
	}
	for _, tt := range []struct {
		name  string
		looks []looked
		good  bool
	}{
		{"none", nil, false},
		{"only after the end", []looked{at(110, 0)}, false},
		{"right", []looked{at(0, 100), at(50, 45), at(90, 14)}, true},
		{"too long", []looked{at(0, 100), at(20, 97)}, false},
		{"too short", []looked{at(0, 79)}, false},
	} {
		r := &report{looks: tt.looks, began: began, ended: began.Add(100 * time.Second), lost: began.Add(101 * time.Second)}
		if r.good() != tt.good {
			t.Errorf("%s: good is %v", tt.name, r.good())
		}
		var out strings.Builder
		if err := r.write(&out); err != nil {
			t.Fatal(err)
		}
		if strings.Contains(out.String(), "! ") == (tt.good || len(tt.looks) < 1 || tt.name == "only after the end") {
			t.Errorf("%s: printed\n%s", tt.name, out.String())
		}
	}
}

func TestFlagsOfRunway(t *testing.T) {
	for args, want := range map[string]string{
		"":                     "",
		"-load pages":          "",
		"-load files":          "rows or pages",
		"-budget 1":            "-budget is 1; it must be from 32 to 100000",
		"-checkpoints 3601":    "from 30 to 3600",
		"more":                 "takes flags only",
		"-before 10 -every 10": "",
	} {
		_, err := parse(strings.Fields(args), io.Discard)
		if want == "" && err != nil || want != "" && (err == nil || !strings.Contains(err.Error(), want)) {
			t.Errorf("%q: %v", args, err)
		}
	}
}
