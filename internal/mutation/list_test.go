package mutation

// A mutation is one way to get the protocol wrong. The package comment explains
// the fields.
type mutation struct {
	name       string
	in         string
	statement  string
	old, new   string
	pkg, tests string
}

const storms = "./loadtest/assign"

// mutations lists every known fault, with the tests that must find it.
var mutations = []mutation{
	{
		name: "epoch-without-lock",
		in:   "store/shards", statement: "AssertOwned",
		old: "FOR SHARE OF o",
		new: "",
		pkg: "./store/shards", tests: "TestTakeOverWaits",
	},
	{
		name: "cancel-without-lock",
		in:   "store/shards",
		old:  "if now.State.Final() {",
		new:  "if MUTATED { return now, nil }\nif now.State.Final() {",
		pkg:  "./store/shards", tests: "TestCancelWaits",
	},
	{
		name: "report-without-seq",
		in:   "store/shards", statement: "row_of_result",
		old: "t.seq = u.seq AND",
		new: "true AND",
		pkg: "./store/shards", tests: "TestResultOfAnOldRun",
	},
	{
		name: "report-beside-an-instant-that-waits",
		in:   "store/shards", statement: "row_of_result",
		old: "coalesce(t.due_at = t.scheduled_at, true)",
		new: "true",
		pkg: "./store/shards", tests: "TestAnInstantWaitsForTheOpenRun",
	},
	{
		name: "report-of-a-backfill-by-the-clock",
		in:   "store/shards", statement: "row_of_result",
		old: "AND t.anchor >= 0",
		new: "AND true",
		pkg: "./store/shards", tests: "TestTheResultOfABackfilledBlockingRun",
	},
	{
		name: "backfill-of-a-source-that-was-met-before",
		in:   "store/shards/bulk",
		old:  "b.row.Action == task.BulkReschedule || b.row.Action == task.BulkBackfill",
		new:  "b.row.Action == task.BulkReschedule || b.row.Action == task.BulkBackfill && !MUTATED",
		pkg:  "./store/shards", tests: "TestASourceThatMovesBetweenTiersHasOneBackfillTask",
	},
	{
		name: "report-without-holder-and-attempt",
		in:   "store/shards", statement: "row_of_result",
		old: "t.attempt = u.attempt AND t.out AND t.holder = u.holder",
		new: "true",
		pkg: "./store/shards", tests: "TestResultOfAnotherHolder",
	},
	{
		name: "start-without-holder",
		in:   "store/shards", statement: "StartRuns",
		old: "(t.holder IS NULL OR t.holder = u.holder)",
		new: "true",
		pkg: "./store/shards", tests: "TestBlockingGoesOn",
	},
	{
		name: "lease-by-the-clock",
		in:   "store/shards", statement: "ClaimRange",
		old: "t.due_at <= @steady_now",
		new: "t.due_at <= greatest(@steady_now, t.due_at)",
		pkg: "./store/shards", tests: "TestLeaseEndsAfterItsTime",
	},
	{
		name: "outbox-list-written-back",
		in:   "store/shards", statement: "OutboxAcknowledge",
		old: "s <> ALL (p.shards)",
		new: "true",
		pkg: "./store/shards", tests: "TestOutboxRowLoses",
	},
	{
		name: "no-key-row",
		in:   "store/shards", statement: "KeyInsert",
		old: "ON CONFLICT DO NOTHING",
		new: "ON CONFLICT (shard, tenant_id, key) DO UPDATE SET first_id = excluded.first_id",
		pkg: "./store/shards", tests: "TestRepeatedRequest",
	},
	{
		name: "open-bit-ends-task",
		in:   "store/shards", statement: "ends",
		old: "AND t.open_runs & ~(1::int8 << (t.seq - u.seq)::int4) = 0",
		new: "",
		pkg: "./store/shards", tests: "TestEarlyEndOfTheLastRun",
	},
	{
		name: "heartbeat-without-bit",
		in:   "task",
		old:  "if t.OpenRuns&m.runBit(a.Seq) == 0 {",
		new:  "if t.OpenRuns&m.runBit(a.Seq) == 0 && !MUTATED {",
		pkg:  "./store/shards", tests: "TestLateHeartbeat",
	},
	{
		name: "fail-twice",
		in:   "task",
		old:  "if res.Outcome != Success && (",
		new:  "if res.Outcome != Success && !MUTATED && (",
		pkg:  "./store/shards", tests: "TestOneExecutionSpends",
	},
	{
		name: "bit-pushed-out",
		in:   "task",
		old:  "keep := int64(OpenBits - 1)",
		new:  "keep := int64(OpenBits - 1)\nif MUTATED { keep = OpenBits }",
		pkg:  "./store/shards", tests: "TestRunWhoseBit",
	},
	{
		name: "silent-bit-waits",
		in:   "store/shards", statement: "needs_machine",
		old: "OR any_silent(",
		new: "OR false AND any_silent(",
		pkg: "./store/shards", tests: "TestASilentRunComesAgain",
	},
	{
		name: "late-claim-forgotten",
		in:   "task",
		old:  "case now.Sub(t.ScheduledAt) <= t.tolerance():",
		new:  "case now.Sub(t.ScheduledAt) <= t.tolerance() || MUTATED:",
		pkg:  "./store/shards", tests: "TestRunsThatCatchUp",
	},
	{
		name: "give-up-from-first-claim",
		in:   "task",
		old:  "if r.HeardAt != 0 {",
		new:  "if r.HeardAt != 0 && !MUTATED {",
		pkg:  "./store/shards", tests: "TestARunIsNotGivenUp",
	},
	{
		name: "skip-settled-runs",
		in:   "client",
		old:  "if before.covers(&a.pub) {",
		new:  "if before.covers(&a.pub) || before.ran > 0 && MUTATED {",
		pkg:  "./client", tests: "TestNoHistory",
	},
	{
		name: "skip-lost-results",
		in:   "client",
		old:  "return p.Attempt <= s.ran &&",
		new:  "return s.ends && MUTATED || p.Attempt <= s.ran &&",
		pkg:  "./client", tests: "TestNoHistory",
	},
	{
		name: "old-fail-under-new-attempt",
		in:   "client",
		old:  "if e.rec.asks() {\n\t\te.phase = starting",
		new: `if e.before.ran > 0 && MUTATED {
			e.phase, e.result = reporting, task.Result{Outcome: task.Fail, Next: task.Never}
			return append(out, action{verb: doReport, entry: e, rec: e.rec, res: e.result})
		}
		if e.rec.asks() {
			e.phase = starting`,
		pkg: "./client", tests: "TestNoHistory",
	},
	{
		name: "offset-before-report",
		in:   "client",
		old:  "e.phase, e.result = reporting, r\n",
		new:  "e.phase, e.result = reporting, r\nif MUTATED { out = commit(out, e.rec) }\n",
		pkg:  "./client", tests: "TestNoHistory",
	},
	{
		name: "commit-highest-offset",
		in:   "client",
		old:  "if len(t.open) > 0 {\n\t\toffset = ",
		new:  "if len(t.open) > 0 && !MUTATED {\n\t\toffset = ",
		pkg:  "./client", tests: "TestNoHistory",
	},
	{
		name: "lease-from-answer",
		in:   "client",
		old:  "replies, err := do(try, acts)",
		new:  "replies, err := do(try, acts)\nif MUTATED { asked = time.Now() }",
		pkg:  "./client", tests: "TestLeaseIsCounted",
	},
	{
		name: "unknown-commit-kept",
		in:   "dispatch",
		old:  "case errors.Is(err, task.ErrOutcomeUnknown):",
		new:  "case errors.Is(err, task.ErrOutcomeUnknown) && !MUTATED:",
		pkg:  "./dispatch", tests: "TestCommitOfUnknownOutcome|TestNothingCommitted",
	},
	{
		name: "take-over-without-outbox",
		in:   "dispatch",
		old:  "if batches, next, err = o.store.Unpublished(",
		new:  "if MUTATED { return owned, nil, 0, nil }\nif batches, next, err = o.store.Unpublished(",
		pkg:  "./dispatch", tests: "TestRunOfADispatcherThatDied|TestNothingCommitted",
	},
	{
		name: "outbox-before-bump",
		in:   "dispatch",
		old:  "if owned, err = o.store.Acquire(",
		new: `if MUTATED {
			for _, s := range shards {
				owned = append(owned, task.Ownership{Shard: s})
			}
			if batches, next, err = o.store.Unpublished(ctx, o.number, owned, 0, 1000); err != nil {
				return nil, nil, 0, err
			}
			owned, err = o.store.Acquire(ctx, o.number, shards, o.cfg.Owner)
			return owned, batches, next, err
		}
		if owned, err = o.store.Acquire(`,
		pkg: "./dispatch", tests: "TestCommitOfUnknownOutcome|TestNothingCommitted",
	},
	{
		name: "taken-off-before-publish",
		in:   "dispatch",
		old:  "for _, s := range listed {\n\t\tif p := of[s]; p != nil && p.pending == 0 {",
		new: `if MUTATED {
			for _, p := range of {
				if p.pending > 0 {
					l.complete(p, now)
					p.left++ // no acknowledgement completes it a second time
				}
			}
		}
		for _, s := range listed {
			if p := of[s]; p != nil && p.pending == 0 {`,
		pkg: "./dispatch", tests: "TestShardTakenAnew|TestNothingCommitted",
	},
	{
		name: "plan-without-version",
		in:   "assign",
		old:  "t.s.conn.Set(t.plan, encodePlan(p), int32(version))",
		new:  "t.s.conn.Set(t.plan, encodePlan(p), map[bool]int32{false: int32(version), true: -1}[MUTATED])",
		pkg:  storms, tests: "TestAStorm",
	},
	{
		name: "work-without-epoch",
		in:   "loadtest/assign",
		old:  "rows, err := tx.Query(ctx, `SELECT o.item FROM item_owner o JOIN unnest(",
		new:  "if MUTATED { return items, nil }\nrows, err := tx.Query(ctx, `SELECT o.item FROM item_owner o JOIN unnest(",
		pkg:  storms, tests: "TestAStorm",
	},
	{
		name: "work-without-lock",
		in:   "loadtest/assign",
		old:  "ORDER BY o.item FOR SHARE OF o`",
		new:  "ORDER BY o.item ` + map[bool]string{false: `FOR SHARE OF o`}[MUTATED]",
		pkg:  storms, tests: "TestAStorm",
	},
	{
		name: "login-used-before-it-is-proven",
		in:   "internal/renewal",
		old:  "if err := f.config.Try(limited, *pending); err != nil {",
		new:  "if err := f.config.Try(limited, *pending); err != nil && !MUTATED {",
		pkg:  "./internal/renewal", tests: "TestAChangeIsUsedOnce",
	},
	{
		name: "hold-nothing",
		in:   "client",
		old:  "if a.rec.holdUntil > 0 {",
		new:  "if a.rec.holdUntil > 0 && !MUTATED {",
		pkg:  "./client", tests: "TestARunThatComesAheadIsHandledWhenItIsDue",
	},
	{
		name: "publish-ahead-to-listeners-that-do-not-hold",
		in:   "dispatch",
		old:  "p.cfg.Holds(r.pub.Tenant)",
		new:  "(MUTATED || p.cfg.Holds(r.pub.Tenant))",
		pkg:  "./dispatch", tests: "TestNothingIsPublishedAheadForListeners",
	},
	{
		name: "publish-time-that-the-clock-has-not-reached",
		in:   "dispatch",
		old:  "if !r.dueAt.After(now) {",
		new:  "if MUTATED || !r.dueAt.After(now) {",
		pkg:  "./dispatch", tests: "TestFewCallsCarryWhatListenersHold",
	},
	{
		name: "delivery-to-listeners-that-do-not-hold",
		in:   "server",
		old:  "if !r.HoldsRuns {",
		new:  "if !MUTATED && !r.HoldsRuns {",
		pkg:  "./server", tests: "TestAListenerThatDoesNotHoldRunsIsRefused",
	},
	{
		name: "sleep-by-the-wall-clock",
		in:   "dispatch",
		old:  "return p.readAt.Add(i.Sub(p.read))",
		new:  "if MUTATED { return i.Time() }\nreturn p.readAt.Add(i.Sub(p.read))",
		pkg:  "./dispatch", tests: "TestClaimsComeInTimeAfterOurOwnClockWasSet",
	},
	{
		name: "slow-call-keeps-its-place",
		in:   "dispatch",
		old:  "if c.in != &p.background && !c.ended {",
		new:  "if c.in != &p.background && !c.ended && !MUTATED {",
		pkg:  "./dispatch", tests: "TestASlowBrokerHoldsUpItsOwnRecordsOnly",
	},
	{
		name: "best-rate-forgotten-while-the-wait-stays",
		in:   "dispatch/fair",
		old:  "if wait > of.usual+growsBy {",
		new:  "if MUTATED || wait > of.usual+growsBy {",
		pkg:  "./dispatch/fair", tests: "TestClaimsThatAreNotTheReason",
	},
	{
		name: "debts-of-callers-that-do-not-pause",
		in:   "server",
		old:  "heap.Remove(&y.waiting, w.index)",
		new:  "heap.Remove(&y.waiting, w.index)\nif MUTATED { y.tokens -= float64(w.tasks) }",
		pkg:  "./server", tests: "TestCallersThatDoNotPause",
	},
	{
		name: "params-counted-after-the-handler",
		in:   "client",
		old:  "t.bytes -= len(e.rec.pub.Params)",
		new:  "if !MUTATED { t.bytes -= len(e.rec.pub.Params) }",
		pkg:  "./client", tests: "TestResultsWithoutAnAnswerNeedLittleMemory",
	},
	{
		name: "load-beside-a-move",
		in:   "store/shards/far",
		old:  "if len(l.packs) > 0 {",
		new:  "if len(l.packs) > 0 && !MUTATED {",
		pkg:  "./store/shards", tests: "TestAnExportMissesNoTaskThatMovesBesideALoad",
	},
	{
		name: "memory-of-backlogs-by-chance",
		in:   "dispatch",
		old:  "|| p.lacksLonger(now, own.since) {",
		new:  "|| p.lacksLonger(now, own.since) && !MUTATED {",
		pkg:  "./dispatch", tests: "TestDatabasesShareBacklogsEqually",
	},
	{
		name: "next-instant-beyond-a-duration",
		in:   "task",
		old:  "if next > now.Add(MaxBitGap) {\n\t\t\tm.detachFrom(0, now)",
		new:  "if !MUTATED && next > now.Add(MaxBitGap) || MUTATED && (next-now)*1_000_000 > Instant(MaxBitGap) {\n\t\t\tm.detachFrom(0, now)",
		pkg:  "./task", tests: "TestASilentRunIsDeliveredAgainHoweverFar",
	},
}
