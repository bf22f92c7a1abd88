// Package sizing computes what an installation needs for a load: processors, memory, disk,
// connections, write-ahead log, traffic and disk of Kafka, and how many processes and servers. It
// is arithmetic on measured costs and does no I/O. docs/sizing.md says how to use the result and
// how close it comes to what runs have used.
//
// [Demand] is the load, and [Demand.Plan] the result. The steps:
//
//  1. The rate and the number of waiting tasks give the mean time that a task waits (Little's
//     law). If that is longer than the horizon, tasks go through the far tier.
//  2. The rate gives the log, the rows of the near tier and the records of Kafka. From these
//     follow the number of PostgreSQL servers, and from the rate the number of taskds and
//     dispatchers.
//  3. Processes and servers give the connections; all of it together gives processors, memory
//     and disk.
//
// Every cost is a constant in costs.go, which says how it was measured. Costs that were not
// measured are derived there from ones that were.
package sizing
