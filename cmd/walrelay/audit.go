package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/stagedoor/walrelay/cdc"
	"github.com/stagedoor/walrelay/internal/audit"
	"github.com/stagedoor/walrelay/internal/pg"
	"github.com/stagedoor/walrelay/outbox"
	"github.com/stagedoor/walrelay/publisher"
)

// errFindings ends the command with exit code 1. What was found is printed.
var errFindings = errors.New("the audit has findings")

// auditCmd proves that the stream has every row once.
type auditCmd struct {
	Since moment        `type:"moment" placeholder:"TIME" help:"Compare only rows that were created then or later: a time such as 2026-07-31T18:00:00Z, or how long ago, such as 24h. Default: all rows."`
	Wait  time.Duration `type:"duration" default:"30s" placeholder:"DURATION" help:"How long to wait for the relay to come to rows that are not published yet. Default 30s."`
	Show  int           `type:"count" default:"20" placeholder:"N" help:"How many findings of each kind to list. Default 20."`
	JSON  bool          `name:"json" help:"Print the report as JSON."`

	Repair bool `help:"Where rows are missing, have the relay publish them, as walrelay heal does, wait for that, and audit again."`
}

// repairMargin is by how much a repair looks further back than the oldest row
// that is missing.
const repairMargin = time.Minute

// Help is printed by --help.
func (auditCmd) Help() string {
	return `audit compares the rows of the table with the entries of the stream, by id and by the values of all fields, JSON as values. It may be run at any time, beside a relay that works, and changes nothing. Progress goes to standard error.

Findings, which make the exit code 1:

    missing     rows without an entry
    duplicated  rows with more than one equal entry
    foreign     entries of no row, though the table has older ones
    changed     rows whose entry has other values
    waiting     rows that no relay has published yet
    no id       rows whose id is NULL, which cannot be published

It counts, and does not hold against anybody: trimmed rows, whose entries were removed from the stream's beginning; dead ones, which were skipped; gone ones, entries whose rows may have been deleted.

With --repair the exit code is that of the second audit. Only missing rows can be put back: nothing takes an entry away.

The table is read with a sequential scan in one transaction, the stream from the beginning, or from --since on. Where both are large, some 50 bytes a row and an entry go to a temporary file (TMPDIR).

Examples:

    walrelay audit --postgres 'postgres://walrelay@db.example.com:5432/shop' --stream jobs
    walrelay audit --config walrelay.yaml --since 24h --json
    walrelay audit --config walrelay.yaml --repair`
}

// Run is called by main.
func (c *auditCmd) Run(ctx context.Context, p *process) error {
	a, err := newAuditor(ctx, p)
	if err != nil {
		return err
	}
	defer a.close()
	a.cfg.Wait, a.cfg.Show = c.Wait, c.Show
	a.cfg.Since = c.Since.time(a.now)
	report, err := audit.Run(ctx, a.cfg)
	if err != nil {
		return err
	}
	if c.Repair && report.Missing.Count > 0 {
		p.log.Warn("rows are missing; asking for a heal", "rows", report.Missing.Count, "oldest", report.Missing.Oldest)
		if err := c.repair(ctx, p, report.Missing.Oldest); err != nil {
			return err
		}
		if report, err = audit.Run(ctx, a.cfg); err != nil {
			return err
		}
	}
	return c.print(p, report)
}

// repair has the relay publish what is missing. Where it is not known how old
// that is, it looks at all rows.
func (c *auditCmd) repair(ctx context.Context, p *process, oldest *time.Time) error {
	since := time.Unix(0, 0)
	if oldest != nil {
		since = oldest.Add(-repairMargin)
	}
	quiet := *p
	quiet.stdout = p.stderr // the report alone is for standard output
	h, err := newHealing(ctx, &quiet)
	if err != nil {
		return err
	}
	defer h.close()
	if err := h.ask(ctx, since); err != nil {
		return err
	}
	return h.wait(ctx)
}

// print writes the report, and is errFindings where it has some.
func (c *auditCmd) print(p *process, report *audit.Report) error {
	if c.JSON {
		encoder := json.NewEncoder(p.stdout)
		encoder.SetIndent("", "  ")
		if err := encoder.Encode(report); err != nil {
			return err
		}
	} else if err := report.WriteText(p.stdout); err != nil {
		return err
	}
	if !report.Clean {
		return errFindings
	}
	return nil
}

// auditor is what an audit needs of both sides.
type auditor struct {
	cfg   audit.Config
	now   time.Time // PostgreSQL's clock
	close func()
}

func newAuditor(ctx context.Context, p *process) (*auditor, error) {
	cfg := p.cfg
	client, err := publisher.Connect(cfg.Redis.URL())
	if err != nil {
		return nil, err
	}
	rows := outbox.New(outbox.Config{Conn: cfg.Postgres, Table: cfg.Table, Mapping: cfg.Mapping(), Mark: cfg.Mark}, p.log)
	a := &auditor{close: func() {
		rows.Close()
		client.Close()
	}}
	conn, err := pg.Connect(ctx, cfg.Postgres)
	if err == nil {
		defer closeConn(conn)
		err = a.prepare(ctx, p, conn, rows)
	}
	if err != nil {
		a.close()
		return nil, err
	}
	a.cfg.Sink = publisher.New(client, 0, cfg.Stream)
	return a, nil
}

func (a *auditor) prepare(ctx context.Context, p *process, conn *pgx.Conn, rows *outbox.Table) error {
	cfg := p.cfg
	var systemID, database string
	err := conn.QueryRow(ctx, `SELECT system_identifier::text, current_database(), clock_timestamp() FROM pg_control_system()`).
		Scan(&systemID, &database, &a.now)
	if err != nil {
		return fmt.Errorf("ask who the server is: %w", err)
	}
	if err := rows.Check(ctx, conn); err != nil {
		return err
	}
	a.cfg = audit.Config{
		Table:  auditTable{table{Table: rows, id: cfg.ColumnID}},
		Name:   cfg.Table.String(),
		Stream: cfg.Stream,
		Dead:   cdc.DeadStream(cfg.Stream),
		Key:    publisher.Key(systemID, database, cfg.Slot),
		Log:    p.log,
	}
	return nil
}

// auditTable plugs package outbox into the audit.
type auditTable struct{ table }

// Marks implements audit.Table.
func (t auditTable) Marks() (marked, deleted bool) {
	mode := t.Table.Marks()
	return mode != outbox.MarkNone, mode == outbox.MarkDelete
}

// Open implements audit.Table.
func (t auditTable) Open(ctx context.Context, since time.Time) (audit.Rows, error) {
	all, err := t.All(ctx, since)
	if err != nil {
		return nil, err
	}
	return auditRows{all}, nil
}

type auditRows struct{ *outbox.All }

// Each implements audit.Rows.
func (r auditRows) Each(ctx context.Context, fn func(audit.Row) error) error {
	return r.All.Each(ctx, func(row outbox.Row) error { return fn(audit.Row(row)) })
}

// Again implements audit.Rows.
func (r auditRows) Again(ctx context.Context, ids []string, fn func(audit.Row) error) error {
	return r.All.Again(ctx, ids, func(row outbox.Row) error { return fn(audit.Row(row)) })
}
