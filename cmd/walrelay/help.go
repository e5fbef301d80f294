package main

import (
	"fmt"
	"slices"
	"strings"

	"github.com/alecthomas/kong"
)

const description = `walrelay carries the rows of a transactional outbox from PostgreSQL to a Redis stream: each committed row once, in the order of the commits. It reads the write-ahead log through a logical replication slot.`

// epilogue stands below the settings.
const epilogue = `
Settings come from flags, else from the variables named above, else from the
file, else from the defaults. A variable that is set to nothing counts as an
empty value. Durations have units (300ms, 5s, 1h30m); sizes are bytes or have
units (KiB, MiB, GiB, TiB; 1KiB is 1024 bytes).

A settings file:
  postgres: postgres://walrelay@db.example.com:5432/shop
  redis: redis://127.0.0.1:6379/0
  stream: jobs
  field:
    kind: kind
    outbox_id: id
    payload: payload

Exit codes:
  0  done; for run: stopped by SIGTERM or SIGINT
  1  a finding or a failure; also when a second signal cuts the stopping short
  2  wrong usage: a flag, a variable or the settings file has to be changed
`

// printHelp prints what kong knows, with the settings that the command uses,
// and the rest of what one needs to work with it.
func printHelp(options kong.HelpOptions, ctx *kong.Context) error {
	command := ctx.Selected()
	for _, flag := range settings(ctx.Model) {
		flag.Hidden = command != nil && !slices.Contains(strings.Split(flag.Tag.Get("for"), ","), command.Name)
	}
	if err := kong.DefaultHelpPrinter(options, ctx); err != nil {
		return err
	}
	if command != nil && command.Name == "version" {
		return nil
	}
	_, err := fmt.Fprint(ctx.Stdout, epilogue)
	return err
}

// helpValue is the text of one flag.
func helpValue(value *kong.Value) string {
	text := value.Help
	flag := value.Flag
	if flag == nil || !isSetting(flag) {
		return text
	}
	if value.HasDefault {
		text += " Default " + value.Default + "."
	}
	return text + " [" + envName(value.Name) + "]"
}
