// Package app joins the parts into the processes of an installation: [API] is
// what taskd runs, [Dispatcher] what dispatcher runs; `taskd dev` runs both in
// one process. The parts know nothing of each other: what one needs of another
// is put together here, out of the configuration.
//
// # Start
//
// A process tries to reach its servers for start_timeout and then ends with one
// line that names the part, the address and the reason. taskd is content with
// one database that answers, since the others stall nobody but themselves, and
// does without Kafka, which only the creation of a tenant needs.
//
// # Stop
//
// What callers see stops first: the API takes no more calls, a dispatcher hands
// its shards over. Only then do the parts behind stop, so that what has been
// taken is finished. All of it ends within the grace period.
package app
