//go:build race

package protocol

// race reports whether the race detector is on.
const race = true
