// Package pg opens connections to PostgreSQL with the session settings that
// the relay's output depends on.
package pg

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
)

// settings make every session print values in one way and never be cut off by
// a time-out that somebody set for applications. row_security = off turns rows
// that a policy would hide into an error.
var settings = map[string]string{
	"client_encoding":                     "UTF8",
	"datestyle":                           "ISO, YMD",
	"intervalstyle":                       "postgres",
	"timezone":                            "UTC",
	"extra_float_digits":                  "1",
	"bytea_output":                        "hex",
	"row_security":                        "off",
	"statement_timeout":                   "0",
	"lock_timeout":                        "0",
	"idle_in_transaction_session_timeout": "0",
	// A relay whose host is gone must not hold the slot's lock for hours.
	"tcp_keepalives_idle":     "10",
	"tcp_keepalives_interval": "5",
	"tcp_keepalives_count":    "3",
}

// connectTimeout bounds a connection attempt where the connection string does
// not: a frozen server must not hold a loop for ever.
const connectTimeout = 5 * time.Second

// ErrPooler says that the connection string leads to a connection pooler that
// does not pass replication through.
var ErrPooler = errors.New("a connection pooler answered instead of PostgreSQL")

// Parse reads a libpq URL or keyword string. Its error never holds the
// password.
func Parse(dsn string) (*pgx.ConnConfig, error) {
	cfg, err := pgx.ParseConfig(dsn)
	if err != nil {
		return nil, parseError(err)
	}
	if cfg.ConnectTimeout == 0 {
		cfg.ConnectTimeout = connectTimeout
	}
	if cfg.RuntimeParams["application_name"] == "" {
		cfg.RuntimeParams["application_name"] = "walrelay"
	}
	if cfg.ValidateConnect == nil && severalHosts(cfg) {
		cfg.ValidateConnect = pgconn.ValidateConnectTargetSessionAttrsReadWrite
	}
	cfg.DefaultQueryExecMode = pgx.QueryExecModeExec // no statement cache to go stale on ALTER TABLE
	cfg.AfterConnect = prepare
	return cfg, nil
}

// parseError is pgx's reason without the connection string that it quotes. pgx
// masks a password only where it recognises one, and does not in
// "password = secret", nor where a quote is not closed.
func parseError(err error) error {
	reason := "the connection string cannot be parsed"
	var p *pgconn.ParseConfigError
	if errors.As(err, &p) {
		if text := err.Error(); strings.LastIndex(text, "`: ") >= 0 {
			reason = text[strings.LastIndex(text, "`: ")+len("`: "):]
		}
	}
	return errors.New(reason)
}

// severalHosts tells a list of servers from the fallbacks of sslmode=prefer.
func severalHosts(cfg *pgx.ConnConfig) bool {
	for _, f := range cfg.Fallbacks {
		if f.Host != cfg.Host || f.Port != cfg.Port {
			return true
		}
	}
	return false
}

// prepare applies the settings. They are set after connecting, not in the
// startup packet, since a pooler refuses parameters that it does not know, and
// its refusal would hide the real reason.
func prepare(ctx context.Context, c *pgconn.PgConn) error {
	var b strings.Builder
	for name, value := range settings {
		fmt.Fprintf(&b, "SET %s = '%s';", name, value)
	}
	version := ServerVersion(c)
	if version >= 140000 {
		b.WriteString("SET idle_session_timeout = 0;")
	}
	if version >= 170000 {
		b.WriteString("SET transaction_timeout = 0;")
	}
	_, err := c.Exec(ctx, b.String()).ReadAll()
	return err
}

// ServerVersion is the server's version as in server_version_num, such as
// 150018, read from what the server announced when the connection was made.
func ServerVersion(c *pgconn.PgConn) int {
	var major, minor int
	if n, _ := fmt.Sscanf(c.ParameterStatus("server_version"), "%d.%d", &major, &minor); n == 0 {
		return 0
	}
	return major*10000 + minor
}

// Connect opens an ordinary connection.
func Connect(ctx context.Context, cfg *pgx.ConnConfig) (*pgx.Conn, error) {
	return pgx.ConnectConfig(ctx, cfg)
}

// ConnectReplication opens a connection that speaks the replication protocol
// and SQL.
func ConnectReplication(ctx context.Context, cfg *pgx.ConnConfig) (*pgconn.PgConn, error) {
	c := cfg.Config.Copy()
	c.RuntimeParams["replication"] = "database"
	conn, err := pgconn.ConnectConfig(ctx, c)
	var pgErr *pgconn.PgError
	if errors.As(err, &pgErr) && strings.Contains(pgErr.Message, "unsupported startup parameter") {
		return nil, fmt.Errorf("%w: %w", ErrPooler, err)
	}
	return conn, err
}

// Code returns the SQLSTATE in err's chain, or "".
// https://www.postgresql.org/docs/current/errcodes-appendix.html
func Code(err error) string {
	var pgErr *pgconn.PgError
	if errors.As(err, &pgErr) {
		return pgErr.Code
	}
	return ""
}
