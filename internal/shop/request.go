package shop

import (
	"crypto/rand"
	"encoding/hex"
)

// Request is where a piece of work came from. It travels through the outbox, so
// that the worker's log lines and spans join those of the buyer's request.
type Request struct {
	ID string
	// TraceParent is a W3C trace context, https://www.w3.org/TR/trace-context/.
	TraceParent string
}

// NewRequest is what a web server's middleware would hand to its handlers.
func NewRequest() Request {
	var b [32]byte
	_, _ = rand.Read(b[:]) // never fails
	return Request{
		ID:          "req-" + hex.EncodeToString(b[:8]),
		TraceParent: "00-" + hex.EncodeToString(b[8:24]) + "-" + hex.EncodeToString(b[24:]) + "-01",
	}
}
