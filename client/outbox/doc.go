// Package outbox adds, changes and cancels tasks within a transaction of the caller's own
// PostgreSQL database: what the transaction does to its rows and what it does to tasks
// happens together, or not at all.
//
//	tx, err := pool.Begin(ctx)
//	...
//	_, err = tx.Exec(ctx, "INSERT INTO orders ...")
//	err = outbox.AddTask(ctx, tx, client.Task{Kind: "remind", Type: client.OneShot, ...})
//	err = tx.Commit(ctx)
//
// The add writes a row into a table of that database, the outbox. A [Relay], in the
// service or as `perceptorctl relay`, moves committed rows to Perceptor, usually within 50 ms.
// Services in other languages call SQL functions: `SELECT perceptor_add(...)`.
// docs/outbox.md is the guide, docs/adr/0047-transactional-adds.md has the reasons.
//
// # What is promised
//
// Each operation of a committed transaction takes effect once, and none of a transaction that
// was rolled back. Operations on one task, named by its key or its id, take effect in the order in
// which their transactions committed, and within a transaction in the order of the calls.
// Operations without a key have no order. This holds while relays are killed at any point, freeze,
// and work beside each other, and while Perceptor or the database is away.
//
// # How the order is known
//
// An operation with a key takes an advisory lock on the key, which lasts until its transaction ends, and
// then draws its position. So the transactions that touch one key pass one after the other, and
// positions of a key have the order of commits. Other transactions do not wait.
//
// # How rows are found
//
// Operations belong to six parts: those of one key to the same of four, those without keys to two others, so that
// they do not wait for calls about single tasks. Each part has a cursor: a
// position, low, the snapshot in which low was reached, seen, and the id of the transaction that reached it, upto.
// Every transaction draws its id before its first position. So an operation at or below
// low that seen does not show is of a transaction that was open in seen: one that seen lists, or
// one between the end of seen and upto. A claim reads the operations after low, and those of these
// transactions through an index. It never reads again what it has passed, so rows that were removed and cannot be
// vacuumed yet cost it nothing, and it never waits for a transaction that has nothing to do
// with the outbox, however long that runs.
//
// # How rows are moved
//
//	claim: INSERT batch(number+1, id, positions, low, seen)    one statement, one snapshot
//	read the rows of the batch
//	send: tasks without keys under the batch's id as request_id, or, if the whole is refused, singly under ids of their own;
//	      the others in the order of their keys
//	finish: DELETE moved rows, set refused ones aside          one statement, in the transaction of the next claim
//
// The claim comes first in that transaction: what is above about upto holds because the transaction has no id before
// the claim's snapshot. Operations on one key that are in one batch are finished one after the other, so that what is sent
// again after a crash is only the last operation of a key.
//
// A batch is stored before it is sent, and its id and content never change. A relay that takes a
// part over sends the rows that are left of its batches again, under the same ids, and Perceptor
// recognises what it has. The number of a batch is unique, so two relays that both believe
// to hold a part cannot claim the same rows. Every statement is a transaction of its own that needs no
// further word from the relay, so a frozen relay holds no locks.
//
// A relay holds its parts by leases, by the clock of the database. A relay that was frozen may wake up and
// send once more what another one has moved meanwhile. That changes nothing, because no operation is sent in
// a form that could undo a later one: adds and triggers carry request ids or keys, a task that was cancelled
// stays so, and an update names the id and the version of the task as they were read while the lease was
// valid.
//
// # What cannot be moved
//
// An operation that Perceptor refuses for good is set aside with the reason, see [Outbox.ListRefused]; later
// operations on its key are moved. An operation that may succeed later, such as one
// beyond a quota or in a database that is down, waits with a growing delay. Those on the same key
// wait behind it, all others are moved.
package outbox
