package cdc

import (
	"math"
	"testing"
)

func TestLSNText(t *testing.T) {
	for _, l := range []LSN{0, 1, 0x16B3748, 1 << 32, math.MaxUint64} {
		back, err := ParseLSN(l.String())
		if err != nil || back != l {
			t.Errorf("%d reads back as %d, %v", l, back, err)
		}
	}
	for _, s := range []string{"", "0", "0/", "/0", "0/100000000", "g/0", "0/-1", "0/0/0"} {
		if l, err := ParseLSN(s); err == nil {
			t.Errorf("%q reads as %s", s, l)
		}
	}
}

func TestParseTable(t *testing.T) {
	for s, want := range map[string]Table{
		"public.outbox":          {"public", "outbox"},
		"App.Out Box":            {"App", "Out Box"},
		`"a.b"."c""d"`:           {"a.b", `c"d`},
		`public."my.outbox"`:     {"public", "my.outbox"},
		`"public".outbox`:        {"public", "outbox"},
		`Schéma.größe_der_dinge`: {"Schéma", "größe_der_dinge"},
	} {
		got, err := ParseTable(s)
		if err != nil || got != want {
			t.Errorf("%s: %+v, %v", s, got, err)
		}
	}
	for _, s := range []string{"", "outbox", ".outbox", "public.", "a.b.c", `"a.b`, `"".x`, `"a"b.c`} {
		if got, err := ParseTable(s); err == nil {
			t.Errorf("%q reads as %+v", s, got)
		}
	}
	if got := (Table{"a", `b"c`}).String(); got != `"a"."b""c"` {
		t.Error(got)
	}
}

func TestVersionText(t *testing.T) {
	for _, v := range []Version{{}, {"ab12", 1}, {"with-dash", math.MaxUint64}} {
		back, err := ParseVersion(v.String())
		if err != nil || back != v {
			t.Errorf("%v reads back as %v, %v", v, back, err)
		}
	}
	for _, s := range []string{"x", "-1", "a-", "a-0", "a-x"} {
		if v, err := ParseVersion(s); err == nil {
			t.Errorf("%q reads as %v", s, v)
		}
	}
}
