package main

import (
	"errors"
	"fmt"
)

// host is what testservers asks of a test, for a program: servers live until
// close, and a failure is an error.
type host struct {
	screen   *screen
	failed   bool
	cleanups []func()
}

// failure is how Fatalf leaves the function that called it; try catches it.
type failure struct{ error }

// Helper does nothing: there are no line numbers to hide.
func (h *host) Helper() {}

// Failed makes the servers show their logs.
func (h *host) Failed() bool { return h.failed }

// Logf prints to the screen.
func (h *host) Logf(format string, args ...any) { h.screen.line(fmt.Sprintf(format, args...)) }

// Fatalf ends the function that try runs.
func (h *host) Fatalf(format string, args ...any) {
	h.failed = true
	panic(failure{fmt.Errorf(format, args...)})
}

// Cleanup has close call f, last registered first.
func (h *host) Cleanup(f func()) { h.cleanups = append(h.cleanups, f) }

// try runs f and returns what f passed to Fatalf.
func (h *host) try(f func()) (err error) {
	defer func() {
		switch r := recover().(type) {
		case nil:
		case failure:
			err = r.error
		default:
			panic(r)
		}
	}()
	f()
	return nil
}

// close cleans up. One cleanup that fails does not keep the others from it.
func (h *host) close() error {
	var errs []error
	for len(h.cleanups) > 0 {
		last := len(h.cleanups) - 1
		f := h.cleanups[last]
		h.cleanups = h.cleanups[:last]
		errs = append(errs, h.try(f))
	}
	return errors.Join(errs...)
}
