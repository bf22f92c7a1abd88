// Package dev runs a whole installation in one process tree, for `taskd dev`:
// an embedded PostgreSQL, an in-process Kafka broker that stores its records, the
// API, and a dispatcher that owns all shards. The API and the dispatcher are those
// of production ([app.API], [app.Dispatcher]). It is not for production, because
// there is only one copy of everything.
//
// The data directory contains:
//
//	format       the format of this directory
//	lock         locked by the process that uses the directory; contains its pid
//	postgres/    the databases
//	kafka/       the records
//	token        a token of the tenant demo
//	admin-token  an admin token, which can create tenants
//
// The demo ([Options].Demo) adds tasks of all three types through the SDK and
// handles their runs. Package loadtest/check compares its observations with the
// contract; see observer.go.
package dev
