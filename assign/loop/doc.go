// Package loop is a loop for programs that share work with package assign and
// keep it in a table, a directory or a queue: select some tasks of the items that
// this member has, execute them, select again. A [Loop] is the [assign.Worker]
// of such a program.
//
//	member ── Acquire, Release ──> Loop: items ── Select ──> pool ──> workers ── Execute
//	                                         ^                          |
//	                                         └── when the pool is empty ┘
//
// # What it guarantees
//
// A fixed number of goroutines work, [Config.Workers] and one for the clock, from
// the start of Run to its end: none is added by windows that open and close, by
// items that come and go, or by Select being called again.
//
// Select is never called twice at the same time. When it is called is the mode:
//
//   - [Sleep]: when the pool is empty and nothing is being executed. So what
//     Select finds undone is not in execution here, and a task is executed twice
//     only if Execute did not mark it as done. The price: one long task keeps all
//     workers waiting.
//   - [NotSleep]: as soon as the pool is empty. No worker waits for another one's
//     long task. What Select finds may then be in execution: tasks that have the
//     [Config.Key] of one that was in execution when Select was called are left
//     out, so that here too no task is executed twice at a time, or again because
//     Select has read it just before it was done.
//
// These are the two modes of tbschedule, with its comparator turned into a key.
//
// Over all members a task belongs to an item, and the item to one member at a
// time: Release returns when nothing that was selected for the item is in
// execution any more. What was selected and not begun is dropped, since Select
// will find it again, here or elsewhere; so a hand-over takes no longer than the
// longest Execute, whose context ends if [Config.Grace] is over first.
//
// A task whose Execute fails or panics is counted and logged, and stays where it
// is: Select will find it again. If nothing of a selection succeeds, the next one
// waits as if it had been empty.
//
// # When it works
//
// A [Window] says when: from each match of one cron expression to the next match
// of another, or until Select finds nothing. Outside of it the items stay with
// their member, who does nothing for them.
package loop
