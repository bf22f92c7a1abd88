//go:build !race

package stack

// withRaces says that this program has the race detector.
const withRaces = false
