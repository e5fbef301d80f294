package slot

import (
	"errors"
	"fmt"
	"io"
	"net"
	"slices"
	"strings"
	"syscall"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"

	"github.com/stagedoor/walrelay/cdc"
	"github.com/stagedoor/walrelay/internal/fault"
	"github.com/stagedoor/walrelay/internal/pg"
)

// What an operator acts on, or the relay decides by.
var (
	// ErrSlotInUse: another process streams from the slot, or holds it.
	ErrSlotInUse = errors.New("the replication slot is in use")
	// ErrSlotMissing: there is no slot of the name.
	ErrSlotMissing = errors.New("the replication slot does not exist")
	// ErrSlotLost: the slot is there, the WAL behind it is not.
	ErrSlotLost = errors.New("the replication slot is lost")
	// ErrForeignSlot: a slot of the name is somebody else's.
	ErrForeignSlot = errors.New("the replication slot belongs to something else")
	// ErrPublication: the publication is missing or does not publish the
	// inserts of the outbox and nothing else.
	ErrPublication = errors.New("the publication is not as it must be")
	// ErrSynchronous: commits on the primary would wait for this relay.
	ErrSynchronous = errors.New("the relay counts as a synchronous standby")
	// ErrShutdown: PostgreSQL stops, or does not let anybody in yet.
	ErrShutdown = errors.New("PostgreSQL is shutting down or starting up")
)

// The SQLSTATEs that have a meaning of their own here.
// https://www.postgresql.org/docs/current/errcodes-appendix.html
const (
	codeProtocolViolation            = "08P01"
	codeFeatureNotSupported          = "0A000"
	codeObjectNotInPrerequisiteState = "55000"
	codeObjectInUse                  = "55006"
	codeUndefinedObject              = "42704"
	codeDuplicateObject              = "42710"
	codeUndefinedFile                = "58P01"
	codeInsufficientPrivilege        = "42501"
	codeInvalidAuthorization         = "28000"
	codeInvalidPassword              = "28P01"
	codeInvalidCatalogName           = "3D000"
	codeSyntaxError                  = "42601"
	codeQueryCanceled                = "57014"
	codeConfigurationLimitExceeded   = "53400"
	codeTooManyConnections           = "53300"
	codeReadOnlyTransaction          = "25006"
	codeAdminShutdown                = "57P01"
	codeCrashShutdown                = "57P02"
	codeCannotConnectNow             = "57P03"
)

// shutdown reports whether err is PostgreSQL saying goodbye.
func shutdown(err error) bool {
	switch pg.Code(err) {
	case codeAdminShutdown, codeCrashShutdown, codeCannotConnectNow:
		return true
	}
	return errors.Is(err, ErrShutdown)
}

// farewell turns an error that ends a connection into one that says so, and
// returns nil for all other errors. A connection that is closed without a word
// counts: that is what a crash looks like. A time-out does not.
func farewell(err error) error {
	switch code := pg.Code(err); {
	case err == nil:
		return nil
	case code == codeAdminShutdown:
		return fmt.Errorf("%w: it ended the connection (a shutdown, or pg_terminate_backend): %w", ErrShutdown, err)
	case code == codeCrashShutdown:
		return fmt.Errorf("%w: another server process crashed and all connections were ended: %w", ErrShutdown, err)
	case code == codeCannotConnectNow:
		return fmt.Errorf("%w: it lets nobody in: %w", ErrShutdown, err)
	case code != "":
		return nil
	case errors.Is(err, io.EOF) || errors.Is(err, io.ErrUnexpectedEOF) ||
		errors.Is(err, net.ErrClosed) || errors.Is(err, syscall.ECONNRESET) || errors.Is(err, syscall.EPIPE):
		return fmt.Errorf("PostgreSQL closed the connection: %w", err)
	}
	return nil
}

// connectError explains why a connection was refused. What passes by itself
// comes back as it is; what an operator has to change is a fault.
func connectError(err error, cfg *pgx.ConnConfig, replication bool) error {
	if errors.Is(err, pg.ErrPooler) {
		return poolerFault(refusal(err))
	}
	said := refusal(err)
	role := cdc.QuoteIdent(cfg.User)
	switch pg.Code(err) {
	case codeFeatureNotSupported, codeProtocolViolation:
		// How poolers refuse what they do not know; PostgreSQL never does.
		return poolerFault(said)
	case codeInsufficientPrivilege:
		if replication && !strings.Contains(said.Error(), "database") {
			return replicationFault(cfg.User, said)
		}
		return &fault.Error{
			Problem: fmt.Sprintf("the role %s may not connect to the database", role),
			Fix:     fmt.Sprintf("GRANT CONNECT ON DATABASE %s TO %s;", cdc.QuoteIdent(database(cfg)), role),
			Err:     said,
		}
	case codeInvalidAuthorization:
		return &fault.Error{
			Problem: fmt.Sprintf("PostgreSQL does not let the role %s in", role),
			Fix: fmt.Sprintf("create the role, or ALTER ROLE %s LOGIN; or add a line for it to pg_hba.conf and SELECT pg_reload_conf(); it also needs %s",
				role, replicationSQL(cfg.User)),
			Err: said,
		}
	case codeInvalidPassword:
		return &fault.Error{
			Problem: fmt.Sprintf("PostgreSQL refused the password of the role %s", role),
			Fix:     "correct the password in --postgres or in the password file",
			Err:     said,
		}
	case codeInvalidCatalogName:
		return &fault.Error{
			Problem: fmt.Sprintf("the database %s does not exist", cdc.QuoteIdent(database(cfg))),
			Fix:     "correct --postgres",
			Err:     said,
		}
	case codeTooManyConnections:
		return &fault.Error{
			Problem: "PostgreSQL has no connection left for the relay",
			Fix:     "raise max_wal_senders or max_connections and restart PostgreSQL, or end connections that nobody needs",
			Err:     said,
		}
	}
	err = &attemptsError{err}
	if gone := farewell(err); gone != nil {
		return gone
	}
	return err
}

// refusal is what a server said to a connection attempt, without the list of
// all attempts that the driver makes of it.
func refusal(err error) error {
	var said *pgconn.PgError
	if errors.As(err, &said) {
		return said
	}
	return err
}

// attemptsError is the driver's list of attempts in one line. Where encryption
// is preferred an address is tried twice and fails twice in the same way.
type attemptsError struct{ err error }

func (e *attemptsError) Unwrap() error { return e.err }

func (e *attemptsError) Error() string {
	var lines []string
	for line := range strings.Lines(e.err.Error()) {
		if line = strings.TrimSpace(line); !slices.Contains(lines, line) {
			lines = append(lines, line)
		}
	}
	if len(lines) == 1 {
		return lines[0]
	}
	return lines[0] + " " + strings.Join(lines[1:], ", ")
}

func replicationFault(user string, cause error) error {
	return &fault.Error{
		Problem: fmt.Sprintf("the role %s may not use replication", cdc.QuoteIdent(user)),
		Fix:     replicationSQL(user),
		Err:     cause,
	}
}

// replicationSQL gives a role the right to replicate.
func replicationSQL(user string) string {
	role := cdc.QuoteIdent(user)
	return fmt.Sprintf("ALTER ROLE %s REPLICATION; -- on Amazon RDS: GRANT rds_replication TO %s;", role, role)
}

// poolerFault says that something sits between the relay and PostgreSQL.
func poolerFault(cause error) error {
	if !errors.Is(cause, pg.ErrPooler) {
		cause = fmt.Errorf("%w: %w", pg.ErrPooler, cause)
	}
	return &fault.Error{
		Problem: "replication needs a direct connection to PostgreSQL",
		Fix:     "let --postgres name the host and port of PostgreSQL itself, not those of a connection pooler such as PgBouncer",
		Err:     cause,
	}
}

// startError is the sentence for a slot that cannot be read from. The slot is
// what was seen after the refusal, nil if there is none.
func (s *Session) startError(err error, slot *cdc.Slot) error {
	name := s.cfg.Slot
	switch pg.Code(err) {
	case codeObjectInUse:
		pid := 0
		if slot != nil {
			pid = slot.ActivePID
		}
		return inUse(name, pid, err)
	case codeUndefinedObject:
		return missing(name, err)
	case codeObjectNotInPrerequisiteState:
		// Also said of a slot that a standby keeps for its promotion.
		if slot != nil && slot.WALStatus != "lost" {
			return fmt.Errorf("slot %q cannot be streamed from here and now: %w", name, err)
		}
		return fmt.Errorf("%w: slot %q was invalidated, the WAL that it needs is not kept any more: %w", ErrSlotLost, name, err)
	case codeUndefinedFile:
		return fmt.Errorf("%w: WAL that slot %q needs was removed: %w", ErrSlotLost, name, err)
	case codeInsufficientPrivilege:
		return replicationFault(s.cfg.Conn.User, err)
	}
	if gone := farewell(err); gone != nil {
		return gone
	}
	return fmt.Errorf("read from slot %q: %w", name, err)
}

// streamError is the sentence for an error in the middle of streaming.
func (st *Stream) streamError(err error) error {
	name := st.slot
	if st.wire.ctx.Err() != nil {
		return errHungUp
	}
	switch pg.Code(err) {
	case codeUndefinedObject:
		// pgoutput looks its publication up at the first change, in the
		// catalogue as of that change.
		return unpublished(name, st.publication, err)
	case codeObjectNotInPrerequisiteState:
		// Whether the slot is lost shows when it is started again.
		return fmt.Errorf("PostgreSQL can no longer stream from slot %q: %w", name, err)
	case codeUndefinedFile:
		return fmt.Errorf("%w: WAL that slot %q needs was removed: %w", ErrSlotLost, name, err)
	}
	if gone := farewell(err); gone != nil {
		return gone
	}
	return fmt.Errorf("stream from slot %q: %w", name, err)
}

func unpublished(name, publication string, cause error) error {
	return fmt.Errorf("%w: publication %q did not exist when a change was written, so that rows written then do not come over slot %q: %w",
		ErrPublication, publication, name, cause)
}

func inUse(name string, pid int, cause error) error {
	who := "another process"
	if pid != 0 {
		who = fmt.Sprintf("the server process with PID %d", pid)
	}
	err := fmt.Errorf("%w: slot %q is active for %s", ErrSlotInUse, name, who)
	if cause != nil {
		err = fmt.Errorf("%w: %w", err, cause)
	}
	return err
}

func missing(name string, cause error) error {
	err := fmt.Errorf("%w: %q was dropped, or this server was promoted or restored without it", ErrSlotMissing, name)
	if cause != nil {
		err = fmt.Errorf("%w: %w", err, cause)
	}
	return err
}

// foreign returns a fault if a slot of our name is not ours.
func foreign(name, kind, plugin, database, ours string) error {
	var what string
	switch {
	case kind != "logical":
		what = "is a physical slot"
	case plugin != outputPlugin:
		what = fmt.Sprintf("uses the plugin %s, not %s", plugin, outputPlugin)
	case database != ours:
		what = fmt.Sprintf("is of the database %s, not of %s", cdc.QuoteIdent(database), cdc.QuoteIdent(ours))
	default:
		return nil
	}
	return &fault.Error{
		Problem: fmt.Sprintf("slot %q %s", name, what),
		Fix:     "choose another name with --slot; or, if nothing uses that one any more: SELECT pg_drop_replication_slot(" + cdc.QuoteLiteral(name) + "); -- from its own database",
		Err:     ErrForeignSlot,
	}
}
