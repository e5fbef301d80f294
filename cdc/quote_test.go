package cdc

import "testing"

func TestQuotes(t *testing.T) {
	for _, tt := range []struct{ in, ident, literal string }{
		{`outbox`, `"outbox"`, `'outbox'`},
		{`it's "odd"`, `"it's ""odd"""`, `'it''s "odd"'`},
		{`back\slash'`, `"back\slash'"`, `E'back\\slash'''`},
		{``, `""`, `''`},
	} {
		if got := QuoteIdent(tt.in); got != tt.ident {
			t.Errorf("QuoteIdent(%q) = %s, want %s", tt.in, got, tt.ident)
		}
		if got := QuoteLiteral(tt.in); got != tt.literal {
			t.Errorf("QuoteLiteral(%q) = %s, want %s", tt.in, got, tt.literal)
		}
	}
	for body, want := range map[string]string{
		``:                            `$walrelay$`,
		`$walrelay$`:                  `$_walrelay$`,
		`$walrelay$ and $_walrelay$ `: `$__walrelay$`,
	} {
		if got := DollarTag(body); got != want {
			t.Errorf("DollarTag(%q) = %s, want %s", body, got, want)
		}
	}
}
