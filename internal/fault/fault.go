// Package fault is the error an operator acts on: what is wrong, and the exact
// command or SQL that repairs it.
package fault

import "errors"

// Error is a problem that does not go away by itself. The relay reports it,
// keeps serving health and tries again slowly.
type Error struct {
	Problem string // a sentence without credentials
	Fix     string // the SQL or command, or what to change
	Err     error  // the cause or a sentinel; may be nil
}

func (e *Error) Error() string {
	s := e.Problem
	if e.Err != nil {
		s += ": " + e.Err.Error()
	}
	if e.Fix != "" {
		s += "; to repair: " + e.Fix
	}
	return s
}

func (e *Error) Unwrap() error { return e.Err }

// As returns the operator's error in err's chain, or nil.
func As(err error) *Error {
	var e *Error
	if errors.As(err, &e) {
		return e
	}
	return nil
}
