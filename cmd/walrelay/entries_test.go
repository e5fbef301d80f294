package main

import (
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"testing"
)

// entry is what one entry of a stream must hold: names and values in turn.
func entry(pairs ...string) map[string]string {
	e := map[string]string{}
	for i := 0; i < len(pairs); i += 2 {
		e[pairs[i]] = pairs[i+1]
	}
	return e
}

// shape is an outbox of some form, rows for it, and the entries they make.
type shape struct {
	columns string // beside created_at and published_at
	flags   []string
	rows    []string // VALUES, in the order of the columns
	want    []map[string]string
}

// long is a text of megabytes that does not compress well.
func long() string {
	var b strings.Builder
	for i := range 300_000 {
		fmt.Fprintf(&b, "%d é ", i*7919%99991)
	}
	return b.String()
}

func shapes() map[string]shape {
	text := long()
	return map[string]shape{
		"ids beyond what a float holds": {
			columns: `id bigint PRIMARY KEY, kind text, payload jsonb`,
			rows:    []string{`9007199254740993, 'a', '1'`, `9223372036854775807, 'b', '2'`, `-9223372036854775808, 'c', '3'`, `0, 'd', '4'`},
			want: []map[string]string{
				entry("outbox_id", "9007199254740993", "kind", "a", "payload", "1"),
				entry("outbox_id", "9223372036854775807", "kind", "b", "payload", "2"),
				entry("outbox_id", "-9223372036854775808", "kind", "c", "payload", "3"),
				entry("outbox_id", "0", "kind", "d", "payload", "4"),
			},
		},
		"numeric ids": {
			columns: `id numeric PRIMARY KEY, kind text, payload jsonb`,
			rows:    []string{`123456789012345678901234567890, 'a', '1'`, `1.50, 'b', '1'`},
			want: []map[string]string{
				entry("outbox_id", "123456789012345678901234567890", "kind", "a", "payload", "1"),
				entry("outbox_id", "1.50", "kind", "b", "payload", "1"),
			},
		},
		"uuid ids": {
			columns: `id uuid PRIMARY KEY, kind text, payload jsonb`,
			rows:    []string{`'F47AC10B-58CC-4372-A567-0E02B2C3D479', 'a', '1'`, `'00000000000000000000000000000000', 'b', '1'`},
			want: []map[string]string{
				entry("outbox_id", "f47ac10b-58cc-4372-a567-0e02b2c3d479", "kind", "a", "payload", "1"),
				entry("outbox_id", "00000000-0000-0000-0000-000000000000", "kind", "b", "payload", "1"),
			},
		},
		"text ids": {
			columns: `id text PRIMARY KEY, kind text, payload jsonb`,
			rows: []string{
				`'plain', 'a', '1'`, `'', 'a', '1'`, `' a b ', 'a', '1'`, `'NULL', 'a', '1'`, `'{"x",y}', 'a', '1'`,
				`E'\\', 'a', '1'`, `'"', 'a', '1'`, `'it''s', 'a', '1'`, `'é🎟', 'a', '1'`, `E'a\nb', 'a', '1'`, `'$1', 'a', '1'`,
			},
			want: func() (all []map[string]string) {
				for _, id := range []string{"plain", "", " a b ", "NULL", `{"x",y}`, `\`, `"`, "it's", "é🎟", "a\nb", "$1"} {
					all = append(all, entry("outbox_id", id, "kind", "a", "payload", "1"))
				}
				return all
			}(),
		},
		"jsonb": {
			columns: `id int PRIMARY KEY, kind text, payload jsonb`,
			rows: []string{
				`1, 'null', 'null'`, `2, 'object', '{}'`, `3, 'list', '[]'`, `4, 'empty', '""'`, `5, 'null as text', '"null"'`,
				`6, 'nested', '{"b": {"a": [1, {"c": [[], {}]}]},   "a":1.50, "big": 12345678901234567890.10}'`,
				`7, 'text', '"a\nb\t\"\\\/ \u00e9 \ud83c\udf9f"'`, `8, 'twice', '{"a": 1, "a": 2}'`,
				`9, 'long', to_jsonb($$` + text + `$$::text)`,
			},
			want: []map[string]string{
				entry("outbox_id", "1", "kind", "null", "payload", "null"),
				entry("outbox_id", "2", "kind", "object", "payload", "{}"),
				entry("outbox_id", "3", "kind", "list", "payload", "[]"),
				entry("outbox_id", "4", "kind", "empty", "payload", `""`),
				entry("outbox_id", "5", "kind", "null as text", "payload", `"null"`),
				entry("outbox_id", "6", "kind", "nested", "payload", `{"a": 1.50, "b": {"a": [1, {"c": [[], {}]}]}, "big": 12345678901234567890.10}`),
				entry("outbox_id", "7", "kind", "text", "payload", `"a\nb\t\"\\/ é 🎟"`),
				entry("outbox_id", "8", "kind", "twice", "payload", `{"a": 2}`),
				entry("outbox_id", "9", "kind", "long", "payload", `"`+text+`"`),
			},
		},
		"json as it was typed": {
			columns: `id int PRIMARY KEY, kind text, payload json`,
			rows:    []string{`1, 'a', '{"b" : 1,  "a":1, "a":2 }'`, `2, 'a', '"\u0000 \u00e9"'`, `3, 'a', E' [\n1 ]'`},
			want: []map[string]string{
				entry("outbox_id", "1", "kind", "a", "payload", `{"b" : 1,  "a":1, "a":2 }`),
				entry("outbox_id", "2", "kind", "a", "payload", `"\u0000 \u00e9"`),
				entry("outbox_id", "3", "kind", "a", "payload", " [\n1 ]"),
			},
		},
		"text": {
			columns: `id int PRIMARY KEY, kind text, payload text`,
			rows: []string{
				`1, '', ''`, `2, 'null', 'null'`, `3, E'\\N', E'\\x00'`, `4, 'lines', E'a\r\nb\tc\x7f\x01'`, `5, 'emoji', '🎟👩‍👩‍👧'`, `6, 'long', $$` + text + `$$`,
				`7, 'json', '{"n": "\u0000"}'`,
			},
			want: []map[string]string{
				entry("outbox_id", "1", "kind", "", "payload", ""),
				entry("outbox_id", "2", "kind", "null", "payload", "null"),
				entry("outbox_id", "3", "kind", `\N`, "payload", `\x00`),
				entry("outbox_id", "4", "kind", "lines", "payload", "a\r\nb\tc\x7f\x01"),
				entry("outbox_id", "5", "kind", "emoji", "payload", "🎟👩‍👩‍👧"),
				entry("outbox_id", "6", "kind", "long", "payload", text),
				entry("outbox_id", "7", "kind", "json", "payload", `{"n": "\u0000"}`),
			},
		},
		"bytea": {
			columns: `id int PRIMARY KEY, kind text, payload bytea`,
			rows:    []string{`1, 'a', '\x000102ff5c'`, `2, 'empty', ''`, `3, 'text', 'a''b'`},
			want: []map[string]string{
				entry("outbox_id", "1", "kind", "a", "payload", `\x000102ff5c`),
				entry("outbox_id", "2", "kind", "empty", "payload", `\x`),
				entry("outbox_id", "3", "kind", "text", "payload", `\x612762`),
			},
		},
		"NULL is no field": {
			columns: `id int PRIMARY KEY, kind text, payload jsonb`,
			rows:    []string{`1, NULL, '{}'`, `2, 'a', NULL`, `3, NULL, NULL`, `4, '', 'null'`},
			want: []map[string]string{
				entry("outbox_id", "1", "payload", "{}"),
				entry("outbox_id", "2", "kind", "a"),
				entry("outbox_id", "3"),
				entry("outbox_id", "4", "kind", "", "payload", "null"),
			},
		},
		"other columns, in other types": {
			columns: `id int PRIMARY KEY, at timestamptz, f float8, n numeric, ok boolean, tags text[], length interval, fixed char(5), day date`,
			flags: []string{
				"--field", "event=id", "--field", "id again=id", "--field", "at=at", "--field", "f=f", "--field", "n=n", "--field", "ok=ok",
				"--field", "tags=tags", "--field", "length=length", "--field", "fixed=fixed", "--field", "day=day",
			},
			rows: []string{`1, '2026-01-31 12:00:00.123456+05:30', 0.1::float8 + 0.2, 1.500, true, '{a,"b c",NULL}', '1 mon -2 days 03:04:05', 'ab', '2026-01-31'`},
			want: []map[string]string{
				entry("event", "1", "id again", "1", "at", "2026-01-31 06:30:00.123456+00", "f", "0.30000000000000004", "n", "1.500", "ok", "t",
					"tags", `{a,"b c",NULL}`, "length", "1 mon -2 days +03:04:05", "fixed", "ab   ", "day", "2026-01-31"),
			},
		},
	}
}

// Values arrive as PostgreSQL prints them, byte for byte, the same over the log
// as by a backfill, whatever the database has set for its applications. Rows of
// all kinds of ids are marked.
func TestValuesArriveAsPostgresPrintsThem(t *testing.T) {
	t.Parallel()
	w := newWorld(t, worldOptions{})
	w.exec(`SELECT pg_drop_replication_slot('oracle')`)
	for _, setting := range []string{
		`datestyle = 'German'`, `timezone = 'Asia/Kolkata'`, `bytea_output = 'escape'`, `intervalstyle = 'iso_8601'`, `extra_float_digits = -3`,
		`lc_numeric = 'C'`, `standard_conforming_strings = on`, `statement_timeout = '10s'`,
	} {
		w.exec(`ALTER DATABASE postgres SET ` + setting)
	}
	n := 0
	for name, s := range shapes() {
		n++
		own := fmt.Sprintf("own_%d", n)
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			w := *w
			w.t = t
			w.exec(fmt.Sprintf(`CREATE TABLE %s (%s, created_at timestamptz DEFAULT clock_timestamp(), published_at timestamptz)`, own, s.columns))
			insert := func(rows []string) {
				t.Helper()
				for _, row := range rows {
					w.exec(fmt.Sprintf(`INSERT INTO %s VALUES (%s)`, own, row))
				}
			}
			flags := append([]string{"--table", "public." + own, "--slot", own, "--publication", own, "--stream", own, "--confirm-delay", "100ms"}, s.flags...)
			insert(s.rows) // by a backfill
			p := w.startRelay(flags...)
			p.streams()
			w.streamHas(own, s.want)
			unmarked := `SELECT count(*) FROM ` + own + ` WHERE published_at IS NULL`
			if left := w.query(unmarked); left != "0" {
				t.Errorf("%s rows are unmarked after the backfill", left)
			}
			w.exec(`DELETE FROM ` + own)
			insert(s.rows) // over the log
			w.streamHas(own, append(slices.Clone(s.want), s.want...))
			w.eventually("all rows are marked", func() error {
				if left := w.query(unmarked); left != "0" {
					return errors.New(left + " are not")
				}
				return nil
			})
			p.stop()
			w.exec(fmt.Sprintf(`SELECT pg_drop_replication_slot('%s')`, own))
		})
	}
}

// streamHas waits until a stream has so many entries, and compares all of them.
func (w *world) streamHas(stream string, want []map[string]string) {
	w.t.Helper()
	var got []map[string]string
	w.eventually(fmt.Sprintf("%d entries", len(want)), func() error {
		messages, err := w.rdb().XRange(w.t.Context(), stream, "-", "+").Result()
		if err != nil || len(messages) < len(want) {
			return fmt.Errorf("%d entries, %w", len(messages), err)
		}
		got = nil
		for _, m := range messages {
			values := map[string]string{}
			for name, value := range m.Values {
				values[name] = fmt.Sprint(value)
			}
			got = append(got, values)
		}
		return nil
	})
	for i := range max(len(got), len(want)) {
		if i >= len(want) {
			w.t.Errorf("entry %d is one too many: %.500v", i, got[i])
		} else if !maps.Equal(got[i], want[i]) {
			w.t.Errorf("entry %d is %.500v, want %.500v", i, got[i], want[i])
		}
	}
}

// The order of an entry's fields is that of the configuration.
func TestFieldsComeInTheOrderOfTheConfiguration(t *testing.T) {
	t.Parallel()
	w := newWorld(t, worldOptions{})
	w.startRelay("--field", "z=kind", "--field", "a=payload", "--field", "m=id", "--field", "again=kind").streams()
	w.exec(`INSERT INTO outbox (kind, payload) VALUES ('k', '{}')`)
	w.hasEntries(1)
	raw, err := w.rdb().Do(t.Context(), "XRANGE", "jobs", "-", "+").Slice()
	if err != nil {
		t.Fatal(err)
	}
	if got := fmt.Sprint(raw[0].([]any)[1]); got != "[z k a {} m 1 again k]" {
		t.Errorf("the entry is %s", got)
	}
}

// The stream keeps about as many entries as it is told to, always the latest,
// and a relay that starts does not take what was trimmed for lost.
func TestStreamIsTrimmed(t *testing.T) {
	t.Parallel()
	w := newWorld(t, worldOptions{redisArgs: []string{"--stream-node-max-entries", "10"}})
	w.insert("before", 300)
	p := w.startRelay("--maxlen", "50")
	p.streams()
	kept := func(total int) {
		t.Helper()
		w.eventually("the last row is on the stream", func() error {
			if ids := w.onStream("outbox_id"); len(ids) == 0 || ids[len(ids)-1] != fmt.Sprint(total) {
				return errors.New("not yet")
			}
			return nil
		})
		ids := w.onStream("outbox_id")
		if len(ids) < 50 || len(ids) >= 70 {
			t.Errorf("%d entries, want 50 and a part of a node", len(ids))
		}
		for i, id := range ids {
			if want := fmt.Sprint(total - len(ids) + 1 + i); id != want {
				t.Fatalf("entry %d is row %s, want %s", i, id, want)
			}
		}
	}
	kept(300)
	w.insert("streamed", 300)
	kept(600)
	p.stop()
	w.insert("down", 100)
	p = w.startRelay("--maxlen", "50")
	p.streams()
	kept(700)
	w.allMarked()
	w.confirmedPast()
	p.stop()
	p = w.startRelay() // never trims
	p.streams()
	before := w.length()
	w.insert("untrimmed", 200)
	w.hasEntries(before + 200)
}
