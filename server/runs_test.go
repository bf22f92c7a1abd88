package server

import (
	"context"
	"errors"
	"log/slog"
	"math"
	"net/http"
	"strings"
	"testing"
	"time"
	"unicode/utf8"

	"github.com/google/go-cmp/cmp"
	"google.golang.org/grpc/codes"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/durationpb"
	"google.golang.org/protobuf/types/known/fieldmaskpb"
	"google.golang.org/protobuf/types/known/timestamppb"

	perceptorv1 "github.com/perceptor/perceptor/proto/perceptor/v1"
	"github.com/perceptor/perceptor/task"
)

func attempt(id, seq int64, n int32) *perceptorv1.Attempt {
	return &perceptorv1.Attempt{TaskId: id, Seq: seq, Attempt: n}
}

func TestEntriesAreAnsweredInTheirOrder(t *testing.T) {
	for name, c := range map[string]struct {
		method  string
		request func([]*perceptorv1.Attempt) proto.Message
		replies func(proto.Message) []*perceptorv1.RunReply
	}{
		"start": {startRuns,
			func(as []*perceptorv1.Attempt) proto.Message {
				return &perceptorv1.StartRunsRequest{Holder: math.MaxUint64, Attempts: as}
			},
			func(m proto.Message) []*perceptorv1.RunReply { return m.(*perceptorv1.StartRunsResponse).Replies }},
		"heartbeat": {heartbeat,
			func(as []*perceptorv1.Attempt) proto.Message {
				return &perceptorv1.HeartbeatRunsRequest{Holder: math.MaxUint64, Attempts: as}
			},
			func(m proto.Message) []*perceptorv1.RunReply { return m.(*perceptorv1.HeartbeatRunsResponse).Replies }},
		"hand back": {handBack,
			func(as []*perceptorv1.Attempt) proto.Message {
				return &perceptorv1.HandBackRunsRequest{Holder: math.MaxUint64, Attempts: as}
			},
			func(m proto.Message) []*perceptorv1.RunReply { return m.(*perceptorv1.HandBackRunsResponse).Replies }},
	} {
		for side := range 2 {
			t.Run(name+[]string{" over gRPC", " over HTTP"}[side], func(t *testing.T) {
				b := setup(t)
				call := []func(string, string, proto.Message, proto.Message) answer{b.overGRPC, b.overHTTP}[side]
				reply := replyFor(t, c.method)
				request := c.request([]*perceptorv1.Attempt{
					attempt(1000, 3, 1), attempt(0, 1, 1), attempt(1000, 0, 1), attempt(1000, 1, 0), {}, attempt(2000, 5, 2), attempt(-1, 1, 1),
				})
				if a := call("acme-secret", c.method, request, reply); a.code != codes.OK {
					t.Fatal(a.message)
				}
				var got []string
				for _, r := range c.replies(reply) {
					got = append(got, strings.TrimPrefix(r.Code.String(), "RUN_CODE_")+" "+r.Lease.AsDuration().String()+" "+r.Field)
				}
				want := []string{"ACCEPTED 3s ", "INVALID 0s task_id", "INVALID 0s seq", "INVALID 0s attempt", "INVALID 0s task_id", "ACCEPTED 5s ", "INVALID 0s task_id"}
				if diff := cmp.Diff(want, got); diff != "" {
					t.Errorf("(-want +got)\n%s", diff)
				}
				if b.runs.tenant != acme.ID || b.runs.holder != math.MaxUint64 || len(b.runs.attempts) != 2 {
					t.Errorf("the store saw %+v", b.runs)
				}
			})
		}
	}
}

func TestMalformedResultsAreRefusedOneByOne(t *testing.T) {
	good := func(change func(*perceptorv1.RunResult)) *perceptorv1.RunResult {
		r := &perceptorv1.RunResult{Attempt: attempt(1000, 1, 1), Outcome: perceptorv1.RunResult_SUCCESS}
		change(r)
		return r
	}
	patch := func(set map[string]string, remove ...string) *perceptorv1.RunResult {
		return good(func(r *perceptorv1.RunResult) { r.ParamsPatch = &perceptorv1.ParamsPatch{Set: set, Remove: remove} })
	}
	snooze := func(after *durationpb.Duration) *perceptorv1.RunResult {
		return good(func(r *perceptorv1.RunResult) {
			r.Outcome, r.RedeliverAfter = perceptorv1.RunResult_SNOOZE, after
		})
	}
	many := make([]string, 65)
	cases := []struct {
		name        string
		in          *perceptorv1.RunResult
		field, says string
	}{
		{"no attempt", good(func(r *perceptorv1.RunResult) { r.Attempt = nil }), "attempt.task_id", "0 is not positive"},
		{"seq 0", good(func(r *perceptorv1.RunResult) { r.Attempt.Seq = 0 }), "attempt.seq", "0 is not a number from 1"},
		{"attempt -1", good(func(r *perceptorv1.RunResult) { r.Attempt.Attempt = -1 }), "attempt.attempt", "-1 is not a number from 1"},
		{"no outcome", good(func(r *perceptorv1.RunResult) { r.Outcome = 0 }), "outcome", "0 is none of SUCCESS, FAIL and SNOOZE"},
		{"an unknown outcome", good(func(r *perceptorv1.RunResult) { r.Outcome = 4 }), "outcome", "4 is none of"},
		{"a success that is permanent", good(func(r *perceptorv1.RunResult) { r.Permanent = true }), "permanent", "not SUCCESS"},
		{"a success that is to come again", good(func(r *perceptorv1.RunResult) { r.RedeliverAfter = durationpb.New(time.Second) }), "redeliver_after", "1s: a run that succeeded"},
		{"a snooze without a distance", snooze(nil), "redeliver_after", "is missing"},
		{"a snooze of no time", snooze(durationpb.New(0)), "redeliver_after", "0s is not between 1ms and 24h0m0s"},
		{"a snooze of more than a day", snooze(durationpb.New(24*time.Hour + time.Millisecond)), "redeliver_after", "24h0m0.001s is not between"},
		{"a snooze of parts of a millisecond", snooze(durationpb.New(1500 * time.Microsecond)), "redeliver_after", "whole number of milliseconds"},
		{"a snooze that ends the task", good(func(r *perceptorv1.RunResult) {
			r.Outcome, r.RedeliverAfter, r.Stop = perceptorv1.RunResult_SNOOZE, durationpb.New(time.Second), true
		}), "stop", "is not ended by SNOOZE"},
		{"a retry before now", good(func(r *perceptorv1.RunResult) {
			r.Outcome, r.RedeliverAfter = perceptorv1.RunResult_FAIL, durationpb.New(-time.Second)
		}), "redeliver_after", "-1s is not between"},
		{"a next time before the epoch", good(func(r *perceptorv1.RunResult) { r.NextExecuteTime = secs(-1) }), "next_execute_time", "1969-12-31T23:59:59.000Z is not between"},
		{"a next time in the year 9999", good(func(r *perceptorv1.RunResult) { r.NextExecuteTime = secs(year9999) }), "next_execute_time", "is not between"},
		{"a next time that is none", good(func(r *perceptorv1.RunResult) { r.NextExecuteTime = &timestamppb.Timestamp{Nanos: -5} }), "next_execute_time", "-5 ns"},
		// timing: T10.10
		{"a failure with a next time", good(func(r *perceptorv1.RunResult) {
			r.Outcome, r.NextExecuteTime = perceptorv1.RunResult_FAIL, after(time.Hour)
		}), "next_execute_time", "only SUCCESS sets the next run, not FAIL"},
		{"a snooze with a next time", good(func(r *perceptorv1.RunResult) {
			r.Outcome, r.RedeliverAfter, r.NextExecuteTime = perceptorv1.RunResult_SNOOZE, durationpb.New(time.Second), after(time.Hour)
		}), "next_execute_time", "not SNOOZE"},
		{"a NUL byte in a changed param", patch(map[string]string{"k": "\x00"}), `params_patch.set["k"]`, "NUL byte"},
		{"a changed param without key", patch(map[string]string{"": ""}), "params_patch.set", "has 0 bytes"},
		{"changed params over the limit", patch(map[string]string{"k": strings.Repeat("v", 1000)}), "params_patch.set", "limit is 1000"},
		{"too many removals", patch(nil, many...), "params_patch.remove", "has 65 entries"},
	}
	b := setup(t)
	request := &perceptorv1.ReportResultsRequest{Holder: 7}
	for _, c := range cases {
		request.Results = append(request.Results, c.in)
	}
	request.Results = append(request.Results, good(func(*perceptorv1.RunResult) {}))
	var reply perceptorv1.ReportResultsResponse
	if a := b.overGRPC("acme-secret", report, request, &reply); a.code != codes.OK {
		t.Fatal(a.message)
	}
	for i, c := range cases {
		r := reply.Replies[i]
		if r.Code != perceptorv1.RunCode_RUN_CODE_INVALID || r.Field != c.field || !strings.Contains(r.Message, c.says) {
			t.Errorf("%s: %v, want %s: %s", c.name, r, c.field, c.says)
		}
	}
	if last := reply.Replies[len(cases)]; last.Code != perceptorv1.RunCode_RUN_CODE_ACCEPTED || len(b.runs.results) != 1 {
		t.Errorf("the good result: %v; the store saw %d", last, len(b.runs.results))
	}
}

func TestTheStoreLearnsWhetherAListenerWasIdle(t *testing.T) {
	for percent, want := range map[int32]bool{0: false, leastIdle - 1: false, leastIdle: true, 100: true} {
		b := setup(t)
		request := &perceptorv1.ReportResultsRequest{Holder: 9, IdlePercent: percent, Results: []*perceptorv1.RunResult{
			{Attempt: attempt(1000, 2, 3), Outcome: perceptorv1.RunResult_SUCCESS},
		}}
		if a := b.overGRPC("acme-secret", report, request, &perceptorv1.ReportResultsResponse{}); a.code != codes.OK {
			t.Fatal(a.message)
		}
		if len(b.runs.results) != 1 || b.runs.results[0].Idle != want {
			t.Errorf("a listener that is idle for %d %% of the time: %+v", percent, b.runs.results)
		}
	}
}

func TestResultsReachTheStoreAsTheyWereSaid(t *testing.T) {
	b := setup(t)
	request := &perceptorv1.ReportResultsRequest{Holder: 9, Results: []*perceptorv1.RunResult{
		{Attempt: attempt(1000, 2, 3), Outcome: perceptorv1.RunResult_SUCCESS, NextExecuteTime: after(time.Hour), Stop: true,
			ParamsPatch: &perceptorv1.ParamsPatch{Set: map[string]string{"a": "b"}, Remove: []string{"c"}}},
		{Attempt: attempt(1001, 1, 1), Outcome: perceptorv1.RunResult_FAIL, Error: "no\x00thing",
			ParamsPatch: &perceptorv1.ParamsPatch{}},
		{Attempt: attempt(1002, 1, 1), Outcome: perceptorv1.RunResult_SNOOZE, RedeliverAfter: durationpb.New(24 * time.Hour)},
		{Attempt: attempt(1003, 1, 1), Outcome: perceptorv1.RunResult_FAIL, RedeliverAfter: durationpb.New(time.Millisecond), Permanent: true},
	}}
	var reply perceptorv1.ReportResultsResponse
	if a := b.overHTTP("acme-secret", report, request, &reply); a.http != http.StatusOK {
		t.Fatal(a.message)
	}
	want := []task.Report{
		{Attempt: task.Attempt{RunID: task.RunID{Task: 1000, Seq: 2}, Attempt: 3}, Holder: 9, Result: task.Result{Outcome: task.Success, Next: fakeNow.Add(time.Hour), Stop: true, Patch: &task.ParamsPatch{Set: map[string]string{"a": "b"}, Remove: []string{"c"}}}},
		{Attempt: task.Attempt{RunID: task.RunID{Task: 1001, Seq: 1}, Attempt: 1}, Holder: 9, Result: task.Result{Outcome: task.Fail, Error: "no thing", Next: task.Never}},
		{Attempt: task.Attempt{RunID: task.RunID{Task: 1002, Seq: 1}, Attempt: 1}, Holder: 9, Result: task.Result{Outcome: task.Snooze, After: 24 * time.Hour, Next: task.Never}},
		{Attempt: task.Attempt{RunID: task.RunID{Task: 1003, Seq: 1}, Attempt: 1}, Holder: 9, Result: task.Result{Outcome: task.Fail, After: time.Millisecond, Permanent: true, Next: task.Never}},
	}
	if diff := cmp.Diff(want, b.runs.results); diff != "" {
		t.Errorf("(-want +got)\n%s", diff)
	}
	if reply.Replies[0].Code != perceptorv1.RunCode_RUN_CODE_ACCEPTED || reply.Replies[1].Code != perceptorv1.RunCode_RUN_CODE_UNKNOWN {
		t.Errorf("%v", reply.Replies)
	}
}

func TestALongErrorIsCutAtAWholeCharacter(t *testing.T) {
	for _, text := range []string{"", "short", strings.Repeat("é", 600), "x" + strings.Repeat("é", 600), strings.Repeat("界", 400)} {
		got := errorText(text)
		if len(got) > task.MaxErrorBytes || !utf8.ValidString(got) || !strings.HasPrefix(text, got) {
			t.Errorf("%.20q became %d bytes", text, len(got))
		}
		if len(text) > task.MaxErrorBytes && len(got) < task.MaxErrorBytes-3 {
			t.Errorf("%.20q was cut to %d bytes", text, len(got))
		}
	}
}

func TestAStoreThatFailsLeavesTheOutcomeOpen(t *testing.T) {
	b := setup(t)
	request := &perceptorv1.StartRunsRequest{Holder: 1, Attempts: []*perceptorv1.Attempt{attempt(1000, 1, 1)}}
	b.runs.err = &task.Error{Code: task.Unavailable, Message: "the database is away", Err: errors.New("dial")}
	if a := b.overHTTP("acme-secret", startRuns, request, nil); a.http != http.StatusServiceUnavailable {
		t.Errorf("%d %s", a.http, a.message)
	}
	b.runs.err, b.runs.short = nil, true
	if a := b.overHTTP("acme-secret", startRuns, request, nil); a.http != http.StatusInternalServerError {
		t.Errorf("too few answers: %d %s", a.http, a.message)
	}
}

func TestRepliesAreCountedByCode(t *testing.T) {
	counts := map[string]int{}
	b := setup(t, func(c *Config) {
		c.Events.Replied = func(tenant *Tenant, op string, code task.Code, n int) {
			counts[tenant.Name+" "+op+" "+code.String()] += n
		}
	})
	request := &perceptorv1.ReportResultsRequest{Holder: 9}
	for id := range int64(6) {
		request.Results = append(request.Results, &perceptorv1.RunResult{Attempt: attempt(id, 1, 1), Outcome: perceptorv1.RunResult_SUCCESS})
	}
	b.overGRPC("acme-secret", report, request, &perceptorv1.ReportResultsResponse{})
	want := map[string]int{"acme report ACCEPTED": 2, "acme report UNKNOWN": 3, "acme report INVALID": 1}
	if diff := cmp.Diff(want, counts); diff != "" {
		t.Errorf("(-want +got)\n%s", diff)
	}
}

func TestEveryCodeOfTheDomainIsOneOfTheAPI(t *testing.T) {
	for _, c := range task.Codes {
		if got := replyOf(task.Reply{Code: c}).Code.String(); got != "RUN_CODE_"+c.String() {
			t.Errorf("%s became %s", c, got)
		}
	}
	if got := replyOf(task.Reply{}).Code; got != perceptorv1.RunCode_RUN_CODE_RETRY {
		t.Errorf("no code became %s", got)
	}
	for _, ty := range task.Types {
		if got := perceptorv1.Task_Type(ty).String(); got != ty.String() {
			t.Errorf("%s became %s", ty, got)
		}
	}
	for _, s := range task.States {
		if got := perceptorv1.Task_State(s).String(); got != s.String() {
			t.Errorf("%s became %s", s, got)
		}
	}
}

func TestDeliverySaysWhereTheTenantsRunsAre(t *testing.T) {
	b := setup(t)
	var got perceptorv1.Delivery
	b.overHTTP("acme-secret", getDelivery, &perceptorv1.GetDeliveryRequest{}, &got)
	if got.Tenant != "acme" || got.Topic != "perceptor.acme" || got.Group != "listeners.acme" || len(got.Brokers) != 1 {
		t.Errorf("%v", &got)
	}
}

func TestAKeyThatHasEndedByTheDatabasesClockIsNotHandedOut(t *testing.T) {
	now := task.At(time.Now().Add(time.Hour)) // the clock of this process is an hour behind
	s := &runService{
		delivery: func(of Tenant) Delivery { return Delivery{Keys: of.Keys} }, now: func() task.Instant { return now }, unheld: &unheld{},
	}
	leaked, next := TenantKey{ID: 1, ExpiresAt: now - 1}, TenantKey{ID: 2, ExpiresAt: task.Never}
	ctx := context.WithValue(t.Context(), identityKey{}, &Identity{Tenant: Tenant{Name: "acme", Keys: []TenantKey{leaked, next}}})
	got, err := s.GetDelivery(ctx, &perceptorv1.GetDeliveryRequest{HoldsRuns: true})
	if err != nil || len(got.RecordKeys) != 1 || got.RecordKeys[0].Id != next.ID || task.At(got.Now.AsTime()) != now {
		t.Errorf("at %v the keys %v, %v; want only key 2 at %v", got.GetNow().AsTime(), got.GetRecordKeys(), err, now)
	}
}

func TestRunsComeAheadByTheDatabasesClock(t *testing.T) {
	var got TenantChange
	now := task.At(time.Now().Add(time.Hour)) // the clock of this process is an hour behind
	s := &adminService{
		store: fakeUpdates{change: &got}, now: func() task.Instant { return now },
		settings: newSettings(), unheld: &unheld{}, log: slog.New(slog.DiscardHandler),
	}
	ctx := context.WithValue(t.Context(), identityKey{}, &Identity{})
	for due, want := range map[bool]task.Ahead{true: task.EndAhead(now), false: task.StartAhead(now)} {
		_, err := s.UpdateTenant(ctx, &perceptorv1.UpdateTenantRequest{
			Name: "acme", Tenant: &perceptorv1.Tenant{PublishWhenDue: due}, UpdateMask: &fieldmaskpb.FieldMask{Paths: []string{"publish_when_due"}},
		})
		if err != nil || *got.Rates.Ahead != want {
			t.Errorf("publish_when_due %t: %+v, %v; want %+v", due, got.Rates.Ahead, err, want)
		}
	}
}

// fakeUpdates keeps the last change of a tenant.
type fakeUpdates struct {
	Admin
	change *TenantChange
}

func (f fakeUpdates) UpdateTenant(_ context.Context, _ string, c TenantChange) (Tenant, error) {
	*f.change = c
	return Tenant{}, nil
}

// TestAListenerThatDoesNotHoldRunsIsRefused also checks what an operator can do about it, and that the refusal says so.
func TestAListenerThatDoesNotHoldRunsIsRefused(t *testing.T) {
	s := &runService{delivery: func(Tenant) Delivery { return Delivery{} }, now: func() task.Instant { return task.At(time.Now()) }, unheld: &unheld{}}
	ask := func(rates task.Rates, holds bool) error {
		ctx := context.WithValue(t.Context(), identityKey{}, &Identity{Tenant: Tenant{Name: "acme", Rates: rates}})
		_, err := s.GetDelivery(ctx, &perceptorv1.GetDeliveryRequest{HoldsRuns: holds})
		return err
	}
	created, faults := newTenant(&perceptorv1.Tenant{Name: "acme"})
	if len(faults) > 0 || !created.Rates.Ahead.Covers(task.At(time.Now())) || tenantReply(created).PublishWhenDue {
		t.Fatalf("%+v, %v: a new tenant has no runs that come ahead", created, faults)
	}
	if err := ask(created.Rates, true); err != nil {
		t.Error(err)
	}
	var refused *task.Error
	if err := ask(created.Rates, false); !errors.As(err, &refused) || refused.Reason != task.ReasonHoldNeeded || !strings.Contains(err.Error(), "tenant update acme --publish-when-due") {
		t.Errorf("a listener that does not hold runs was answered %v", err)
	}
	change, faults := tenantChange(&perceptorv1.UpdateTenantRequest{
		Name: "acme", Tenant: &perceptorv1.Tenant{PublishWhenDue: true}, UpdateMask: &fieldmaskpb.FieldMask{Paths: []string{"publish_when_due"}},
	}, task.At(time.Now()))
	if len(faults) > 0 {
		t.Fatal(faults)
	}
	change.Rates.Apply(&created.Rates)
	if err := ask(created.Rates, false); !tenantReply(created).PublishWhenDue || task.CodeOf(err) != task.Unavailable {
		t.Errorf("publish_when_due: %t, answered %v; want to be asked again until all dispatchers know it", tenantReply(created).PublishWhenDue, err)
	}
	created.Rates.Ahead.Until = task.At(time.Now().Add(-time.Minute))
	if err := ask(created.Rates, false); err != nil {
		t.Errorf("a minute after publish_when_due was set: %v", err)
	}
	admin := &adminService{now: s.now, unheld: s.unheld}
	_, err := admin.UpdateTenant(t.Context(), &perceptorv1.UpdateTenantRequest{
		Name: "acme", Tenant: &perceptorv1.Tenant{}, UpdateMask: &fieldmaskpb.FieldMask{Paths: []string{"publish_when_due"}},
	})
	if !errors.As(err, &refused) || refused.Reason != task.ReasonHoldNeeded {
		t.Errorf("publish_when_due was unset beside a listener that does not hold runs: %v", err)
	}
	if without, _ := newTenant(&perceptorv1.Tenant{Name: "acme", PublishWhenDue: true}); without.Rates.Ahead != (task.Ahead{}) {
		t.Errorf("a tenant that was created with publish_when_due has %+v", without.Rates.Ahead)
	}
	if err := ask(task.Rates{}, false); err != nil {
		t.Errorf("a tenant of before: %v", err)
	}
}

// TestAListenerGetsTheKeysThatAreValidAndTheLoginThatHasStarted also checks that a key which
// has ended is not handed out.
func TestAListenerGetsTheKeysThatAreValidAndTheLoginThatHasStarted(t *testing.T) {
	const now = task.Instant(1_000_000)
	login := func(name string) Login { return Login{Mechanism: "SCRAM-SHA-512", Username: name, Password: "p"} }
	keys, first := recordKeys([]TenantKey{
		{ID: 1, ExpiresAt: now, Login: login("ended")},
		{ID: 2, Secret: []byte("s"), ExpiresAt: now + 1, Login: login("present")},
		{ID: 3, StartsAt: now + 1, ExpiresAt: task.Never, Login: login("next")},
	}, now)
	if len(keys) != 2 || keys[0].Id != 2 || string(keys[0].Secret) != "s" || keys[0].ExpireTime == nil || keys[1].Id != 3 || keys[1].ExpireTime != nil {
		t.Errorf("keys = %v, want the numbers 2 and 3, of which 2 has an end", keys)
	}
	if first.GetUsername() != "present" || first.GetPassword() != "p" {
		t.Errorf("login = %v, want that of key 2", first)
	}
	if _, none := recordKeys([]TenantKey{{ID: 1, ExpiresAt: task.Never}}, now); none != nil {
		t.Errorf("login = %v of a tenant without logins", none)
	}
}
