// Package virtualtest runs the real stack on a virtual clock, for tests: PostgreSQL,
// Kafka, assignment, dispatchers and the API as in production, the last two in the
// test's process. A month passes in about a second, each run fires at its own
// instant, and nothing depends on how fast the machine is.
//
//	func TestMain(m *testing.M) { testenv.Main(m) }
//
//	func TestHourly(t *testing.T) {
//		s := virtualtest.Start(t, virtualtest.Options{})
//		tenant := s.Tenant(t)              // nobody else's: tests may share a stack
//		runs := tenant.Record(t, "hello")  // listens, and notes each run
//		tenant.Add(t, client.Task{Kind: "hello", Type: client.NonBlocking, Begin: s.Now(t).Add(time.Hour), Interval: time.Hour})
//		s.Advance(t, 3*24*time.Hour)
//		got := runs.All() // 72, each with ScheduledAt, and At: when its handler was called
//	}
//
// The clock begins at [Epoch] and stands still but for [Stack.Advance], which goes
// from one due instant to the next and waits at each until all runs have their
// result. [Stack.Jump] goes there at once, as after an outage. Package
// virtualclock has the rules.
//
// One stack serves many tests: [Start] one in each, or [New] one in TestMain. They
// share its clock, so tests with one stack do not run in parallel; the tasks of a
// tenant that [Stack.Tenant] has made are cancelled when its test ends.
package virtualtest
