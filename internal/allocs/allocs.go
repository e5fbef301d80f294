// Package allocs compares what the hot path allocates for a row with what a file
// says, exactly. Unlike times, allocations are the same on every machine, so a
// change that makes rows dearer shows in its review.
package allocs

import (
	"flag"
	"fmt"
	"math"
	"os"
	"path/filepath"
	"runtime"
	"runtime/debug"
	"slices"
	"strings"
	"testing"
)

var update = flag.Bool("update", false, "write what is allocated anew")

// Stage is a part of the hot path with its work for some rows.
type Stage struct {
	Name string
	Rows int
	Pass func() // carries the rows through the stage; may be called again and again
}

// file holds a line a stage, for all packages.
const file = "bench/allocations.txt"

const head = `# What the hot path allocates for 1,000 rows: allocations, and bytes a row.
# make allocations writes it anew.
`

// Check compares stages with the file of the module in which the test runs. It
// must not run beside other tests of its package: their allocations would count.
func Check(t *testing.T, stages ...Stage) {
	t.Helper()
	if race {
		t.Skip("the race detector allocates as it pleases")
	}
	path, err := find()
	if err != nil {
		t.Fatal(err)
	}
	raw, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	lines := slices.DeleteFunc(strings.Split(string(raw), "\n"), func(line string) bool {
		return line == "" || strings.HasPrefix(line, "#")
	})
	for _, s := range stages {
		got := s.measure()
		i := slices.IndexFunc(lines, func(line string) bool { return strings.HasPrefix(line, s.Name+":") })
		switch {
		case i >= 0 && lines[i] == got:
			continue
		case *update && i >= 0:
			lines[i] = got
		case *update:
			lines = append(lines, got)
		case i >= 0:
			t.Errorf("%s\nin %s: %s\nWhere that is meant: make allocations", got, file, lines[i])
		default:
			t.Errorf("%s\nis not in %s; make allocations adds it", got, file)
		}
	}
	if *update {
		slices.Sort(lines)
		if err := os.WriteFile(path, []byte(head+strings.Join(lines, "\n")+"\n"), 0o644); err != nil {
			t.Fatal(err)
		}
	}
}

// find looks for the file from the package's directory upwards.
func find() (string, error) {
	dir, err := os.Getwd()
	if err != nil {
		return "", err
	}
	for {
		if _, err := os.Stat(filepath.Join(dir, "go.mod")); err == nil {
			return filepath.Join(dir, filepath.FromSlash(file)), nil
		}
		up := filepath.Dir(dir)
		if up == dir {
			return "", fmt.Errorf("there is no go.mod above the test to find %s beside", file)
		}
		dir = up
	}
}

// measure is the stage's line. The least of some passes counts: whatever else the
// runtime does meanwhile can only add.
func (s Stage) measure() string {
	defer runtime.GOMAXPROCS(runtime.GOMAXPROCS(1))
	defer debug.SetGCPercent(debug.SetGCPercent(-1))
	s.Pass() // grows what stays
	s.Pass()
	count, bytes := uint64(math.MaxUint64), uint64(math.MaxUint64)
	for range 10 {
		var before, after runtime.MemStats
		runtime.ReadMemStats(&before)
		s.Pass()
		runtime.ReadMemStats(&after)
		count = min(count, after.Mallocs-before.Mallocs)
		bytes = min(bytes, after.TotalAlloc-before.TotalAlloc)
	}
	// Small objects share blocks, so that a pass may take one block more or less.
	perRow := math.Round(float64(bytes) / float64(s.Rows))
	return fmt.Sprintf("%s: %d allocations, %.0f bytes", s.Name, count*1000/uint64(s.Rows), perRow)
}

// Benchmark measures a stage. What it shows is a row's: an operation is a row.
func Benchmark(b *testing.B, stages ...Stage) {
	for _, s := range stages {
		b.Run(strings.ReplaceAll(s.Name, " ", "-"), func(b *testing.B) {
			b.ReportAllocs()
			s.Pass()
			b.ResetTimer()
			for n := 0; n < b.N; n += s.Rows {
				s.Pass()
			}
		})
	}
}
