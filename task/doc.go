// Package task holds the domain: what a task and a run are, which limits they
// have, and what happens to them. It decides; it stores, sends and waits for
// nothing. It imports the standard library only, does no I/O and reads no
// clock: the instant is always an argument, and it is the database's.
//
// # Rows
//
// A [Row] is the whole living state of a task (Run = 0) or of one run of a
// NON_BLOCKING task that needs a state of its own (Run = its seq). The store
// keeps rows in tables and moves most of them by SQL alone; whatever SQL does
// not decide itself it brings here, and what SQL does decide is compared with
// this package by random histories. So this package is the definition.
//
// # Terms
//
// [Terms] is what a caller says about a task and may change later. A [Spec], a Row
// and a [DeadLetter] contain the whole value: an edit assigns it, and two tasks have
// the same terms if the values are deeply equal. Terms that no SQL statement compares
// are stored together as one blob, see [Seal]. The comment on Terms lists the places
// of a new one.
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
// task marks up to 64 open runs as bits of OpenRuns; a run gets a row of its own
// only when it needs one: after FAIL, at the first heartbeat, when handed back,
// or when its bit cannot be kept. A run row is only ever made by the step that
// clears the bit.
//
// # Why bits need no instants
//
// Bit i of OpenRuns is run Seq - i, and its scheduled instant is
// Anchor - i*Interval: Anchor is the instant of run Seq. A claim that would
// break this regularity (after a misfire, or after next_execute_time) first
// gives the open runs rows of their own. So every delivery of a run carries the
// same scheduled instant, and the row stays small.
package task
