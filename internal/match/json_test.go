package match

import (
	"bytes"
	"encoding/json"
	"fmt"
	"io"
	"math/big"
	"regexp"
	"slices"
	"strings"
	"testing"
)

func TestSpellingsOfOneValueAreTheSame(t *testing.T) {
	for _, same := range [][]string{
		{`{"a": 1, "b": [true, null, "x"]}`, `{"b":[true,null,"x"],"a":1}`, " {\n\t\"b\" : [ true , null , \"x\" ] , \"a\" : 1.0 }\r\n"},
		{`"é🎟"`, `"\u00e9\ud83c\udf9f"`, `"\u00E9🎟"`},
		{`"/\"\\\n"`, `"\/\u0022\u005c\u000a"`},
		{`1`, `1.0`, `1.000`, `1e0`, `1E+0`, `10e-1`, `0.1e1`, `0.001e3`, `1000e-3`},
		{`0`, `0.0`, `-0`, `0e5`, `-0.00e-7`},
		{`-1.5`, `-15e-1`, `-0.15E1`, `-1.50`},
		{`12345678901234567890.5000`, `12345678901234567890.5`, `123456789012345678905e-1`},
		{`1e400`, `10e399`, `0.1e401`},
		{`{}`, ` { } `},
		{`[]`, `[ ]`},
	} {
		want := canonicalJSON([]byte(same[0]))
		for _, other := range same[1:] {
			if got := canonicalJSON([]byte(other)); !bytes.Equal(got, want) {
				t.Errorf("%s is %s and %s is %s", same[0], want, other, got)
			}
		}
	}
}

func TestDifferentValuesStayDifferent(t *testing.T) {
	all := []string{
		`null`, `true`, `false`, `0`, `1`, `-1`, `10`, `1.1`, `11`, `1e1000000`, `1e1000001`,
		`9007199254740992`, `9007199254740993`, // one number as a float
		`0.1`, `0.10000000000000000001`,
		`1e99999999999999999999`, `1e99999999999999999998`, // exponents beyond any number
		`""`, `"null"`, `"0"`, `"1"`, `"a"`, `"A"`, `"é"`, "\"e\u0301\"", `"\u0000"`, `" "`,
		`[]`, `{}`, `[null]`, `[[]]`, `[{}]`, `[1,2]`, `[2,1]`, `[12]`, `[10,12]`, `[1e11,2]`, `["1","2"]`, `["1,2"]`, `[1,[2]]`, `[[1],2]`,
		`{"a":1}`, `{"a":"1"}`, `{"a":1,"b":2}`, `{"a":2,"b":1}`, `{"a":{"b":2}}`, `{"a":null}`, `{"":null}`, `{"a:1":2}`,
		`nothing`, `{broken`, `[1,2`, `1 2`, `01`, ``,
	}
	seen := map[string]string{}
	for _, text := range all {
		spelt := string(canonicalJSON([]byte(text)))
		if other, ok := seen[spelt]; ok {
			t.Errorf("%s and %s are both %s", other, text, spelt)
		}
		seen[spelt] = text
	}
}

// An exponent costs no memory.
func TestHugeExponentCostsNothing(t *testing.T) {
	if got := canonicalJSON([]byte(`[1e999999999, 1.0e-999999999]`)); len(got) > 50 {
		t.Errorf("takes %d bytes", len(got))
	}
}

// decodeJSON reads one document by encoding/json.
func decodeJSON(text string) (v any, ok bool) {
	dec := json.NewDecoder(strings.NewReader(text))
	dec.UseNumber()
	if dec.Decode(&v) != nil {
		return nil, false
	}
	_, err := dec.Token()
	return v, err == io.EOF
}

// sameJSON compares by value; numbers as rationals.
func sameJSON(t *testing.T, a, b any) bool {
	switch a := a.(type) {
	case json.Number:
		b, ok := b.(json.Number)
		return ok && number(t, a).Cmp(number(t, b)) == 0
	case []any:
		b, ok := b.([]any)
		return ok && slices.EqualFunc(a, b, func(x, y any) bool { return sameJSON(t, x, y) })
	case map[string]any:
		b, ok := b.(map[string]any)
		if !ok || len(a) != len(b) {
			return false
		}
		for k, x := range a {
			y, ok := b[k]
			if !ok || !sameJSON(t, x, y) {
				return false
			}
		}
		return true
	default:
		return a == b
	}
}

// hugeExponent is one whose number would take too much memory.
var hugeExponent = regexp.MustCompile(`[eE][+-]?0*[1-9][0-9]{3}`)

// number is exact.
func number(t *testing.T, n json.Number) *big.Rat {
	r, ok := new(big.Rat).SetString(string(n))
	if !ok {
		t.Fatalf("%q is no number", n)
	}
	return r
}

// respell writes a value in another way, as other programs would.
func respell(t *testing.T, v any, seed int) string {
	switch v := v.(type) {
	case json.Number:
		r := number(t, v)
		shift := seed%5 - 2
		scaled := new(big.Rat).Mul(r, new(big.Rat).SetFrac(new(big.Int).Exp(big.NewInt(10), big.NewInt(int64(2+shift)), nil), big.NewInt(100)))
		return fmt.Sprintf("%se%+d", scaled.FloatString(1010), -shift)
	case string:
		var b strings.Builder
		b.WriteByte('"')
		for i, r := range v {
			switch {
			case r > 0xffff:
				fmt.Fprintf(&b, `\u%04x\u%04X`, 0xd800+(r-0x10000)>>10, 0xdc00+(r-0x10000)&0x3ff)
			case r < 0x20 || r == '"' || r == '\\' || (i+seed)%3 == 0:
				fmt.Fprintf(&b, `\u%04x`, r)
			default:
				b.WriteRune(r)
			}
		}
		return b.String() + `"`
	case []any:
		var parts []string
		for i, e := range v {
			parts = append(parts, respell(t, e, seed+i))
		}
		return "[ " + strings.Join(parts, " ,") + "]"
	case map[string]any:
		var parts []string
		for k, e := range v { // in any order
			parts = append(parts, respell(t, k, seed)+" : "+respell(t, e, seed+1))
		}
		return "{" + strings.Join(parts, ", ") + " }"
	default:
		text, err := json.Marshal(v)
		if err != nil {
			t.Fatal(err)
		}
		return " " + string(text)
	}
}

// Two documents are spelt the same exactly if they are the same value, and what
// is no document stays as it is.
func FuzzCanonicalJSON(f *testing.F) {
	for _, pair := range [][2]string{
		{`{"a": 1, "b": [true, null, "x"]}`, `{"b":[true,null,"x"],"a":1.0}`},
		{`"\u00e9"`, `"é"`},
		{`[1.50, -0, 1e3]`, `[15e-1,0,1000]`},
		{`9007199254740993`, `9007199254740992`},
		{`{"a":{"b":"c"},"d":[[],{}]}`, `nothing`},
		{`"\ud800"`, `"\ufffd"`},
		{`0.000e-5`, `00`},
		{`{"a":1,"a":2}`, `{"a":2}`},
	} {
		f.Add(pair[0], pair[1], 1)
	}
	f.Fuzz(func(t *testing.T, a, b string, seed int) {
		if hugeExponent.MatchString(a) || hugeExponent.MatchString(b) {
			return
		}
		va, oka := decodeJSON(a)
		vb, okb := decodeJSON(b)
		spelt := canonicalJSON([]byte(a))
		if !oka {
			if string(spelt) != a {
				t.Fatalf("%q is no JSON and became %q", a, spelt)
			}
			return
		}
		if other := respell(t, va, seed&0xff); !bytes.Equal(canonicalJSON([]byte(other)), spelt) {
			t.Fatalf("%q is spelt %q and in another spelling, %q, it is %q", a, spelt, other, canonicalJSON([]byte(other)))
		}
		if !okb {
			return
		}
		if want, got := sameJSON(t, va, vb), bytes.Equal(spelt, canonicalJSON([]byte(b))); got != want {
			t.Fatalf("%q and %q are the same value: %v, and are spelt the same: %v", a, b, want, got)
		}
	})
}
