// Package assign puts load on the sharing of items, disturbs it, checks it from
// outside and measures it: members are processes of their own, which share items
// over an ensemble of ZooKeepers, each through a proxy, and work for them in
// Postgres with epochs as dispatchers do.
//
//	this process: proxies, disturbances, checker, measurements
//	   |                                     |
//	   | SIGSTOP, kill -9, cut, freeze       | reads: plan, members; epochs, work done
//	   v                                     v
//	member ── proxy ── ZooKeeper x 3      Postgres: item_owner (epoch, nonce)
//	   └───────────────────────────────────>        item_work (epoch of the last work)
//
// # What the checker holds against the members
//
//   - One effective owner: work is never done by an epoch that has been raised,
//     or is older than one that has worked for the item. Every transaction of a
//     member asserts epochs and then, a moment later, works; it notes in the row
//     itself if somebody newer was there before.
//   - Epochs only grow, and so do the generations of plans.
//   - No item is idle for longer than a stated bound, and once disturbances end
//     every item has one owner within another bound, by ZooKeeper's account and
//     by Postgres's, loads differing by at most one.
//   - One more member moves at most ceil(items / members) items.
//
// The disturbances come from a seed; see [Storm].
package assign
