// Package clienttest helps to test services that use Perceptor without an
// installation.
//
// [New] returns a client whose service runs in this process. Everything between a
// call and the store is real, so requests are validated by the real rules and get
// the real errors. The service keeps tasks in memory and never fires them. A test
// reads what was added:
//
//	c := clienttest.New(t)
//	shop := NewShop(c)            // takes a client.Tasks, or a *client.Client
//	shop.Order(ctx, "ann")
//	want := []client.Task{{Kind: "remind", Type: client.OneShot, ...}}
//	if diff := cmp.Diff(want, c.Added("remind")); diff != "" { ... }
//
// [Run] calls a handler, with middleware, and returns the outcome that a
// listener would report. [RunKind] does so for a handler that is registered at
// a listener, with all its middleware and options:
//
//	got := clienttest.Run(t, shop.Remind, &client.Run{Attempt: 2, Params: params})
//	if got.Status != client.Snoozed || got.After != time.Hour { ... }
//
// To test whole schedules, use `taskd dev --virtual-clock`: the real service
// with a clock that tests can move.
package clienttest
