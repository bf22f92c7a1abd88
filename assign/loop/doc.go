// Package loop is a worker for programs that share work with package assign and
// keep the work in a table, a directory or a queue. It repeats three steps:
// select some tasks of the items that this member has, execute them, select
// again. A [Loop] implements [assign.Worker].
//
//	member ── Acquire, Release ──> Loop: items ── Select ──> pool ──> workers ── Execute
//	                                         ^                          |
//	                                         └── when the pool is empty ┘
//
// # What it guarantees
//
// The number of goroutines is fixed from the start of Run to its end:
// [Config.Workers], and one for the window. Windows that open and close, items
// that come and go, and repeated calls of Select add none.
//
// Select is never called twice at the same time. The mode says when it is called:
//
//   - [Sleep]: when the pool is empty and nothing is being executed. So an undone
//     task that Select finds is not being executed here, and a task is executed
//     twice only if Execute did not mark it as done. The price is that one long
//     task makes all workers wait.
//   - [NotSleep]: as soon as the pool is empty. No worker waits for the long task
//     of another one. Select may then find tasks that are being executed. The loop
//     skips tasks whose [Config.Key] was being executed when Select was called. So
//     in this mode, too, no task is executed twice at a time, or again because
//     Select read it just before it was done.
//
// These are the two modes of tbschedule, with a key in place of its comparator.
//
// Over all members, a task belongs to one item, and an item to one member at a
// time: Release returns when no task that was selected for the item is being
// executed. Selected tasks that have not begun are dropped, because Select will
// find them again, here or at another member. So a hand-over takes at most as long
// as the longest Execute. The context of Execute ends after [Config.Grace].
//
// If Execute fails or panics, the loop counts and logs the failure and does not
// change the task, so Select will find it again. If all tasks of a selection
// fail, the next selection is delayed as after an empty one.
//
// # When it runs
//
// A [Window] limits the times of execution: from each match of one cron
// expression to the next match of another, or until Select finds nothing.
// Outside of the window the member keeps its items and does nothing for them.
package loop
