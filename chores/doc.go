// Package chores does for each logical database what must go on in the
// background, in the one process that owns the database's chores: it moves tasks
// between the tiers, purges what has expired, folds counters, and looks after the
// history.
//
// # Ownership
//
// The chores of a database are an item beside its shards. [Chores.Acquire] raises
// the item's epoch, and every transaction that moves tasks asserts it: whoever was
// the owner before can change nothing from then on, and needs not be waited for. A
// step that finds that the ownership has moved drops it ([Config.Lost]).
//
// # Order
//
// Each database has a loop that does one step at a time. Chores stand in an order,
// and the first one that is due goes next: what must be in the near tier before it
// is due comes first, then what has been added, splits, demotion, merges, purges
// and the rest. A step is one bounded transaction; a chore with more to do is due
// again at once, so a long one never holds up a promotion.
//
// # Pace
//
// All loops of a process share a budget: a step that took some time is followed by
// a pause, so that the steps take [Config.Share] of the time, and less than
// [Config.Concurrency] of them go on at once. Two things do not wait for the
// budget: promotions, and a re-cut that is so old that tasks in it may be due soon.
// While the dispatcher is busy, steps are small.
//
// What is looked for often and found to be nothing is looked for less and less
// often, up to once a minute: promotions up to once in a tenth of the horizon,
// which is the part of their lead that they may lose.
package chores
