package main

import (
	"context"
	"errors"
)

// teardownCmd drops what run and setup made.
type teardownCmd struct {
	Yes bool `short:"y" help:"Do not ask."`
}

// Help is printed by --help.
func (teardownCmd) Help() string {
	return `teardown drops the replication slot, so that PostgreSQL holds no log for it any more, the publication, and the checkpoint in Redis. The table, its rows and the stream stay. Stop the relay first: a slot in use is not dropped.

It shows what it is about to drop and asks; without a terminal it needs --yes.

Example:

    walrelay teardown --postgres 'postgres://walrelay@db.example.com:5432/shop'`
}

// Run is called by main.
func (teardownCmd) Run(_ context.Context, _ *process) error {
	return errors.New("not built yet")
}
