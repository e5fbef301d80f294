package shop

import (
	"context"
	"fmt"
	"strings"
	"time"

	"github.com/jackc/pgx/v5"
)

// Row is an outbox row that PostgreSQL says was committed.
type Row struct {
	OutboxID  string
	Kind      string
	Payload   string
	Committed time.Time
	LSN       string // where its commit ends
}

// CreateOracle makes a slot of PostgreSQL's own test_decoding, which keeps what
// is committed from here on, in commit order. It holds WAL until it is read, so
// it is for servers that are thrown away, or for [DropOracle].
//
// https://www.postgresql.org/docs/current/test-decoding.html
func CreateOracle(ctx context.Context, conn *pgx.Conn, slot string) error {
	_, err := conn.Exec(ctx, `SELECT pg_create_logical_replication_slot($1, 'test_decoding')`, slot)
	if err != nil {
		return fmt.Errorf("create the oracle: %w", err)
	}
	return nil
}

// DropOracle drops the slot.
func DropOracle(ctx context.Context, conn *pgx.Conn, slot string) error {
	_, err := conn.Exec(ctx, `SELECT pg_drop_replication_slot($1)`, slot)
	if err != nil {
		return fmt.Errorf("drop the oracle: %w", err)
	}
	return nil
}

// ReadOracle returns every outbox row that was inserted and committed since the
// oracle was created, in commit order. It looks without taking, so that it can
// be asked again.
func ReadOracle(ctx context.Context, conn *pgx.Conn, slot string) ([]Row, error) {
	return readOracle(ctx, conn, slot, "peek")
}

// TakeOracle is ReadOracle that takes what it returns, so that the oracle holds
// no WAL for it. A server that crashes soon after may tell it again.
func TakeOracle(ctx context.Context, conn *pgx.Conn, slot string) ([]Row, error) {
	return readOracle(ctx, conn, slot, "get")
}

func readOracle(ctx context.Context, conn *pgx.Conn, slot, verb string) ([]Row, error) {
	rows, err := conn.Query(ctx, `
		SELECT lsn::text, data FROM pg_logical_slot_`+verb+`_changes($1, NULL, NULL,
		       'include-timestamp', 'on', 'skip-empty-xacts', 'on')`, slot)
	if err != nil {
		return nil, fmt.Errorf("read the oracle: %w", err)
	}
	defer rows.Close()
	var committed []Row
	open := 0 // where the open transaction's rows start
	for rows.Next() {
		var lsn, line string
		if err := rows.Scan(&lsn, &line); err != nil {
			return nil, fmt.Errorf("read the oracle: %w", err)
		}
		if at, ok := parseCommit(line); ok {
			for i := open; i < len(committed); i++ {
				committed[i].Committed, committed[i].LSN = at, lsn
			}
			open = len(committed)
			continue
		}
		values, ok, err := parseInsert(line)
		if err != nil {
			return nil, err
		}
		if ok {
			committed = append(committed, Row{
				OutboxID: values["id"], Kind: values["kind"], Payload: values["payload"],
			})
		}
	}
	if err := rows.Err(); err != nil {
		return nil, fmt.Errorf("read the oracle: %w", err)
	}
	return committed, nil
}

// parseCommit reads a line such as
//
//	COMMIT 745 (at 2026-01-31 12:00:00.123456+00)
func parseCommit(line string) (time.Time, bool) {
	_, at, ok := strings.Cut(line, " (at ")
	if !ok || !strings.HasPrefix(line, "COMMIT ") {
		return time.Time{}, false
	}
	t, err := time.Parse("2006-01-02 15:04:05.999999Z07", strings.TrimSuffix(at, ")"))
	return t, err == nil
}

// parseInsert reads a line such as
//
//	table public.outbox: INSERT: id[bigint]:1 kind[text]:'it''s' published_at[timestamp with time zone]:null
//
// and reports whether it is one, of the outbox. The columns that are read here
// are never NULL.
func parseInsert(line string) (map[string]string, bool, error) {
	rest, ok := strings.CutPrefix(line, "table "+OutboxSchema+"."+OutboxTable+": INSERT:")
	if !ok {
		return nil, false, nil
	}
	values := map[string]string{}
	for rest != "" {
		// The type holds spaces and, of an array, brackets.
		name, typed, ok1 := strings.Cut(strings.TrimPrefix(rest, " "), "[")
		_, valued, ok2 := strings.Cut(typed, "]:")
		if !ok1 || !ok2 {
			return nil, false, fmt.Errorf("test_decoding wrote a column that cannot be read: %.80q", rest)
		}
		value, after, err := cutValue(valued)
		if err != nil {
			return nil, false, err
		}
		values[name], rest = value, after
	}
	return values, true, nil
}

// cutValue reads one value off the front of s: quoted, with quotes doubled, or
// bare up to the next space.
func cutValue(s string) (value, rest string, err error) {
	if !strings.HasPrefix(s, "'") {
		value, _, _ = strings.Cut(s, " ")
		return value, s[len(value):], nil
	}
	var b strings.Builder
	for s = s[1:]; ; {
		i := strings.IndexByte(s, '\'')
		if i < 0 {
			return "", "", fmt.Errorf("test_decoding wrote a value without an end: %.80q", s)
		}
		b.WriteString(s[:i])
		s = s[i+1:]
		if !strings.HasPrefix(s, "'") {
			return b.String(), s, nil
		}
		b.WriteByte('\'')
		s = s[1:]
	}
}
