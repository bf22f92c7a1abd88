// Package client is the Go SDK of Perceptor: a [Client] stores tasks, and a
// [Listener] calls your handlers when their runs are due.
//
//	c, err := client.New(client.Config{Address: "localhost:7070", Token: token})
//	...
//	l, err := c.NewListener(client.ListenerConfig{})
//	...
//	client.Handle(l, "quality-check", func(ctx context.Context, run *client.Run, p Check) error {
//		return check(ctx, p.Content)
//	})
//	go l.Run(ctx)
//	...
//	id, err := c.AddTask(ctx, client.Task{
//		Kind: "quality-check", Type: client.Blocking,
//		Begin: time.Now().Add(time.Hour), Interval: time.Hour, MaxCount: 1000,
//		Params: client.MustParams(Check{Content: "post-42"}),
//	})
//
// docs/sdk.md is a tour. Package clienttest helps to test services that use
// this package.
//
// # What a handler may rely on
//
// Each run is delivered at least once. It is delivered again, with the same run
// id, after a failure, when no result arrives, or when a listener dies before
// it has reported the result. So a handler must tolerate being called twice for
// one run. Runs of one [Blocking] task never overlap, as long as their handlers
// return when their contexts end. Handlers of other tasks may run at the same
// time.
//
// A database that loses its last commits, in a fail-over or a restore, may lose the
// result of a run. The run is then claimed again under the same run id, and its handler
// is called again, also by a listener that remembers the result ([Events].Reopened).
// The listener asks the service about every such delivery before it skips it; table.go
// has the rules and the reasons.
//
// A handler that returns nil has succeeded. An error or a panic is a failure,
// which counts towards the task's maximum of attempts; the retry policy of the
// task decides what follows. A handler can choose otherwise by returning
// [Retry], [Snooze], [Permanent] or [Stop].
//
// # How a listener works
//
//	Kafka -> fetcher (per broker) -> delivery table -> hold -> queue -> start (BLOCKING)
//	                                      ^                                 |
//	      offsets <- settled or leased ---|------- result <------- handler (workers)
//
// A listener joins the consumer group of its tenant. A pure state machine, the
// delivery table (table.go), decides what happens to each record. All queues
// around it are bounded: when handlers or the service are slow, fetching pauses
// and the records stay in Kafka. Starts, results, heartbeats and hand-backs are
// sent in batches and repeated until they are answered. An offset is committed
// when its run is settled, or when a row in Postgres will cause another
// delivery; offsets below it must be done as well.
//
// Runs come up to half a second before they are due. The listener holds them until
// then, by what their records say of the database's clock (hold.go), so its own clock
// does not matter.
//
// A listener hands back a run whose kind has no handler here; the run is
// delivered again later. So listeners with different handlers can share a
// tenant during a rolling upgrade.
//
// A kind can have a concurrency limit, see [MaxConcurrent]. Some of its runs
// wait here for a slot for a short time. The others are snoozed and wait in
// Postgres (limit.go).
package client
