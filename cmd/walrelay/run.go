package main

import (
	"context"
	"errors"
)

// runCmd carries rows until it is told to stop.
type runCmd struct{}

// Help is printed by --help.
func (runCmd) Help() string {
	return `run ensures the publication, and where there is no slot yet it publishes what the table holds unpublished and creates the slot. Then it streams: each row that commits goes to the stream, is marked, and only then may PostgreSQL forget its part of the log.

While PostgreSQL or Redis are away it tries again for as long as it takes; rows wait in the log. SIGTERM or SIGINT finish what is in flight.

Example:

    walrelay run --postgres 'postgres://walrelay@db.example.com:5432/shop' --stream jobs
    curl http://127.0.0.1:9476/healthz`
}

// Run is called by main.
func (runCmd) Run(_ context.Context, _ *process) error {
	return errors.New("not built yet")
}
