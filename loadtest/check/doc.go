// Package check says from outside whether a load run kept the task contract.
//
// It compares three accounts of the same tasks: what callers were told ([Add],
// [Op]), what the handlers and the listeners' calls saw ([Execution],
// [Reply]), and what the API says at the end ([Final]). It knows nothing of how
// the system works inside; from the spec of a task it computes by itself the
// instants that had to fire.
//
// [Checker.Task] takes everything about one task; tasks may come in any order,
// so a history of any length is checked in the memory of its largest part. The
// package does no I/O and reads no clock.
//
// # The contract, as it is checked
//
//   - An acknowledged add exists; one that was refused does not; one whose
//     answer was lost may exist or not, and if it does it counts like any other.
//
//   - ONE_SHOT: exactly one run, scheduled at begin.
//
//   - NON_BLOCKING: runs are scheduled at begin, begin + interval, and so on.
//     Instants between two runs are missed ones: they must have passed before the
//     run before them was first handled, and be counted by the record or the task.
//
//   - BLOCKING: run n+1 is scheduled one interval after the accepted result of
//     run n, a time that lies between the end of run n's handler and the answer to
//     its report.
//
//   - Every run has a callback and a result that was taken. No run is handled
//     before its scheduled instant, or scheduled outside [begin, end). There are
//     at most max_count of them. All deliveries of a run carry the same instant.
//
//   - One run has one final result, one attempt at most one accepted failure.
//
//   - Handlers of one BLOCKING task never overlap, neither those of two runs nor
//     those of two attempts, and each has been started by its own lease.
//
//   - Calendars: the instants are those that a small matcher of this package finds by
//     trying every second. Spread: each is later by the part that the task's id has.
//
//   - Misfire: under FIRE_ONCE as above. Under FIRE_ALL each instant fires, but for
//     those of which as many newer ones as the limit says had passed. Under SKIP an
//     instant is left out only when it was older than the grace before the next run
//     was handled, and none is handled later than the grace and [Config.Delivery].
//
//   - Edits: params belong to the version that comes with them. No handler begins
//     with an older version later than [Config.Window] and [Config.Slack] after a newer
//     one was answered, and none goes back from one attempt to the next. Two edits that name
//     one version are not both taken. The grid of a new interval begins one interval
//     after the edit, and goes on.
//
//   - Cancel: no handler begins later than the window after the answer. Pause: no run
//     whose instant lies a window after the answer begins before the next resume.
//
//   - Trigger: each request has one run, at the time of the call, which is called, and
//     the schedule beside it goes on as if it were not there.
//
//   - Keys: adds of one idempotency_key, and replays of one dead run, have one id.
//
//   - Failures: a run has at most max_attempts of them, is not called any more when it
//     has died, and does not die before. The next attempt keeps the distance that
//     the failure or the snooze asked for; a snooze is no failure.
//
//   - Silence: what a listener had begun that was killed is called again in time, in
//     another attempt not before its ack_timeout is over, and spends no attempt. What
//     it had reported without having written the answer down may have been taken.
//
//   - Adds are what is scheduled, running, finished and purged, exactly
//     ([Checker.Balance]).
//
// Of a change whose answer never came nothing is concluded.
//
// Instants of the database, the handlers and the adders are compared with each
// other: they must come from clocks that differ by less than [Config.Epsilon].
package check
