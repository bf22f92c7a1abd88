// Package server answers the API: the gRPC services of proto/perceptor/v1 and
// the same calls over HTTP and JSON.
//
// # The way of a call
//
// Every method, whether it comes over gRPC or HTTP, passes the [gate]: it
// bounds how many calls are under way, establishes who calls (the only place
// where a tenant or a scope comes from), only then decodes the request, and
// turns whatever the method returns, or panics with, into a status that tells
// the caller what to do and nothing about the inside. The HTTP side translates
// JSON and then goes through the same gate in process, without a socket.
//
// A method checks every field of its request before it asks a store, and says
// all that is wrong at once. Batches are answered entry by entry: one bad entry
// fails no other. What only the database's clock can judge, the store does.
//
// # Who calls
//
// A caller proves itself with "authorization: Bearer SECRET". Answers of the
// [Authenticator] are remembered for at most five seconds, so a revoked token
// works no longer than that. Stores get the tenant's number with each call and
// look up nothing without it: an id of another tenant is an unknown id.
//
// # What it needs
//
// The package knows no database and no broker. It declares the interfaces it
// needs ([Tasks], [Runs], [Admin], [Authenticator]) in words of package task.
// An error that carries a [task.Error] decides the status; any other error is
// INTERNAL and only logged.
package server
