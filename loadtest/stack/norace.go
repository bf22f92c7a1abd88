//go:build !race

package stack

// buildFlags of our programs: under the race detector they have it, too.
var buildFlags []string
