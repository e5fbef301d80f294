package testservers

import (
	"fmt"
	"os"
)

// Shared runs the tests of a package beside servers that they share. It is the
// TB of those servers, which end when the tests have.
type Shared struct {
	// M is the package's tests, a *testing.M.
	M interface{ Run() int }
	// Start, if set, starts servers before the first test.
	Start func(TB)

	failed   bool
	cleanups []func()
}

// Run runs the tests and returns their exit code.
func (s *Shared) Run() int {
	defer func() {
		for i := len(s.cleanups) - 1; i >= 0; i-- {
			s.cleanups[i]()
		}
	}()
	if s.Start != nil {
		s.Start(s)
	}
	code := s.M.Run()
	s.failed = code != 0
	return code
}

// Helper implements TB.
func (s *Shared) Helper() {}

// Failed implements TB.
func (s *Shared) Failed() bool { return s.failed }

// Logf implements TB.
func (s *Shared) Logf(format string, args ...any) { fmt.Fprintf(os.Stderr, format+"\n", args...) }

// Fatalf implements TB. The guards end the servers.
func (s *Shared) Fatalf(format string, args ...any) {
	s.Logf(format, args...)
	os.Exit(1)
}

// Cleanup implements TB.
func (s *Shared) Cleanup(f func()) { s.cleanups = append(s.cleanups, f) }
