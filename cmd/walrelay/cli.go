package main

import (
	"context"
	"errors"
	"io"
	"log/slog"
	"os"
	"regexp"
	"strconv"
	"strings"

	"github.com/alecthomas/kong"

	"github.com/stagedoor/walrelay/relay"
)

// cli is the command line.
type cli struct {
	Config

	Run      runCmd      `cmd:"" help:"Carry rows to the stream until told to stop."`
	Poll     pollCmd     `cmd:"" help:"Carry rows by polling the table, where logical replication is not allowed."`
	Check    checkCmd    `cmd:"" help:"Look whether run would work, and print what repairs it. Changes nothing."`
	Status   statusCmd   `cmd:"" help:"Show how PostgreSQL and Redis are, with a relay or without. Changes nothing."`
	Audit    auditCmd    `cmd:"" help:"Compare the table with the stream: every row once, and nothing else."`
	Heal     healCmd     `cmd:"" help:"Have the relay publish what the stream lacks."`
	Purge    purgeCmd    `cmd:"" help:"Delete rows that were published long ago."`
	Setup    setupCmd    `cmd:"" help:"Create the publication, and the table if asked; or print the SQL for it."`
	Skip     skipCmd     `cmd:"" help:"Have the relay put a row that it cannot publish on the dead stream, and go on."`
	Teardown teardownCmd `cmd:"" help:"Drop the replication slot, the publication and the checkpoint. Never the table."`
	Version  versionCmd  `cmd:"" help:"Print version, commit and Go version."`
}

// command is one of the commands of cli.
type command interface {
	Run(ctx context.Context, p *process) error
}

// process is what a command has of the world around it.
type process struct {
	cfg    *Config
	log    *slog.Logger
	stdin  *os.File
	stdout io.Writer
	stderr io.Writer

	onStep func(relay.Step) // of tests
}

// errHelp says that help was printed and nothing is left to do.
var errHelp = errors.New("help was printed")

// parse reads the command line, the environment and the settings file. Its
// warnings are for the log, which the settings describe.
func parse(args, environ []string, stdout, stderr io.Writer) (cmd command, cfg *Config, warnings []string, err error) {
	var c cli
	helped := false
	sources := newSources(environ)
	options := []kong.Option{
		kong.Name("walrelay"),
		kong.Description(description),
		kong.Writers(stdout, stderr),
		kong.Exit(func(int) { helped = true }),
		kong.Help(printHelp),
		kong.ValueFormatter(helpValue),
		kong.ConfigureHelp(kong.HelpOptions{
			Compact: true, FlagsLast: true, NoExpandSubcommands: true, WrapUpperBound: 100,
		}),
		kong.Resolvers(sources),
	}
	parser, err := kong.New(&c, append(options, valueTypes()...)...)
	if err != nil {
		return nil, nil, nil, err
	}
	ctx, err := parser.Parse(args)
	switch {
	case helped: // kong goes on after help where the exit is not one
		return nil, nil, nil, errHelp
	case err != nil:
		return nil, nil, nil, asUsage(err, args)
	}
	cmd, ok := ctx.Selected().Target.Addr().Interface().(command)
	if !ok {
		return nil, nil, nil, errors.New("the command " + ctx.Command() + " does nothing")
	}
	if ctx.Selected().Name == "version" {
		return cmd, &c.Config, nil, nil
	}
	return cmd, &c.Config, sources.misspelt(ctx.Model), c.validate()
}

// asUsage makes a usage error of what kong found: our own as it is, kong's with
// the way to the help.
func asUsage(err error, args []string) error {
	var usage *usageError
	if errors.As(err, &usage) {
		return usage
	}
	return usagef("%s (see walrelay --help)", redactArgs(err.Error(), args))
}

// redactArgs takes arguments that may hold a password out of a message. A URL
// without its flag in front is easily written, and the message ends in a log.
func redactArgs(message string, args []string) string {
	const masked = "(not shown, it may hold a password)"
	for _, arg := range args {
		if !strings.Contains(arg, "@") && !strings.Contains(strings.ToLower(arg), "password") {
			continue
		}
		_, value, _ := strings.Cut(arg, "=")
		for _, part := range []string{arg, value} {
			if part == "" {
				continue
			}
			quoted := strconv.Quote(part)
			message = strings.ReplaceAll(message, quoted, masked)
			message = strings.ReplaceAll(message, part, masked)
		}
	}
	return regexp.MustCompile(`://\S*@`).ReplaceAllString(message, "://…@")
}
