package cdc

import (
	"encoding/binary"
	"strings"
	"testing"

	"github.com/jackc/pglogrepl"
)

// wire builds pgoutput messages.
type wire struct{ b []byte }

func (w *wire) u8(v byte) *wire    { w.b = append(w.b, v); return w }
func (w *wire) u16(v int) *wire    { w.b = binary.BigEndian.AppendUint16(w.b, uint16(v)); return w }
func (w *wire) u32(v uint32) *wire { w.b = binary.BigEndian.AppendUint32(w.b, v); return w }
func (w *wire) u64(v uint64) *wire { w.b = binary.BigEndian.AppendUint64(w.b, v); return w }
func (w *wire) str(s string) *wire { w.b = append(append(w.b, s...), 0); return w }

func begin(lsn LSN, micros int64, xid uint32) []byte {
	return new(wire).u8('B').u64(uint64(lsn)).u64(uint64(micros)).u32(xid).b
}

func commit(lsn, end LSN) []byte {
	return new(wire).u8('C').u8(0).u64(uint64(lsn)).u64(uint64(end)).u64(5).b
}

func relation(oid uint32, schema, name string, columns ...string) []byte {
	w := new(wire).u8('R').u32(oid).str(schema).str(name).u8('d').u16(len(columns))
	for i, c := range columns {
		w.u8(0).str(c).u32(uint32(20 + i)).u32(0xffffffff)
	}
	return w.b
}

const null = "\x00null"

func insert(oid uint32, values ...string) []byte {
	w := new(wire).u8('I').u32(oid).u8('N').u16(len(values))
	for _, v := range values {
		if v == null {
			w.u8('n')
			continue
		}
		w.u8('t').u32(uint32(len(v)))
		w.b = append(w.b, v...)
	}
	return w.b
}

func decode(t *testing.T, d *Decoder, data []byte) Message {
	t.Helper()
	m, err := d.Decode(data)
	if err != nil {
		t.Fatal(err)
	}
	return m
}

func TestDecodeTransaction(t *testing.T) {
	d := NewDecoder()
	rel := decode(t, d, relation(7, "public", "Out box", "id", "payload")).(*Relation)
	if rel.Table.String() != `"public"."Out box"` || len(rel.Columns) != 2 || rel.Columns[1] != (Column{"payload", 21}) {
		t.Fatalf("relation %+v", rel)
	}
	b := decode(t, d, begin(0x1_00000010, 3, 99)).(*Begin)
	if b.Commit.LSN.String() != "1/10" || b.Commit.XID != 99 || b.Commit.Time.Format("2006-01-02T15:04:05.000000Z07:00") != "2000-01-01T00:00:00.000003Z" {
		t.Fatalf("begin %+v", b)
	}
	if !d.InTransaction() {
		t.Error("not in a transaction after Begin")
	}
	for i, want := range []string{"1", "2"} {
		in := decode(t, d, insert(7, want, null)).(*Insert)
		if in.Relation != rel || string(in.Values[0].Text) != want || !in.Values[1].Null || in.Commit != b.Commit ||
			in.Position != (Position{0x1_00000010, uint64(i)}) {
			t.Fatalf("insert %d: %+v", i, in)
		}
		// What is no entry does not count.
		decode(t, d, []byte("U whatever"))
	}
	c := decode(t, d, commit(0x1_00000010, 0x1_00000040)).(*CommitEnd)
	if c.End != 0x1_00000040 || c.Commit != b.Commit || d.InTransaction() {
		t.Fatalf("commit %+v", c)
	}
	decode(t, d, begin(0x1_00000040, 0, 100))
	if in := decode(t, d, insert(7, "3", "")).(*Insert); in.Position.Ordinal != 0 {
		t.Errorf("the ordinal goes on from the transaction before: %+v", in.Position)
	}
}

func TestDecodeRefuses(t *testing.T) {
	open := [][]byte{relation(7, "public", "outbox", "id"), begin(16, 0, 1)}
	for name, tc := range map[string]struct {
		before [][]byte
		data   []byte
		want   string
	}{
		"empty":                  {nil, nil, "it is empty"},
		"unknown type":           {nil, []byte("Sxyz"), "unknown pgoutput message: type 'S'"},
		"short begin":            {nil, begin(16, 0, 1)[:20], "it ends early"},
		"begin without position": {nil, begin(0, 0, 1), "no commit LSN"},
		"begin inside":           {open, begin(32, 0, 2), "transaction 2 begins inside of transaction 1"},
		"begin and more":         {nil, append(begin(16, 0, 1), 0), "1 bytes are left over"},
		"commit without begin":   {nil, commit(16, 32), "did not begin"},
		"commit of another":      {open, commit(24, 32), "was to commit at 0/10 and commits at 0/18"},
		"commit ends before":     {open, commit(16, 16), "ends at 0/10"},
		"short commit":           {open, commit(16, 32)[:9], "it ends early"},
		"row outside":            {open[:1], insert(7, "1"), "outside of a transaction"},
		"row of unknown table":   {open, insert(8, "1"), "relation 8, which was not described"},
		"too many columns":       {open, insert(7, "1", "2"), `a row of "public"."outbox" has 2 columns, the table was described with 1`},
		"unchanged toast":        {open, new(wire).u8('I').u32(7).u8('N').u16(1).u8('u').b, `column "id" of "public"."outbox" comes as 'u'`},
		"binary":                 {open, new(wire).u8('I').u32(7).u8('N').u16(1).u8('b').u32(0).b, "comes as 'b'"},
		"old tuple":              {open, new(wire).u8('I').u32(7).u8('O').u16(0).b, "of kind 'O'"},
		"value longer than all":  {open, new(wire).u8('I').u32(7).u8('N').u16(1).u8('t').u32(1 << 31).b, "it ends early"},
		"short relation":         {nil, relation(7, "public", "outbox", "id")[:20], "it ends early"},
	} {
		t.Run(name, func(t *testing.T) {
			d := NewDecoder()
			for _, b := range tc.before {
				decode(t, d, b)
			}
			_, err := d.Decode(tc.data)
			if err == nil || !strings.Contains(err.Error(), tc.want) {
				t.Errorf("got %v, want an error with %q", err, tc.want)
			}
		})
	}
}

// FuzzDecode checks that no message crashes the decoder, and that whatever it
// accepts, pglogrepl reads the same way.
func FuzzDecode(f *testing.F) {
	for _, b := range [][]byte{
		begin(16, 1, 2), commit(16, 32), relation(7, "public", "outbox", "id", "kind"), insert(7, "1", null),
		insert(7, "", "x"),
		{'U'},
		{'M', 0},
		{'Y'},
		nil,
		{0},
	} {
		f.Add(b)
	}
	f.Fuzz(func(t *testing.T, data []byte) {
		d := NewDecoder()
		for _, b := range [][]byte{relation(7, "public", "outbox", "id", "kind"), begin(16, 0, 1)} {
			if _, err := d.Decode(b); err != nil {
				t.Fatal(err)
			}
		}
		m, err := d.Decode(data)
		if err != nil {
			return
		}
		switch m := m.(type) {
		case *Insert:
			theirs, err := pglogrepl.Parse(data)
			if err != nil {
				t.Fatalf("pglogrepl refuses what we accept: %v", err)
			}
			columns := theirs.(*pglogrepl.InsertMessage).Tuple.Columns
			if len(columns) != len(m.Values) {
				t.Fatalf("%d columns, pglogrepl has %d", len(m.Values), len(columns))
			}
			for i, c := range columns {
				if string(c.Data) != string(m.Values[i].Text) || (c.DataType == 'n') != m.Values[i].Null {
					t.Errorf("column %d: %+v, pglogrepl has %+v", i, m.Values[i], c)
				}
			}
		case *Relation:
			theirs, err := pglogrepl.Parse(data)
			if err != nil {
				t.Fatalf("pglogrepl refuses what we accept: %v", err)
			}
			r := theirs.(*pglogrepl.RelationMessage)
			if r.RelationID != m.OID || r.RelationName != m.Table.Name || len(r.Columns) != len(m.Columns) {
				t.Errorf("%+v, pglogrepl has %+v", m, r)
			}
		case *Begin, *CommitEnd:
			if _, err := pglogrepl.Parse(data); err != nil {
				t.Fatalf("pglogrepl refuses what we accept: %v", err)
			}
		}
	})
}
