package main

// mode is a way to carry the rows, a column of the tables.
type mode struct {
	name  string
	args  []string // of walrelay; none for no relay
	role  string   // that health shows when it works
	marks bool     // whether rows are marked

	trigger bool // whether the table notifies

	// walLevel is the setting that the way needs. Since logical makes the
	// server write more, run has to answer for that, too.
	walLevel string
}

// channel is what the trigger notifies.
const channel = "new_outbox_event"

// allModes begins with the one that the others are compared with.
func allModes() []mode {
	return []mode{
		{name: "no relay", walLevel: "replica"},
		{name: "poll", args: []string{"poll"}, role: "polling", marks: true, walLevel: "replica"},
		{name: "poll --listen", args: []string{"poll", "--listen", channel}, role: "polling", marks: true, trigger: true, walLevel: "replica"},
		{name: "run", args: []string{"run"}, role: "streaming", marks: true, walLevel: "logical"},
		{name: "run --mark none", args: []string{"run", "--mark", "none"}, role: "streaming", walLevel: "logical"},
	}
}
