// Package assign distributes items of work over the members of a cluster. Each
// item has one owner. Members may join, leave, hang and die at any time; the items
// of a member that is gone are taken over. The package serves any program with
// partitioned work and does not know what an item stands for.
//
// A program provides the items and a [Worker], and runs an [Assigner]: a [Member] of a
// cluster, a [Local] for a single process, or a [Follower], whose cluster can move.
//
// # The protocol
//
// Members meet in one ZooKeeper subtree, or in the rows of a [Registry], which has the
// same parts; this is about ZooKeeper, and package assign/postgres says how rows keep
// the same order of events. (The environment, BASE by default,
// separates clusters that share a root.)
//
//	ROOT/format                     "assign 1"; another format is refused
//	ROOT/env/ENV/strategy           who may own what          written by an Admin
//	ROOT/env/ENV/plan               requested owners, the     written by the leader
//	                                reasons for items without
//	                                an owner, the last
//	                                rebalancings
//	ROOT/env/ENV/members/m-ID-SEQ   one member: who it is,    written by that member
//	                                the items that it has,
//	                                its heartbeat and
//	                                figures; ephemeral
//	ROOT/env/ENV/leaving/ID         "plan without me";        written by that member
//	                                ephemeral
//	ROOT/env/ENV/idle               no member has registered  written by leaders of
//	                                since it was created      other environments
//
// ID is random for each [Assigner], so two members may have the same name, and
// a restarted program is a new member. The ID outlives the session: a member
// whose session has expired registers again under the same ID with a new
// number. SEQ is ZooKeeper's sequence number. The member with the lowest number
// that is not leaving is the leader.
//
// The leader keeps the plan (item to requested owner) in line with the members by
// [Rebalance]: loads differ by at most one, and the number of moves is minimal. It
// obeys the [Strategy] that an [Admin] has stored: which members may have items,
// how many members per host and in total, how many items per member, which members
// are drained, which items are pinned and to which member, and what is paused. A
// paused item has no owner: its owner releases it as if it moved, and the member
// that a later plan names acquires it. The plan lists each item without an owner
// with the [Reason]. Members that may not have items stand by; they can still lead.
//
// After a change the leader waits for [Config.RebalanceDelay], so that members that
// vanished can return and further ones can join. It does not wait for members that
// announce that they leave. It writes a plan only over the version that it has
// read, so a leader that was paused and replaced meanwhile cannot write a late plan.
//
// The current and the requested owner of an item may differ: an item moves in
// steps.
//
//	leader                   old owner                     new owner
//	  | plan: 7 -> new          |                             |
//	  |------------------------>|---------------------------->|
//	  |                         | Release(7)                  | reads the members:
//	  |                         | … ends its batch            | old has 7: watch it
//	  |                         | node: … without 7           |
//	  |                         |---------------------------->| no member has 7
//	  |                         |                             | IF plan unchanged:
//	  |                         |                             |   node: … with 7
//	  |                         |                             | Acquire(7)
//
// A member announces an item by writing it into its own node, in one ZooKeeper
// transaction with a check of the plan's version. The announcement comes before the
// work, the withdrawal after it.
//
// # Why no item has two owners
//
// Let plan p name member N for an item. N has read p, then the members' nodes,
// finds the item in none of them, and announces it.
//
//   - A member that announced the item under an older plan did so before p was
//     written, because the check of the plan's version is in the same transaction.
//     N reads the nodes after p, so it sees that announcement.
//   - No other member announces the item under p, because p names N. If there is a
//     newer plan, N's own announcement either fails or precedes that plan, so that
//     the readers of that plan see it.
//   - A member that is not listed has lost its session. If it is unfenced it has
//     stopped before that: at two thirds of the session after the last request that
//     the ZooKeeper leader answered, by its own monotonic clock. [Worker.Release]
//     has the last third of the session to finish.
//
// This argument fails if a process is suspended for longer than the last third of
// its session and then continues. No coordinator can prevent that, but a fence can.
// With [Config.Fenced] Acquire raises an epoch in the database of the work, and
// every transaction of the work asserts that epoch. Then only the newest owner can
// change anything, whatever the members believe, and two rules change:
//
//   - a fenced member keeps working with its items during any outage of ZooKeeper;
//   - a new owner waits at most [Config.TakeoverAfter] for an old one that is
//     connected but does not release the item, counted from when it first saw the
//     request. Then it announces and acquires the item anyway.
//
// A worker that finds its epoch outdated calls [Assigner.Lost]. The member then
// no longer has the item. It announces the item again only if the plan, checked
// in the transaction, still names it. So a member that was suspended for a long
// time cannot raise an epoch under an old plan.
//
// # What goes wrong, and what happens
//
//	a member dies                its nodes end with its session; the leader plans
//	                             without it after RebalanceDelay
//	a member is cut off          unfenced: releases at 2/3 of the session; fenced: goes on
//	the servers are away         as above, for all members; nothing is planned; no restart
//	                             is needed. The first member that returns waits one
//	                             session for the others
//	ZooKeeper returns empty      sessions are abandoned after twice their timeout; the tree
//	                             is created again, the plan from the items that members have
//	the leader pauses            the next one leads; the late plan is refused
//	the plan is garbled, deleted all members keep their items; the leader writes a plan from
//	                             the items that members have
//	the strategy is garbled,     the leader restores the last one that it could read; a
//	deleted                      leader that never could read one plans nothing until it
//	                             is replaced
//	an environment is abandoned  its nodes are removed after a day without members
//	a member's node is deleted   it registers again (unfenced: after releasing everything)
//	a member's node is garbled   it may have any item, so others wait; the member writes it
//	                             again at the next reconcile
//	an answer is lost            nothing is assumed: the node is read again; every write
//	                             names the version that it replaces
//	a watch is lost              everything is read again every Reconcile
//
// The plan's version restarts if an operator deletes its node. Until all
// members have seen that, unfenced members rely on the order of events alone.
//
// # Reading the code
//
// The deciding code is pure and has no clock: [Rebalance] (rebalance.go), the
// restrictions of the strategy (strategy.go), when to plan (lead.go), and what
// to announce, acquire and release (lifecycle.go). member.go is the goroutine
// that feeds it; steps.go has its exchanges with the other members, through the
// interfaces of coordinator.go. For ZooKeeper these are tree.go and reading.go (the
// nodes), session.go (one session, bounded requests) and connections.go (its
// connections); environments.go removes abandoned environments, and access.go restricts
// the nodes to one user. For a registry (registry.go) it is rows.go. calls.go calls the
// worker. admin.go is the view from outside. follow.go moves from one place to another.
// local.go is the same without any server. Package loop has loops for programs that have
// none of their own.
package assign
