package slot

import "strings"

// quoteOption quotes a value in a replication command, whose grammar knows no
// escape strings: only a single quote is doubled.
func quoteOption(s string) string {
	return "'" + strings.ReplaceAll(s, "'", "''") + "'"
}
