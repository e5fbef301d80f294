package testservers

import (
	"errors"
	"fmt"
)

// Program is the TB of a program that is no test: its servers live until Close,
// and a failure is an error of Try. It is for one goroutine.
type Program struct {
	// Log prints a line, or several.
	Log func(string)

	failed   bool
	cleanups []func()
}

// failure is how Fatalf leaves the function that called it; Try catches it.
type failure struct{ error }

// Helper implements TB: there are no line numbers to hide.
func (p *Program) Helper() {}

// Failed implements TB. It makes the servers show their logs.
func (p *Program) Failed() bool { return p.failed }

// Logf implements TB.
func (p *Program) Logf(format string, args ...any) { p.Log(fmt.Sprintf(format, args...)) }

// Fatalf implements TB. It ends the function that Try runs.
func (p *Program) Fatalf(format string, args ...any) {
	p.failed = true
	panic(failure{fmt.Errorf(format, args...)})
}

// Cleanup implements TB. Close calls f.
func (p *Program) Cleanup(f func()) { p.cleanups = append(p.cleanups, f) }

// Try runs f and returns what f passed to Fatalf.
func (p *Program) Try(f func()) (err error) {
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

// Close cleans up, last registered first. One cleanup that fails does not keep
// the others from it.
func (p *Program) Close() error {
	var errs []error
	for len(p.cleanups) > 0 {
		last := len(p.cleanups) - 1
		f := p.cleanups[last]
		p.cleanups = p.cleanups[:last]
		errs = append(errs, p.Try(f))
	}
	return errors.Join(errs...)
}
