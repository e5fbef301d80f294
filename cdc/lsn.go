package cdc

import (
	"fmt"
	"math/bits"
	"strconv"
	"strings"
)

// LSN is a byte position in PostgreSQL's write-ahead log. Zero is no position.
//
// https://www.postgresql.org/docs/current/datatype-pg-lsn.html
type LSN uint64

// String prints the LSN as PostgreSQL does, such as 0/16B3748.
func (l LSN) String() string { return string(l.append(make([]byte, 0, 17))) }

func (l LSN) append(b []byte) []byte {
	return appendHex(append(appendHex(b, uint32(l>>32)), '/'), uint32(l))
}

// appendHex appends a number as PostgreSQL spells it, in capital letters.
func appendHex(b []byte, n uint32) []byte {
	for shift := max(0, bits.Len32(n)-1) &^ 3; shift >= 0; shift -= 4 {
		b = append(b, "0123456789ABCDEF"[n>>shift&0xF])
	}
	return b
}

// ParseLSN reads PostgreSQL's spelling of an LSN, such as 0/16B3748.
func ParseLSN(s string) (LSN, error) {
	high, low, ok := strings.Cut(s, "/")
	if !ok {
		return 0, fmt.Errorf("LSN %q: want two hexadecimal numbers with a slash between them", s)
	}
	h, err := strconv.ParseUint(high, 16, 32)
	if err != nil {
		return 0, fmt.Errorf("LSN %q: %w", s, err)
	}
	l, err := strconv.ParseUint(low, 16, 32)
	if err != nil {
		return 0, fmt.Errorf("LSN %q: %w", s, err)
	}
	return LSN(h<<32 | l), nil
}

// MarshalText makes LSNs readable in JSON.
func (l LSN) MarshalText() ([]byte, error) { return []byte(l.String()), nil }

// UnmarshalText is the inverse of MarshalText.
func (l *LSN) UnmarshalText(text []byte) error {
	parsed, err := ParseLSN(string(text))
	if err != nil {
		return err
	}
	*l = parsed
	return nil
}
