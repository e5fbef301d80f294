package main

import (
	"cmp"
	"context"
	"fmt"
	"slices"
	"strings"

	"github.com/jackc/pgx/v5"

	"github.com/stagedoor/walrelay/cdc"
	"github.com/stagedoor/walrelay/internal/fault"
	"github.com/stagedoor/walrelay/internal/pg"
	"github.com/stagedoor/walrelay/migrations"
	"github.com/stagedoor/walrelay/outbox"
	"github.com/stagedoor/walrelay/slot"
)

// setupCmd makes what run needs in the database, except for the slot.
type setupCmd struct {
	CreateTable         bool   `help:"Create the outbox table and its index, too, where they are missing."`
	CreateNotifyTrigger bool   `help:"Add a trigger to the table that notifies the channel of --listen (default new_outbox_event) of inserts, for walrelay poll."`
	ForPoll             bool   `help:"Prepare for walrelay poll alone: no publication, and no REPLICATION for the role."`
	PrintSQL            bool   `name:"print-sql" help:"Connect to nothing and change nothing; print the SQL, with the grants, for somebody with the privileges to run it."`
	Role                string `type:"name" placeholder:"NAME" help:"With --print-sql: the role that run will connect as. Default: the user of --postgres."`
}

// Help is printed by --help.
func (setupCmd) Help() string {
	return `setup creates what run needs in the database and may be run again at any time. It never creates the replication slot: only run does, together with the first look at the table.

Examples:

    walrelay setup --postgres 'postgres://postgres@db.example.com:5432/shop' --create-table
    walrelay setup --postgres 'postgres://walrelay@db.example.com:5432/shop' --print-sql | psql -d shop
    walrelay setup --postgres 'postgres://postgres@db.example.com:5432/shop' --for-poll --create-notify-trigger`
}

// Run is called by main.
func (c *setupCmd) Run(ctx context.Context, p *process) error {
	if c.Role != "" && !c.PrintSQL {
		return usagef("--role is for --print-sql: without that, nothing is granted")
	}
	if c.CreateTable {
		if err := fitsNewTable(p.cfg.Mapping()); err != nil {
			return err
		}
	}
	if c.PrintSQL {
		return c.print(p)
	}
	if c.CreateTable {
		if err := createTable(ctx, p); err != nil {
			return err
		}
	}
	if c.CreateNotifyTrigger {
		if err := createNotifyTrigger(ctx, p); err != nil {
			return err
		}
	}
	if c.ForPoll {
		err := c.check(ctx, p)
		if err == nil {
			fmt.Fprintf(p.stdout, "the table %s is fit for walrelay poll\n", p.cfg.Table)
		}
		return err
	}
	publication := cdc.QuoteIdent(p.cfg.Publication)
	created, err := slot.New(slotConfig(p.cfg), p.log).CreatePublication(ctx)
	if created { // also where it is not as it must be: somebody changed it since
		fmt.Fprintf(p.stdout, "created the publication %s of %s\n", publication, p.cfg.Table)
	}
	if err != nil {
		return err
	}
	if !created {
		fmt.Fprintf(p.stdout, "the publication %s of %s is there already\n", publication, p.cfg.Table)
	}
	return c.check(ctx, p)
}

// check finds now, rather than when run or poll start, what does not fit.
func (c *setupCmd) check(ctx context.Context, p *process) error {
	return outbox.New(outbox.Config{
		Conn: p.cfg.Postgres, Table: p.cfg.Table, Mapping: p.cfg.Mapping(), Mark: p.cfg.Mark,
	}, p.log).Check(ctx, nil)
}

// slotConfig is what package slot has to know of the settings.
func slotConfig(cfg *Config) slot.Config {
	return slot.Config{Conn: cfg.Postgres, Slot: cfg.Slot, Publication: cfg.Publication, Table: cfg.Table}
}

// fitsNewTable refuses columns that the table of package migrations has not.
func fitsNewTable(m outbox.Mapping) error {
	d := outbox.DefaultMapping()
	columns := []string{d.ID, d.Kind, d.Payload, d.CreatedAt, d.PublishedAt, ""}
	used := []string{m.ID, m.CreatedAt, m.PublishedAt}
	for _, f := range m.EntryFields() {
		used = append(used, f.Column)
	}
	for _, name := range used {
		if !slices.Contains(columns, name) {
			return usagef("--create-table makes a table without the column %q that the settings name; it has %s", name, strings.Join(columns[:len(columns)-1], ", "))
		}
	}
	return nil
}

// createTable makes the table unless it is there.
func createTable(ctx context.Context, p *process) error {
	conn, err := pg.Connect(ctx, p.cfg.Postgres)
	if err != nil {
		return err
	}
	defer closeConn(conn)
	table := p.cfg.Table
	var there bool
	if err := conn.QueryRow(ctx, "SELECT to_regclass($1) IS NOT NULL", table.String()).Scan(&there); err != nil {
		return fmt.Errorf("look for the table %s: %w", table, err)
	}
	if there {
		fmt.Fprintf(p.stdout, "the table %s is there already\n", table)
		return nil
	}
	_, err = conn.Exec(ctx, migrations.Table(table))
	switch pg.Code(err) {
	case "3F000": // invalid_schema_name
		return &fault.Error{
			Problem: fmt.Sprintf("there is no schema %s for the table", cdc.QuoteIdent(table.Schema)),
			Fix:     fmt.Sprintf("CREATE SCHEMA %s;", cdc.QuoteIdent(table.Schema)),
		}
	case "42501": // insufficient_privilege
		return &fault.Error{
			Problem: fmt.Sprintf("the role %s may not create the table %s", cdc.QuoteIdent(p.cfg.Postgres.User), table),
			Fix:     "have somebody run what walrelay setup --create-table --print-sql prints",
			Err:     err,
		}
	}
	if err != nil {
		return fmt.Errorf("create the table %s: %w", table, err)
	}
	fmt.Fprintf(p.stdout, "created the table %s\n", table)
	return nil
}

// defaultChannel is notified where --listen names none.
const defaultChannel = "new_outbox_event"

// createNotifyTrigger adds the trigger unless it is there.
func createNotifyTrigger(ctx context.Context, p *process) error {
	conn, err := pg.Connect(ctx, p.cfg.Postgres)
	if err != nil {
		return err
	}
	defer closeConn(conn)
	table, channel := p.cfg.Table, cmp.Or(p.cfg.Listen, defaultChannel)
	// The arguments end with a zero byte each.
	var there []byte
	err = conn.QueryRow(ctx, `SELECT max(tgargs::text)::bytea FROM pg_trigger WHERE tgrelid = to_regclass($1) AND tgname = $2`,
		table.String(), migrations.NotifyTrigger).Scan(&there)
	if err != nil {
		return fmt.Errorf("look for the trigger %s: %w", migrations.NotifyTrigger, err)
	}
	if there != nil {
		if is := strings.TrimRight(string(there), "\x00"); is != channel {
			return &fault.Error{
				Problem: fmt.Sprintf("the trigger %s of %s notifies the channel %q, not %q", migrations.NotifyTrigger, table, is, channel),
				Fix:     fmt.Sprintf("give --listen %q, or DROP TRIGGER %s ON %s and run this again", is, migrations.NotifyTrigger, table),
			}
		}
		fmt.Fprintf(p.stdout, "the trigger %s of %s is there already\n", migrations.NotifyTrigger, table)
		return nil
	}
	_, err = conn.Exec(ctx, migrations.Notify(table, channel))
	switch pg.Code(err) {
	case "42P01": // undefined_table
		return &fault.Error{Problem: fmt.Sprintf("there is no table %s", table), Fix: "name it with --table, or give --create-table, too"}
	case "42501": // insufficient_privilege
		return &fault.Error{
			Problem: fmt.Sprintf("the role %s may not add a trigger to %s", cdc.QuoteIdent(p.cfg.Postgres.User), table),
			Fix:     "have its owner run what walrelay setup --create-notify-trigger --print-sql prints",
			Err:     err,
		}
	case "55P03": // lock_not_available
		return &fault.Error{
			Problem: fmt.Sprintf("transactions of writers have kept %s locked for five seconds", table),
			Fix:     "run this again when fewer are open",
			Err:     err,
		}
	}
	if err != nil {
		return fmt.Errorf("add the trigger %s to %s: %w", migrations.NotifyTrigger, table, err)
	}
	fmt.Fprintf(p.stdout, "added the trigger %s to %s, which notifies %s\n", migrations.NotifyTrigger, table, channel)
	return nil
}

// closeConn says goodbye, also when the command was cancelled.
func closeConn(conn *pgx.Conn) {
	ctx, cancel := context.WithTimeout(context.Background(), closePatience)
	defer cancel()
	_ = conn.Close(ctx) // nothing depends on it
}
