//go:build !race

package stack

// buildFlags are the flags to build the programs with: -race if this program has it.
var buildFlags []string
