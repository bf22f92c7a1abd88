// Package app assembles the processes of an installation from their parts: [API] is
// taskd, [Dispatcher] is dispatcher. taskd dev runs both in one process. The parts
// do not know each other. This package connects them as the configuration says.
//
// # Start
//
// A process tries to reach its servers for start_timeout. Then it ends with one line
// that names the part, the address and the reason. taskd starts when one database
// answers, since a missing database only affects its own tasks. It starts without
// Kafka, which only the creation of a tenant needs.
//
// # Stop
//
// The part that callers see stops first: the API refuses new calls, a dispatcher
// hands its shards over. Then the parts behind it stop, so that accepted work is
// finished. All of this ends within the grace period.
//
// # Files
//
//   - api.go, dispatcher.go, chores.go: the processes, and how their parts are joined.
//   - start.go, run.go: reaching servers, the order of start and stop.
//   - parts.go, tls.go: connections and certificates that both processes need.
//   - events.go, missed.go: events of the parts become metrics and log records.
//   - tenants.go, history.go: tenants, tokens and their history policies for the parts.
//   - assignment.go, assignapi.go: the assignment as the API and perceptorctl show it.
//   - clock.go, clockapi.go: the virtual clock of taskd dev.
//   - audit.go: the audit log of the API and of commands.
//   - examine.go: the checks of perceptorctl doctor.
package app
