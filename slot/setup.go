package slot

import (
	"context"
	"errors"
	"fmt"

	"github.com/jackc/pgx/v5"

	"github.com/stagedoor/walrelay/cdc"
	"github.com/stagedoor/walrelay/internal/fault"
	"github.com/stagedoor/walrelay/internal/pg"
)

// SetupSQL is what a DBA runs for the relay: the publication, and the least
// privileges of the role that the relay connects as. Privileges are those on
// the table beside SELECT, such as UPDATE ("published_at"). It changes nothing
// where all of that is there.
func SetupSQL(cfg Config, privileges ...string) []string {
	role := cdc.QuoteIdent(cfg.Conn.User)
	return append([]string{
		unlessPublished(cfg.Publication, createPublicationSQL(cfg)) + "\n",
		fmt.Sprintf("ALTER ROLE %s REPLICATION; -- on Amazon RDS: GRANT rds_replication TO %s;", role, role),
	}, GrantsSQL(cfg, privileges...)...)
}

// GrantsSQL is the part of SetupSQL that does without replication.
func GrantsSQL(cfg Config, privileges ...string) []string {
	role := cdc.QuoteIdent(cfg.Conn.User)
	sql := []string{
		fmt.Sprintf("GRANT CONNECT ON DATABASE %s TO %s;", cdc.QuoteIdent(database(cfg.Conn)), role),
		fmt.Sprintf("GRANT USAGE ON SCHEMA %s TO %s;", cdc.QuoteIdent(cfg.Table.Schema), role),
	}
	for _, p := range append([]string{"SELECT"}, privileges...) {
		sql = append(sql, fmt.Sprintf("GRANT %s ON %s TO %s;", p, cfg.Table, role))
	}
	return sql
}

// unlessPublished runs the statement only if there is no such publication:
// CREATE PUBLICATION has no IF NOT EXISTS.
func unlessPublished(publication, statement string) string {
	literal := cdc.QuoteLiteral(publication)
	tag := cdc.DollarTag(literal + statement)
	return fmt.Sprintf("DO %s\nBEGIN\n  IF NOT EXISTS (SELECT FROM pg_publication WHERE pubname = %s) THEN\n    %s\n  END IF;\nEND\n%s;",
		tag, literal, statement, tag)
}

// database is the one that a connection string leads to: without a name, that
// of the user.
func database(cfg *pgx.ConnConfig) string {
	if cfg.Database == "" {
		return cfg.User
	}
	return cfg.Database
}

// CreatePublication makes the publication, or verifies the one that is there.
func (s *Source) CreatePublication(ctx context.Context) (created bool, err error) {
	err = s.once(ctx, func(ctx context.Context, conn *pgx.Conn) (err error) {
		created, err = ensurePublication(ctx, conn, s.cfg, true)
		return err
	})
	return created, err
}

// Teardown drops the slot and the publication, and tells what it did, also when
// it fails half-way. What is not there is fine. A slot that is in use or
// somebody else's stays, and so does a publication that holds other tables.
func (s *Source) Teardown(ctx context.Context) (done []string, err error) {
	err = s.once(ctx, func(ctx context.Context, conn *pgx.Conn) error {
		dropped, err := s.teardownSlot(ctx, conn)
		if err != nil {
			return err
		}
		done = append(done, did(dropped, fmt.Sprintf("slot %q", s.cfg.Slot)))
		others, err := otherSlots(ctx, conn, s.cfg.Slot)
		if err != nil {
			return err
		}
		if others != "" {
			done = append(done, fmt.Sprintf("kept the publication %q, which may be used by: %s; if it is not: DROP PUBLICATION %s;",
				s.cfg.Publication, others, cdc.QuoteIdent(s.cfg.Publication)))
			return nil
		}
		dropped, err = s.teardownPublication(ctx, conn)
		if err != nil {
			return err
		}
		done = append(done, did(dropped, fmt.Sprintf("publication %q", s.cfg.Publication)))
		return nil
	})
	return done, err
}

// otherSlots names the slots of this database that could read from the
// publication, too: PostgreSQL does not know which do.
func otherSlots(ctx context.Context, conn *pgx.Conn, name string) (names string, err error) {
	err = conn.QueryRow(ctx, `
		SELECT coalesce(string_agg(quote_ident(slot_name), ', ' ORDER BY slot_name), '') FROM pg_replication_slots
		WHERE plugin = $1 AND database = current_database() AND NOT temporary AND slot_name <> $2`, outputPlugin, name).Scan(&names)
	if err != nil {
		return "", fmt.Errorf("look for other slots: %w", err)
	}
	return names, nil
}

func did(dropped bool, what string) string {
	if dropped {
		return "dropped the " + what
	}
	return "there is no " + what
}

func (s *Source) teardownSlot(ctx context.Context, conn *pgx.Conn) (dropped bool, err error) {
	name := s.cfg.Slot
	var kind, plugin, of, here string
	var pid int
	err = conn.QueryRow(ctx, `
		SELECT slot_type, coalesce(plugin, ''), coalesce(database, ''), current_database(), coalesce(active_pid, 0)
		FROM pg_replication_slots WHERE slot_name = $1`, name).Scan(&kind, &plugin, &of, &here, &pid)
	switch {
	case errors.Is(err, pgx.ErrNoRows):
		return false, nil
	case err != nil:
		return false, fmt.Errorf("read slot %q: %w", name, err)
	}
	if err := foreign(name, kind, plugin, of, here); err != nil {
		return false, err
	}
	if pid == 0 {
		err = dropSlot(ctx, conn, name)
	} else {
		err = inUse(name, pid, nil)
	}
	switch {
	case errors.Is(err, ErrSlotInUse):
		return false, &fault.Error{
			Problem: fmt.Sprintf("slot %q cannot be dropped", name),
			Fix:     "stop the relay that uses it, then run teardown again",
			Err:     err,
		}
	case pg.Code(err) == codeInsufficientPrivilege:
		return false, replicationFault(s.cfg.Conn.User, err)
	}
	return err == nil, err
}

func (s *Source) teardownPublication(ctx context.Context, conn *pgx.Conn) (dropped bool, err error) {
	name := cdc.QuoteIdent(s.cfg.Publication)
	state, err := readPublication(ctx, conn, s.cfg)
	switch {
	case err != nil:
		return false, err
	case !state.Exists:
		return false, nil
	case state.foreign():
		return false, &fault.Error{
			Problem: fmt.Sprintf("the publication %s holds other tables as well, so that others may use it", name),
			Fix:     fmt.Sprintf("if nobody does: DROP PUBLICATION %s;", name),
			Err:     ErrPublication,
		}
	}
	_, err = conn.Exec(ctx, "DROP PUBLICATION IF EXISTS "+name)
	if pg.Code(err) == codeInsufficientPrivilege {
		return false, &fault.Error{
			Problem: fmt.Sprintf("the role %s does not own the publication %s", cdc.QuoteIdent(s.cfg.Conn.User), name),
			Fix:     fmt.Sprintf("DROP PUBLICATION %s; -- as its owner, or as a superuser", name),
			Err:     err,
		}
	}
	if err != nil {
		return false, fmt.Errorf("drop the publication %s: %w", name, err)
	}
	return true, nil
}

// once uses an ordinary connection for a bounded time.
func (s *Source) once(ctx context.Context, use func(context.Context, *pgx.Conn) error) error {
	conn, err := dial(ctx, s.cfg.Conn)
	if err != nil {
		return err
	}
	defer conn.close()
	ctx, cancel := context.WithTimeout(ctx, 2*changeTimeout)
	defer cancel()
	err = use(ctx, conn.conn)
	if gone := farewell(err); gone != nil {
		return gone
	}
	return err
}
