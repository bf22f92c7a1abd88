// Package backlog fills an installation with up to a billion waiting tasks,
// measures what that costs, works on top of it, and counts that nothing of it was
// lost.
//
// # What is loaded
//
// Tasks are made here and written by the bulk path of package store/shards, the
// one that imports take: due at random over some weeks, of a thousand tenants
// whose sizes follow Zipf's law, with eight kinds each; 85 of 100 are ONE_SHOT, 10
// NON_BLOCKING, 5 BLOCKING. Params are about as guessable as those of payment
// reminders: fixed texts, and some seventy bits that are random. Only the largest
// tenant exists as one: the others are numbers.
//
// # How it is counted
//
// Each task has a hash of its id, scheduled instant, kind and params. Their sum
// does not depend on any order, and is taken twice: when tasks are made, and from
// what the databases hold at the end, every pack and every row. In between, what
// was cancelled is subtracted.
//
// The backlog begins to be due only when the run is over (--quiet), so that
// nothing of it fires. What is fired comes on top: one-shots that are loaded last,
// by the same path, due within the firing window that begins soon after. They are
// promoted, claimed, published, called and reported like all others, and checked
// one by one against the contract, as package check does. The same load is fired
// from an empty store first, so that there is something to compare with.
package backlog
