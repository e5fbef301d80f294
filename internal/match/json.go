package match

import (
	"bytes"
	"encoding/json"
	"io"
	"sort"
	"strconv"
	"strings"
)

// canonicalJSON spells a JSON document in one way, so that two spellings of the
// same value are the same bytes. What is not JSON stays as it is.
func canonicalJSON(text []byte) []byte {
	dec := json.NewDecoder(bytes.NewReader(text))
	dec.UseNumber()
	var v any
	if err := dec.Decode(&v); err != nil {
		return text
	}
	if _, err := dec.Token(); err != io.EOF {
		return text // something comes after the document
	}
	return appendJSON(make([]byte, 0, len(text)), v)
}

func appendJSON(b []byte, v any) []byte {
	switch v := v.(type) {
	case nil:
		return append(b, "null"...)
	case bool:
		return strconv.AppendBool(b, v)
	case json.Number:
		return append(b, canonicalNumber(string(v))...)
	case string:
		return strconv.AppendQuote(b, v)
	case []any:
		b = append(b, '[')
		for _, e := range v {
			b = append(appendJSON(b, e), ',')
		}
		return append(b, ']')
	case map[string]any:
		keys := make([]string, 0, len(v))
		for k := range v {
			keys = append(keys, k)
		}
		sort.Strings(keys)
		b = append(b, '{')
		for _, k := range keys {
			b = append(strconv.AppendQuote(b, k), ':')
			b = append(appendJSON(b, v[k]), ',')
		}
		return append(b, '}')
	default:
		panic("encoding/json decoded into an unknown type")
	}
}

// canonicalNumber spells a JSON number as its digits without zeros at either
// end, and a power of ten: 1, 1.0, 10e-1 are all 1e0. It never computes the
// number, so 1e999999999 costs nothing.
func canonicalNumber(s string) string {
	mantissa, negative := strings.CutPrefix(s, "-")
	exponent := 0
	if i := strings.IndexAny(mantissa, "eE"); i >= 0 {
		n, err := strconv.Atoi(mantissa[i+1:])
		if err != nil {
			return s // beyond any number: only the same spelling is the same
		}
		mantissa, exponent = mantissa[:i], n
	}
	whole, fraction, _ := strings.Cut(mantissa, ".")
	digits := whole + fraction
	exponent -= len(fraction)
	trimmed := strings.TrimRight(digits, "0")
	exponent += len(digits) - len(trimmed)
	trimmed = strings.TrimLeft(trimmed, "0")
	if trimmed == "" {
		return "0"
	}
	if negative {
		trimmed = "-" + trimmed
	}
	return trimmed + "e" + strconv.Itoa(exponent)
}
