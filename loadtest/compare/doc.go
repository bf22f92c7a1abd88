// Package compare drives other schedulers that keep their jobs in PostgreSQL,
// and Perceptor's own engine, with the same work on the same server, one after
// the other.
//
// # The work
//
// A job is stored with the instant at which it is due, becomes due, is handed to
// a handler that does nothing, and is completed. Its params are 100 bytes of JSON
// (or what stands for it) that hold its number. Every one of them must reach the
// handler exactly once. There are three phases, each in a database of its own
// that is dropped afterwards:
//
//   - cycle: the workers run while jobs are added, due evenly over the spread that
//     begins with the first one. Measured from the first add to the last
//     completion in the database.
//   - drain: all jobs are added first, and are due before the workers start; once
//     with nothing else in the table and once beside many jobs due in a month.
//     Measured from the first call of the handler, so that nobody's way of
//     starting counts.
//   - lateness: a fixed number of jobs each second, each due ten seconds after it
//     was added: longer than River's scheduler pauses. Lateness is from due to the call of the handler.
//
// # Programs
//
// Each contestant but the last is a program: peers in a directory here with what they need
// pinned, in a module of their own; the engine is a command of the program that
// compares ([Engine]). All take the same flags ([Work.Args]), find the database
// in DATABASE_URL, and write to standard output one JSON object a line ([line]):
// {"event":"begin"} and {"event":"end"} around what is measured, and a result.
// Between the two the runner reads the processor time of all of PostgreSQL's
// processes; that of its own process the program reports itself, so that neither
// start nor preparation counts.
//
// The last contestant is the full stack, which has what the others have not: an
// API, Kafka, several processes and a check of every task from outside. It does
// the first phase as a burst of the same number of tasks, added and due at a rate
// that nothing here can follow, and the phase of lateness.
//
// # Fair play
//
// One server with one set of settings, fsync and synchronous_commit on; a
// CHECKPOINT before each phase. Each contestant adds in the largest batches and
// works with the settings that its own documentation advises for throughput; the
// reasons are in the programs. Tables are analyzed after a bulk insert, which one
// of them needs.
package compare
