package cdc

import "strings"

// QuoteIdent quotes a name for use in SQL.
func QuoteIdent(name string) string {
	return `"` + strings.ReplaceAll(name, `"`, `""`) + `"`
}

// QuoteLiteral quotes a value for use in SQL, whatever
// standard_conforming_strings says of backslashes. Replication commands know no
// escape strings, and are not SQL in this.
//
// https://www.postgresql.org/docs/current/sql-syntax-lexical.html#SQL-SYNTAX-STRINGS
func QuoteLiteral(value string) string {
	quoted := "'" + strings.ReplaceAll(value, "'", "''") + "'"
	if strings.Contains(quoted, `\`) {
		return "E" + strings.ReplaceAll(quoted, `\`, `\\`)
	}
	return quoted
}

// DollarTag is what quotes a body of SQL in which nothing is to be escaped, at
// either end: a tag that the body does not hold.
//
// https://www.postgresql.org/docs/current/sql-syntax-lexical.html#SQL-SYNTAX-DOLLAR-QUOTING
func DollarTag(body string) string {
	tag := "$walrelay$"
	for strings.Contains(body, tag) {
		tag = "$_" + tag[1:]
	}
	return tag
}
