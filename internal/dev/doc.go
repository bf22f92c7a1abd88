// Package dev runs a whole installation in one process tree, for `taskd dev`:
// an embedded PostgreSQL, an in-process Kafka broker that persists, the API, and
// a dispatcher that owns all shards. The API and the dispatcher are those of
// production ([app.API], [app.Dispatcher]); only the parts around them are
// small. It is not for production: there is one copy of everything.
//
// The data directory holds all of it:
//
//	format       says that this directory is ours, and of which layout
//	lock         held by the process that uses it; names its pid
//	postgres/    the databases
//	kafka/       the records
//	token        a token of the tenant demo
//	admin-token  a token that creates tenants
//
// The demo ([Options].Demo) adds tasks of all three types through the SDK,
// listens to their runs, and lets package loadtest/check compare what it sees with the
// contract: see observer.go.
package dev
