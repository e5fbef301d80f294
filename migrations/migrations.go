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

//go:embed notify.sql
var notify string

// NotifyTrigger is the name of the trigger of Notify, and of its function, which
// is in the schema of the table.
const NotifyTrigger = "walrelay_notify"

// Table is the SQL that creates the outbox table, with the index that finds
// unpublished rows, where there is no relation of that name. Otherwise it
// changes nothing and takes no lock: CREATE INDEX IF NOT EXISTS would wait for
// the table's writers before it finds that it has nothing to do, and hold up
// all later ones meanwhile. The schema must be there.
func Table(t cdc.Table) string {
	name := t.String()
	return strings.NewReplacer(
		"{{quote}}", cdc.DollarTag(name),
		"{{table}}", name,
		"{{literal}}", cdc.QuoteLiteral(name),
	).Replace(outbox)
}

// Notify is the SQL that adds a trigger which notifies a channel of each insert,
// where the table has none of that name. Otherwise it changes nothing and takes no
// lock. It waits at most five seconds for the table's writers, and fails then.
func Notify(t cdc.Table, channel string) string {
	name, function := t.String(), cdc.Table{Schema: t.Schema, Name: NotifyTrigger}.String()
	channel = cdc.QuoteLiteral(channel)
	return strings.NewReplacer(
		"{{quote}}", cdc.DollarTag(name+channel),
		"{{table}}", name,
		"{{literal}}", cdc.QuoteLiteral(name),
		"{{function}}", function,
		"{{signature}}", cdc.QuoteLiteral(function+"()"),
		"{{channel}}", channel,
	).Replace(notify)
}
