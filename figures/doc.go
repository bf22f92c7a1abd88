// Package figures counts what happens to each tenant: tasks added, runs published and how late,
// results, and the state of its backlog and its listeners. Each process has a [Recorder], which
// collects the figures of 10 s and hands them to a store, where all processes can read them
// (docs/adr has the protocol). So rates and lateness of a tenant need no other system.
//
// # Bounds
//
// A process that serves very many tenants must not store a row for each of them every 10 s. It
// stores the [Named] busiest ones of the interval, and in the row of [Total] the sum of all.
//
// # Durations
//
// Durations are counted in [Classes] classes, each a factor of √2 wide, from 1 ms to 97 minutes.
// Counts of classes can be added, over processes and over time, and a quantile of the sum is at
// most 20 % wrong: it is the geometric mean of the bounds of its class.
package figures

import "time"

// Every is the length of an interval.
const Every = 10 * time.Second

const (
	// Named is the most tenants for which a process stores a row of their own each interval.
	Named = 500
	// known bounds the tenants that a recorder tells apart within an interval.
	known = 10_000
	// kinds bounds the kinds without a handler of one tenant.
	kinds = 20
)

// The numbers that stand for a tenant.
const (
	// Total is the sum of all tenants.
	Total int32 = 0
	// Process is the row in which a process describes itself.
	Process int32 = -1
)
