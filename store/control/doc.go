// Package control stores tenants and their tokens. They are few and read by
// every call, so they lie in all 16 databases: one server's death stops nobody's
// authentication.
//
// # Writing
//
// Database 0 decides: names and ids are unique there, and a change that it has
// not taken has not happened. The other 15 take copies. If some of them are away
// the call answers [task.Unavailable], and says that the change is made and will
// be completed: [Store.Sync] copies what any reachable database has into those
// that lack it. taskd runs it at its start and every 30 s ([Store.Run]).
//
// Rows only ever gain: a tenant is inserted once and stays, and of two versions
// of its settings the higher one wins; a token is inserted once and may then get
// a revoked_at, of which the earliest wins. So copies may arrive late, twice and
// in any order, and the union of all databases is always right.
//
// # Reading
//
// Any database may answer; they are asked in order until one does. One that has
// failed, for a read or a write, may have missed a revocation. It is asked last,
// until a Sync has brought it up to date. What a database that this process
// never saw fail has missed is corrected by the next Sync of any taskd.
//
// # Tokens
//
// A secret is "pct_", 12 characters, "_" and 43 more, which stand for 256 random
// bits. Up to the last "_" it is the token's id, which is public; the whole is
// shown once, and only its SHA-256 is stored. An unknown, wrong, expired and
// revoked secret are answered alike.
package control
