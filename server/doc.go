// Package server implements the API: the gRPC services of proto/perceptor/v1, and
// the same calls over HTTP and JSON.
//
// # How a call is processed
//
// Every method passes the [gate], whether the call arrives over gRPC or HTTP. The
// gate
//
//  1. authenticates the caller, which is the only source of tenant and scopes,
//  2. bounds the number of the tenant's concurrent calls,
//  3. receives and decodes the request,
//  4. converts the error or panic of the method to a status that tells the caller
//     what to do and reveals nothing about the implementation.
//
// The HTTP side translates JSON and then calls the same gate in process, without a
// socket.
//
// A method validates all fields of its request before it calls a store, and reports
// all faults at once. Entries of a batch are answered separately: one bad entry does
// not fail the others. The store validates what depends on the database's clock.
//
// # Authentication
//
// A caller sends "authorization: Bearer SECRET", or presents a certificate that is bound to
// an identity ([Certificates]). Answers of the [Authenticator] are cached for at most five
// seconds, and not beyond the end of the credentials. [Revocations] are asked for more often,
// so that a revoked token stops working within a second everywhere. A caller needs one of the
// scopes of the method ([access]). Callers without [ReadScope] or [ListenScope] get answers
// without params, among them operators with [InspectScope], whose calls are recorded. Stores get the tenant's number with each call and use it in every lookup: an
// id of another tenant is an unknown id.
//
// # Limits
//
// No tenant stops another, whatever it sends. Places that are few are shared by tenant
// (package internal/share): calls in progress, and the bytes of requests ([intake]) and of
// answers that their callers have not read ([sending]). What
// needs no token is shared by address: connections, watches of health, and look-ups of
// tokens that are probably bad ([lookUps]). Requests must arrive within a deadline. What is
// expensive for all is bounded in time, by tenant: changes of settings, and calls about runs
// that the tenant does not have ([throttle]). A refused call has a reason of its own, and
// says when to repeat it; who repeats it at once nevertheless gets its answers late ([tarpit]).
//
// # Streams
//
// A stream is a call with many messages ([stream]). Its credentials are checked again and again,
// its bytes are charged message by message, and each message has a deadline. Chunks of imports
// share a bounded memory by tenant, and wait for the rates of their tenant ([importWriter]).
//
// # Audit
//
// The gate records the calls in the table [audited] and all refused ones: who, from
// where, the object, the state before and after, the result. It reads the state
// before the call, and takes the state after it from the answer. Of params and
// secrets an event only says that they have changed. [Audit] bounds and stores the
// events; a call never fails because of them.
//
// # Dependencies
//
// The package knows no database and no broker. It declares the interfaces that it
// needs ([Tasks], [Runs], [Admin], [Authenticator]) in terms of package task. An
// error that carries a [task.Error] determines the status; any other error becomes
// INTERNAL and is only logged.
package server
