package outbox

import (
	"bytes"
	"fmt"
	"strings"
	"testing"

	"github.com/stagedoor/walrelay/cdc"
)

// valueTypes are column types, each with values as SQL.
var valueTypes = []struct {
	typ    string
	values []string
}{
	{"smallint", []string{"-32768", "0"}},
	{"bigint", []string{"9223372036854775807", "9007199254740993"}},
	{"numeric", []string{"123456789012345678901234567890.1234567890", "0.10", "'NaN'"}}, // infinite ones came with version 14
	{"numeric(12,4)", []string{"1", "-0.00005"}},
	{"real", []string{"0.1", "1e-30", "16777217"}},
	{"double precision", []string{"0.1", "1.0/3", "1e300", "'-Infinity'", "'-0'", "5e-324"}},
	{"money", []string{"1234567.891", "-5"}},
	{"boolean", []string{"true", "false"}},
	{"text", []string{"''", `E'a\nb\tc\\d"e'''`, "'😀 ünïcode'", "'null'", "repeat('x', 20000)"}},
	{"varchar(10)", []string{"'abc   '"}},
	{"char(8)", []string{"'ab'", "''"}},
	{`"char"`, []string{"'x'"}},
	{"name", []string{"'a name'"}},
	{"bytea", []string{`'\x00ff41'`, "''"}},
	{"json", []string{`'{"b":1, "a" : [1,2.50,1e3], "a":"\u00e9\u0000"}'`, "'null'", "' [] '"}},
	{"jsonb", []string{`'{"b":1, "a" : [1,2.50,1e3], "a":"\u00e9"}'`, "'null'", "'\"\"'", "'{}'"}},
	{"uuid", []string{"'A0EEBC99-9C0B-4EF8-BB6D-6BB9BD380A11'"}},
	{"date", []string{"'2026-02-28'", "'infinity'", "'0044-03-15 BC'"}},
	{"time", []string{"'23:59:59.123456'"}},
	{"timetz", []string{"'23:59:59+05:30'"}},
	{"timestamp", []string{"'2026-07-01 12:00:00.5'", "'-infinity'"}},
	{"timestamptz", []string{"'2026-07-01 12:00:00.000001+02'", "'infinity'", "'0044-03-15 12:00 BC'"}},
	{"interval", []string{"'1 year 2 months -3 days 04:05:06.789'", "'0'"}},
	{"inet", []string{"'10.0.0.1/8'", "'::1'"}},
	{"cidr", []string{"'10.0.0.0/8'"}},
	{"macaddr", []string{"'08:00:2b:01:02:03'"}},
	{"bit(5)", []string{"B'10101'"}},
	{"varbit", []string{"B'101'"}},
	{"point", []string{"'(1.1,-2)'"}},
	{"xml", []string{"'<a b=\"c\">d</a>'"}},
	{"tsvector", []string{"'a:1 b:2'"}},
	{"int4range", []string{"'[1,5]'", "'empty'"}},
	{"tstzrange", []string{"'[2026-01-01 00:00+01,)'"}},
	{"pg_lsn", []string{"'16/B374D848'"}},
	{"oid", []string{"4294967295"}},
	{"regclass", []string{"'pg_class'"}},
	{"integer[]", []string{"'{1,NULL,3}'", "'{}'", "'[2:3]={1,2}'", "'{{1,2},{3,4}}'"}},
	{"text[]", []string{`ARRAY['a b','"','\',NULL,'','NULL']`}},
	{"jsonb[]", []string{`ARRAY['{"a":1}'::jsonb]`}},
	{"mood", []string{"'très heureux'", "'sad'"}},
	{"positive", []string{"7"}},
	{"pair", []string{"ROW(1,'a,b')", "ROW(NULL,NULL)"}},
}

// TestValuesOfTheTableAreThoseOfTheLog: a row that a backfill reads has, byte
// for byte, the fields that it has when it is decoded, so that the two can be
// recognised as one.
func TestValuesOfTheTableAreThoseOfTheLog(t *testing.T) {
	d := newDB(t)
	d.exec(`CREATE TYPE mood AS ENUM ('sad', 'très heureux');
		CREATE DOMAIN positive AS integer CHECK (VALUE > 0);
		CREATE TYPE pair AS (a integer, b text)`)
	m := Mapping{ID: "id", PublishedAt: "published_at"}
	var columns, cases []string
	for i, v := range valueTypes {
		name := fmt.Sprintf("c%d", i)
		columns = append(columns, name+" "+v.typ)
		m.Fields = append(m.Fields, FieldColumn{Name: v.typ, Column: name})
		for _, value := range v.values {
			cases = append(cases, fmt.Sprintf("INSERT INTO outbox (%s) VALUES (%s)", name, value))
		}
	}
	d.exec("CREATE TABLE outbox (id bigint PRIMARY KEY GENERATED ALWAYS AS IDENTITY, published_at timestamptz, " + strings.Join(columns, ", ") + ")")
	// What applications prefer must not show.
	db := d.text("SELECT current_database()")
	for _, setting := range []string{
		"bytea_output = escape", "datestyle = 'SQL, DMY'", "intervalstyle = iso_8601",
		"timezone = 'Asia/Kolkata'", "extra_float_digits = -5", "client_encoding = latin1",
	} {
		d.exec("ALTER DATABASE " + db + " SET " + setting)
	}
	f := newFeed(d, public)
	for _, sql := range cases {
		d.exec(sql)
	}
	table := d.checked(Config{Mapping: m})
	var decoded []cdc.Event
	for _, in := range f.inserts(len(cases)) {
		ev, ok, err := table.Event(in)
		if err != nil || !ok {
			t.Fatal(ok, err)
		}
		decoded = append(decoded, ev)
	}
	read := candidates(d, table, cdc.Since{First: true}, 0)
	if len(read) != len(decoded) {
		t.Fatalf("%d rows read, %d decoded", len(read), len(decoded))
	}
	for i, want := range decoded {
		got := read[i].ev
		if got.ID != want.ID || len(got.Fields) != 1 || len(want.Fields) != 1 || got.Fields[0].Name != want.Fields[0].Name ||
			got.Fields[0].Value != want.Fields[0].Value {
			t.Errorf("%s:\nread    %s %.200q\ndecoded %s %.200q", cases[i], got.ID, flat(got), want.ID, flat(want))
		}
		if got.Bytes != want.Bytes {
			t.Errorf("%s: %d bytes read, %d decoded", cases[i], got.Bytes, want.Bytes)
		}
	}
}

// TestIDsAreUnchanged: ids keep their digits and their case, and a row is found
// by them again.
func TestIDsAreUnchanged(t *testing.T) {
	for _, test := range []struct {
		typ string
		ids []string
	}{
		{"bigint", []string{"9007199254740993", "9223372036854775807", "-5"}},
		{"uuid", []string{"a0eebc99-9c0b-4ef8-bb6d-6bb9bd380a11", "00000000-0000-0000-0000-000000000000"}},
		{"text", []string{`a "b" \c,{d}`, "NULL", "", "é😀", " 1 "}},
		{"varchar(20)", []string{"order-1", "Order-1"}},
		{"char(6)", []string{"ab    ", "abcdef"}},
		{"numeric(20,2)", []string{"1.10", "123456789012345678.00"}},
		{`"My Type"`, []string{"red", "dark blue"}},
		{"key", []string{"17"}},
		{"bytea", []string{`\x00ff`}},
		{"timestamptz", []string{"2026-07-01 10:00:00.000001+00"}},
	} {
		t.Run(test.typ, func(t *testing.T) {
			d := newDB(t)
			d.exec(`CREATE TYPE "My Type" AS ENUM ('red', 'dark blue'); CREATE DOMAIN key AS bigint CHECK (VALUE > 0)`)
			d.exec("CREATE TABLE outbox (id " + test.typ + " PRIMARY KEY, kind text, payload jsonb, created_at timestamptz, published_at timestamptz)")
			f := newFeed(d, public)
			for _, id := range test.ids {
				d.exec("INSERT INTO outbox (id) VALUES (" + cdc.QuoteLiteral(id) + ")")
			}
			table := d.checked(Config{})
			var marks []cdc.Mark
			for i, in := range f.inserts(len(test.ids)) {
				ev, _, err := table.Event(in)
				if err != nil || ev.ID != test.ids[i] {
					t.Errorf("id %q, %v, want %q", ev.ID, err, test.ids[i])
				}
				marks = append(marks, cdc.Mark{ID: ev.ID})
			}
			for _, c := range candidates(d, table, cdc.Since{First: true}, 0) {
				if !bytes.Contains([]byte(strings.Join(test.ids, "\x00")), []byte(c.ev.ID)) {
					t.Errorf("candidate %q is none of %q", c.ev.ID, test.ids)
				}
			}
			if _, err := table.Mark(d.ctx(), marks); err != nil {
				t.Fatal(err)
			}
			if left := d.text("SELECT id::text FROM outbox WHERE published_at IS NULL"); left != "" {
				t.Errorf("not marked: %s", left)
			}
		})
	}
}
