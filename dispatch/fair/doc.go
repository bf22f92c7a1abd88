// Package fair decides which tenants' due tasks a dispatcher claims when there are more than
// it can claim, and how many per second. It combines four known techniques:
//
//   - Weighted fair queueing by service counters, in the manner of start-time fair
//     queueing (Goyal, Vin & Cheng, 1996), between tenants with a backlog: [Scheduler].
//   - Additive increase, multiplicative decrease (Chiu & Jain, 1989) of the total rate at
//     which backlogs are claimed, with the lateness of all other tenants as the congestion
//     signal: [RateController].
//   - The generic cell rate algorithm (GCRA, ITU-T I.371), a token bucket, for tenants with
//     a dispatch rate: [TokenCache]. The buckets are in Postgres.
//   - Flows (Demers, Keshav & Shenker, 1989), as Kubernetes' API Priority and Fairness has
//     them: one queue for each tenant that needs its own: [Flow] and [Flows]. The queue is
//     an index range of the task table; a flow stores only its lower bound and when to
//     claim from it.
//
// The package is pure. Claims and confirmations go in, quotas come out. It has no
// goroutine, lock or clock: every instant is an argument. Package dispatch owns the
// values, guards them and acts by them.
//
// # Foreground and background
//
// Almost all tenants are in the foreground: one claim takes the due rows of all of them, and
// their records share requests to Kafka. That is cheap, and fair as long as each claim takes
// all due rows. An excluded tenant is in the background. Foreground claims leave out its
// first runs, and flow claims take them, each with its own quota and lower bound. A tenant
// is excluded if
//
//   - its settings say so: it has a dispatch rate, or it is paused, or it has paused or
//     capped kinds (each capped kind is a flow of its own);
//   - or it is backlogged: it has more due rows than its share, or it lags, see lag.go. Only this is
//     a decision of this package.
//
// A flow keeps up if its last claim took fewer rows than it was granted, and its tenant has
// tokens. The flows of a database that keep up are claimed together, by one statement: one scan of
// the due rows, of which each flow gets up to its quota, oldest first. So a tenant with a rate that
// it does not reach costs hardly more than one in the foreground. The other flows have a backlog
// in this database. They are claimed up to 16 at a time, each by a scan of its own from its own bound.
//
// # The steps
//
//  1. [Scheduler.ObserveClaim] sees each foreground claim. A claim that reached its limit
//     left rows behind, so its tenants compete. A tenant becomes backlogged when it takes
//     more than half of its weighted share of such a claim, and more rows within a second
//     than the others can bear. Alone, only rows that are overdue count.
//  2. [Flows.Update] makes the flows of each database follow the settings and the
//     backlogged tenants.
//  3. [Scheduler.TakeRows] grants the rows of the next flow claim, by the rate controller.
//  4. [Flows.Select] chooses the flows with a backlog that have waited longest, or all that keep up.
//  5. [Quotas] divides the rows between them by weight. [Scheduler.Balance] moves rows from
//     tenants with more service than the average to tenants with less. A claim of flows that
//     keep up divides no rows: it has a limit in all, and a tenant may have a quarter of it
//     ([QuotasTogether]). Tenants that lag get fewer ([Scheduler.LimitLagging]), and tenants with a
//     rate take tokens for their rows ([TokenCache.TakeTokens]).
//  6. [Flows.Claimed] and [Scheduler.ObserveFlow] see what the claim has taken: it counts as
//     service, moves the flow's bound and says when to claim from it next. A tenant that has
//     nothing overdue left in any database returns to the foreground, not before a second.
//  7. [Scheduler.ObservePublished] sees each record that Kafka has confirmed. The lateness
//     of foreground records adjusts the rate.
//
// # Virtual time
//
// Service is the number of rows claimed for a tenant. The level is the average service per
// unit of weight: the virtual time of fair queueing. A tenant that becomes backlogged starts
// at the level of the second in which its burst began, plus the rows of that burst. So it
// neither catches up on the time in which it had no backlog, nor keeps the lead that made it
// backlogged. A tenant below the level receives rows of those above it. Each of these keeps
// one row per claim, so that its flow is still examined. What a tenant may catch up is
// bounded by 20,000 rows per unit of weight.
//
// # What is hard about it
//
//   - The foreground's lateness has other causes, too. A foreground that is late at the lowest
//     rate is late for another reason, and that lateness counts as usual from then on.
//   - Records of a tenant that is becoming backlogged must not be taken for a late
//     foreground. So a tenant in a flow counts only if its record was claimed before it was
//     due.
//   - A backlog is divided over 16 databases, and small in each. So beside a backlogged
//     tenant, overdue rows count in claims that were not full, too.
//   - A common claim that reached its limit may have left rows of any of its flows. So their
//     bounds stay where they are, and the next claim follows at once.
//   - Rows that wait for tokens are not missed, but rows that were overdue before are. A flow
//     stores since when it has been waiting ([task.Flow]'s WaitingSince).
//
// # Invariants
//
//   - A tenant is in at most one flow per database and kind, and a flow in at most one claim.
//   - A flow has no due row at or below its bound, except for rows written since. A hint or
//     the next sweep finds these.
//   - Every flow in a claim may take at least one row.
//   - A tenant is backlogged only while some database may have overdue rows of it, or it lags, and
//     for one second at least.
//   - The rate stays between 200 and 200,000 rows per second; without a foreground there is
//     no limit.
//   - Over any time t a tenant takes at most rate × (t + 1 s) + burst tokens.
//
// # Tried and dropped
//
//   - Rewriting due_at of rows over the rate to the instant of their token: half the work of
//     a claim for each waiting row, at a time of overload, and wrong after a change of the rate.
//   - Claims of their own for all tenants with a rate: 200 of them cost 800 scans and as many
//     requests for tokens per second, whatever their rows. Claiming them in the foreground and
//     charging the bucket afterwards breaks the last invariant (ADR 40).
//   - An index that includes the tenant: every claim would cost twice as much.
//   - Kafka requests shared by foreground and background: the foreground's p99 lateness was
//     2.6 times its lateness alone, with separate requests 1.6 times.
//   - Equal quotas per claim without service counters: a tenant with rows in few databases,
//     or one found late, received much less than its share.
//   - Partial quotas when memory is short: databases were not served equally. A flow claim
//     receives all its rows or waits.
//   - Memory for the first database that finds some: one made sixteen claims of backlogs, another two.
//     Databases have it in the order in which they began to wait.
//   - Backlogged until no database has a due row: a tenant that fires thousands of tasks a
//     second always has one somewhere. A pause of the process made it backlogged for good, and
//     its p99 lateness rose from 50 ms to a second.
//   - A threshold on rows per claim alone: short bursts of small tenants were excluded, and
//     slow backlogs were not.
//
// ADR 14 (docs/adr/0014-rates-and-fairness.md), ADR 40 (docs/adr/0040-common-flow-claims.md) and
// ADR 55 (docs/adr/0055-claims-yield.md) have the reasons and figures.
//
// # Reading the code
//
// scheduler.go decides who is backlogged and how backlogged tenants share, rate.go is the
// rate controller, lag.go the limit of tenants that lag, tokens.go the cache of tokens, flow.go one
// flow, and flows.go the flows of one database.
package fair
