// Package task holds the domain: what a task and a run are, which limits they have, and
// how they change. It decides, but does not store, send or wait. It imports the standard
// library only, does no I/O and reads no clock: every instant is an argument and comes
// from the database's clock.
//
// # Rows
//
// A [Row] is the whole state of an unfinished task (Run = 0) or of one run of a
// NON_BLOCKING task that needs a state of its own (Run = its seq). The store keeps rows
// in tables and moves most of them by SQL alone. It brings every other step to this
// package. Tests with random histories compare the steps of SQL with this package, which
// is the definition.
//
// # Terms
//
// [Terms] is everything that a caller says about a task and may change later. A [Spec],
// a Row and a [DeadLetter] contain the whole value. An edit assigns it, and two tasks
// have the same terms if the values are deeply equal. Terms that no SQL statement
// compares are stored together as one blob, see [Seal]. The comment on Terms lists the
// places that a new term needs.
//
// # Life of a run
//
//	            claim                       result, stop, Cancel
//	SCHEDULED ---------> RUNNING (out) -------------------------> closed
//	                      |   ^   | silence: delivered again, attempt + 1
//	                 FAIL |   |___| until give_up_after
//	                      v   | backoff over: delivered again, attempt + 1
//	                 RUNNING (not out), until max_attempts
//
// A ONE_SHOT or BLOCKING task holds its open run in its own row. A NON_BLOCKING
// task marks up to 64 open runs as bits of OpenRuns. A run gets a row of its own
// only when it needs one: after FAIL, at the first heartbeat, after a hand-back,
// when it is silent (bits.go), or when its bit cannot be kept. The step that creates a run row also clears
// the bit; no other step creates one.
//
// # Why bits need no instants
//
// Bit i of OpenRuns is run Seq - i. Its scheduled instant is Anchor - i*Interval,
// because Anchor is the instant of run Seq. A claim that would break this regularity
// (after a misfire, or after next_execute_time) first gives the open runs rows of
// their own. So every delivery of a run carries the same scheduled instant, and the
// row stays small.
package task
