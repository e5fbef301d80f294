package cdc

import "time"

// epoch is 2000-01-01, where PostgreSQL's clock begins, in microseconds since
// 1970.
const epoch = 946684800 * 1e6

// Time turns PostgreSQL's microseconds since 2000-01-01 into a time.
func Time(micros int64) time.Time { return time.UnixMicro(micros + epoch).UTC() }

// Micros is the inverse of Time.
func Micros(t time.Time) int64 { return t.UnixMicro() - epoch }
