package slot

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/stagedoor/walrelay/cdc"
	"github.com/stagedoor/walrelay/internal/finding"
	"github.com/stagedoor/walrelay/internal/pg"
)

const (
	// checkPatience bounds connecting for a check, to all hosts together.
	checkPatience = 12 * time.Second
	// shortestSilence is a wal_sender_timeout that a relay, which reports a few
	// times within it, may miss on a busy machine.
	shortestSilence = time.Second
	// namedHolders is how many transactions are named.
	namedHolders = 3
)

// Checkup is a look at all that a run needs of the server. A run stops at the
// first thing that is wrong; a checkup goes on for as long as there is a
// connection. It goes by the same rules and changes nothing.
type Checkup struct {
	session *Session

	away     error // why there is no connection at all
	refused  error // why there is none for replication
	indirect error // the two connections do not lead to one server

	application string
	facts       facts
	slot        *cdc.Slot
	lag         *SlotLag
	slotErr     error
	publication publication
	mayCreate   error // asked only where there is no publication
	readErr     error // of the publication
	holders     []Holder
	holdersErr  error
}

// facts are settings and counts of the server.
type facts struct {
	walLevel      string
	standbyNames  string
	slots         int // max_replication_slots
	slotsUsed     int
	senders       int // max_wal_senders
	sendersUsed   int
	keepSize      string // max_slot_wal_keep_size, as SHOW prints it
	idleTimeout   string // idle_replication_slot_timeout; empty before 18
	senderTimeout time.Duration
}

// current_setting with true is NULL for a setting that the version has not. Every
// role sees each row of pg_stat_replication, if not all of its columns.
const factsSQL = `
	SELECT pg_is_in_recovery(), current_database(), current_setting('application_name'),
		current_setting('wal_level'), current_setting('synchronous_standby_names'),
		current_setting('max_replication_slots')::int, (SELECT count(*)::int FROM pg_replication_slots),
		current_setting('max_wal_senders')::int, (SELECT count(*)::int FROM pg_stat_replication),
		coalesce(current_setting('max_slot_wal_keep_size', true), '-1'),
		coalesce(current_setting('idle_replication_slot_timeout', true), ''),
		(SELECT setting FROM pg_settings WHERE name = 'wal_sender_timeout')`

// Check looks. What it finds out is in the Checkup, which the caller must close;
// where ctx ends, what was not looked at by then is a failure.
func (s *Source) Check(ctx context.Context) *Checkup {
	c := &Checkup{session: s.session()}
	c.connect(ctx)
	if c.away != nil {
		return c
	}
	if c.refused == nil {
		c.application, c.indirect = c.session.direct(ctx)
	}
	if c.away = c.readFacts(ctx); c.away != nil || versionFault(c.session.server.Version) != nil {
		return c
	}
	c.slot, c.slotErr = c.session.Slot(ctx)
	if c.slot != nil {
		c.slotErr = c.session.within(ctx, c.session.askTimeout, func(ctx context.Context, conn *pgx.Conn) error {
			sample, _, err := c.session.cfg.readSample(ctx, conn, holderLimits{bytes: farBehind}, "")
			c.lag = sample.Slot
			return err
		})
	}
	c.readErr = c.session.within(ctx, c.session.askTimeout, c.readPublication)
	c.holdersErr = c.readHolders(ctx)
	return c
}

// connect connects as a run does. Where the server answers and refuses
// replication, an ordinary connection still tells the rest.
func (c *Checkup) connect(ctx context.Context) {
	ctx, cancel := context.WithTimeout(ctx, checkPatience)
	defer cancel()
	s := c.session
	if c.refused = s.connect(ctx); s.ordinary != nil {
		return
	}
	if pg.Code(c.refused) != "" || errors.Is(c.refused, pg.ErrPooler) {
		s.here = s.cfg.Conn
		s.ordinary, c.away = dial(ctx, s.cfg.Conn)
		return
	}
	c.away = c.refused
}

func (c *Checkup) readFacts(ctx context.Context) error {
	s, f := c.session, &c.facts
	s.server.Version = pg.ServerVersion(s.ordinary.conn.PgConn())
	var standby bool
	var database, application, timeout string
	err := s.ask(ctx, factsSQL, nil, &standby, &database, &application, &f.walLevel, &f.standbyNames,
		&f.slots, &f.slotsUsed, &f.senders, &f.sendersUsed, &f.keepSize, &f.idleTimeout, &timeout)
	if err != nil {
		return fmt.Errorf("read the settings of the server: %w", err)
	}
	if f.senderTimeout, err = milliseconds([]byte(timeout)); err != nil {
		return fmt.Errorf("read wal_sender_timeout: %w", err)
	}
	if c.refused != nil { // else the replication connection has told
		s.server.Standby, s.server.Database = standby, database
	}
	c.application = cmp.Or(c.application, application)
	return nil
}

func (c *Checkup) readPublication(ctx context.Context, conn *pgx.Conn) (err error) {
	if c.publication, err = readPublication(ctx, conn, c.session.cfg); err != nil {
		return err
	}
	if c.publication.missing() {
		c.mayCreate = mayCreate(ctx, conn, c.session.cfg)
	}
	return nil
}

// readHolders reads old transactions. A role that may not see since when they
// are open looks twice: on a busy server others have come at each look.
func (c *Checkup) readHolders(ctx context.Context) error {
	look := func() (all []Holder, hidden bool, err error) {
		err = c.session.within(ctx, c.session.askTimeout, func(ctx context.Context, conn *pgx.Conn) error {
			all, err = readHolders(ctx, conn, holderAge)
			return err
		})
		for _, h := range all {
			hidden = hidden || h.Since.IsZero()
		}
		return all, hidden, err
	}
	all, hidden, err := look()
	if err != nil || !hidden || !pause(ctx, c.session.lookEvery) {
		c.holders = all
		return err
	}
	before := map[string]bool{}
	for _, h := range all {
		before[h.XID] = true
	}
	if all, _, err = look(); err != nil {
		return err
	}
	for _, h := range all {
		if !h.Since.IsZero() || before[h.XID] {
			c.holders = append(c.holders, h)
		}
	}
	return nil
}

// Close ends the connections.
func (c *Checkup) Close() { c.session.Close() }

// Conn leads to the server that was looked at; nil where none could be reached.
func (c *Checkup) Conn() *pgx.ConnConfig {
	if c.away != nil {
		return nil
	}
	return c.session.here
}

// Server says who answered; false where a run would not get as far as to ask.
func (c *Checkup) Server() (cdc.Server, bool) {
	return c.session.server, c.away == nil && c.refused == nil && c.indirect == nil && c.slotErr == nil
}

// Slot is the slot as it was seen, nil for none.
func (c *Checkup) Slot() *cdc.Slot { return c.slot }

// WALEnd is that of a Session.
func (c *Checkup) WALEnd(ctx context.Context) (cdc.LSN, error) { return c.session.WALEnd(ctx) }

// Findings are what was found, for a run that begins with this verdict: a
// backfill makes the publication where there is none, and each but streaming
// needs free slots.
func (c *Checkup) Findings(v cdc.Verdict) []finding.Finding {
	if c.away != nil {
		return []finding.Finding{finding.Of("connection", "", c.away)}
	}
	server := c.session.server
	found := c.connections()
	if err := versionFault(server.Version); err != nil {
		return append(found, finding.Of("server", "", err))
	}
	what := "a primary"
	if server.Standby {
		what = "a standby"
	}
	found = append(
		found,
		finding.Of("server", fmt.Sprintf("PostgreSQL %d.%d, %s", server.Version/10000, server.Version%10000, what), standbyFault(server)),
		finding.Of("wal_level", "it is logical", levelFault(c.facts.walLevel)),
		c.senders(),
		c.room(v),
		c.published(v),
		c.slotState(),
		c.keepSize(),
	)
	if c.facts.idleTimeout != "" {
		found = append(found, c.idleTimeout())
	}
	return append(found, c.synchronous(), c.silence(), c.old(false), c.old(true))
}

// connections tells the ways apart in which a connection is refused.
func (c *Checkup) connections() []finding.Finding {
	role := cdc.QuoteIdent(c.session.cfg.Conn.User)
	direct := finding.Of("connection", "both connections lead to PostgreSQL itself", c.indirect)
	replication := finding.Good("replication", fmt.Sprintf("the role %s may use it", role))
	switch {
	case c.refused == nil:
	case errors.Is(c.refused, pg.ErrPooler):
		direct = finding.Of("connection", "", c.refused)
		replication = finding.Failure("replication", "not known before the connection is a direct one", "")
	default:
		direct = finding.Good("connection", fmt.Sprintf("the role %s may log in", role))
		replication = finding.Of("replication", "", c.refused)
	}
	return []finding.Finding{direct, replication}
}

// senders has our own connection among those in use, if there is one.
func (c *Checkup) senders() finding.Finding {
	const name = "max_wal_senders"
	text := fmt.Sprintf("%d of %d in use", c.facts.sendersUsed, c.facts.senders)
	switch {
	case c.refused != nil && c.facts.sendersUsed >= c.facts.senders:
		return finding.Failure(name, text+", so that there is none for the relay", "raise max_wal_senders and restart PostgreSQL, or end connections that nobody needs: SELECT pid, application_name FROM pg_stat_replication;")
	case c.refused == nil && c.facts.sendersUsed >= c.facts.senders:
		return finding.Warning(name, text+" with the one of this check: none is left for a relay that stands by, or for walrelay heal", "raise max_wal_senders and restart PostgreSQL")
	}
	return finding.Good(name, text)
}

// room is that for the slots of a backfill, which drops the slot first.
func (c *Checkup) room(v cdc.Verdict) finding.Finding {
	const name = "max_replication_slots"
	free := c.facts.slots - c.facts.slotsUsed
	text := fmt.Sprintf("%d of %d in use", c.facts.slotsUsed, c.facts.slots)
	err := roomFault(free)
	if c.slot != nil {
		err = roomFault(free + 1)
	}
	found := finding.Of(name, text, err)
	if found.Level == finding.OK {
		return found
	}
	found.Text = text + ": " + found.Text
	if v == cdc.Stream || v == cdc.StandBy {
		// It streams without. It is the next gap that could not be healed.
		found.Level = finding.Warn
	}
	return found
}

func (c *Checkup) published(v cdc.Verdict) finding.Finding {
	const name = "publication"
	cfg := c.session.cfg
	quoted := cdc.QuoteIdent(cfg.Publication)
	if c.readErr != nil {
		return finding.Of(name, "", c.readErr)
	}
	if c.publication.missing() && v == cdc.Backfill {
		if err := c.publication.created().verify(cfg); err != nil {
			return finding.Of(name, "", err)
		}
		return finding.Of(name, fmt.Sprintf("there is no publication %s yet; run creates it", quoted), c.mayCreate)
	}
	return finding.Of(name, fmt.Sprintf("%s publishes the inserts of %s", quoted, cfg.Table), c.publication.verify(cfg))
}

func (c *Checkup) slotState() finding.Finding {
	const name = "slot"
	slot := c.slot
	switch {
	case c.slotErr != nil:
		return finding.Of(name, "", c.slotErr)
	case slot == nil:
		return finding.Good(name, fmt.Sprintf("there is no slot %q yet; run creates it", c.session.cfg.Slot))
	case slot.WALStatus == "lost":
		why := ""
		if c.lag != nil && c.lag.InvalidationReason != "" {
			why = " (" + c.lag.InvalidationReason + ")"
		}
		return finding.Warning(name, fmt.Sprintf("slot %q is lost%s: PostgreSQL removed WAL that it needed", slot.Name, why),
			"start walrelay run, which publishes what the stream lacks and makes a new slot")
	}
	text := fmt.Sprintf("slot %q is there", slot.Name)
	if slot.Active {
		text = fmt.Sprintf("slot %q is in use by the server process %d (a run that starts now would stand by)", slot.Name, slot.ActivePID)
	}
	if c.lag != nil {
		text += fmt.Sprintf(", and keeps %d MiB of WAL", c.lag.RetainedBytes>>20)
	}
	if slot.WALStatus == "unreserved" {
		return finding.Warning(name, text+"; that is more than max_slot_wal_keep_size, so that it is lost with the next checkpoint",
			"start walrelay run now, or raise the limit: ALTER SYSTEM SET max_slot_wal_keep_size = '50GB'; SELECT pg_reload_conf();")
	}
	return finding.Good(name, text)
}

func (c *Checkup) keepSize() finding.Finding {
	const name = "max_slot_wal_keep_size"
	if c.facts.keepSize != "-1" {
		return finding.Good(name, fmt.Sprintf("a slot keeps %s of WAL at most, and is lost beyond that", c.facts.keepSize))
	}
	return finding.Warning(name, "there is no limit: a slot that nobody reads keeps WAL until the disk is full",
		"ALTER SYSTEM SET max_slot_wal_keep_size = '50GB'; SELECT pg_reload_conf(); -- what the disk can spare; a slot that is lost is healed")
}

func (c *Checkup) idleTimeout() finding.Finding {
	const name = "idle_replication_slot_timeout"
	if c.facts.idleTimeout == "0" {
		return finding.Good(name, "a slot that is not read is kept")
	}
	return finding.Warning(name, fmt.Sprintf("a slot that is not read for %s is lost: a relay that was away for longer has to heal", c.facts.idleTimeout),
		"ALTER SYSTEM SET idle_replication_slot_timeout = 0; SELECT pg_reload_conf();")
}

func (c *Checkup) synchronous() finding.Finding {
	const name = "synchronous_standby_names"
	if c.session.server.Standby {
		return finding.Good(name, "nobody's commits wait for a client of a standby")
	}
	return finding.Of(name, "no commit waits for the relay", synchronousFault(c.facts.standbyNames, c.application))
}

func (c *Checkup) silence() finding.Finding {
	const name = "wal_sender_timeout"
	switch timeout := c.facts.senderTimeout; {
	case timeout == 0:
		return finding.Good(name, fmt.Sprintf("off; run sets %s for its own connection", senderPatience))
	case timeout < shortestSilence:
		return finding.Warning(name, fmt.Sprintf("PostgreSQL ends a connection that is silent for %s, which one that is well may be", timeout),
			"ALTER SYSTEM SET wal_sender_timeout = '60s'; SELECT pg_reload_conf();")
	case timeout > senderPatience:
		return finding.Good(name, fmt.Sprintf("%s; run sets %s for its own connection", timeout, senderPatience))
	default:
		return finding.Good(name, timeout.String())
	}
}

// old are transactions that a slot is not created before the end of, and that
// WAL is kept for.
func (c *Checkup) old(prepared bool) finding.Finding {
	name, none := "open_transactions", "none that has written something is old"
	if prepared {
		name, none = "prepared_transactions", "none is old"
	}
	if c.holdersErr != nil {
		return finding.Of(name, "", fmt.Errorf("look for old transactions: %w", c.holdersErr))
	}
	var who, fixes []string
	more, hidden := 0, false
	for _, h := range c.holders {
		switch {
		case (h.PID == 0) != prepared:
		case len(who) == namedHolders:
			more++
		default:
			who = append(who, h.String())
			if h.Since.IsZero() {
				hidden = true // it may be a young one, which nobody should end
			} else {
				fixes = append(fixes, h.Command())
			}
		}
	}
	if hidden {
		fixes = append(fixes, fmt.Sprintf("GRANT pg_read_all_stats TO %s; -- then look again: it tells since when they are open", cdc.QuoteIdent(c.session.cfg.Conn.User)))
	}
	if len(who) == 0 {
		return finding.Good(name, none)
	}
	text := strings.Join(who, ", ")
	if more > 0 {
		text += fmt.Sprintf(", and %d more", more)
	}
	return finding.Warning(name, "WAL is kept from their beginning on, and a slot is created only after their end: "+text, strings.Join(fixes, " "))
}
