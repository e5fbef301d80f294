package main

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"io"
	"os"
	"time"

	"github.com/stagedoor/walrelay/internal/health"
	"github.com/stagedoor/walrelay/internal/status"
)

// errUnwell ends the command with exit code 1. What is wrong is printed.
var errUnwell = errors.New("not all is well: see above")

// statusCmd shows how PostgreSQL and Redis are.
type statusCmd struct {
	Watch    bool          `help:"Look again and again, until SIGINT or SIGTERM."`
	Interval time.Duration `type:"duration-above-zero" default:"5s" placeholder:"DURATION" help:"How long to pause between two looks of --watch. Default 5s."`
	JSON     bool          `name:"json" help:"Print JSON; with --watch one line for each look."`
}

// Help is printed by --help.
func (statusCmd) Help() string {
	return `status asks PostgreSQL and Redis themselves, whether a relay runs or not, and prints one screen: who reads from the slot and since when, both lags, the checkpoint, the rows that wait, the publication, the stream and its consumer groups, why PostgreSQL keeps WAL and how long its budget lasts, what it means, and what to do. Where one of the two does not answer it shows the other one, after a few seconds.

It changes nothing: its connection to PostgreSQL may only read, and waits for no lock for more than a second. It needs no REPLICATION, and works for a table that is polled. It takes the settings of run; with other limits than those of run it comes to another level.

Rates, and until when the budget lasts, take looks over some ten seconds: --watch. On a terminal --watch draws over the last look, elsewhere it prints one look below the other. There are colours on a terminal only, and none where NO_COLOR is set.

With --json it prints {"at": …, "status": "ok", "meaning": …, "reasons": […], "cause": …, "runway_seconds": …, "notes": […], "steps": [{"text": …, "command": …}], "postgresql": {…}, "relay": {"role": …, "pid": …, "since": …}, "slot": {…}, "rates": {…}, "other_slot": …, "holder": …, "publication": {…}, "unpublished_rows": …, "oldest_unpublished_age_seconds": …, "oldest_unpublished_error": …, "redis": {…}, "checkpoint": {…}, "checkpoint_error": …, "stream": {…}, "stream_error": …}. What is not known is null. Names stay as they are; texts may change.

Exit codes: 0 both answer and the level is ok or warn; also --watch that was ended. 1 it is critical, or one of the two does not answer. 2 wrong usage.

Examples:

    walrelay status --postgres 'postgres://walrelay@db.example.com:5432/shop' --stream jobs
    walrelay status --config walrelay.yaml --watch --interval 2s
    walrelay status --config walrelay.yaml --json | jq .status`
}

// Run is called by main.
func (c *statusCmd) Run(ctx context.Context, p *process) error {
	o, err := newOutside(p)
	if err != nil {
		return err
	}
	defer o.close()
	screen := &screen{out: p.stdout, json: c.JSON, watch: c.Watch}
	if f, ok := p.stdout.(*os.File); ok {
		screen.terminal = isTerminal(f)
	}
	screen.colour = colours(screen.terminal, os.Getenv)

	var machine health.Machine
	for {
		look := o.look(ctx)
		if ctx.Err() != nil {
			if c.Watch {
				return nil
			}
			return errors.New("stopped before both had answered")
		}
		report := status.NewReport(look, machine.Step(look.Input(limits(p.cfg))))
		if err := screen.show(report); err != nil {
			return err
		}
		if !c.Watch {
			if !report.Healthy() {
				return errUnwell
			}
			return nil
		}
		select {
		case <-ctx.Done():
			return nil
		case <-time.After(c.Interval):
		}
	}
}

// colours says whether there are any. https://no-color.org
func colours(terminal bool, getenv func(string) string) bool {
	return terminal && getenv("NO_COLOR") == "" && getenv("TERM") != "dumb"
}

// limits are those of health, as the settings say.
func limits(cfg *Config) health.Thresholds {
	return health.Thresholds{
		AgeWarn: cfg.AgeWarn, AgeCritical: cfg.AgeCritical,
		LagWarn: int64(cfg.LagWarn), LagCritical: int64(cfg.LagCritical),
		RunwayCritical: cfg.RunwayCritical, DiskBudget: int64(cfg.DiskBudget),
	}
}

// screen is where reports are shown, one after the other.
type screen struct {
	out                           io.Writer
	json, watch, terminal, colour bool
	again                         bool
}

// show writes a report in one piece.
func (s *screen) show(r *status.Report) error {
	var b bytes.Buffer
	switch {
	case s.json:
		encoder := json.NewEncoder(&b)
		encoder.SetEscapeHTML(false)
		if !s.watch {
			encoder.SetIndent("", "  ")
		}
		if err := encoder.Encode(r); err != nil {
			return err
		}
	case s.watch && s.terminal:
		b.WriteString("\x1b[H\x1b[2J\x1b[3J") // from the top of an empty screen
		fallthrough
	default:
		if s.again && !s.terminal {
			b.WriteString("\n")
		}
		if err := r.WriteText(&b, s.colour); err != nil {
			return err
		}
	}
	s.again = true
	_, err := s.out.Write(b.Bytes())
	return err
}
