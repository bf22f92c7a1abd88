// Package clienttest helps to test services that use Perceptor, without one.
//
// [New] makes a client whose service is in this process: everything between a
// call and the store is real, so specs are judged by the real rules and answered
// with the real errors. Tasks are kept in memory and never fire. What was added
// can be asked for:
//
//	c := clienttest.New(t)
//	shop := NewShop(c)            // takes a client.Tasks, or a *client.Client
//	shop.Order(ctx, "ann")
//	want := []client.Task{{Kind: "remind", Type: client.OneShot, ...}}
//	if diff := cmp.Diff(want, c.Added("remind")); diff != "" { ... }
//
// [Run] calls a handler with a run, through its middleware, and returns what a
// listener would have reported; [RunKind] does so for the handler that a listener
// has for a kind, with all that was registered around it:
//
//	got := clienttest.Run(t, shop.Remind, &client.Run{Attempt: 2, Params: params})
//	if got.Status != client.Snoozed || got.After != time.Hour { ... }
//
// For whole schedules there is `taskd dev --virtual-clock`, which is the real
// thing at any speed.
package clienttest
