// Package migrations holds the SQL that makes the outbox table.
//
// There is no version table in the user's database: the SQL looks at the
// database itself and can be run at any time, by the relay or by hand.
package migrations

import (
	_ "embed"
	"strings"

	"github.com/stagedoor/walrelay/cdc"
)

//go:embed outbox.sql
var outbox string

// Table is the SQL that creates the outbox table, with the index that finds
// unpublished rows, where there is no relation of that name. Otherwise it
// changes nothing and takes no lock: CREATE INDEX IF NOT EXISTS would wait for
// the table's writers before it finds that it has nothing to do, and hold up
// all later ones meanwhile. The schema must be there.
func Table(t cdc.Table) string {
	name := t.String()
	// Inside of dollar quotes nothing is escaped, so the quotes must be ones
	// that the name does not hold.
	quote := "$walrelay$"
	for strings.Contains(name, quote) {
		quote = "$_" + quote[1:]
	}
	return strings.NewReplacer(
		"{{quote}}", quote,
		"{{table}}", name,
		"{{literal}}", quoteLiteral(name),
	).Replace(outbox)
}

// quoteLiteral quotes a string for SQL, whatever standard_conforming_strings
// says of backslashes.
func quoteLiteral(s string) string {
	s = strings.ReplaceAll(s, "'", "''")
	if !strings.Contains(s, `\`) {
		return "'" + s + "'"
	}
	return "E'" + strings.ReplaceAll(s, `\`, `\\`) + "'"
}
