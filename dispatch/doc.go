// Package dispatch fires due tasks: it claims due rows, commits, and then
// publishes what it has claimed. It decides when to claim, how, and from which
// bound; the SQL is behind [Store] and Kafka is behind [Publisher].
//
// # The protocol
//
// It is a transactional outbox with fencing tokens. For each database in which it
// owns shards, a dispatcher repeats one short transaction ([Store.Claim]): assert
// the ownership of the shards, acknowledge published outbox parts, claim due rows,
// write one outbox row that lists them all, commit. Then it publishes, outside of
// any transaction. So:
//
//   - What is on Kafka has been committed before; what has been committed stands
//     in the outbox until this process has seen Kafka's confirmation.
//   - A dispatcher that dies between the two leaves the outbox row. Whoever
//     acquires the shard reads it in a statement that starts after the epoch's
//     rise has committed ([Store.Unpublished]), and publishes it first.
//   - Records may repeat, always with the same run_id, attempt and scheduled_at.
//
// # What is hard about it
//
// A part of the outbox is one shard of one row. It is acknowledged, which removes it,
// when Kafka has confirmed each of its records to this process, and for no other
// reason:
//
//   - A shard that is lost (another epoch) is dropped with all that is known of
//     its records, and nothing of it is acknowledged: its new owner publishes it.
//     Parts of other shards in the same row go on as before.
//   - A commit whose outcome is unknown may have happened, and may still be
//     happening. Its shards are dropped and reported lost, to be acquired again
//     as a stranger would: that waits for the old transaction, and then reads
//     the outbox. Looking into the outbox without raising the epoch would miss
//     a commit that lands later.
//   - A part that is published and stays would be published again at a take-over
//     hours later; so it goes with the next claim, or within a second alone.
//
// Confirmations find their part by pointer, never by number: a shard that is
// lost and acquired again has new parts, and late confirmations of the old
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
// cost depends on their number. The records wait until they are due in the
// [delayQueue], whose slices are short and common to all databases: many records go
// into one call, and none early. Whoever finds records in the outbox that are not
// due delays them in the same way, whatever its own window. Delayed records count in
// the bounds of memory. In a hand-over they are left to the next owner, who
// publishes their part of the outbox as a whole: of a part that is half due some
// records are repeated. Rows that wait for a result or a retry are not claimed
// ahead; peeks find them, and they are claimed when they are due.
//
// The [pipeline] carries records of all databases to Kafka. Healthy tenants share
// calls; a tenant whose topic fails gets calls of its own until it recovers, so it
// never holds up the others. If that goes on its circuit breaker opens and its rows
// are deferred at claim time. Memory is bounded: at the bound claims stop and the
// backlog waits in Postgres, visible and cancellable.
//
// # Fair sharing
//
// All this is the foreground: one claim takes the due rows of all tenants. Tenants with a
// limit, and tenants with a backlog, are excluded from it, as far as first runs go. Their
// rows are claimed flow by flow ([background]). How many rows per second that may be, who
// has a backlog, and how backlogged tenants share is decided by package
// [github.com/perceptor/perceptor/dispatch/fair], which is pure. Tokens of tenants with a
// rate come from [Store.TakeTokens], the leases of capped kinds from
// [Store.AcquireCapLease]. A claim names the version of the settings by which it was
// planned. If the database has another version, such as one with a pause, the claim does
// nothing. So no claim obeys older settings than those of an acknowledged change.
//
// # Lock order
//
// Each mutex belongs to one type, which takes it in its own methods only: [tracker],
// [planning], [databaseClock], [tenantFlows], [giveUps], and for all databases [pipeline],
// [scheduler], [tokenStore]. They are leaves: while a goroutine holds one, it calls only
// pure code, so it never holds two. No [Events], no [Store], no [Publisher] and no
// [Config.Lost] is called under one.
//
// What is held during calls of the store are tokens of channels. They are taken in this
// order, and a goroutine that has one may take only later ones:
//
//  1. scheduler.turn, for a claim of backlogs, over all databases
//  2. tokenCache.lock, of one tenant, while its tokens are requested; it is given back
//     before 3
//  3. transactions.own, of one database
//  4. transactions.places, over all databases
//
// A cap lease is outside of this order: one goroutine takes it, before 2, and the database
// ends a lease that is not released.
//
// # Reading the code
//
// What decides is pure and has no clock: the planner (plan.go, learn.go, peek.go), the
// owned shards and their outbox parts (owned.go), readings of the database's clock
// (clock.go), the delay queue (delayqueue.go), the topic queues with their breakers
// (topicqueue.go), the results of a call (results.go), and package fair.
//
// Each of them has one owner with the lock: planning.go, tracker.go, clock.go, pipeline.go
// (with calls.go: which records go into which call, and capacity.go: what claims may still
// bring), flows.go, scheduler.go, tokens.go.
//
// The goroutines are few. For each database: loop.go, whose steps are foreground.go (claims
// and peeks), acknowledge.go and giveup.go; and background.go, twice. For all: pipeline.go
// and caps.go. claim.go is what foreground and background claims have in common,
// ownership.go acquires, releases and drops shards, transactions.go admits transactions.
// database.go and dispatcher.go join the parts; the dispatcher is what the pipeline tells
// of confirmed records ([settler]). hinter.go and hints.go send and receive hints.
package dispatch
