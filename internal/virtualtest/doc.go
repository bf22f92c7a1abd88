// Package virtualtest runs the real stack on a virtual clock for tests: PostgreSQL,
// Kafka, the assignment, dispatchers and the API, as in production. Dispatchers and
// the API run in the test's process. A month passes in about a second, each run fires
// at its own instant, and results do not depend on the speed of the machine.
//
//	func TestMain(m *testing.M) { testenv.Main(m) }
//
//	func TestHourly(t *testing.T) {
//		s := virtualtest.Start(t, virtualtest.Options{})
//		tenant := s.Tenant(t)              // of this test alone: tests may share a stack
//		runs := tenant.Record(t, "hello")  // listens, and records each run
//		tenant.Add(t, client.Task{Kind: "hello", Type: client.NonBlocking, Begin: s.Now(t).Add(time.Hour), Interval: time.Hour})
//		s.Advance(t, 3*24*time.Hour)
//		got := runs.All() // 72 runs, each with ScheduledAt, and At, the time of the handler's call
//	}
//
// The clock starts at [Epoch] and moves only when a test moves it. [Stack.Advance]
// moves it from one due instant to the next and waits at each until all runs have
// their results. [Stack.Jump] moves it in one step, as after an outage. Package
// virtualclock describes the rules.
//
// A test can run a stack of its own with [Start], or several tests can share one of
// [New] or [Open]. Tests that share a stack share its clock, so they must not run in
// parallel. When a test ends, the tasks of its tenants ([Stack.Tenant]) are cancelled.
package virtualtest
