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
// docs/sdk.md is the tour; package clienttest is for the tests of who uses this.
//
// # What a handler may rely on
//
// Each run is delivered at least once. It may be delivered again, with the same
// run id: after a failure, after silence, or when a listener died before it could
// say that it was done. So a handler must be able to meet the same run twice.
// Runs of one [Blocking] task never overlap as long as their handlers return
// when their context ends; handlers of other tasks may run at the same time.
//
// A handler that returns nil has succeeded; an error or a panic is a failure,
// which spends one attempt of the run. The retry policy of the task says what
// follows, unless the error does: see [Retry], [Snooze], [Permanent] and [Stop].
//
// # How a listener works
//
//	Kafka -> reader per partition -> duplicate table -> queue -> start (BLOCKING)
//	                                      ^                         |
//	      offsets <- settled or leased ---|--- result <--- handler (workers)
//
// A listener joins the consumer group of its tenant. What becomes of a record is
// decided by one pure state machine, the duplicate table (table.go); around it
// are queues, all of them bounded: when handlers or the service are slow,
// fetching pauses and the records stay on Kafka. Starts, results, heartbeats and
// hand-backs travel in batches and are repeated until they are answered. An
// offset is committed when its run is settled, or is held by a row in Postgres,
// and never past one that is not.
//
// A run whose kind has no handler here is handed back and delivered again later,
// so that listeners with different handlers can share a tenant while a new
// version is being rolled out.
//
// A kind may have a limit of its own, [MaxConcurrent]. Its runs wait beside the
// others, but only some of them and not for long: the rest is snoozed, and waits in
// Postgres (limit.go).
package client
