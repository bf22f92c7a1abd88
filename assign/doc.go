// Package assign shares work that is divided into items between the members
// of a cluster: each item has one owner, members may come, go, hang and die at
// any time, and what they leave behind is taken over. It serves any program
// with partitioned work; it knows nothing of what an item stands for.
//
// A program gives the items and a [Worker], and runs an [Assigner]:
// [ZooKeeper], for a cluster, or [Local], for a single process.
//
// # The protocol
//
// Members meet in one ZooKeeper subtree. (The environment, BASE if not named,
// keeps clusters that share a root apart.)
//
//	ROOT/format                     "assign 1"; another format is refused
//	ROOT/env/ENV/strategy           who may own what          written by an Admin
//	ROOT/env/ENV/plan               who should own what, why  written by the leader
//	                                an item has no owner,
//	                                the last rebalancings
//	ROOT/env/ENV/members/m-ID-SEQ   who a member is, what it  written by that member
//	                                holds, its heartbeat and
//	                                figures; ephemeral
//	ROOT/env/ENV/leaving/ID         "plan without me";        written by that member
//	                                ephemeral
//	ROOT/env/ENV/idle               nobody has been here      written by leaders of
//	                                since it was made         other environments
//
// ID is random for each [Assigner], so two members may have one name, and a
// program that starts again is somebody else. It survives the session: a
// member whose session has expired registers again under the same ID and a new
// number. SEQ is ZooKeeper's sequence number. The member with the lowest one
// that is not leaving leads.
//
// The leader keeps the plan (item to requested owner) in line with the members
// by [Rebalance]: loads differ by at most one, and no fewer items could move. It
// does so within the [Strategy] that an [Admin] has stored: which members may
// have items, how many of one host and in all, how many items each, who is
// drained, which items are pinned to whom, what is paused. An item that is
// paused is owned by nobody: its owner releases it as if it moved, and whoever
// the plan names later acquires it. What has no owner is listed in the plan with
// the [Reason]. Members that may not have items stand by; they may still lead.
// It waits a moment ([Config.Settle]) for members that vanished to come back and
// for others to join, but not for those that say goodbye. It writes the plan
// only over the version that it has read, so the late write of a leader that
// was paused, and is none any more, fails.
//
// Current and requested owner are two things: an item moves in steps.
//
//	leader                   old owner                     new owner
//	  | plan: 7 -> new          |                             |
//	  |------------------------>|---------------------------->|
//	  |                         | Release(7)                  | reads the members:
//	  |                         | … ends its batch            | old holds 7: watch it
//	  |                         | node: holds … without 7     |
//	  |                         |---------------------------->| nobody holds 7
//	  |                         |                             | IF plan unchanged:
//	  |                         |                             |   node: holds … 7
//	  |                         |                             | Acquire(7)
//
// The announcement ("node: holds … 7") is one ZooKeeper transaction with a check
// of the plan's version, and comes before the work; the withdrawal comes after
// it.
//
// # Why no item has two owners
//
// Say a plan p names member N for an item, and N, which has read p and then the
// members' nodes, finds nobody holding it and announces it.
//
//   - Somebody who announced it under an older plan did so before p was written,
//     since the check of the plan's version is in the same transaction. N reads
//     the nodes after p, so it sees that announcement.
//   - Nobody else announces it under p, which names N; and under a newer plan N's
//     own announcement fails, or is there before that plan is, to be seen.
//   - A member that is not listed has lost its session. If it is unfenced it has
//     stopped before: at two thirds of the session after the last request that
//     the leading server has answered, on its own monotonic clock. The last
//     third is the time that [Worker.Release] has then.
//
// That chain breaks if a process is suspended for longer than the last third
// of its session, and goes on where it was; no coordinator can mend this. A fence
// can: [Config.Fenced] says that Acquire raises an epoch, in the database that the
// work is done in, that every transaction of the work asserts. Then the newest
// owner is the only effective one whatever anybody believes, and two rules
// change:
//
//   - a fenced member goes on through any outage of ZooKeeper, with what it has;
//   - a new owner waits for an old one that is alive but stuck only for
//     [Config.TakeoverAfter], counted from when it first saw the request; then it
//     announces and acquires all the same.
//
// A worker that finds its epoch overtaken says so with [Assigner.Lost]. The item
// is dropped, and announced again only if the plan, checked in the transaction,
// names this member: a member that comes back from the dead raises no epoch by
// an old plan.
//
// # What goes wrong, and what happens
//
//	a member dies                its nodes go with its session; planned out after Settle
//	a member is cut off          unfenced: releases at 2/3 of the session; fenced: goes on
//	ZooKeeper is away            as above, for all; nothing is planned; no restart needed.
//	                             Who comes back first waits a session for the others
//	ZooKeeper returns empty      sessions are given up after twice their time; the tree is
//	                             made again, the plan from what members hold
//	the leader pauses            the next one leads; the late plan is refused
//	the plan is garbled, deleted everybody keeps what it has; the leader replaces it by
//	                             what members hold
//	the strategy is so           the leader puts back the last one that it could read; a
//	                             leader that never could plans nothing until it is replaced
//	an environment is left       after a day without members its nodes are removed
//	a member's node is deleted   it registers again (unfenced: after releasing everything)
//	a member's node is garbled   it may hold anything: others wait; it is written again at
//	                             the next reconcile
//	an answer is lost            nothing is assumed: the node is read again; every write
//	                             names the version that it replaces
//	a watch is lost              everything is read again every Reconcile
//
// The plan's version starts again when somebody deletes its node by hand; for
// the moment until all members have seen that, unfenced ones rely on the order
// of events alone.
//
// # Reading the code
//
// What decides is pure, and has no clock: [Rebalance] (rebalance.go), what the
// strategy makes of it (strategy.go), when to plan (lead.go), and what to
// announce, acquire and release (holding.go). member.go is the goroutine that
// feeds them; steps.go is what it does in ZooKeeper, by tree.go and reading.go (the
// nodes), session.go (one session, bounded requests) and wires.go (its
// connections). environments.go clears what was left behind. calls.go calls the
// worker. admin.go looks from outside. local.go is all of this without
// ZooKeeper. Package work has loops for programs that have none of their own.
package assign
