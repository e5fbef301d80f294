package main

import (
	"context"
	"fmt"
	"time"

	"github.com/stagedoor/walrelay/outbox"
)

// purgeBatch is how many rows run and poll delete in a transaction.
const purgeBatch = 1000

// purgeCmd deletes published rows once.
type purgeCmd struct {
	OlderThan time.Duration `type:"duration" required:"" placeholder:"DURATION" help:"Delete rows that were published this long ago or earlier, such as 168h, by the database's clock."`
	Batch     int           `type:"batch" default:"1000" placeholder:"ROWS" help:"Delete so many rows in a transaction, at most. Default 1000."`
}

// Help is printed by --help.
func (purgeCmd) Help() string {
	return `purge deletes rows that were published long ago, in small transactions with pauses between them, beside relays and applications that work. It never deletes a row that is not published, and waits for nobody: a row that is locked, or that another table refers to, is left. --purge-after has run and poll do the same all the time.

Where rows are marked, those go whose published_at is old enough. Where they are not (--mark=none, or no such column), rows go by created_at, and only once the slot of a relay that works has confirmed them; purge waits for that. With --mark=delete there is nothing to purge.

What is deleted a heal cannot publish again, should Redis have lost it, and an audit cannot compare: keep rows for longer than it takes to notice. A heal by itself looks at rows that were marked up to --confirm-delay and some seconds before the gap, and at those created up to --heal-margin before it where rows are not marked.

It goes through the table in the order of the ids. Where they are integers it ends at the rows that are too young; where they are not it looks at each row.

The role needs DELETE on the table, and UPDATE on a column of it, which locking a row takes.

Exit codes: 0 what was old enough is deleted, but for rows in use. 1 it failed or was stopped; what it has deleted until then stays deleted.

Examples:

    walrelay purge --config walrelay.yaml --older-than 168h
    walrelay purge --config walrelay.yaml --older-than 24h --batch 200`
}

// Run is called by main.
func (c *purgeCmd) Run(ctx context.Context, p *process) error {
	if p.cfg.Mark == outbox.MarkDelete {
		return usagef("--mark delete deletes rows as soon as they are published, and leaves nothing to purge")
	}
	p.warnYoung("--older-than", c.OlderThan)
	rows := outbox.New(outbox.Config{Conn: p.cfg.Postgres, Table: p.cfg.Table, Mapping: p.cfg.Mapping(), Mark: p.cfg.Mark}, p.log)
	defer rows.Close()
	done, err := outbox.NewPurger(rows, outbox.PurgeConfig{OlderThan: c.OlderThan, Batch: c.Batch, Slot: p.cfg.Slot}, p.log).Pass(ctx)
	fmt.Fprintf(p.stdout, "deleted %d rows\n", done.Deleted)
	if done.Kept > 0 {
		fmt.Fprintf(p.stdout, "left %d rows that are old enough and were in use: locked, changed meanwhile, or kept by a foreign key or a trigger\n", done.Kept)
	}
	if ctx.Err() != nil {
		return fmt.Errorf("stopped before the end of %s", p.cfg.Table)
	}
	return err
}

// newPurger is what --purge-after asks for; start it with its Run.
func newPurger(p *process, rows *outbox.Table) *outbox.Purger {
	if p.cfg.PurgeAfter > 0 {
		p.warnYoung("--purge-after", p.cfg.PurgeAfter)
	}
	return outbox.NewPurger(rows, outbox.PurgeConfig{OlderThan: p.cfg.PurgeAfter, Batch: purgeBatch, Slot: p.cfg.Slot}, p.log)
}

// warnYoung warns where rows are deleted that a heal looks for. It is no error:
// whoever trusts Redis to forget nothing can do without.
func (p *process) warnYoung(flag string, age time.Duration) {
	least := p.cfg.ConfirmDelay + time.Minute
	if p.cfg.Mark == outbox.MarkNone || p.cfg.ColumnPublishedAt == "" {
		least += p.cfg.HealMargin
	}
	if age < least {
		p.log.Warn(flag+" deletes rows that a heal may need, which looks at those of the last seconds before a gap", "age", age, "least", least)
	}
}
