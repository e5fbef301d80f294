package health

import (
	"fmt"
	"strconv"
	"strings"
	"time"
)

// Duration is a duration as the reasons print it.
func Duration(d time.Duration) string { return duration(max(0, d)) }

// Size is a number of bytes as the reasons print it.
func Size(n int64) string { return size(max(0, n)) }

// duration prints in the two largest units. It rounds down, so that a text
// never claims more than a threshold saw.
func duration(d time.Duration) string {
	const day = 24 * time.Hour
	switch {
	case d < 10*time.Second:
		return fmt.Sprintf("%.1f s", d.Truncate(100*time.Millisecond).Seconds())
	case d < time.Minute:
		return fmt.Sprintf("%d s", d/time.Second)
	case d < time.Hour:
		return units(d, time.Minute, "min", time.Second, "s")
	case d < day:
		return units(d, time.Hour, "h", time.Minute, "min")
	default:
		return units(d, day, "d", time.Hour, "h")
	}
}

func units(d, large time.Duration, largeName string, small time.Duration, smallName string) string {
	text := fmt.Sprintf("%d %s", d/large, largeName)
	if rest := d % large / small; rest > 0 {
		text += fmt.Sprintf(" %d %s", rest, smallName)
	}
	return text
}

// seconds is a number of seconds as a duration, as far as one reaches.
func seconds(s float64) time.Duration {
	const most = 9e9 // 285 years
	return time.Duration(min(s, most) * float64(time.Second))
}

// size prints a number of bytes, rounded down like duration.
func size(n int64) string {
	const unit = 1024
	if n < unit {
		return fmt.Sprintf("%d bytes", n)
	}
	names := []string{"KiB", "MiB", "GiB", "TiB", "PiB", "EiB"}
	whole, tenths, i := n/unit, n%unit*10/unit, 0
	for ; whole >= unit; i++ {
		whole, tenths = whole/unit, whole%unit*10/unit
	}
	return fmt.Sprintf("%d.%d %s", whole, tenths, names[i])
}

// quoted puts a name in quotes.
func quoted(name string) string { return strconv.Quote(name) }

// ended is a text that ends a sentence. One that ends with a command gets no dot,
// which would be copied along.
func ended(text string) string {
	if strings.HasSuffix(text, ";") || strings.HasSuffix(text, ".") {
		return text
	}
	return text + "."
}

// oneLine puts a server's text of several lines on one.
func oneLine(text string) string {
	lines := strings.FieldsFunc(text, func(r rune) bool { return r == '\n' || r == '\r' })
	for i, line := range lines {
		lines[i] = strings.TrimSpace(line)
	}
	return strings.TrimSpace(strings.Join(lines, " "))
}
