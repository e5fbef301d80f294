package slot

import "strings"

// quoteLiteral quotes a value for use in SQL, whatever
// standard_conforming_strings says.
func quoteLiteral(s string) string {
	quoted := "'" + strings.ReplaceAll(s, "'", "''") + "'"
	if strings.Contains(s, `\`) {
		return " E" + strings.ReplaceAll(quoted, `\`, `\\`)
	}
	return quoted
}

// quoteOption quotes a value in a replication command, whose grammar knows no
// escape strings: only a single quote is doubled.
func quoteOption(s string) string {
	return "'" + strings.ReplaceAll(s, "'", "''") + "'"
}
