// Package dispatch fires what is due: it claims due rows, commits, and then
// publishes what it has claimed. It decides when to claim, how, and from which
// bound; the SQL is behind [Store] and Kafka is behind [Publisher].
//
// # The protocol
//
// For each database in which it owns shards, a dispatcher repeats one short
// transaction ([Store.Claim]): assert the ownership of the shards, take off
// what has been published, claim what is due, write one outbox row that lists
// it all, commit. Then it publishes, outside of any transaction. So:
//
//   - What is on Kafka has been committed before; what has been committed stands
//     in the outbox until this process has seen its acknowledgement.
//   - A dispatcher that dies between the two leaves the outbox row. Whoever
//     acquires the shard reads it in a statement that starts after the epoch's
//     rise has committed ([Store.Unpublished]), and publishes it first.
//   - Records may repeat, always with the same run_id, attempt and scheduled_at.
//
// # What is hard about it
//
// A part of the outbox is one shard of one row. It is taken off when each of
// its records has been acknowledged to this process, and for no other reason:
//
//   - A shard that is lost (another epoch) is dropped with all that is known of
//     its records, and nothing of it is taken off: its new owner publishes it.
//     Parts of other shards in the same row go on as before.
//   - A commit whose outcome is unknown may have happened, and may still be
//     happening. Its shards are dropped and reported lost, to be acquired again
//     as a stranger would: that waits for the old transaction, and then reads
//     the outbox. Looking into the outbox without raising the epoch would miss
//     a commit that lands later.
//   - A part that is published and stays would be published again at a take-over
//     hours later; so it goes with the next claim, or within a second alone.
//
// Acknowledgements find their part by pointer, never by number: a shard that is
// lost and acquired again has new parts, and late acknowledgements of the old
// ones count for nothing.
//
// # When and how
//
// [planner] is the pure part: which step a database takes next. Claims follow
// each other at once while batches are full, else at a distance that adapts to
// what claims cost and to how many databases are busy; if nothing is due the
// loop sleeps until the next due instant, a [Dispatcher.Hint], or a bound.
//
// With [Config.ClaimAhead] claims go ahead of the clock: they take what becomes
// due within that window, and a database is claimed from again when half of it
// has passed. So nothing is late though claims are rare and large, and what they
// cost depends on their number. The records are held until they are due, on the
// [delayQueue], whose slices are short and common to all databases: many records go
// into one call, and none early. Whoever finds records in the outbox that are not
// due holds them in the same way, whatever its own window. Held records count in
// the bounds of memory. In a hand-over they are left to the next owner, who
// publishes their part of the outbox as a whole: of a part that is half due some
// records are repeated. Rows that wait for a result or a retry are not claimed
// ahead; peeks find them, and they are claimed when they are due.
//
// [pipeline] carries records of all databases to Kafka. Healthy tenants share
// calls; a tenant whose topic fails gets calls of its own until all is well
// again, so it never holds up the others; if that goes on its breaker opens and
// its rows are put off at claim time. Memory is bounded: at the bound claims
// stop and the backlog waits in Postgres, visible and cancellable.
package dispatch
