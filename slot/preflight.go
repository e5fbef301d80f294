package slot

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/stagedoor/walrelay/cdc"
	"github.com/stagedoor/walrelay/internal/fault"
)

const (
	oldestVersion        = 130000
	oldestStandbyVersion = 160000 // logical decoding on a standby
)

// preflight refuses a server that cannot be streamed from, or would be harmed.
func (s *Session) preflight(ctx context.Context) error {
	if err := versionFault(s.server.Version); err != nil {
		return err
	}
	application, err := s.direct(ctx)
	if err != nil {
		return err
	}
	if err := s.shortenSilence(ctx); err != nil {
		return err
	}
	var level, names string
	err = s.ask(ctx, `SELECT current_setting('wal_level'), current_setting('synchronous_standby_names')`, nil, &level, &names)
	if err != nil {
		return fmt.Errorf("read the settings of the server: %w", err)
	}
	if err := standbyFault(s.server); err != nil {
		return err
	}
	if err := levelFault(level); err != nil {
		return err
	}
	if s.server.Standby {
		return nil // nobody's commits wait for a client of a standby
	}
	return synchronousFault(names, application)
}

// direct refuses a pooler that lets replication through: both connections have
// to lead to the processes that introduced themselves, of one server. It learns
// the sender time-out, and returns the application name that PostgreSQL knows.
func (s *Session) direct(ctx context.Context) (application string, err error) {
	row, err := s.command(ctx, `SELECT pg_backend_pid(), current_setting('application_name'),
		(SELECT setting FROM pg_settings WHERE name = 'wal_sender_timeout')`)
	if err != nil {
		return "", s.commandError("read the settings of the replication connection", err)
	}
	if string(row[0]) != fmt.Sprint(s.repl.PID()) {
		return "", poolerFault(errors.New("the process that serves the replication connection is not the one that introduced itself"))
	}
	if s.senderTimeout, err = milliseconds(row[2]); err != nil {
		return "", fmt.Errorf("read wal_sender_timeout: %w", err)
	}
	var pid uint32
	var together bool
	err = s.ask(ctx, `SELECT pg_backend_pid(), EXISTS (SELECT FROM pg_stat_activity WHERE pid = $1)`, []any{int64(s.repl.PID())}, &pid, &together)
	switch {
	case err != nil:
		return "", fmt.Errorf("ask who serves the ordinary connection: %w", err)
	case pid != s.ordinary.conn.PgConn().PID():
		return "", poolerFault(errors.New("the process that serves the ordinary connection is not the one that introduced itself"))
	case !together:
		return "", poolerFault(errors.New("two connections to the same address reached two different servers"))
	}
	return string(row[1]), nil
}

func versionFault(v int) error {
	if v >= oldestVersion {
		return nil
	}
	return &fault.Error{
		Problem: fmt.Sprintf("PostgreSQL %d.%d is too old", v/10000, v%10000),
		Fix:     "use PostgreSQL 13 or later",
	}
}

func standbyFault(server cdc.Server) error {
	if !server.Standby || server.Version >= oldestStandbyVersion {
		return nil
	}
	return &fault.Error{
		Problem: "this server is a standby, and standbys decode WAL from PostgreSQL 16 on only",
		Fix:     "let --postgres name the primary",
	}
}

func levelFault(level string) error {
	if level == "logical" {
		return nil
	}
	return &fault.Error{
		Problem: fmt.Sprintf("wal_level is %s", level),
		Fix:     "ALTER SYSTEM SET wal_level = 'logical'; -- then restart PostgreSQL",
	}
}

// senderPatience is the longest wal_sender_timeout of our own connection.
const senderPatience = 20 * time.Second

// shortenSilence bounds wal_sender_timeout for this connection, which everybody
// may do. While a server decodes a large transaction of other tables it looks at
// its connection only when half of the time has passed, and says nothing before:
// with a long one, or none, it cannot be told from a server that is gone. A
// relay that is gone is noticed earlier, too, so that another one gets the slot.
// https://www.postgresql.org/docs/current/runtime-config-replication.html#GUC-WAL-SENDER-TIMEOUT
func (s *Session) shortenSilence(ctx context.Context) error {
	if s.senderTimeout > 0 && s.senderTimeout <= senderPatience {
		return nil
	}
	_, err := s.command(ctx, fmt.Sprintf("SELECT set_config('wal_sender_timeout', '%d', false)", senderPatience.Milliseconds()))
	if err != nil {
		return s.commandError("bound wal_sender_timeout on the replication connection", err)
	}
	s.senderTimeout = senderPatience
	return nil
}

// synchronousFault is the fault if commits would wait for a client of the name.
//
// It has to be refused, not worked around: PostgreSQL takes any walsender whose
// application name matches for a synchronous standby, and ours confirms seconds
// later, by design.
// https://www.postgresql.org/docs/current/runtime-config-replication.html#GUC-SYNCHRONOUS-STANDBY-NAMES
func synchronousFault(setting, application string) error {
	name, ok := matchStandbyName(setting, application)
	if !ok {
		return nil
	}
	e := &fault.Error{
		Problem: fmt.Sprintf("synchronous_standby_names = %s matches the application name %q, so that every commit would wait until the relay confirms it", cdc.QuoteLiteral(setting), application),
		Err:     ErrSynchronous,
	}
	const list = "ALTER SYSTEM SET synchronous_standby_names = 'FIRST 1 (your_standby)'; SELECT pg_reload_conf();"
	if name == "*" {
		e.Fix = "list the standbys by name, such as " + list
	} else {
		e.Fix = "give the relay another name with application_name in --postgres, or take the name off the list, such as " + list
	}
	return e
}
