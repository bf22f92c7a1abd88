// Package chores executes the background work of each logical database, in the
// process that owns the chores of the database. It moves tasks between the
// tiers, purges expired rows, folds counters, and maintains the history.
//
// # Ownership
//
// The chores of a database are an item of the assignment, like its shards. [Chores.Acquire]
// raises the epoch of the item, and every transaction that moves tasks asserts it. So a
// former owner can change no data, and the new owner need not wait for it. A step that finds
// another owner ends the chores of the database in this process ([Config.Lost]).
//
// # Order
//
// Each database has a loop that executes one step at a time. Chores have a fixed priority,
// and the first one that is due runs next: promotion, so that tasks reach the near tier
// before they are due, then compaction of level 0, splits, demotion, merges, purges and the
// rest. A step is one bounded transaction. A chore with more work is due again immediately,
// so a long chore does not delay a promotion.
//
// # Budget
//
// All loops of a process share a budget: after each step they pause, so that
// steps take [Config.Share] of the time, with at most [Config.Concurrency]
// concurrent steps. Two chores do not wait for the budget: promotion, and a
// compaction of level 0 that is so late that its tasks may be due soon. No chore waits for it without end: where
// promotions take all of it, the others still have a step now and then, bulk operations every 10 s. Where a database
// has so many tasks to promote that steps leave work, each other chore has its turn after some of them. While
// the dispatcher is busy, steps are small, and counting the load calendar has a smaller budget of its own.
//
// A chore that finds no work runs at growing intervals, up to one minute, or four for demotion. For promotion the
// interval is at most a tenth of the horizon, which is within its lead time.
package chores
