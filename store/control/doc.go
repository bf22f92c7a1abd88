// Package control stores tenants and their tokens. They are few and every call reads them,
// so all 16 databases hold them. Authentication survives the loss of a server.
//
// # Writing
//
// Database 0 decides: names and ids are unique there, and a change that it has not
// stored has not happened. The other 15 hold copies. If some of them are unavailable,
// the call returns [task.Unavailable] and says that the change is made and will be
// completed: [Store.Sync] copies the rows of all reachable databases into those that
// lack them. taskd runs it at its start and every 30 s ([Store.Run]).
//
// Rows never lose data while they matter. A tenant is inserted once and stays, and of two
// versions of its settings the higher one wins. A token is inserted once and may then get a
// revoked_at, of which the lowest wins. It is deleted 30 days after its expiry, which every
// copy has. So copies may arrive late, twice and in any order, and the union of all databases
// is always right.
//
// # Reading
//
// Any database may answer. They are asked in order until one does. A database that has
// failed, for a read or a write, may have missed a revocation. It is asked last until a
// Sync has updated it. If a database missed a change although this process never saw it
// fail, the next Sync of any taskd corrects it.
//
// # Tokens
//
// A secret is "pct_", 12 characters, "_" and 43 more, which stand for 256 random
// bits. Up to the last "_" it is the token's id, which is public; the whole is
// shown once, and only its SHA-256 is stored. An unknown, wrong, expired and
// revoked secret are answered alike.
//
// A revoked_at may lie in the future: a rotation replaces a token by a successor and lets
// both work for an overlap. That of a revocation without an overlap is the negated instant, so
// that it has passed by the clock of every database, also when one is set back.
//
// A process that caches identities asks [Store.Revoked] often and drops those that it names.
// When tokens were last used is kept in database 0 only, and written every 30 s.
package control
