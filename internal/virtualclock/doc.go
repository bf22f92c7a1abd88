// Package virtualclock moves the virtual clock of an installation, so that a
// month can be tested in a second. Package store/clock keeps the clock in the
// databases. This package decides when the clock may move.
//
// # Advance
//
// [Clock.Advance] moves the clock from one due instant to the next. At each
// instant it waits until the installation has settled:
//
//   - No row is due. The dispatcher has claimed all due rows.
//   - No run is open. All runs were published and handled, and their results are
//     stored.
//   - No bucket of the far tier begins within the horizon, and level 0 is empty.
//     The tasks that are due next are in the near tier.
//
// Therefore each run fires at its own instant, in order, never early and never
// late. A retry fires after its backoff, and a task that a handler adds counts
// before the clock moves on. At the end the clock shows the requested instant, and
// all tasks due by then have fired.
//
// A run without a result stops the clock until [Options].Settle has passed without
// progress. Then Advance fails with an error that names the run. With
// [Options].LeaveOpen it leaves the run open and moves on; the run's ack deadline
// is then an instant like any other.
//
// # Jump
//
// [Clock.Jump] moves the clock in one step, like an outage of the installation.
// Tasks that became due in between fire late, by the misfire rules.
//
// # Parts
//
// Dispatchers plan with the time that they last read, and chores sleep in real
// time. The clock calls each [Part] when it has moved.
package virtualclock
