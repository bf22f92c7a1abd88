// Package virtualclock moves the virtual clock of an installation, so that a
// month can be tested in a second. Package store/clock keeps the clock in the
// databases; this package knows what must have happened before it may go on.
//
// # Advance
//
// The clock goes from one instant at which something is due to the next, and
// waits at each until all is settled:
//
//   - no row is due any more: the dispatcher has claimed all of them;
//   - no run is open: all were published, handled, and their results are stored;
//   - no bucket of the far tier begins within the horizon, and none of its packs
//     is of unknown content: what is due next is in the near tier.
//
// So each run fires at its own instant, in order, never early and never late; a
// retry comes after its backoff, and what a handler adds is seen before the clock
// moves on. In the end the clock shows the instant that was asked for, and what is
// due there has fired.
//
// A run that nobody answers keeps the clock where it is until [Options].Settle has
// passed without progress. Then Advance fails and names it, or leaves it open, as
// the caller wants: its ack deadline is an instant like any other.
//
// # Jump
//
// [Clock.Jump] moves the clock at once, as if the installation had been away
// meanwhile: what became due in between fires late, by the misfire rules.
//
// # Who must be told
//
// Dispatchers plan by the clock that they have seen last, and chores sleep by real
// time. [Part] is how they learn that the clock has moved.
package virtualclock
