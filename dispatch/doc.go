// Package dispatch fires due tasks: it claims due rows, commits, and then publishes their
// records. It decides when to claim, in which form, and from which bound; the SQL is behind
// [Store] and Kafka is behind [Publisher].
//
// # The protocol
//
// It is a transactional outbox with fencing tokens. For each database in which it
// owns shards, a dispatcher repeats one short transaction ([Store.Claim]): assert
// the ownership of the shards, acknowledge published outbox parts, claim due rows,
// write one outbox row that lists them all, commit. Then it publishes, outside of
// any transaction. So:
//
//   - A record on Kafka has been committed before. A committed record stays in the outbox
//     until this process has seen Kafka's confirmation.
//   - A dispatcher that dies between the two leaves the outbox row. The next owner of the
//     shard reads it in a statement that starts after the raised epoch has been committed
//     ([Store.Unpublished]), and publishes its records first. It reads the outbox in parts,
//     while memory has room, and claims nothing from the shard before the last one.
//   - Records may be published more than once, always with the same run_id, attempt and
//     scheduled_at.
//
// # What is hard about it
//
// A part of the outbox is one shard of one row. It is acknowledged, and thereby removed,
// only when Kafka has confirmed each of its records to this process:
//
//   - If another epoch replaces that of a shard, the shard is lost. The dispatcher forgets
//     the shard and its records and acknowledges no part of it: the new owner publishes
//     them. Parts of other shards in the same row are not affected.
//   - A commit whose outcome is unknown may have happened, or may still happen. The
//     dispatcher drops its shards and reports them lost, so that they are acquired again:
//     that waits for the old transaction, and then reads the outbox. Reading the outbox
//     without raising the epoch would miss a later commit.
//   - A published part that stays in the outbox would be published again at a take-over
//     hours later. So the next claim acknowledges it, or a transaction of its own within a
//     second.
//
// A confirmation refers to its part by pointer, not by number. A shard that is lost and
// acquired again has new parts, and late confirmations of the old ones are ignored.
//
// # When and how
//
// [planner] is the pure part: it decides which step a database takes next. While batches are
// full, each claim follows the last one immediately. Otherwise the interval between claims
// adapts to the cost of claims and to the number of busy databases. If no row is due, the
// loop sleeps until the next due instant, a [Dispatcher.Hint], or a bound. The bound is longer
// while hints arrive ([hearing]).
//
// With [Config.ClaimAhead] claims go ahead of the clock: they claim rows that become due
// within that window, and a database is claimed from again when half of it has passed, or up
// to three quarters if claims take little time. So no run is late although claims are rare
// and large, and the cost of claiming depends on the number of claims. The records wait in the [delayQueue] until they are due. Its slices are
// short and common to all databases, so many records go into one call, and none of them
// early. A new owner that finds records in the outbox which are not due delays them in the
// same way, whatever its own window. Delayed records count towards the bounds of memory. In
// a hand-over they are left to the next owner, which publishes their part of the outbox as a
// whole: if some records of a part were due and published before, they are repeated. Rows
// that wait for a result or a retry are not claimed ahead. Peeks find them, and they are
// claimed when they are due.
//
// If all listeners of a tenant hold runs ([Config.Holds]), its records are published ahead, too: those of a [batchWindow]
// in one call, so few calls carry many records. A record says when it was published, by the bound of the database's clock, and
// its listener holds the run for as long as it was early. docs/adr/0056-published-ahead.md has the reasons.
//
// The [pipeline] carries records of all databases to Kafka. Healthy tenants share calls. A
// tenant whose topic fails gets calls of its own until it recovers, so it never delays the
// others. If the failure lasts, its circuit breaker opens. Then the foreground excludes the
// tenant: its rows stay where they are, however many become due, and its flow is not claimed
// while records in memory wait for the probes. Redeliveries, which the foreground sees all the same, are
// deferred. Memory is bounded: at the bound claims stop and the backlog waits in Postgres, visible and
// cancellable.
//
// A failing topic says nothing about the other topics. While calls fail and nothing is
// acknowledged, the pipeline pings the brokers, and only if none answers does Kafka count as
// gone ([outage]). Then one claim per second probes, in the foreground as for flows, and the
// pings find out when Kafka has returned.
//
// # Fair sharing
//
// The sections above describe the foreground: one claim takes the due rows of all tenants.
// The first runs of tenants with a limit, a backlog or a failing topic, and of those that lag, are excluded from it. Their rows are
// claimed by flows ([background]): those that keep up together, those with a backlog one by one. Package
// [github.com/perceptor/perceptor/dispatch/fair], which is pure, decides how many of these
// rows may be claimed per second, which tenants have a backlog, and how backlogged tenants
// share. Tokens of tenants with a rate come from [Store.TakeTokens]. Capped kinds are claimed
// in rounds ([capLoop]), by the parts of a cap that databases have, and by leases of
// [Store.AcquireCapLease]. A claim names the version of the settings by which it
// was planned. If the database has another version, such as one with a pause, the claim does
// nothing. So no claim follows settings that are older than an acknowledged change.
//
// # Lock order
//
// Each mutex belongs to one type, which takes it in its own methods only: [tracker],
// [planning], [hearing], [latenessMeter], [databaseClock], [tenantFlows], [giveUps], and for all databases [pipeline],
// [scheduler], [tokenStore]. They are leaves: while a goroutine holds one, it calls only
// pure code, so it never holds two. No [Events], no [Store], no [Publisher] and no
// [Config.Lost] is called under one.
//
// During calls of the store, goroutines have tokens of channels. They take them in this
// order, and a goroutine that has one may take only later ones:
//
//  1. scheduler.turn, for a claim of backlogs, over all databases
//  2. homeTokens.lock, of one home database, while tokens of its tenants are requested; it is
//     given back before 3, and no goroutine has two of them
//  3. transactions.own, of one database
//  4. transactions.places, over all databases
//
// The place of a round of a capped kind comes before 2. A cap lease is outside of this order:
// the round of its kind takes it, before 2, and the database ends a lease that is not
// released.
//
// # Reading the code
//
// The deciding parts are pure and have no clock: the planner (plan.go, learn.go, peek.go),
// the owned shards and their outbox parts (owned.go), readings of the database's clock
// (clock.go), the delay queue and what is published ahead (delayqueue.go, batchwindow.go), the topic queues with their breakers
// (topicqueue.go), the results of a call (results.go), and package fair.
//
// Each of them has one owner with the lock: planning.go, tracker.go, clock.go, pipeline.go
// (with calls.go, which selects the records of each call, capacity.go, which says what claims
// may still add, and outage.go, which knows whether any broker answers), flows.go, scheduler.go, tokens.go.
//
// There are few goroutines. Each database has loop.go, whose steps are foreground.go (claims
// and peeks), acknowledge.go and giveup.go; and background.go, twice. All databases share
// pipeline.go and caps.go, which starts a goroutine for each round of a capped kind
// (capround.go). claim.go is common to foreground and background claims.
// trace.go makes the traces of deliveries. ownership.go acquires, releases and drops shards, unread.go
// reads what their outbox has beyond the first part, and transactions.go admits transactions.
// database.go and dispatcher.go join the parts; the pipeline reports confirmed records to
// the dispatcher ([settler]). hinter.go, hintnames.go and hints.go send and receive hints,
// hearing.go knows whether they arrive, and lateness.go says how late records are published.
package dispatch
