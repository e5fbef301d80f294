//go:build !race

package allocs

// race reports whether the race detector is on.
const race = false
