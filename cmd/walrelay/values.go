package main

import (
	"errors"
	"fmt"
	"log/slog"
	"math"
	"net"
	"reflect"
	"slices"
	"strconv"
	"strings"
	"time"
	"unicode/utf8"

	"github.com/alecthomas/kong"
	"github.com/jackc/pgx/v5"

	"github.com/stagedoor/walrelay/cdc"
	"github.com/stagedoor/walrelay/internal/pg"
	"github.com/stagedoor/walrelay/outbox"
)

// given is a value as somebody wrote it, and where.
type given struct {
	text   string
	origin string // "" on the command line, else a variable, or a file and line
}

// valueTypes are the types that the settings' tags name.
func valueTypes() []kong.Option {
	return []kong.Option{
		kong.NamedMapper("text", valueType[string]{parse: parseText}),
		kong.NamedMapper("postgres", valueType[*pgx.ConnConfig]{parse: parsePostgres, secret: true}),
		kong.NamedMapper("redis", valueType[RedisURL]{parse: parseRedis, secret: true}),
		kong.NamedMapper("table", valueType[cdc.Table]{parse: parseTable}),
		kong.NamedMapper("slot", valueType[string]{parse: parseSlot}),
		kong.NamedMapper("name", valueType[string]{parse: parseName}),
		kong.NamedMapper("name-or-none", valueType[string]{parse: parseNameOrNone}),
		kong.NamedMapper("maxlen", valueType[int64]{parse: parseMaxLen}),
		kong.NamedMapper("field", fieldType{}),
		kong.NamedMapper("mark", valueType[outbox.MarkMode]{parse: oneOf(outbox.MarkAuto, outbox.MarkPublishedAt, outbox.MarkDelete, outbox.MarkNone)}),
		kong.NamedMapper("heal", valueType[string]{parse: oneOf("auto", "manual")}),
		kong.NamedMapper("duration", valueType[time.Duration]{parse: parseDuration}),
		kong.NamedMapper("duration-above-zero", valueType[time.Duration]{parse: parseDurationAboveZero}),
		kong.NamedMapper("moment", valueType[moment]{parse: parseMoment}),
		kong.NamedMapper("count", valueType[int]{parse: parseCount}),
		kong.NamedMapper("batch", valueType[int]{parse: parseBatch}),
		kong.NamedMapper("bytes", valueType[Bytes]{parse: parseBytes}),
		kong.NamedMapper("http", valueType[string]{parse: parseHTTP}),
		kong.NamedMapper("log-format", valueType[string]{parse: oneOf("text", "json")}),
		kong.NamedMapper("log-level", valueType[slog.Level]{parse: parseLevel}),
	}
}

// valueType reads a setting of one value, wherever it was written.
type valueType[T any] struct {
	parse  func(text string) (T, error)
	secret bool // the value may hold a password and is not repeated
}

// Decode is called by kong.
func (v valueType[T]) Decode(ctx *kong.DecodeContext, target reflect.Value) error {
	values, err := popGiven(ctx)
	if err != nil {
		return err
	}
	for _, g := range values {
		value, err := v.parse(g.text)
		if err != nil {
			return valueError(ctx.Value.Name, g, v.secret, err)
		}
		target.Set(reflect.ValueOf(value))
	}
	return nil
}

// fieldType reads --field, which is repeated.
type fieldType struct{}

// Decode is called by kong, once for each time that the flag is given.
func (fieldType) Decode(ctx *kong.DecodeContext, target reflect.Value) error {
	values, err := popGiven(ctx)
	if err != nil {
		return err
	}
	for _, g := range values {
		field, err := parseField(g.text)
		if err != nil {
			return valueError(ctx.Value.Name, g, false, err)
		}
		target.Set(reflect.Append(target, reflect.ValueOf(field)))
	}
	return nil
}

// popGiven takes the flag's value off the command line, or what the resolver
// found instead.
func popGiven(ctx *kong.DecodeContext) ([]given, error) {
	name := ctx.Value.Name
	if text, ok := ctx.Scan.Peek().Value.(string); ok && isNegative(text) {
		ctx.Scan.Pop() // kong takes it for a flag
		return []given{{text: text}}, nil
	}
	token, err := ctx.Scan.PopValue(name)
	if err != nil {
		// Not kong's own error: it repeats the next argument.
		return nil, usagef("--%s needs a value: --%s=%s", name, name, ctx.Value.Flag.PlaceHolder)
	}
	switch v := token.Value.(type) {
	case string:
		return []given{{text: v}}, nil
	case []given:
		return v, nil
	}
	return nil, fmt.Errorf("--%s: a %T is not a value", name, token.Value)
}

// isNegative tells a negative number or duration from a flag.
func isNegative(s string) bool {
	return len(s) > 1 && s[0] == '-' && '0' <= s[1] && s[1] <= '9'
}

// valueError names the flag, where its value is from, and what is allowed.
func valueError(name string, g given, secret bool, err error) error {
	message := "--" + name
	if !secret {
		message += " " + quoteShort(g.text)
	}
	if g.origin != "" {
		message += " (" + g.origin + ")"
	}
	return usagef("%s: %v", message, err)
}

// quoteShort quotes a value for a message.
func quoteShort(s string) string {
	const most = 80
	if runes := []rune(s); len(runes) > most {
		s = string(runes[:most]) + "..."
	}
	return strconv.Quote(s)
}

func parseText(s string) (string, error) {
	if s == "" {
		return "", errors.New("must not be empty")
	}
	return s, nil
}

func parsePostgres(s string) (*pgx.ConnConfig, error) {
	if strings.TrimSpace(s) == "" {
		return nil, errors.New("must not be empty; want a libpq URL such as postgres://walrelay@db.example.com:5432/shop")
	}
	cfg, err := pg.Parse(s)
	if err != nil {
		return nil, fmt.Errorf("%w; want a libpq URL such as postgres://USER:PASSWORD@HOST:5432/DATABASE, with special characters of the password percent-encoded, or host=HOST user=USER dbname=DATABASE password='PASSWORD'", err)
	}
	return cfg, nil
}

func parseTable(s string) (cdc.Table, error) {
	t, err := cdc.ParseTable(s)
	if err != nil {
		return cdc.Table{}, err
	}
	for _, name := range []string{t.Schema, t.Name} {
		if _, err := parseName(name); err != nil {
			return cdc.Table{}, fmt.Errorf("%q: %w", name, err)
		}
	}
	return t, nil
}

// parseSlot allows what PostgreSQL allows.
// https://www.postgresql.org/docs/current/warm-standby.html#STREAMING-REPLICATION-SLOTS-MANIPULATION
func parseSlot(s string) (string, error) {
	const allowed = "abcdefghijklmnopqrstuvwxyz0123456789_"
	if s == "" || len(s) > 63 || strings.Trim(s, allowed) != "" {
		return "", errors.New("want 1 to 63 of the characters a-z, 0-9 and _")
	}
	return s, nil
}

// parseName reads a name of PostgreSQL exactly. A longer one is cut off by the
// server, and then never found again.
func parseName(s string) (string, error) {
	switch {
	case s == "":
		return "", errors.New("must not be empty")
	case len(s) > 63:
		return "", fmt.Errorf("a name in PostgreSQL has at most 63 bytes, this one %d", len(s))
	case strings.ContainsRune(s, 0) || !utf8.ValidString(s):
		return "", errors.New("want a name in UTF-8 without zero bytes")
	}
	return s, nil
}

func parseNameOrNone(s string) (string, error) {
	if s == "" {
		return "", nil
	}
	return parseName(s)
}

func parseMaxLen(s string) (int64, error) {
	n, err := strconv.ParseInt(s, 10, 64)
	if err != nil || n < 0 {
		return 0, errors.New("want the number of entries to keep, such as 1000000, or 0 to never trim")
	}
	return n, nil
}

func parseCount(s string) (int, error) {
	n, err := strconv.Atoi(s)
	if err != nil || n < 0 {
		return 0, errors.New("want a number of 0 or more, such as 20")
	}
	return n, nil
}

// parseBatch bounds what one transaction holds.
func parseBatch(s string) (int, error) {
	n, err := strconv.Atoi(s)
	if err != nil || n < 1 || n > 10_000 {
		return 0, errors.New("want a number of rows from 1 to 10000, such as 1000")
	}
	return n, nil
}

func parseField(s string) (outbox.FieldColumn, error) {
	name, column, ok := strings.Cut(s, "=")
	if !ok || name == "" || column == "" {
		return outbox.FieldColumn{}, errors.New("want NAME=COLUMN, such as outbox_id=id")
	}
	if _, err := parseName(column); err != nil {
		return outbox.FieldColumn{}, fmt.Errorf("column %q: %w", column, err)
	}
	return outbox.FieldColumn{Name: name, Column: column}, nil
}

func oneOf[T ~string](allowed ...T) func(string) (T, error) {
	return func(s string) (T, error) {
		if slices.Contains(allowed, T(s)) {
			return T(s), nil
		}
		names := make([]string, len(allowed))
		for i, name := range allowed {
			names[i] = string(name)
		}
		return "", errors.New("want one of " + strings.Join(names, ", "))
	}
}

func parseDuration(s string) (time.Duration, error) {
	d, err := time.ParseDuration(s)
	if err != nil || d < 0 {
		return 0, errors.New("want a duration of 0s or more with its unit (ms, s, m, h), such as 5s or 1h30m")
	}
	return d, nil
}

func parseDurationAboveZero(s string) (time.Duration, error) {
	d, err := time.ParseDuration(s)
	if err != nil || d <= 0 {
		return 0, errors.New("want a duration above 0s with its unit (ms, s, m, h), such as 60s or 1h30m")
	}
	return d, nil
}

// Bytes is a size in bytes.
type Bytes int64

// byteUnits are the units of sizes, the largest first.
func byteUnits() []struct {
	name string
	size Bytes
} {
	return []struct {
		name string
		size Bytes
	}{{"TiB", 1 << 40}, {"GiB", 1 << 30}, {"MiB", 1 << 20}, {"KiB", 1 << 10}, {"B", 1}}
}

// String is the size in the largest unit that leaves no fraction.
func (b Bytes) String() string {
	for _, unit := range byteUnits() {
		if b != 0 && b%unit.size == 0 {
			return strconv.FormatInt(int64(b/unit.size), 10) + unit.name
		}
	}
	return "0B"
}

func parseBytes(s string) (Bytes, error) {
	want := errors.New("want a size above 0 in bytes, or with a unit of KiB, MiB, GiB or TiB, such as 512MiB")
	number, size := s, Bytes(1)
	for _, unit := range byteUnits() {
		if rest, ok := strings.CutSuffix(s, unit.name); ok {
			number, size = strings.TrimSuffix(rest, " "), unit.size
			break
		}
	}
	n, err := strconv.ParseInt(number, 10, 64)
	if err != nil || n <= 0 || n > math.MaxInt64/int64(size) {
		return 0, want
	}
	return Bytes(n) * size, nil
}

func parseHTTP(s string) (string, error) {
	if s == "" {
		return "", nil
	}
	_, port, err := net.SplitHostPort(s)
	if err == nil {
		_, err = strconv.ParseUint(port, 10, 16)
	}
	if err != nil {
		return "", errors.New(`want HOST:PORT, such as 127.0.0.1:9476, :9476 for every address, or "" to switch it off`)
	}
	return s, nil
}

func parseLevel(s string) (slog.Level, error) {
	name, err := oneOf("debug", "info", "warn", "error")(s)
	if err != nil {
		return 0, err
	}
	var level slog.Level
	return level, level.UnmarshalText([]byte(name))
}
