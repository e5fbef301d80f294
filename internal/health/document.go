package health

import "net/http"

// Status is the level of a Document.
type Status string

// The levels, from good to bad.
const (
	StatusOK       Status = "ok"
	StatusWarn     Status = "warn"
	StatusCritical Status = "critical"
)

// Statuses returns every level, from good to bad.
func Statuses() []Status {
	return []Status{StatusOK, StatusWarn, StatusCritical}
}

// HTTPCode is what a probe is answered with: 200, or 503 when critical.
func (s Status) HTTPCode() int {
	if s == StatusCritical {
		return http.StatusServiceUnavailable
	}
	return http.StatusOK
}

// severity orders levels.
func (s Status) severity() int {
	switch s {
	case StatusCritical:
		return 2
	case StatusWarn:
		return 1
	default:
		return 0
	}
}

// Document is the answer of /healthz.
type Document struct {
	Status    Status   `json:"status"`
	Reasons   []string `json:"reasons"` // never nil, most important first
	Role      Role     `json:"role"`
	Ready     bool     `json:"ready"`          // it works, or stands by for one that does
	Cause     *string  `json:"cause"`          // a sentence: why WAL is kept; nil when nothing keeps it for longer than usual
	Runway    *float64 `json:"runway_seconds"` // until the budget for WAL ends at the present rate; nil when that is not known, or does not come
	Slot      *Slot    `json:"slot"`
	OldestAge *float64 `json:"oldest_unpublished_age_seconds"`
	Published uint64   `json:"published_total"`
}
