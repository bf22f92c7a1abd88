package shards

import (
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/perceptor/perceptor/store/pack"
	"github.com/perceptor/perceptor/store/shards/kernel"
	"github.com/perceptor/perceptor/task"
)

// why returns the reasons of a task.
func (b *bundle) why(id task.ID) []task.Why {
	b.t.Helper()
	e, err := b.Explain(b.t.Context(), b.tenant, id, 3)
	if err != nil {
		b.t.Fatal(err)
	}
	var out []task.Why
	for _, r := range e.Reasons {
		if r.Text == "" {
			b.t.Errorf("reason %d has no text", r.Why)
		}
		out = append(out, r.Why)
	}
	return out
}

func TestExplainNamesWhatHoldsATaskBack(t *testing.T) {
	for name, tc := range map[string]struct {
		make func(b *bundle) task.ID
		want []task.Why
	}{
		"unknown": {func(*bundle) task.ID { return 512 }, []task.Why{task.WhyUnknown}},
		"finished": {func(b *bundle) task.ID {
			id := b.add(b.spec(task.OneShot, func(s *task.Spec) { s.Retention = time.Hour }))[0]
			b.claim(task.RangeForm)
			b.report(success(id, 1, 1, 7))
			return id
		}, []task.Why{task.WhyFinished}},
		"not due": {func(b *bundle) task.ID { return b.add(b.spec(task.OneShot, b.inHours(1)))[0] }, []task.Why{task.WhyNotDue}},
		"far": {func(b *bundle) task.ID {
			id := b.add(b.spec(task.OneShot, b.inHours(3)))[0]
			b.put(inPack, pack.Hour, id)
			return id
		}, []task.Why{task.WhyNotDue, task.WhyFar}},
		"paused": {func(b *bundle) task.ID {
			id := b.add(b.spec(task.Blocking))[0]
			if _, err := b.Pause(b.t.Context(), b.tenant, id); err != nil {
				b.t.Fatal(err)
			}
			return id
		}, []task.Why{task.WhyPaused}},
		"waits for a result": {func(b *bundle) task.ID {
			id := b.add(b.spec(task.Blocking))[0]
			b.claim(task.RangeForm)
			b.start(7, attempt(id, 1, 1))
			return id
		}, []task.Why{task.WhyWaitingForResult}},
		"retries": {func(b *bundle) task.ID {
			id := b.add(b.spec(task.OneShot))[0]
			b.claim(task.RangeForm)
			b.report(failure(id, 1, 1, 7))
			return id
		}, []task.Why{task.WhyRetrying}},
		"silent": {func(b *bundle) task.ID {
			id := b.add(b.spec(task.OneShot))[0]
			b.claim(task.RangeForm)
			b.advance(time.Minute)
			b.claim(task.RangeForm)
			return id
		}, []task.Why{task.WhySilent}},
		"last runs open": {func(b *bundle) task.ID {
			id := b.add(b.spec(task.NonBlocking, func(s *task.Spec) { s.MaxCount = 1 }))[0]
			b.claim(task.RangeForm)
			return id
		}, []task.Why{task.WhyLastRunsOpen, task.WhyWaitingForResult}},
		"overdue": {func(b *bundle) task.ID {
			id := b.add(b.spec(task.OneShot))[0]
			b.advance(time.Minute)
			return id
		}, []task.Why{task.WhyOverdue}},
		"without an owner": {func(b *bundle) task.ID {
			id := b.add(b.spec(task.OneShot))[0]
			b.exec(`UPDATE owner SET name = ''`)
			b.advance(time.Minute)
			return id
		}, []task.Why{task.WhyNoOwner, task.WhyOverdue}},
		"topic broken": {func(b *bundle) task.ID {
			id := b.add(b.spec(task.OneShot))[0]
			_, err := b.Claim(b.t.Context(), task.ClaimRequest{Database: b.d, Owned: b.owned, Form: task.RangeForm, MaxRows: 100,
				Blocked: []int32{b.tenant}, BlockedFor: []time.Duration{10 * time.Second}})
			if err != nil {
				b.t.Fatal(err)
			}
			return id
		}, []task.Why{task.WhyTopicBroken}},
		"snoozed": {func(b *bundle) task.ID {
			id := b.add(b.spec(task.OneShot))[0]
			b.claim(task.RangeForm)
			b.report(task.Report{Attempt: attempt(id, 1, 1), Holder: 7, Result: task.Result{Outcome: task.Snooze, After: time.Minute, Next: task.Never}})
			return id
		}, []task.Why{task.WhyRetrying}},
		"handed back": {func(b *bundle) task.ID {
			id := b.add(b.spec(task.OneShot))[0]
			b.claim(task.RangeForm)
			b.handBack(7, attempt(id, 1, 1))
			return id
		}, []task.Why{task.WhyRetrying}},
		"catches up": {func(b *bundle) task.ID {
			id := b.add(b.spec(task.NonBlocking, func(s *task.Spec) {
				s.Interval, s.Begin, s.Misfire, s.CatchUp = time.Minute, b.now, task.FireAll, 1000
			}))[0]
			b.advance(10 * time.Minute)
			b.claim(task.RangeForm)
			return id
		}, []task.Why{task.WhyNotDue, task.WhyWaitingForResult}},
		"over the rate": {func(b *bundle) task.ID {
			b.limit(`{"dispatch_rate": 10}`)
			id := b.dueOfKind()
			if _, err := b.TakeTokens(b.t.Context(), task.HomeOf(b.tenant), []task.TokenRequest{{Tenant: b.tenant, Want: 10}}); err != nil {
				b.t.Fatal(err)
			}
			return id
		}, []task.Why{task.WhyOverRate, task.WhyOverdue}},
		"within the rate": {func(b *bundle) task.ID {
			b.limit(`{"dispatch_rate": 10}`)
			id := b.dueOfKind()
			if _, err := b.TakeTokens(b.t.Context(), task.HomeOf(b.tenant), []task.TokenRequest{{Tenant: b.tenant, Want: 1}}); err != nil {
				b.t.Fatal(err)
			}
			return id
		}, []task.Why{task.WhyOverdue}},
		"its kind is full": {func(b *bundle) task.ID {
			b.limit(`{"kind_caps": {"k": 2}}`)
			b.openOfKind(2)
			return b.dueOfKind()
		}, []task.Why{task.WhyKindFull, task.WhyOverdue}},
		"its kind has room": {func(b *bundle) task.ID {
			b.limit(`{"kind_caps": {"k": 2}}`)
			b.openOfKind(1)
			return b.dueOfKind()
		}, []task.Why{task.WhyOverdue}},
	} {
		t.Run(name, func(t *testing.T) {
			b := setup(t, nearOnly)
			if got := b.why(tc.make(b)); !slices.Equal(got, tc.want) {
				t.Errorf("reasons %v, want %v", got, tc.want)
			}
		})
	}
}

// Until its dispatcher says that its record is in Kafka, nobody knows whether a run was delivered.
func TestARunIsSaidToBeDeliveredWhenItsRecordIsInKafka(t *testing.T) {
	b := setup(t, nearOnly)
	id := b.add(b.spec(task.OneShot))[0]
	c := b.claim(task.RangeForm)
	said := func(want string) {
		t.Helper()
		e, err := b.Explain(t.Context(), b.tenant, id, 0)
		if err != nil || len(e.Reasons) != 1 || !strings.Contains(e.Reasons[0].Text, want) {
			t.Errorf("%+v, %v, want %q", e.Reasons, err, want)
		}
	}
	said("run 1 was claimed, and its record is not known to be in Kafka yet")
	if _, err := b.AcknowledgeOutbox(t.Context(), b.d, b.owned, []task.OutboxPart{{Row: c.Outbox, Shards: []task.Shard{id.Shard()}}}); err != nil {
		t.Fatal(err)
	}
	said("run 1 was delivered and awaits its result")
}

// limit gives the bundle's tenant these rates. The bundle's database grants its tokens.
func (b *bundle) limit(rates string) {
	b.t.Helper()
	b.tenant += int32(b.d)
	b.exec(`INSERT INTO tenant (id, name, max_params_bytes, default_retention_ms, created_at, history, rates, version) VALUES ($1, $2, 1, 1, 1, 1, $3, 1)`,
		b.tenant, fmt.Sprint("limited-", b.tenant), rates)
	b.t.Cleanup(func() { b.exec(`DELETE FROM tenant WHERE id = $1`, b.tenant) })
}

// dueOfKind adds a task that is due.
func (b *bundle) dueOfKind() task.ID {
	b.t.Helper()
	id := b.add(b.spec(task.OneShot, ofKind("k")))[0]
	b.advance(10 * time.Millisecond)
	return id
}

// openOfKind claims runs of tasks of the kind, under its cap.
func (b *bundle) openOfKind(n int) {
	b.t.Helper()
	var specs []task.Spec
	for range n {
		specs = append(specs, b.spec(task.OneShot, ofKind("k")))
	}
	b.add(specs...)
	kind := task.TenantKind{Tenant: b.tenant, Kind: "k"}
	lease, err := b.AcquireCapLease(b.t.Context(), kind, 100)
	if err != nil {
		b.t.Fatal(err)
	}
	c := b.claimReq(task.ClaimRequest{Flows: []task.Flow{{TenantKind: kind, Rows: n, WaitingSince: task.Never}}, CapLease: lease.Epoch})
	if len(c.Publications) != n {
		b.t.Fatalf("%d runs were claimed, want %d", len(c.Publications), n)
	}
}

func TestExplainSaysWhyATaskHasEnded(t *testing.T) {
	keep := func(s *task.Spec) { s.Retention = time.Hour }
	for name, tc := range map[string]struct {
		spec func(b *bundle) task.Spec
		end  func(b *bundle, id task.ID)
		want string
	}{
		"one run": {func(b *bundle) task.Spec { return b.spec(task.OneShot, keep) },
			func(b *bundle, id task.ID) { b.report(success(id, 1, 1, 7)) }, "its one run is done"},
		"cancelled": {func(b *bundle) task.Spec { return b.spec(task.OneShot, keep) },
			func(b *bundle, id task.ID) {
				if _, err := b.Cancel(b.t.Context(), b.tenant, id); err != nil {
					b.t.Fatal(err)
				}
			}, "it was cancelled"},
		"max_count": {func(b *bundle) task.Spec {
			return b.spec(task.NonBlocking, keep, func(s *task.Spec) { s.MaxCount = 1 })
		}, func(b *bundle, id task.ID) { b.report(success(id, 1, 1, 7)) }, "all of its 1 runs (max_count) are done"},
		"end_time": {func(b *bundle) task.Spec {
			return b.spec(task.NonBlocking, keep, func(s *task.Spec) { s.Interval, s.End = time.Minute, b.now.Add(time.Minute) })
		}, func(b *bundle, id task.ID) { b.report(success(id, 1, 1, 7)) }, "no run is left before its end_time"},
		"stop": {func(b *bundle) task.Spec { return b.spec(task.NonBlocking, keep) },
			func(b *bundle, id task.ID) {
				r := success(id, 1, 1, 7)
				r.Stop = true
				b.report(r)
			}, "a handler ended it with run 1"},
		"failed": {func(b *bundle) task.Spec {
			return b.spec(task.OneShot, keep, func(s *task.Spec) { s.Retry.MaxAttempts = 1 })
		}, func(b *bundle, id task.ID) { b.report(failure(id, 1, 1, 7)) }, "run 1 was given up after 1 deliveries, OUT_OF_ATTEMPTS"},
	} {
		t.Run(name, func(t *testing.T) {
			b := setup(t, nearOnly)
			id := b.add(tc.spec(b))[0]
			b.claim(task.RangeForm)
			tc.end(b, id)
			e, err := b.Explain(t.Context(), b.tenant, id, 3)
			if err != nil || len(e.Reasons) != 1 || !strings.Contains(e.Reasons[0].Text, tc.want) || e.Reasons[0].At != b.now {
				t.Errorf("%+v, %v", e.Reasons, err)
			}
		})
	}
}

func TestExplainSaysSinceWhenARunIsSilent(t *testing.T) {
	b := setup(t, nearOnly)
	id := b.add(b.spec(task.OneShot, func(s *task.Spec) { s.AckTimeout = time.Minute }))[0]
	b.claim(task.RangeForm)
	since := b.now
	for _, d := range []time.Duration{time.Minute, 2 * time.Minute} {
		b.advance(d)
		b.claim(task.RangeForm)
	}
	e, err := b.Explain(t.Context(), b.tenant, id, 0)
	if err != nil || len(e.Reasons) != 1 || e.Reasons[0].Since != since || e.Reasons[0].At != b.now.Add(4*time.Minute) || e.Reasons[0].Attempt != 3 {
		t.Errorf("%+v, %v", e.Reasons, err)
	}
}

func TestExplainTellsTheNextInstants(t *testing.T) {
	b := setup(t)
	id := b.add(b.spec(task.NonBlocking, b.inHours(1), func(s *task.Spec) { s.Interval, s.MaxCount = time.Hour, 2 }))[0]
	e, err := b.Explain(t.Context(), b.tenant, id, 5)
	if err != nil {
		t.Fatal(err)
	}
	want := []task.Instant{b.now.Add(time.Hour), b.now.Add(2 * time.Hour)}
	if diff := cmp.Diff(want, e.Next); diff != "" {
		t.Errorf("(-want +got)\n%s", diff)
	}
}

func TestExplainSeesOneInstantWhateverHappensMeanwhile(t *testing.T) {
	for name, change := range map[string]func(b *bundle, id task.ID) error{
		"pause":  func(b *bundle, id task.ID) error { _, err := b.Pause(t.Context(), b.tenant, id); return err },
		"cancel": func(b *bundle, id task.ID) error { _, err := b.Cancel(t.Context(), b.tenant, id); return err },
		"recall": func(b *bundle, id task.ID) error { _, _, err := b.Trigger(t.Context(), b.tenant, id, ""); return err },
	} {
		t.Run(name, func(t *testing.T) {
			var b *bundle
			var id task.ID
			meanwhile := errors.New("nothing has happened meanwhile")
			b = setup(t, func(c *Config) {
				c.Failpoint = func(point string, _ int) error {
					if point == "explain:"+kernel.BetweenReads {
						meanwhile = change(b, id)
					}
					return nil
				}
			})
			id = b.add(b.spec(task.NonBlocking, b.inHours(3)))[0]
			before := b.why(id)
			if meanwhile != nil || len(before) == 0 || before[0] != task.WhyNotDue {
				t.Errorf("reasons %v, %v; want those before the %s", before, meanwhile, name)
			}
		})
	}
}
