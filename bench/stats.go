package main

import (
	"cmp"
	"fmt"
	"math"
	"slices"
)

// spread is the median of some numbers, and the least and the most of them.
type spread struct {
	Median float64 `json:"median"`
	Least  float64 `json:"least"`
	Most   float64 `json:"most"`
	N      int     `json:"n"`
}

// spreadOf leaves out what is no number: a run too short to be measured.
func spreadOf(values []float64) spread {
	values = slices.DeleteFunc(slices.Clone(values), func(v float64) bool { return math.IsNaN(v) || math.IsInf(v, 0) })
	if len(values) == 0 {
		return spread{}
	}
	slices.Sort(values)
	return spread{Median: median(values), Least: values[0], Most: values[len(values)-1], N: len(values)}
}

// median is that of sorted values: of an even number the mean of the two in the
// middle.
func median[T float64 | int64](sorted []T) T {
	n := len(sorted)
	if n == 0 {
		return 0
	}
	if n%2 == 1 {
		return sorted[n/2]
	}
	return (sorted[n/2-1] + sorted[n/2]) / 2
}

// percentile is the smallest of the sorted values that a share of them, from 0
// to 1, does not exceed.
func percentile[T cmp.Ordered](sorted []T, share float64) T {
	var none T
	if len(sorted) == 0 {
		return none
	}
	i := int(math.Ceil(share*float64(len(sorted)))) - 1
	return sorted[min(max(i, 0), len(sorted)-1)]
}

// ratio is a ratio as it is printed, with its spread.
func (s spread) ratio() string {
	if s.N == 0 {
		return "–"
	}
	return fmt.Sprintf("%s× (%s–%s)", digits(s.Median), digits(s.Least), digits(s.Most))
}

// reach is a spread as it is printed.
func (s spread) reach() string {
	if s.N == 0 {
		return "–"
	}
	return digits(s.Least) + "–" + digits(s.Most)
}

// scaled is in another unit.
func (s spread) scaled(by float64) spread {
	s.Median, s.Least, s.Most = s.Median*by, s.Least*by, s.Most*by
	return s
}

// plain is a median as it is printed, without its spread.
func (s spread) plain() string {
	if s.N == 0 {
		return "–"
	}
	return digits(s.Median)
}

// digits prints a number with about three of them.
func digits(v float64) string {
	switch a := math.Abs(v); {
	case a >= 1000:
		return grouped(int64(math.Round(v)))
	case a >= 100:
		return fmt.Sprintf("%.0f", v)
	case a >= 10:
		return fmt.Sprintf("%.1f", v)
	case a >= 0.1 || a == 0:
		return fmt.Sprintf("%.2f", v)
	}
	return fmt.Sprintf("%.3f", v)
}

// grouped is a number of pieces with its thousands apart.
func grouped(n int64) string {
	if n < 0 {
		return "−" + grouped(-n)
	}
	if n < 1000 {
		return fmt.Sprint(n)
	}
	return fmt.Sprintf("%s,%03d", grouped(n/1000), n%1000)
}

// mebibytes is memory as it is printed.
func mebibytes(bytes float64) string { return fmt.Sprintf("%.1f MiB", bytes/(1<<20)) }
