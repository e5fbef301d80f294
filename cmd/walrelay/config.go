package main

import (
	"fmt"
	"log/slog"
	"slices"
	"strings"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/stagedoor/walrelay/cdc"
	"github.com/stagedoor/walrelay/outbox"
)

// Config holds the settings. Each is a flag, an environment variable and a key
// of the settings file, all of one name: --confirm-delay,
// WALRELAY_CONFIRM_DELAY, confirm-delay. A flag wins over the variable, that
// over the file, that over the default.
//
// The tag "for" names the commands whose help shows the setting. All commands
// take all of them, so that one file and one environment serve each.
type Config struct {
	File string `name:"config" group:"Settings file:" for:"run,poll,check,status,setup,teardown,audit,heal,skip,purge" type:"text" placeholder:"FILE" help:"YAML file with settings: the names below without the dashes."`

	Postgres    *pgx.ConnConfig `group:"PostgreSQL:" for:"run,poll,check,status,setup,teardown,audit,heal,skip,purge" type:"postgres" placeholder:"URL" help:"Required. libpq URL or keyword string; several hosts, services and password files work as in psql. It must lead to the server itself, not to a transaction pooler."`
	Slot        string          `group:"PostgreSQL:" for:"run,poll,check,status,teardown,audit,heal,skip,purge" type:"slot" default:"walrelay" placeholder:"NAME" help:"Replication slot, of the characters a-z, 0-9 and _. Relays with the same slot take turns: one works, the others stand by."`
	Publication string          `group:"PostgreSQL:" for:"run,check,status,setup,teardown" type:"name" default:"walrelay" placeholder:"NAME" help:"Publication, of the outbox table alone."`

	Redis RedisURL `group:"Redis:" for:"run,poll,check,status,teardown,audit,heal,skip" type:"redis" default:"redis://127.0.0.1:6379/0" placeholder:"URL" help:"redis://[USER:PASSWORD@]HOST:PORT/DB, rediss:// for TLS, or unix:///PATH?db=DB."`

	Table             cdc.Table `group:"Table:" for:"run,poll,check,status,setup,audit,skip,purge" type:"table" default:"public.outbox" placeholder:"SCHEMA.TABLE" help:"The outbox table. Names are taken exactly; one that holds a dot goes in double quotes."`
	ColumnID          string    `name:"column-id" group:"Table:" for:"run,poll,check,status,setup,audit,skip,purge" type:"name" default:"id" placeholder:"NAME" help:"Column with the unique id of a row."`
	ColumnKind        string    `group:"Table:" for:"run,poll,check,status,setup,audit,purge" type:"name" default:"kind" placeholder:"NAME" help:"Column of the entry field kind."`
	ColumnPayload     string    `group:"Table:" for:"run,poll,check,status,setup,audit,purge" type:"name" default:"payload" placeholder:"NAME" help:"Column of the entry field payload."`
	ColumnCreatedAt   string    `group:"Table:" for:"run,poll,check,status,setup,audit,purge" type:"name-or-none" default:"created_at" placeholder:"NAME" help:"Column with the time a row was written; empty where there is none."`
	ColumnPublishedAt string    `group:"Table:" for:"run,poll,check,status,setup,audit,skip,purge" type:"name-or-none" default:"published_at" placeholder:"NAME" help:"Column that marks a row as published, NULL until then; empty where there is none."`

	Stream string               `group:"Entries:" for:"run,poll,check,status,audit,skip" type:"text" default:"jobs" placeholder:"KEY" help:"Stream that gets the entries."`
	MaxLen int64                `name:"maxlen" group:"Entries:" for:"run,poll" type:"maxlen" default:"0" placeholder:"ENTRIES" help:"Trim the stream to about this many entries (MAXLEN ~); 0 never trims."`
	Fields []outbox.FieldColumn `name:"field" group:"Entries:" for:"run,poll,check,status,setup,audit,skip,purge" type:"field" placeholder:"NAME=COLUMN" help:"Field of an entry and the column it comes from. Repeat it for each field, in their order; one must be the id column. In the variable they stand with commas between them; in the file as a list, or as a mapping of NAME to COLUMN. Default kind=KIND, outbox_id=ID, payload=PAYLOAD with the columns above."`

	Mark outbox.MarkMode `group:"Marks:" for:"run,poll,check,status,setup,audit,purge" type:"mark" default:"auto" placeholder:"HOW" help:"How rows are marked once they are on the stream: published-at sets the column, delete deletes them, none leaves them alone. auto is published-at where the column and the privilege to update it are there, else none."`

	PurgeAfter time.Duration `group:"Clean-up:" for:"run,poll,check,setup" type:"duration" default:"0s" placeholder:"DURATION" help:"Delete rows that were published this long ago, such as 168h, in small batches; 0s never does. A heal cannot publish again what was deleted."`

	Heal       string        `group:"Gaps:" for:"run,check,status" type:"heal" default:"auto" placeholder:"HOW" help:"What is done where rows may be missing, since a slot, a database or Redis' memory was lost: auto publishes again what the stream lacks, at once; manual stops, is critical, and waits for walrelay heal."`
	HealMargin time.Duration `group:"Gaps:" for:"run" type:"duration" default:"1h" placeholder:"DURATION" help:"Where rows are not marked: how long before the gap a row may have been created, by a transaction that was open until then, and still be published again."`

	PollInterval   time.Duration `group:"Polling:" for:"poll" type:"duration-above-zero" default:"100ms" placeholder:"DURATION" help:"How long poll waits until it looks again, after it found less than it takes at once."`
	Listen         string        `group:"Polling:" for:"poll,setup" type:"name-or-none" placeholder:"CHANNEL" help:"Have poll look as soon as this channel is notified (LISTEN), see walrelay setup --create-notify-trigger. Default: it does not listen."`
	SafetyInterval time.Duration `group:"Polling:" for:"poll" type:"duration-above-zero" default:"60s" placeholder:"DURATION" help:"How long poll waits until it looks again while it listens: for notifications that were lost."`

	ConfirmDelay    time.Duration `group:"Limits:" for:"run" type:"duration" default:"5s" placeholder:"DURATION" help:"How long entries must have been in Redis before PostgreSQL may forget their rows. Redis can lose about this much and is refilled; 0s trusts it at once."`
	ShutdownTimeout time.Duration `group:"Limits:" for:"run,poll" type:"duration" default:"10s" placeholder:"DURATION" help:"How long to finish what is in flight after SIGTERM or SIGINT."`
	AgeWarn         time.Duration `group:"Limits:" for:"run,poll,status" type:"duration" default:"5s" placeholder:"DURATION" help:"Health warns when the oldest unpublished row is older; 0s never does."`
	AgeCritical     time.Duration `group:"Limits:" for:"run,poll,status" type:"duration-above-zero" default:"60s" placeholder:"DURATION" help:"Health is critical when the oldest unpublished row is older, or Redis or streaming is away for longer."`
	LagWarn         Bytes         `group:"Limits:" for:"run,status" type:"bytes" default:"256MiB" placeholder:"SIZE" help:"Health warns when PostgreSQL holds more write-ahead log for the slot."`
	LagCritical     Bytes         `group:"Limits:" for:"run,status" type:"bytes" default:"1GiB" placeholder:"SIZE" help:"Health is critical when PostgreSQL holds more write-ahead log for the slot."`
	RunwayCritical  time.Duration `group:"Limits:" for:"run,status" type:"duration" default:"1h" placeholder:"DURATION" help:"Health is critical when, at the present rate, max_slot_wal_keep_size or --disk-budget is used up sooner; 0s is never."`
	DiskBudget      Bytes         `group:"Limits:" for:"run,status" type:"bytes" placeholder:"SIZE" help:"How much write-ahead log replication slots, of whatever kind, may keep on the primary's disk. Default: as much as max_slot_wal_keep_size allows."`

	HTTP string `name:"http" group:"HTTP:" for:"run,poll,check,status" type:"http" default:"127.0.0.1:9476" placeholder:"HOST:PORT" help:"Address of the status page, /livez, /readyz, /healthz and /metrics; empty switches it off."`

	LogFormat string     `group:"Logging:" for:"run,poll,check,status,setup,teardown,audit,heal,skip,purge" type:"log-format" default:"text" placeholder:"FORMAT" help:"text or json, on standard error."`
	LogLevel  slog.Level `group:"Logging:" for:"run,poll,check,status,setup,teardown,audit,heal,skip,purge" type:"log-level" default:"info" placeholder:"LEVEL" help:"debug, info, warn or error."`
}

// Mapping is what the settings say of the table's columns.
func (c *Config) Mapping() outbox.Mapping {
	return outbox.Mapping{
		ID:          c.ColumnID,
		Kind:        c.ColumnKind,
		Payload:     c.ColumnPayload,
		CreatedAt:   c.ColumnCreatedAt,
		PublishedAt: c.ColumnPublishedAt,
		Fields:      c.Fields,
	}
}

// validate checks what no setting can know alone.
func (c *Config) validate() error {
	if c.Postgres == nil {
		return usagef("--postgres is required (or %s, or postgres in the settings file), such as --postgres 'postgres://walrelay@db.example.com:5432/shop'", envName("postgres"))
	}
	mapping := c.Mapping()
	if err := mapping.Validate(); err != nil {
		return usagef("%v", err)
	}
	// Consumers know an entry that they have seen by the id, and so does a
	// backfill.
	if !slices.ContainsFunc(mapping.EntryFields(), func(f outbox.FieldColumn) bool { return f.Column == c.ColumnID }) {
		return usagef("--field: none of the fields is the id column %q, and every entry must carry it: add --field 'outbox_id=%s'", c.ColumnID, c.ColumnID)
	}
	if c.Mark == outbox.MarkPublishedAt && c.ColumnPublishedAt == "" {
		return usagef("--mark published-at needs a column to set: give --column-published-at, or choose --mark delete or none")
	}
	if c.Mark == outbox.MarkDelete && c.PurgeAfter > 0 {
		return usagef("--mark delete deletes rows as soon as they are published, and leaves nothing for --purge-after %v: leave one of them out", c.PurgeAfter)
	}
	// Marking writes to the column.
	for _, f := range mapping.EntryFields() {
		if f.Column == c.ColumnPublishedAt {
			return usagef("--column-published-at is %q, and so is the column of the field %q: want a column of its own, or \"\" where the table has none", f.Column, f.Name)
		}
	}
	return nil
}

// usageError is what the user has to change in flags, environment or file. It
// ends the process with exit code 2.
type usageError struct{ message string }

func (e *usageError) Error() string { return e.message }

func usagef(format string, args ...any) error {
	return &usageError{message: fmt.Sprintf(format, args...)}
}

// envName is the environment variable of a setting.
func envName(setting string) string {
	return envPrefix + strings.ToUpper(strings.ReplaceAll(setting, "-", "_"))
}

const envPrefix = "WALRELAY_"
