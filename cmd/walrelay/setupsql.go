package main

import (
	"cmp"
	"fmt"
	"strings"
	"unicode"

	"github.com/stagedoor/walrelay/cdc"
	"github.com/stagedoor/walrelay/migrations"
	"github.com/stagedoor/walrelay/outbox"
	"github.com/stagedoor/walrelay/slot"
)

// print writes the script for somebody with the privileges. It changes nothing
// where everything is there, so that it can be run again.
func (c *setupCmd) print(p *process) error {
	cfg := slotConfig(p.cfg)
	cfg.Conn = cfg.Conn.Copy()
	if cfg.Conn.Database == "" { // as the server does, and before the role changes
		cfg.Conn.Database = cfg.Conn.User
	}
	if c.Role != "" {
		cfg.Conn.User = c.Role
	}
	role, database := cdc.QuoteIdent(cfg.Conn.User), cdc.QuoteIdent(cfg.Conn.Database)
	// The script has names in comments, which end with their line.
	for _, name := range []string{role, database} {
		if strings.ContainsFunc(name, unicode.IsControl) {
			return usagef("the name %s holds a control character, so that no script can be printed", name)
		}
	}

	var b strings.Builder
	fmt.Fprintf(&b, "-- What walrelay needs in the database %s. Run it there, as a superuser, or as the\n", database)
	fmt.Fprintf(&b, "-- owner of the table who also has CREATE on the database and may alter the role.\n")
	fmt.Fprintf(&b, "-- It may be run again. The role must be there:\n")
	fmt.Fprintf(&b, "--   CREATE ROLE %s LOGIN PASSWORD '...';\n\n", role)
	if c.CreateTable {
		b.WriteString(strings.TrimSpace(migrations.Table(cfg.Table)) + "\n\n")
	}
	if c.CreateNotifyTrigger {
		b.WriteString(strings.TrimSpace(migrations.Notify(cfg.Table, cmp.Or(p.cfg.Listen, defaultChannel))) + "\n\n")
	}
	statements := slot.SetupSQL
	if c.ForPoll {
		statements = slot.GrantsSQL
	}
	for _, statement := range statements(cfg, markPrivileges(p.cfg)...) {
		b.WriteString(statement + "\n")
	}
	_, err := fmt.Fprint(p.stdout, b.String())
	return err
}

// markPrivileges are those that marking and purging take. Locking a row, which
// comes before deleting it, takes UPDATE on some column.
func markPrivileges(cfg *Config) []string {
	update := func(column string) string { return fmt.Sprintf("UPDATE (%s)", cdc.QuoteIdent(column)) }
	var privileges []string
	deletes := cfg.Mark == outbox.MarkDelete || cfg.PurgeAfter > 0
	if deletes {
		privileges = append(privileges, "DELETE")
	}
	switch {
	case cfg.Mark != outbox.MarkDelete && cfg.Mark != outbox.MarkNone && cfg.ColumnPublishedAt != "":
		privileges = append(privileges, update(cfg.ColumnPublishedAt))
	case deletes:
		privileges = append(privileges, update(cfg.ColumnID))
	}
	return privileges
}
