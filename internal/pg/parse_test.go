package pg

import (
	"strings"
	"testing"
)

func TestParseErrorNeverHoldsThePassword(t *testing.T) {
	for _, tt := range []struct{ dsn, reason string }{
		{`host=h password = s3cr3t sslmode=bad`, "sslmode is invalid"},
		{`host=h password='a\'s3cr3t x' sslmode=bad`, "sslmode is invalid"},
		{`host=h password='x s3cr3t`, "unterminated quoted string"},
		{`host=h password=x s3cr3t`, "invalid keyword/value"},
		{"host=h password='a`: s3cr3t' sslmode=bad", "sslmode is invalid"},
		{`u:s3cr3t@h/db`, "invalid keyword/value"},
		{`mysql://u:s3cr3t@h/db`, "invalid keyword/value"},
		{`postgres://u:%s3cr3t@h/db`, "percent-encoded"},
		{`postgres://u:x/s3cr3t@h/db`, "invalid port"},
		{`postgres://h/db?password=s3cr3t&sslmode=bad`, "sslmode is invalid"},
		{`postgres://u:s3cr3t@h/db?target_session_attrs=some`, "target_session_attrs"},
	} {
		_, err := Parse(tt.dsn)
		if err == nil {
			t.Errorf("%s: no error", tt.dsn)
			continue
		}
		if strings.Contains(err.Error(), "s3cr3t") || !strings.Contains(err.Error(), tt.reason) {
			t.Errorf("%s: %v; want the reason %q and no password", tt.dsn, err, tt.reason)
		}
	}
}
