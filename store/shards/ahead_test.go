package shards

import (
	"slices"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"

	"github.com/perceptor/perceptor/store/shards/kernel"
	"github.com/perceptor/perceptor/task"
)

const window = 500 * time.Millisecond

var bothForms = []task.ClaimForm{task.RangeForm, task.CappedForm}

// begin makes a task begin at an instant.
func begin(at task.Instant) func(*task.Spec) { return func(s *task.Spec) { s.Begin = at } }

func TestRowClaimedAheadIsLeftAsIfClaimedWhenDue(t *testing.T) {
	for _, form := range bothForms {
		for _, typ := range task.Types {
			var rows []task.Row
			var pubs []task.Publication
			for _, ahead := range []time.Duration{0, window} {
				b := setup(t)
				due := b.now.Add(window)
				id := b.add(b.spec(typ, begin(due)))[0]
				if ahead == 0 {
					b.setClock(due)
				}
				c := b.claimAhead(form, ahead)
				if len(c.Publications) != 1 || c.Missed != 0 {
					t.Fatalf("%s %s ahead: claim = %+v", typ, ahead, c)
				}
				row := b.rows()[kernel.KeyOf(b.tenant, id, 0)]
				if c.Next != row.DueAt {
					t.Errorf("%s %s ahead: next at %s, but the row is due at %s", typ, ahead, c.Next, row.DueAt)
				}
				rows, pubs = append(rows, *row), append(pubs, c.Publications[0])
			}
			names := cmpopts.IgnoreFields(task.Row{}, "ID", "Tenant")
			if diff := cmp.Diff(rows[0], rows[1], names); diff != "" {
				t.Errorf("%s row: in time -, ahead +\n%s", typ, diff)
			}
			if diff := cmp.Diff(pubs[0], pubs[1], cmpopts.IgnoreFields(task.Publication{}, "Task", "Tenant")); diff != "" {
				t.Errorf("%s publication: in time -, ahead +\n%s", typ, diff)
			}
		}
	}
}

func TestNothingBeyondTheWindowIsClaimed(t *testing.T) {
	for _, form := range bothForms {
		b := setup(t)
		b.add(b.spec(task.OneShot, begin(b.now.Add(window+1*time.Millisecond))), b.spec(task.NonBlocking, begin(b.now.Add(time.Hour))))
		if c := b.claimAhead(form, window); c.Rows != 0 {
			t.Errorf("%s: claim = %+v", form, c)
		}
	}
}

// TestDeadlinesAndRetriesAreTakenOnlyWhenTheyHaveCome: a result may still arrive
// for the attempt that is out.
func TestDeadlinesAndRetriesAreTakenOnlyWhenTheyHaveCome(t *testing.T) {
	for _, form := range bothForms {
		b := setup(t)
		soon := func(s *task.Spec) {
			s.AckTimeout, s.Retry = window, task.RetryPolicy{InitialBackoff: window, MaxAttempts: 3}
		}
		last := func(s *task.Spec) { soon(s); s.MaxCount = 1 }
		ids := b.add(b.spec(task.OneShot, soon), b.spec(task.Blocking, soon), b.spec(task.NonBlocking, last), b.spec(task.OneShot, soon))
		b.claim(form)
		b.report(failure(ids[3], 1, 1, 7))
		before := b.rows()
		for _, r := range before {
			if r.DueAt != b.now.Add(window) {
				t.Fatalf("row %s is due at %s", r.ID, r.DueAt)
			}
		}
		if c := b.claimAhead(form, window); c.Rows != 0 {
			t.Fatalf("%s: claimed before it was due: %+v", form, c)
		}
		if diff := cmp.Diff(before, b.rows(), cmp.AllowUnexported(kernel.Key{})); diff != "" {
			t.Fatalf("%s: %s", form, diff)
		}
		b.advance(window)
		if c := b.claimAhead(form, window); c.Rows != 4 || len(c.Publications) != 3 {
			t.Fatalf("%s: claim = %+v", form, c)
		}
	}
}

// TestCapIsNotSpentOnRowsThatAreNotDueYet: of a shard whose first rows are ack
// deadlines within the window, a capped claim takes what is scheduled after them.
func TestCapIsNotSpentOnRowsThatAreNotDueYet(t *testing.T) {
	b := setup(t)
	var specs []task.Spec
	for range 20 {
		specs = append(specs, b.spec(task.OneShot, func(s *task.Spec) { s.AckTimeout = window / 2 }))
	}
	specs = append(specs, b.spec(task.OneShot, begin(b.now.Add(window))))
	ids := b.add(specs...) // of one request, so of one shard
	b.claim(task.RangeForm)
	c, err := b.Claim(t.Context(), task.ClaimRequest{Database: b.d, Owned: b.owned, Form: task.CappedForm, Ahead: window, MaxRows: 5 * len(b.owned)})
	if err != nil || len(c.Publications) != 1 || c.Publications[0].Task != ids[20] || c.More {
		t.Fatalf("claim = %+v, %v", c, err)
	}
}

func TestGridIsTheSameWhetherClaimedAheadOrInTime(t *testing.T) {
	for _, form := range bothForms {
		b := setup(t)
		start := b.now
		id := b.add(b.spec(task.NonBlocking, func(s *task.Spec) { s.Interval = time.Second }))[0]
		var got []task.Instant
		for i := range 40 {
			c := b.claimAhead(form, []time.Duration{window, 0, 3 * window}[i%3])
			if c.Missed != 0 {
				t.Fatalf("%s: %d instants were missed at %s", form, c.Missed, b.now)
			}
			for _, p := range c.Publications {
				if p.Seq != int64(len(got)+1) {
					t.Fatalf("%s: run %d comes after %d runs", form, p.Seq, len(got))
				}
				got = append(got, p.ScheduledAt)
				b.report(success(id, p.Seq, 1, 7))
			}
			b.advance(window / 2)
		}
		if len(got) < 10 {
			t.Fatalf("%s: %d runs in 10 s", form, len(got))
		}
		for i, at := range got {
			if want := start.Add(time.Duration(i) * time.Second); at != want {
				t.Fatalf("%s: run %d was scheduled at %s, want %s", form, i+1, at, want)
			}
		}
	}
}

func TestIntervalShorterThanTheWindowIsClaimedAgainByTheNextClaim(t *testing.T) {
	for _, form := range bothForms {
		b := setup(t)
		due := b.now.Add(100 * time.Millisecond)
		b.add(b.spec(task.NonBlocking, begin(due), func(s *task.Spec) { s.Interval = 200 * time.Millisecond }))
		var got []task.Instant
		for range 4 {
			c := b.claimAhead(form, window)
			for _, p := range c.Publications {
				got = append(got, p.ScheduledAt)
			}
			if len(c.Publications) > 1 || c.Missed != 0 {
				t.Fatalf("%s: claim = %+v", form, c)
			}
			if n := due.Add(200 * time.Millisecond * time.Duration(len(got))); c.Rows > 0 && c.Next != n {
				t.Fatalf("%s: next at %s, want %s", form, c.Next, n)
			}
		}
		want := []task.Instant{due, due.Add(200 * time.Millisecond), due.Add(400 * time.Millisecond)}
		if !slices.Equal(got, want) {
			t.Fatalf("%s: claimed %v, want %v", form, got, want)
		}
	}
}

// TestMachineDecidesAheadOfTheClock: 64 runs are open, so the next one needs the
// state machine.
func TestMachineDecidesAheadOfTheClock(t *testing.T) {
	for _, form := range bothForms {
		b := setup(t)
		start := b.now
		id := b.add(b.spec(task.NonBlocking, func(s *task.Spec) { s.AckTimeout = 2 * time.Hour }))[0]
		for range 64 {
			b.claim(form)
			b.advance(time.Minute)
		}
		due := b.now
		b.advance(-window)
		c := b.claimAhead(form, window)
		if len(c.Publications) != 1 || c.Publications[0].ScheduledAt != due || c.Publications[0].ClaimedAt != due || c.Missed != 0 {
			t.Fatalf("%s: claim = %+v", form, c)
		}
		rows := b.rows()
		row, run := rows[kernel.KeyOf(b.tenant, id, 0)], rows[kernel.KeyOf(b.tenant, id, 1)]
		if row.DueAt != due.Add(time.Minute) || row.ScheduledAt != row.DueAt || row.Anchor != due || row.Seq != 65 {
			t.Fatalf("%s: row = %+v", form, row)
		}
		if run == nil || run.ScheduledAt != start || run.FirstClaimAt != start || run.DueAt != start.Add(run.AckTimeout) {
			t.Fatalf("%s: run 1 has the row %+v", form, run)
		}
		if c := b.claimAhead(form, window); c.Rows != 0 {
			t.Fatalf("%s: claimed again: %+v", form, c)
		}
	}
}

func TestBlockedTenantIsNeverPutOffToEarlier(t *testing.T) {
	for _, blockedFor := range []time.Duration{10 * time.Millisecond, 3 * time.Second} {
		b := setup(t)
		due := b.now.Add(window)
		id := b.add(b.spec(task.NonBlocking, begin(due)))[0]
		c, err := b.Claim(t.Context(), task.ClaimRequest{Database: b.d, Owned: b.owned, Form: task.RangeForm, Ahead: window,
			Blocked: []int32{b.tenant}, BlockedFor: []time.Duration{blockedFor}})
		if err != nil || c.Deferred != 1 || len(c.Publications) != 0 {
			t.Fatalf("claim = %+v, %v", c, err)
		}
		row := b.rows()[kernel.KeyOf(b.tenant, id, 0)]
		if want := max(due, b.now.Add(blockedFor)); row.DueAt != want || row.ScheduledAt != due || row.Seq != 0 {
			t.Fatalf("deferred by %s: row = %+v, want it due at %s", blockedFor, row, want)
		}
	}
}

// TestTriggeredRunOfABlockedTenantDoesNotWaitForItsAckTimeout: nobody has got the run yet.
func TestTriggeredRunOfABlockedTenantDoesNotWaitForItsAckTimeout(t *testing.T) {
	const blockedFor = 3 * time.Second
	for _, typ := range task.Types {
		b := setup(t)
		id := b.add(b.spec(typ, begin(b.now.Add(5*time.Minute)), func(s *task.Spec) { s.AckTimeout = time.Hour }))[0]
		seq, _, err := b.Trigger(t.Context(), b.tenant, id, "")
		if err != nil {
			t.Fatal(err)
		}
		c, err := b.Claim(t.Context(), task.ClaimRequest{Database: b.d, Owned: b.owned, Form: task.RangeForm, Blocked: []int32{b.tenant}, BlockedFor: []time.Duration{blockedFor}})
		if err != nil || c.Deferred != 1 || len(c.Publications) != 0 {
			t.Fatalf("%s: claim = %+v, %v", typ, c, err)
		}
		b.advance(blockedFor)
		if c := b.claim(task.RangeForm); len(c.Publications) != 1 || c.Publications[0].Seq != seq {
			t.Errorf("%s: the tenant is no longer blocked, and the claim of its triggered run is %+v", typ, c)
		}
	}
}

// TestRetryOfABlockedTenantWaitsAsLongAsItsTopicHasFailed has a run that failed and a run that was snoozed, and a silent one: there may be
// many of these, so they wait as if they had been delivered.
func TestRetryOfABlockedTenantWaitsAsLongAsItsTopicHasFailed(t *testing.T) {
	const other, soon, ackTimeout = int32(1), time.Second, 5 * time.Minute
	results := map[string]*task.Result{
		"failed": {Outcome: task.Fail, After: soon, Next: task.Never}, "snoozed": {Outcome: task.Snooze, After: soon, Next: task.Never}, "silent": nil,
	}
	for name, result := range results {
		for failing, retried := range map[time.Duration]time.Duration{
			20 * time.Second: 20 * time.Second, 2 * time.Minute: 2 * time.Minute, 10 * time.Minute: ackTimeout,
		} {
			b := setup(t)
			id := b.add(b.spec(task.OneShot, func(s *task.Spec) { s.AckTimeout = ackTimeout }))[0]
			if c := b.claim(task.RangeForm); len(c.Publications) != 1 {
				t.Fatalf("claim = %+v", c)
			}
			var want time.Duration
			if result != nil {
				b.report(task.Report{Attempt: attempt(id, 1, 1), Result: *result})
				b.advance(soon)
				want = retried
			} else {
				b.advance(ackTimeout)
				want = 2 * ackTimeout // the second silence is twice as long
			}
			c, err := b.Claim(t.Context(), task.ClaimRequest{Database: b.d, Owned: b.owned, Form: task.RangeForm,
				Blocked: []int32{other, b.tenant}, BlockedFor: []time.Duration{10 * time.Minute, failing}})
			if err != nil || c.Deferred != 1 {
				t.Fatalf("claim = %+v, %v", c, err)
			}
			if row := b.rows()[kernel.KeyOf(b.tenant, id, 0)]; row.DueAt != b.now.Add(want) {
				t.Errorf("%s, topic failing for %s: the run waits for %s, want %s", name, failing, row.DueAt.Sub(b.now), want)
			}
		}
	}
}

func TestResultAfterACancelBetweenClaimAndInstantIsAnsweredFinished(t *testing.T) {
	for _, typ := range task.Types {
		b := setup(t)
		id := b.add(b.spec(typ, begin(b.now.Add(window)), func(s *task.Spec) { s.Retention = time.Hour }))[0]
		b.claimAhead(task.RangeForm, window)
		if s, err := b.Cancel(t.Context(), b.tenant, id); err != nil || s.State != task.Cancelled {
			t.Fatalf("%s: cancel = %+v, %v", typ, s, err)
		}
		b.advance(window)
		if got := b.start(7, attempt(id, 1, 1)); typ == task.Blocking && got[0].Code != task.Finished {
			t.Errorf("%s: start = %+v", typ, got)
		}
		if got := b.report(success(id, 1, 1, 7)); got[0] != task.Finished {
			t.Errorf("%s: report = %v", typ, got)
		}
		if c := b.claimAhead(task.RangeForm, time.Hour); c.Rows != 0 {
			t.Errorf("%s: claimed after the cancel: %+v", typ, c)
		}
	}
}

func TestPauseBetweenClaimAndInstantLetsTheRunEnd(t *testing.T) {
	for _, typ := range []task.Type{task.NonBlocking, task.Blocking} {
		b := setup(t)
		due := b.now.Add(window)
		id := b.add(b.spec(typ, begin(due)))[0]
		b.claimAhead(task.RangeForm, window)
		if _, err := b.Pause(t.Context(), b.tenant, id); err != nil {
			t.Fatal(err)
		}
		b.setClock(due)
		if typ == task.Blocking {
			b.start(7, attempt(id, 1, 1))
		}
		if got := b.report(success(id, 1, 1, 7)); got[0] != task.Accepted {
			t.Fatalf("%s: report = %v", typ, got)
		}
		if c := b.claimAhead(task.RangeForm, time.Hour); c.Rows != 0 {
			t.Fatalf("%s: claimed while it is paused: %+v", typ, c)
		}
		if _, err := b.Resume(t.Context(), b.tenant, id); err != nil {
			t.Fatal(err)
		}
		c := b.claimAhead(task.RangeForm, time.Hour)
		if len(c.Publications) != 1 || c.Publications[0].ScheduledAt != due.Add(time.Minute) {
			t.Fatalf("%s: claim = %+v", typ, c)
		}
	}
}

func TestLeaseOfARunClaimedAheadCountsFromItsInstant(t *testing.T) {
	b := setup(t)
	due := b.now.Add(window)
	id := b.add(b.spec(task.Blocking, begin(due)))[0]
	b.claimAhead(task.RangeForm, window)
	b.setClock(due)
	if got := b.start(7, attempt(id, 1, 1)); got[0].Code != task.Accepted || got[0].Lease != time.Minute {
		t.Fatalf("start = %+v", got)
	}
	b.advance(time.Minute - time.Millisecond)
	if c := b.claimAhead(task.RangeForm, window); c.Rows != 0 {
		t.Fatalf("delivered again within the ack_timeout: %+v", c)
	}
	b.advance(time.Millisecond)
	if c := b.claimAhead(task.RangeForm, window); len(c.Publications) != 1 || c.Publications[0].Attempt != 2 {
		t.Fatalf("claim = %+v", c)
	}
}

func TestOutboxKnowsWhenRunsThatWereClaimedAheadAreScheduled(t *testing.T) {
	b := setup(t)
	due := b.now.Add(window)
	var specs []task.Spec
	for _, typ := range task.Types {
		specs = append(specs, b.spec(typ, begin(due)))
	}
	b.add(specs...)
	b.claimAhead(task.RangeForm, window)
	b.acquire()
	batches, _, err := b.Unpublished(t.Context(), b.d, b.owned, 0, 1_000_000)
	if err != nil || len(batches) != 1 || len(batches[0].Publications) != 3 {
		t.Fatalf("outbox = %+v, %v", batches, err)
	}
	for _, p := range batches[0].Publications {
		if p.ScheduledAt != due || p.Seq != 1 || p.Attempt != 1 {
			t.Errorf("%s comes back as %+v", p.Type, p)
		}
	}
}

// TestHistoryAndCountersTellOfAClaimAhead: the event has the clock of the claim,
// and the instant that the run is for.
func TestHistoryAndCountersTellOfAClaimAhead(t *testing.T) {
	b := setup(t, withHistory(task.HistoryAll))
	due := b.now.Add(window)
	ids := b.add(b.spec(task.OneShot, begin(due)), b.spec(task.NonBlocking, begin(due)))
	b.claimAhead(task.RangeForm, window)
	for _, id := range ids {
		list, err := b.History(t.Context(), b.tenant, id, task.NewestEvent, 10)
		if err != nil || len(list) != 1 || list[0].Event != task.EventClaimed || list[0].At != b.now || list[0].ScheduledAt != due {
			t.Errorf("history = %+v, %v", list, err)
		}
	}
	if diff := cmp.Diff(task.Counts{Added: 2, Scheduled: 1, Running: 1}, b.counts()); diff != "" {
		t.Error(diff)
	}
	b.recounted()
}
