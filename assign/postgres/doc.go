// Package postgres is an [assign.Registry]: members meet in tables of PostgreSQL, and
// need no ZooKeeper.
//
//	registry := postgres.New(pool) // whose search_path leads to the tables
//	member, err := assign.NewMember(assign.Config{Items: items, Fenced: true}, registry, worker)
//
// The tables are those of the migration "assignment" of package migrations: assign_environment,
// assign_document (the plan and the strategy), assign_member and assign_lease.
//
// # The protocol
//
// Each exchange of a member is one transaction that is sent as one message, so no process
// that stops leaves one open. It begins with Touch, which locks the row of the environment. So
// the exchanges of an environment take place one after the other, and one that has begun sees
// all that earlier ones have committed. That is the order that the proof in package
// assign relies on. Admins lock only what they write, by the version that they have read.
//
// Touch also renews the lease of the member: it ends a session later, by the clock of the
// server. A lease that is over ends nothing by itself. Whoever reads the environment first removes
// the members whose leases are over, in the same transaction; a member that finds itself removed
// registers again. So a member is either listed for everybody or for nobody, and a renewal
// that comes late but before any reader still counts.
//
// Time that no member could use does not count: if nobody has touched the environment
// for half a session (the server was down, hung, out of reach, or its clock leapt), or if the
// clock was put back, Touch lets all leases begin anew. Every living member touches it about four
// times in its session. Sessions may differ, while a configuration changes: then it is half of that of
// the lease or of the member that touches, whichever is longer.
//
// An environment without members for long is removed with its plan and its strategy, by the second sweep of the leader
// of another one that finds it as the sweep before has left it. After the clock has leapt by days, or the server was down
// for as long, its members have an hour between the two to make an exchange.
//
// Versions are random numbers. A restored or failed-over database that has lost commits
// therefore never accepts a write that was decided by what it has lost.
//
// Notices (NOTIFY assign) wake the members after a plan, a strategy, a member that came, left or
// was removed, and an item that was withdrawn. They may be lost: every member reads all
// rows at least every quarter of a session, and when the lease of another member would be over.
//
// # Connections
//
// A session has one connection of its own, taken out of the pool, on which it listens
// between two exchanges. It is replaced when an exchange fails. Poolers must keep it (session mode).
// The methods of [Registry] itself use connections of the pool.
//
// # Limits
//
// An environment has at most 1,000 members, and a document or member at most 1 MiB. Removed
// members leave nothing. Per member and quarter of a session, two rows are updated in place.
package postgres
