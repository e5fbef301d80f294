package health

import (
	"net/http"
	"time"

	"github.com/stagedoor/walrelay/cdc"
)

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
	Ready     bool     `json:"ready"`          // it is at work, or stands by for one that is
	Cause     *string  `json:"cause"`          // a sentence: why WAL is kept; nil when nothing keeps it for longer than usual
	Runway    *float64 `json:"runway_seconds"` // until the budget for WAL ends at the present rate; nil when that is not known, or does not come
	Slot      *Slot    `json:"slot"`
	OldestAge *float64 `json:"oldest_unpublished_age_seconds"`
	Published uint64   `json:"published_total"`
	Stream    *Stream  `json:"stream"` // as last seen; nil when Redis has not told of it

	At      *time.Time `json:"at"`      // when all this was so
	Started *time.Time `json:"started"` // since when the process runs

	Rates       Rates       `json:"rates"`
	Other       *Other      `json:"other_slot"` // that keeps the most WAL beside ours; nil for none
	Connection  *Connection `json:"connection"` // nil while nothing is streamed
	Connections uint64      `json:"connections_total"`
	Database    Peer        `json:"postgresql"` // as the monitor sees it
	Redis       Peer        `json:"redis"`
	Witness     *Witness    `json:"witness"` // nil while the table has nothing to testify

	// For metrics:
	Causes   []CauseKind `json:"-"` // what Cause says
	Leftover *Slot       `json:"-"` // beside a poller: a relay's slot; nil where there is none
	// For the status page:
	Stages []Stage `json:"-"` // the way of a row
}

// Rates are how fast it goes, in bytes per second over the last two minutes; nil
// while that is not known.
type Rates struct {
	Written   *float64 `json:"written_bytes_per_second"`
	Confirmed *float64 `json:"confirmed_bytes_per_second"`
	// The two lags grow by so much; below zero they become less.
	Unconfirmed *float64 `json:"unconfirmed_bytes_per_second"`
	Retained    *float64 `json:"retained_bytes_per_second"`
}

// Connection is the replication connection of this relay. Times are by its own
// clock; nil for what has not happened.
type Connection struct {
	Since       *time.Time `json:"since"`
	LastReceive *time.Time `json:"last_receive"`     // of a message of any kind, such as a keepalive
	LastStatus  *time.Time `json:"last_status_sent"` // how far it has come, which PostgreSQL goes by
}

// Peer is PostgreSQL or Redis.
type Peer struct {
	SeenAt    *time.Time `json:"seen_at"`    // when it last answered; nil where it has not, or that is not known
	AwaySince *time.Time `json:"away_since"` // nil while it answers
	LastError *string    `json:"last_error"` // nil while it answers
}

// Witness is the table's word against the slot's: rows that are not marked,
// although all up to them is confirmed, were missed.
type Witness struct {
	LookedAt *time.Time `json:"looked_at"`     // nil before the first look
	Unmarked int        `json:"unmarked_rows"` // seen then, of the oldest ones
	Until    *cdc.LSN   `json:"until_lsn"`     // they are looked at again when that is confirmed; nil where none were seen
}

// peer is one that is away since then, if at all.
func peer(seen, away time.Time, err string) Peer {
	p := Peer{SeenAt: moment(seen), AwaySince: moment(away)}
	if p.AwaySince != nil {
		p.LastError = nonZero(err)
	}
	return p
}

// moment is a time as a document has it, nil for zero.
func moment(t time.Time) *time.Time { return nonZero(t.UTC().Round(0)) }

// copied is a copy, since a document outlives its input.
func copied[T any](v *T) *T {
	if v == nil {
		return nil
	}
	c := *v
	return &c
}
