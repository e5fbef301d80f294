// Package finding is what walrelay check reports: one thing that run needs, how
// it is, and what repairs it.
package finding

import "github.com/stagedoor/walrelay/internal/fault"

// Level is how a finding is meant.
type Level string

// The levels.
const (
	OK   Level = "ok"
	Warn Level = "warn" // run works, and somebody should know
	Fail Level = "fail" // run does not work
)

// Finding is one of them. Its names are for programs and stay.
type Finding struct {
	Name  string `json:"name"` // such as wal_level
	Level Level  `json:"level"`
	Text  string `json:"text"` // without credentials
	Fix   string `json:"fix"`  // the SQL or command, or what to change; empty where there is nothing to repair
}

// Good is a finding of what is as it has to be.
func Good(name, text string) Finding { return Finding{Name: name, Level: OK, Text: text} }

// Warning is a finding that does not keep run from working.
func Warning(name, text, fix string) Finding {
	return Finding{Name: name, Level: Warn, Text: text, Fix: fix}
}

// Failure is a finding that does.
func Failure(name, text, fix string) Finding {
	return Finding{Name: name, Level: Fail, Text: text, Fix: fix}
}

// Of is what a rule found that returns an error where it is broken: a failure,
// with the repair where the error is an operator's. Nil is good.
func Of(name, good string, err error) Finding {
	if err == nil {
		return Good(name, good)
	}
	e := fault.As(err)
	if e == nil {
		return Failure(name, err.Error(), "")
	}
	text := e.Problem
	if e.Err != nil {
		text += ": " + e.Err.Error()
	}
	return Failure(name, text, e.Fix)
}

// Failed reports whether one of them keeps run from working.
func Failed(findings []Finding) bool {
	for _, f := range findings {
		if f.Level == Fail {
			return true
		}
	}
	return false
}
