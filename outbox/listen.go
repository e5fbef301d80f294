package outbox

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"

	"github.com/stagedoor/walrelay/cdc"
)

// listenProof is how often a connection that is quiet has to show that it is
// there.
const listenProof = 10 * time.Second

// Listen waits for notifications on a channel, on a connection of its own, until
// that fails or ctx ends. It calls wake when it listens, since some may have been
// missed until then, and for each that arrives.
// https://www.postgresql.org/docs/current/sql-listen.html
func (t *Table) Listen(ctx context.Context, channel string, wake func()) error {
	conn, err := t.connect(ctx)
	if err != nil {
		return err
	}
	defer hangUp(conn)
	if err := bounded(ctx, conn, "LISTEN "+cdc.QuoteIdent(channel)); err != nil {
		return fmt.Errorf("listening on %s: %w", cdc.QuoteIdent(channel), err)
	}
	for wake(); ; {
		arrived, err := notified(ctx, conn)
		switch {
		case err != nil:
			return err
		case arrived:
			wake()
			continue
		}
		if err := bounded(ctx, conn, "SELECT"); err != nil {
			return err
		}
	}
}

// notified waits for a notification, and not for ever.
func notified(ctx context.Context, conn *pgx.Conn) (bool, error) {
	waiting, cancel := context.WithTimeout(ctx, listenProof)
	defer cancel()
	_, err := conn.WaitForNotification(waiting)
	switch {
	case err == nil:
		return true, nil
	case ctx.Err() == nil && (errors.Is(err, context.DeadlineExceeded) || pgconn.Timeout(err)):
		return false, nil
	}
	return false, err
}

// bounded runs SQL that a server answers at once if it does at all.
func bounded(ctx context.Context, conn *pgx.Conn, sql string) error {
	ctx, cancel := context.WithTimeout(ctx, 5*time.Second)
	defer cancel()
	_, err := conn.PgConn().Exec(ctx, sql).ReadAll()
	return err
}
