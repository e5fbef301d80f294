package main

import (
	"context"
	"errors"
)

// setupCmd creates the publication.
type setupCmd struct {
	CreateTable bool   `help:"Create the outbox table and its index, too, where they are missing."`
	PrintSQL    bool   `name:"print-sql" help:"Change nothing; print the SQL, with the grants, for somebody with the privileges to run it."`
	Role        string `type:"name" placeholder:"NAME" help:"With --print-sql: the role that the grants are for. Default: the user of --postgres."`
}

// Help is printed by --help.
func (setupCmd) Help() string {
	return `setup creates what run needs in the database and may be run again at any time. It never creates the replication slot: only run does, together with the first look at the table.

Examples:

    walrelay setup --postgres 'postgres://postgres@db.example.com:5432/shop' --create-table
    walrelay setup --postgres 'postgres://walrelay@db.example.com:5432/shop' --print-sql | psql -d shop`
}

// Run is called by main.
func (setupCmd) Run(_ context.Context, _ *process) error {
	return errors.New("not built yet")
}
