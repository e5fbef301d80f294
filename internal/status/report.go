package status

import (
	"cmp"
	"fmt"
	"time"

	"github.com/stagedoor/walrelay/cdc"
	"github.com/stagedoor/walrelay/internal/health"
)

// Report is what is shown of a look. What is not known is null in JSON, never
// zero; times are in UTC, sizes in bytes, and ages in seconds.
type Report struct {
	At      time.Time     `json:"at"`
	Status  health.Status `json:"status"`
	Meaning string        `json:"meaning"` // a sentence or two
	Reasons []string      `json:"reasons"` // as of /healthz
	Cause   *string       `json:"cause"`   // as of /healthz
	Runway  *float64      `json:"runway_seconds"`
	Notes   []string      `json:"notes"` // what has no level
	Steps   []Step        `json:"steps"` // what to do

	Database Server       `json:"postgresql"`
	Relay    *Relay       `json:"relay"` // nil while PostgreSQL has not told
	Slot     *Slot        `json:"slot"`  // nil where there is none
	Rates    health.Rates `json:"rates"` // known after looks over some seconds
	Other    *Other       `json:"other_slot"`
	Holder   *Holder      `json:"holder"`

	Publication *Publication `json:"publication"`      // nil while PostgreSQL has not told
	Waiting     *int         `json:"unpublished_rows"` // counted up to 100; nil where that is not known
	OldestAge   *float64     `json:"oldest_unpublished_age_seconds"`
	AgeUnknown  *string      `json:"oldest_unpublished_error"` // why that is not known

	Redis           Server         `json:"redis"`
	Checkpoint      *Checkpoint    `json:"checkpoint"`       // nil where there is none
	CheckpointError *string        `json:"checkpoint_error"` // why it is not known
	Stream          *health.Stream `json:"stream"`
	StreamError     *string        `json:"stream_error"` // why it is not known

	look *Look
}

// Step is something to do.
type Step struct {
	Text    string `json:"text"`
	Command string `json:"command"` // SQL or a command; empty where there is none
}

// Server is PostgreSQL or Redis.
type Server struct {
	Answers   bool       `json:"answers"`
	Error     *string    `json:"error"`      // nil while it answers
	SeenAt    *time.Time `json:"seen_at"`    // when it told what is shown; nil for never
	AwaySince *time.Time `json:"away_since"` // nil while it answers

	Version  *string  `json:"version,omitempty"`     // of PostgreSQL
	Standby  *bool    `json:"standby,omitempty"`     //
	Database *string  `json:"database,omitempty"`    //
	WALEnd   *cdc.LSN `json:"wal_end_lsn,omitempty"` //
}

// Relay is who works, as seen from outside.
type Relay struct {
	Role  health.Role `json:"role"`  // streaming, backfill, starting or none
	PID   *int        `json:"pid"`   // of its server process
	Since *time.Time  `json:"since"` // when that began; for none, since when no relay is connected
}

// Slot is ours.
type Slot struct {
	Name               string     `json:"name"`
	Plugin             string     `json:"plugin"`
	Database           string     `json:"database"`
	Active             bool       `json:"active"`
	WALStatus          *string    `json:"wal_status"`
	ConfirmedFlush     *cdc.LSN   `json:"confirmed_flush_lsn"`
	Restart            *cdc.LSN   `json:"restart_lsn"`
	UnconfirmedBytes   *int64     `json:"unconfirmed_bytes"`
	RetainedBytes      *int64     `json:"retained_bytes"`
	SafeWALSize        *int64     `json:"safe_wal_size"` // bytes; nil without max_slot_wal_keep_size
	InactiveSince      *time.Time `json:"inactive_since"`
	InvalidationReason *string    `json:"invalidation_reason"`
}

// Other is the slot beside ours that the server keeps the most WAL for.
type Other struct {
	Name          string `json:"name"`
	Kind          string `json:"type"` // physical or logical
	Active        bool   `json:"active"`
	RetainedBytes int64  `json:"retained_bytes"`
}

// Holder is the transaction that WAL is kept for.
type Holder struct {
	Text    string `json:"text"`
	Command string `json:"command"` // ends it
}

// Publication is ours.
type Publication struct {
	Name   string  `json:"name"`
	Exists bool    `json:"exists"`
	Error  *string `json:"error"` // what is wrong with it
}

// Checkpoint is what Redis has of the relay.
type Checkpoint struct {
	Phase    cdc.Phase  `json:"phase"`
	Written  *time.Time `json:"written_at"`          // by the clock of the relay
	Relay    string     `json:"relay"`               // the instance that wrote it last
	Last     *string    `json:"last_row"`            // LSN of its commit and its number there; nil after a backfill
	Covered  cdc.LSN    `json:"covered_lsn"`         // nothing up to there is missing on the stream
	Age      *float64   `json:"covered_age_seconds"` // since that was so
	At       *time.Time `json:"covered_at"`          // by PostgreSQL's clock
	Timeline uint32     `json:"timeline"`            //
	Blocked  *string    `json:"blocked_row"`         // the row that the line stops at
	Verdict  *string    `json:"verdict"`             // what a relay that starts would do: stream, backfill or gap; nil where one is at work, or it is not known
}

// Healthy says that the command exits with 0: the level is not critical, and
// both servers answered.
func (r *Report) Healthy() bool {
	return r.Status != health.StatusCritical && r.Database.Answers && r.Redis.Answers
}

// NewReport makes the report of a look, and of what health says of its input.
func NewReport(l *Look, doc health.Document) *Report {
	d, red := &l.Database, &l.Redis
	r := &Report{
		At: l.At.UTC(), Status: doc.Status, Reasons: doc.Reasons, Cause: doc.Cause, Runway: doc.Runway,
		Notes: append([]string{}, l.Notes...), Meaning: l.meaning(doc), Steps: l.steps(doc),
		Database: server(d.SeenAt, d.AwaySince, d.Error), Redis: server(red.SeenAt, red.AwaySince, red.Error),
		OldestAge: doc.OldestAge, AgeUnknown: text(cmp.Or(d.Unseen, d.AgeUnknown)),
		Stream: doc.Stream, StreamError: text(red.StreamUnknown),
		Checkpoint: l.checkpoint(), CheckpointError: text(red.CheckpointUnknown),
		Rates: doc.Rates, look: l,
	}
	if d.SeenAt.IsZero() {
		return r
	}
	version := fmt.Sprintf("%d.%d", d.Version/10000, d.Version%10000)
	r.Database.Version, r.Database.Standby, r.Database.Database, r.Database.WALEnd = &version, &d.Standby, &d.Name, &d.WALEnd
	r.Publication = &Publication{Name: l.Publication, Exists: d.Published}
	if d.Publication != nil {
		r.Publication.Error = text(d.Publication.Error())
	}
	if d.OldestAge != nil {
		r.Waiting = &d.Waiting
	}
	r.Relay = &Relay{Role: l.role()}
	switch r.Relay.Role {
	case health.RoleStreaming:
		r.Relay.PID = number(d.Slot.ActivePID)
		if s := d.Slot.Sender; s != nil {
			r.Relay.Since = s.Started
		}
	case health.RoleNone:
		if l.expected() {
			r.Relay.Since = moment(l.idleSince())
		}
	default:
		r.Relay.PID = number(d.LockPID)
	}
	if s := doc.Slot; s != nil {
		r.Slot = &Slot{
			Name: s.Name, Plugin: d.Plugin, Database: d.Database, Active: s.Active, WALStatus: text(s.WALStatus),
			ConfirmedFlush: position(s.ConfirmedFlush), Restart: position(s.Restart),
			UnconfirmedBytes: s.UnconfirmedBytes, RetainedBytes: s.RetainedBytes, SafeWALSize: s.SafeWALSize,
			InactiveSince: moment(d.Slot.InactiveSince), InvalidationReason: text(s.InvalidationReason),
		}
	}
	if o := d.Other; o != nil {
		r.Other = &Other{Name: o.Name, Kind: o.Kind, Active: o.Active, RetainedBytes: o.RetainedBytes}
	}
	if d.Holder != "" {
		r.Holder = &Holder{Text: d.Holder, Command: d.EndHold}
	}
	return r
}

func (l *Look) checkpoint() *Checkpoint {
	cp := l.Redis.Checkpoint
	if cp == nil {
		return nil
	}
	c := &Checkpoint{
		Phase: cp.Phase, Relay: cp.Version.Instance, Covered: cp.Covered,
		At: moment(cp.CoveredTime), Written: moment(cp.WrittenAt), Timeline: cp.Timeline,
	}
	if at := l.covered(); !at.IsZero() {
		age := max(0, l.At.Sub(at).Seconds())
		c.Age = &age
	}
	if !cp.Last.IsZero() {
		c.Last = text(cp.Last.String())
	}
	if cp.Blocked != nil {
		c.Blocked = text(cp.Blocked.Row)
	}
	if l.Judgement != nil {
		c.Verdict = text(l.Judgement.Verdict.String())
	}
	return c
}

func server(seen, away time.Time, err string) Server {
	s := Server{Answers: away.IsZero(), SeenAt: moment(seen), AwaySince: moment(away)}
	if !s.Answers {
		s.Error = text(health.Redact(err))
	}
	return s
}

// text, number, position and moment are nil for what is not known.

func text(s string) *string {
	if s == "" {
		return nil
	}
	return &s
}

func number(n int) *int {
	if n == 0 {
		return nil
	}
	return &n
}

func position(p cdc.LSN) *cdc.LSN {
	if p == 0 {
		return nil
	}
	return &p
}

func moment(t time.Time) *time.Time {
	if t.IsZero() {
		return nil
	}
	t = t.UTC().Round(0)
	return &t
}
