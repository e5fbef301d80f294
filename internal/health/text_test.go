package health

import (
	"math"
	"testing"
	"time"
)

func TestDurationRoundsDown(t *testing.T) {
	for d, want := range map[time.Duration]string{
		0:                              "0.0 s",
		99 * time.Millisecond:          "0.0 s",
		1290 * time.Millisecond:        "1.2 s",
		10*time.Second - 1:             "9.9 s",
		10 * time.Second:               "10 s",
		time.Minute - 1:                "59 s",
		time.Minute:                    "1 min",
		200 * time.Second:              "3 min 20 s",
		time.Hour - 1:                  "59 min 59 s",
		time.Hour:                      "1 h",
		time.Hour + 59*time.Second:     "1 h",
		2*time.Hour + 5*time.Minute:    "2 h 5 min",
		24*time.Hour - 1:               "23 h 59 min",
		76*time.Hour + 59*time.Minute:  "3 d 4 h",
		time.Duration(math.MaxInt64):   "106751 d 23 h",
		seconds(61.2):                  "1 min 1 s",
		seconds(math.MaxFloat64):       "104166 d 16 h",
		24 * time.Hour:                 "1 d",
		90 * time.Minute:               "1 h 30 min",
		time.Minute + time.Millisecond: "1 min",
	} {
		if got := duration(d); got != want {
			t.Errorf("%d ns: %q, want %q", d, got, want)
		}
	}
}

func TestSizeRoundsDown(t *testing.T) {
	for n, want := range map[int64]string{
		0:             "0 bytes",
		1023:          "1023 bytes",
		1024:          "1.0 KiB",
		1535:          "1.4 KiB",
		1536:          "1.5 KiB",
		1<<20 - 1:     "1023.9 KiB",
		1 << 20:       "1.0 MiB",
		5<<30 - 1:     "4.9 GiB",
		3 << 40:       "3.0 TiB",
		math.MaxInt64: "7.9 EiB",
	} {
		if got := size(n); got != want {
			t.Errorf("%d: %q, want %q", n, got, want)
		}
	}
}
