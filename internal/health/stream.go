package health

import "slices"

// Stream is the stream that rows are published to, as Redis tells of it.
type Stream struct {
	Name   string  `json:"name"`
	Length int64   `json:"length"`  // entries that it holds
	LastID *string `json:"last_id"` // of the last entry it ever got; nil before the first

	Groups     []Group `json:"groups"`       // by name, perhaps not all; nil when they are not known
	GroupCount *int    `json:"group_count"`  // all of them; nil when they are not known
	GroupError *string `json:"groups_error"` // why they are not known
}

// Group is a consumer group of the stream. How far it is colours nothing: what
// is on the stream is delivered, and the rest is the consumers' affair.
type Group struct {
	Name          string `json:"name"`
	Consumers     int64  `json:"consumers"`
	Pending       int64  `json:"pending"` // entries delivered and not acknowledged
	Lag           *int64 `json:"lag"`     // entries not delivered yet; nil when Redis does not know
	LastDelivered string `json:"last_delivered_id"`
	EntriesRead   *int64 `json:"entries_read"` // entries delivered so far; nil when Redis does not know
}

// cleanStream copies a stream, since the document outlives the call.
func cleanStream(s *Stream) *Stream {
	if s == nil {
		return nil
	}
	c := *s
	c.Groups = slices.Clone(s.Groups)
	if c.GroupError != nil {
		text := oneLine(Redact(*c.GroupError))
		c.GroupError = &text
	}
	return &c
}
