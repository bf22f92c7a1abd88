package task

import "time"

// Clocks of a database and of a process differ in rate by at most one part in drift, which is twice the rate by which the kernel and
// ntpd adjust clocks; chrony has to be limited to it (docs/operations.md). Dispatchers and listeners allow for it with the same functions, or one of them could be early for the other.
const drift = 1000

// LeastPassed returns how far the other clock advances at least while ours advances by d.
func LeastPassed(d time.Duration) time.Duration { return d - d/drift }

// MostPassed returns how far the other clock advances at most while ours advances by d.
func MostPassed(d time.Duration) time.Duration { return d + d/drift }

// UntilPassed returns how far ours must advance until the other clock has surely advanced by d. It is the inverse of
// [LeastPassed].
func UntilPassed(d time.Duration) time.Duration { return d + d/(drift-1) }
