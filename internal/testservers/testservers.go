// Package testservers starts throwaway PostgreSQL and Redis servers, and a TCP
// proxy to put between them and their clients, for tests and for the demo.
//
// Every server is a real one, in a directory of its own, on a port of its own
// of 127.0.0.1, and can be stopped, killed, frozen and started again on the
// same port with the same data. A PostgreSQL can be a streaming standby of
// another, a Redis a replica; either can be promoted, and given older data.
// Nothing is left behind: a guard process beside
// each server ends it and removes its directory when the program that started
// it is gone, however it went (see guard).
//
// Environment variables: WALRELAY_TEST_PGBIN is the directory of PostgreSQL's
// programs (fetch-postgres.sh downloads other versions), WALRELAY_TEST_REDIS the
// program redis-server, WALRELAY_TEST_CACHE where downloads and the template of
// PostgreSQL's data directory are kept between runs. What is missing ends the
// test with the command that installs it; install.sh installs everything.
//
// Only Linux is supported: processes are found in /proc.
package testservers

import (
	"context"
	"fmt"
	"time"
)

// TB is what a server needs of whoever starts it. A testing.TB fits; a program
// gives its own.
type TB interface {
	Helper()
	Failed() bool
	Logf(format string, args ...any)
	// Fatalf must not return: it ends the goroutine or the process.
	Fatalf(format string, args ...any)
	// Cleanup registers functions that run last registered first.
	Cleanup(func())
}

// patience bounds each wait for a server of the forms that take no context. It
// is not a measurement: a healthy server needs a fraction of a second, and two
// busy cores some more.
const patience = time.Minute

// patient runs an operation of a server within patience and ends the test if
// it fails.
func patient(t TB, what string, op func(context.Context) error) {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	if err := op(ctx); err != nil {
		t.Fatalf("%s: %v", what, err)
	}
}

// poll calls check until it says true or ctx ends. It is for conditions that
// nobody announces.
func poll(ctx context.Context, check func() bool) error {
	tick := time.NewTicker(10 * time.Millisecond)
	defer tick.Stop()
	for !check() {
		select {
		case <-tick.C:
		case <-ctx.Done():
		}
		if ctx.Err() != nil {
			return fmt.Errorf("waited in vain: %w", context.Cause(ctx))
		}
	}
	return nil
}
