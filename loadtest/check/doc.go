// Package check says from outside whether a load run kept the task contract.
//
// It compares three accounts of the same tasks: what callers were told ([Add], [Op]),
// what the handlers and the listeners' calls saw ([Execution], [Reply]), and what the API
// says at the end ([Final]). It knows nothing of how the system works inside; from the
// spec of a task it computes by itself the instants that had to fire. The README of
// loadtest lists the rules.
//
// [Checker.Task] takes everything about one task; tasks may come in any order, so a
// history of any length is checked in the memory of its largest part. The package does
// no I/O and reads no clock.
package check
