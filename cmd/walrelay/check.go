package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"strings"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/stagedoor/walrelay/cdc"
	"github.com/stagedoor/walrelay/internal/finding"
	"github.com/stagedoor/walrelay/internal/web"
	"github.com/stagedoor/walrelay/outbox"
	"github.com/stagedoor/walrelay/publisher"
	"github.com/stagedoor/walrelay/relay"
	"github.com/stagedoor/walrelay/slot"
)

// checkPatience bounds the whole of a check.
const checkPatience = 20 * time.Second

// errNotReady ends the command with exit code 1. What was found is printed.
var errNotReady = errors.New("run would not work: repair what is marked as fail")

// checkCmd looks whether run would work.
type checkCmd struct {
	JSON bool `name:"json" help:"Print the findings as JSON."`
}

// Help is printed by --help.
func (checkCmd) Help() string {
	return `check looks at all that run needs, with the settings and as the roles that run will have, and changes nothing. It may be run at any time, also beside a relay that works. It goes on where something is wrong, takes about 20 seconds at most, and prints a line for each thing:

    ok    it is as it has to be
    warn  run works, and somebody should know
    fail  run does not work; the line ends with the SQL or the command that repairs it

A first start is fine: where there is no publication and no slot yet, run creates them, and check looks whether it may.

A user of Redis who may run neither INFO nor CONFIG GET, which a relay does not need, gets a warning for what only those tell: persistence and eviction.

With --json it prints {"ok": …, "findings": [{"name": …, "level": …, "text": …, "fix": …}, …]}, where fix is empty unless there is something to repair. Names and levels stay as they are; texts may change.

Exit codes: 0 run would work, warnings or not. 1 it would not. 2 wrong usage.

Examples:

    walrelay check --postgres 'postgres://walrelay@db.example.com:5432/shop' --stream jobs
    walrelay check --config walrelay.yaml --json`
}

// Run is called by main.
func (c *checkCmd) Run(ctx context.Context, p *process) error {
	ctx, cancel := context.WithTimeout(ctx, checkPatience)
	defer cancel()
	found, err := check(ctx, p)
	if err != nil {
		return err
	}
	if c.JSON {
		err = writeFindingsJSON(p.stdout, found)
	} else {
		err = writeFindings(p.stdout, found)
	}
	if err != nil {
		return err
	}
	if finding.Failed(found) {
		return errNotReady
	}
	return nil
}

// check asks both sides at once, and then what only both together tell.
func check(ctx context.Context, p *process) ([]finding.Finding, error) {
	cfg := p.cfg
	client, err := publisher.Connect(cfg.Redis.URL())
	if err != nil {
		return nil, err
	}
	defer client.Close()
	sink := publisher.New(client, cfg.MaxLen, cfg.Stream)

	var onRedis []finding.Finding
	var answers bool
	asked := make(chan struct{})
	go func() {
		defer close(asked)
		onRedis, answers = sink.CheckServer(ctx)
	}()
	server := slot.New(slotConfig(cfg), p.log).Check(ctx)
	defer server.Close()
	onTable := checkTable(ctx, p, server.Conn())
	<-asked

	// Without a server there is no name for the checkpoint. One that nobody has
	// will do to see what the user may.
	who, known := server.Server()
	key := publisher.Key("0", "check", cfg.Slot)
	if known {
		key = publisher.Key(who.SystemID, who.Database, cfg.Slot)
	}
	verdict := guess(server.Slot())
	var together []finding.Finding
	if answers {
		onRedis = append(onRedis, sink.CheckKeys(ctx, key)...)
		if known {
			var f finding.Finding
			f, verdict = judge(ctx, server, sink, key, cfg.Heal == "manual", verdict)
			together = append(together, f)
		}
	}
	found := server.Findings(verdict)
	found = append(found, onTable...)
	found = append(found, onRedis...)
	found = append(found, together...)
	return append(found, checkHTTP(ctx, cfg.HTTP, server.Slot())), nil
}

// checkHTTP looks whether run could listen here. Where a relay works, it may be
// that one that does.
func checkHTTP(ctx context.Context, addr string, s *cdc.Slot) finding.Finding {
	const name = "http"
	f := finding.Of(name, "run can listen on this machine at "+addr, web.Free(ctx, addr))
	switch {
	case addr == "":
		return finding.Good(name, "switched off")
	case f.Level == finding.Fail && s != nil && s.Active:
		f.Level = finding.Warn
		f.Text += " (perhaps the relay that works with the slot)"
	}
	return f
}

// checkTable looks at the table over a connection of its own, to the server that
// was looked at.
func checkTable(ctx context.Context, p *process, where *pgx.ConnConfig) []finding.Finding {
	if where == nil {
		return []finding.Finding{finding.Failure("table", "not looked at: there is no connection to PostgreSQL", "")}
	}
	rows := outbox.New(outbox.Config{
		Conn: where, Table: p.cfg.Table, Mapping: p.cfg.Mapping(), Mark: p.cfg.Mark,
	}, p.log)
	defer rows.Close()
	return rows.Findings(ctx, nil, p.cfg.PurgeAfter > 0)
}

// guess is the verdict as far as PostgreSQL alone tells.
func guess(s *cdc.Slot) cdc.Verdict {
	switch {
	case s == nil:
		return cdc.Backfill
	case s.WALStatus == "lost":
		return cdc.Gap
	}
	return cdc.Stream
}

// judge judges slot and checkpoint as run does, in the order in which each can
// only be ahead of the one before. Where that is not possible the guess stays.
func judge(ctx context.Context, server *slot.Checkup, sink *publisher.Publisher, key string, manual bool, guessed cdc.Verdict) (finding.Finding, cdc.Verdict) {
	const name = "checkpoint"
	who, _ := server.Server()
	cp, streams, err := sink.Load(ctx, key)
	if err != nil {
		return finding.Of(name, "", err), guessed
	}
	if who.WALEnd, err = server.WALEnd(ctx); err != nil {
		return finding.Of(name, "", err), guessed
	}
	j, err := cdc.Judge(who, server.Slot(), cp, streams)
	switch {
	case errors.Is(err, cdc.ErrBehind):
		return finding.Warning(name, err.Error()+"; run waits until it has caught up", ""), guessed
	case err != nil:
		return finding.Of(name, "", relay.Unfit(err)), guessed
	case j.Verdict != cdc.Gap:
		return finding.Good(name, j.Reason), j.Verdict
	case manual:
		return finding.Of(name, "", relay.WaitsForHeal(j)), j.Verdict
	}
	return finding.Warning(name, j.Reason+"; run heals that", "start walrelay run, which publishes what the stream lacks"), j.Verdict
}

// writeFindings prints a line for each.
func writeFindings(w io.Writer, found []finding.Finding) error {
	var b strings.Builder
	for _, f := range found {
		line := fmt.Sprintf("%-4s  %s: %s", f.Level, f.Name, f.Text)
		if f.Fix != "" {
			line += "; to repair: " + f.Fix
		}
		// Errors of a server may have several lines, as may the names in SQL.
		b.WriteString(strings.Join(strings.FieldsFunc(line, isLineBreak), " ") + "\n")
	}
	_, err := io.WriteString(w, b.String())
	return err
}

func isLineBreak(r rune) bool { return r == '\n' || r == '\r' }

// writeFindingsJSON prints the document that --help describes.
func writeFindingsJSON(w io.Writer, found []finding.Finding) error {
	encoder := json.NewEncoder(w)
	encoder.SetIndent("", "  ")
	encoder.SetEscapeHTML(false)
	return encoder.Encode(struct {
		OK       bool              `json:"ok"`
		Findings []finding.Finding `json:"findings"`
	}{!finding.Failed(found), found})
}
