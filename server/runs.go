package server

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"time"
	"unicode/utf8"

	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/timestamppb"

	perceptorv1 "github.com/perceptor/perceptor/proto/perceptor/v1"
	"github.com/perceptor/perceptor/task"
)

// runService is the API's RunService.
type runService struct {
	perceptorv1.UnimplementedRunServiceServer
	store    Runs
	delivery func(Tenant) Delivery
	now      func() task.Instant
	events   *Events
	traces   traces
	// unknown bounds the entries about runs that a tenant does not have.
	unknown *throttle[int32]
	unheld  *unheld
}

func (s *runService) StartRuns(ctx context.Context, r *perceptorv1.StartRunsRequest) (*perceptorv1.StartRunsResponse, error) {
	if faults := entryFaults(r.Holder, "attempts", len(r.Attempts)); len(faults) > 0 {
		return nil, invalid(faults)
	}
	replies, err := s.seen(ctx, "start", r.Attempts, func(tenant int32, as []task.Seen) ([]task.Reply, error) {
		return s.store.Start(ctx, tenant, task.Holder(r.Holder), as)
	})
	return &perceptorv1.StartRunsResponse{Replies: replies}, err
}

func (s *runService) CheckRuns(ctx context.Context, r *perceptorv1.CheckRunsRequest) (*perceptorv1.CheckRunsResponse, error) {
	const anybody = 1 // a check has no holder
	if faults := entryFaults(anybody, "attempts", len(r.Attempts)); len(faults) > 0 {
		return nil, invalid(faults)
	}
	replies, err := s.seen(ctx, "check", r.Attempts, func(tenant int32, as []task.Seen) ([]task.Reply, error) {
		return s.store.Check(ctx, tenant, as)
	})
	return &perceptorv1.CheckRunsResponse{Replies: replies}, err
}

// seen answers attempts together with the versions of their records.
func (s *runService) seen(ctx context.Context, op string, attempts []*perceptorv1.Attempt, answer func(int32, []task.Seen) ([]task.Reply, error)) ([]*perceptorv1.RunReply, error) {
	tenant := tenantOf(ctx)
	if wait := s.unknown.owes(tenant.ID); wait > 0 {
		return nil, errUnknownRuns(wait)
	}
	replies, err := eachEntry(attempts, seenOf, func(good []task.Seen) ([]task.Reply, error) { return answer(tenant.ID, good) })
	s.count(tenant, op, replies)
	return replies, err
}

func seenOf(a *perceptorv1.Attempt) (task.Seen, *task.Fault) {
	attempt, fault := attemptOf(a)
	if fault == nil && a.GetVersion() < 0 {
		f := faultf("version", "%d is negative", a.GetVersion())
		fault = &f
	}
	return task.Seen{Attempt: attempt, Version: a.GetVersion()}, fault
}

func (s *runService) HeartbeatRuns(ctx context.Context, r *perceptorv1.HeartbeatRunsRequest) (*perceptorv1.HeartbeatRunsResponse, error) {
	replies, err := s.lease(ctx, "heartbeat", s.store.Heartbeat, r.Holder, r.Attempts)
	return &perceptorv1.HeartbeatRunsResponse{Replies: replies}, err
}

func (s *runService) HandBackRuns(ctx context.Context, r *perceptorv1.HandBackRunsRequest) (*perceptorv1.HandBackRunsResponse, error) {
	if n := len(r.Times); n != 0 && n != len(r.Attempts) {
		return nil, invalid([]task.Fault{faultf("times", "has %d entries and attempts %d; they must be as many, or none", n, len(r.Attempts))})
	}
	times := timelinesOf(r.Listener)
	back := make([]*task.Timeline, 0, len(r.Attempts))
	for i, a := range r.Attempts {
		if _, fault := attemptOf(a); fault != nil {
			continue // it does not reach the store
		}
		var t *perceptorv1.AttemptTimes
		if len(r.Times) > 0 {
			t = r.Times[i]
		}
		back = append(back, times.of(t))
	}
	step := func(ctx context.Context, tenant int32, h task.Holder, as []task.Attempt) ([]task.Reply, error) {
		return s.store.HandBack(ctx, tenant, h, as, back)
	}
	replies, err := s.lease(ctx, "hand_back", step, r.Holder, r.Attempts)
	for i, reply := range replies {
		if reply.Code == perceptorv1.RunCode_RUN_CODE_ACCEPTED && i < len(r.Kinds) {
			s.events.unhandled(tenantOf(ctx), r.Kinds[i])
		}
	}
	return &perceptorv1.HandBackRunsResponse{Replies: replies}, err
}

func (s *runService) ReportResults(ctx context.Context, r *perceptorv1.ReportResultsRequest) (*perceptorv1.ReportResultsResponse, error) {
	faults := entryFaults(r.Holder, "results", len(r.Results))
	if r.IdlePercent < 0 || r.IdlePercent > 100 {
		faults = append(faults, faultf("idle_percent", "%d is not between 0 and 100", r.IdlePercent))
	}
	if len(faults) > 0 {
		return nil, invalid(faults)
	}
	tenant := tenantOf(ctx)
	if wait := s.unknown.owes(tenant.ID); wait > 0 {
		return nil, errUnknownRuns(wait)
	}
	times := timelinesOf(r.Listener)
	began := time.Now()
	var took []time.Duration // of the handlers of the reports that the store gets
	read := func(e *perceptorv1.RunResult) (task.Report, *task.Fault) {
		report, fault := reportOf(e, task.Holder(r.Holder), tenant.ParamsBytes)
		if fault == nil {
			took = append(took, handled(e))
		}
		report.Capped = len(tenant.Rates.KindCaps) > 0
		report.Idle = r.IdlePercent >= leastIdle
		report.Timeline = times.of(e.GetTimes())
		return report, fault
	}
	replies, err := eachEntry(r.Results, read, func(good []task.Report) ([]task.Reply, error) {
		answers, err := s.store.Report(ctx, tenant.ID, tenant.ParamsBytes, good)
		for i := range min(len(answers), len(good)) {
			if answers[i].Code == task.Accepted {
				s.events.reported(tenant, answers[i].Type, good[i].Outcome, took[i])
			}
		}
		return answers, err
	})
	s.count(tenant, "report", replies)
	s.traces.reported(ctx, began, r.Results, replies)
	return &perceptorv1.ReportResultsResponse{Replies: replies}, err
}

// leastIdle is the idle part of a listener's time, in percent, from which on its runs do not wait for its handlers.
const leastIdle = 20

func (s *runService) GetDelivery(ctx context.Context, r *perceptorv1.GetDeliveryRequest) (*perceptorv1.Delivery, error) {
	tenant := tenantOf(ctx)
	now := s.now()
	if !r.HoldsRuns {
		s.unheld.note(tenant.Name, time.Now())
		if err := mayNotHold(tenant, now); err != nil {
			return nil, err
		}
	}
	d := s.delivery(*tenant)
	keys, login := recordKeys(d.Keys, now)
	return &perceptorv1.Delivery{
		Tenant: tenant.Name, Topic: d.Topic, Group: d.Group, Brokers: d.Brokers, Now: timestamppb.New(now.Time()),
		RecordKeys: keys, Login: login,
	}, nil
}

// handled returns how long the handler of a result took; 0: the listener did not say.
func handled(r *perceptorv1.RunResult) time.Duration {
	begun, ended := r.Times.GetBegunAgoUs(), r.Times.GetEndedAgoUs()
	if begun <= ended || ended < 0 || begun > task.MaxGiveUpAfter.Microseconds() {
		return 0
	}
	return time.Duration(begun-ended) * time.Microsecond
}

// recordKeys returns the keys that are valid, and the login of the newest key that has started:
// by then all brokers know its user.
func recordKeys(keys []TenantKey, now task.Instant) (valid []*perceptorv1.RecordKey, login *perceptorv1.KafkaLogin) {
	for _, k := range keys {
		if k.ExpiresAt <= now {
			continue
		}
		valid = append(valid, &perceptorv1.RecordKey{Id: k.ID, Secret: k.Secret, ExpireTime: timestamp(k.ExpiresAt)})
		if k.Login.Username != "" && (login == nil || k.StartsAt <= now) {
			login = &perceptorv1.KafkaLogin{Mechanism: k.Login.Mechanism, Username: k.Login.Username, Password: k.Login.Password}
		}
	}
	return valid, login
}

// leaseStep is one of the store's steps on attempts.
type leaseStep func(context.Context, int32, task.Holder, []task.Attempt) ([]task.Reply, error)

func (s *runService) lease(ctx context.Context, op string, step leaseStep, holder uint64, attempts []*perceptorv1.Attempt) ([]*perceptorv1.RunReply, error) {
	if faults := entryFaults(holder, "attempts", len(attempts)); len(faults) > 0 {
		return nil, invalid(faults)
	}
	tenant := tenantOf(ctx)
	if wait := s.unknown.owes(tenant.ID); wait > 0 {
		return nil, errUnknownRuns(wait)
	}
	replies, err := eachEntry(attempts, attemptOf, func(good []task.Attempt) ([]task.Reply, error) {
		return step(ctx, tenant.ID, task.Holder(holder), good)
	})
	s.count(tenant, op, replies)
	return replies, err
}

func (s *runService) count(tenant *Tenant, op string, replies []*perceptorv1.RunReply) {
	n := map[task.Code]int{}
	for _, r := range replies {
		n[task.Code(r.Code)]++
	}
	for _, c := range task.Codes {
		s.events.replied(tenant, op, c, n[c])
	}
	s.unknown.charge(tenant.ID, n[task.Unknown])
}

func entryFaults(holder uint64, field string, n int) []task.Fault {
	var faults []task.Fault
	if holder == 0 {
		faults = append(faults, faultf("holder", "0 is nobody; draw a random number once per process"))
	}
	if n == 0 || n > task.MaxEntriesPerCall {
		faults = append(faults, faultf(field, "has %d entries; 1 to %d are allowed", n, task.MaxEntriesPerCall))
	}
	return faults
}

// eachEntry reads the entries of a batch, lets the store answer the well-formed
// ones, and returns one reply for each entry in their order.
func eachEntry[E, V any](entries []E, read func(E) (V, *task.Fault), answer func([]V) ([]task.Reply, error)) ([]*perceptorv1.RunReply, error) {
	replies := make([]*perceptorv1.RunReply, len(entries))
	good := make([]V, 0, len(entries))
	for i, e := range entries {
		v, fault := read(e)
		if fault != nil {
			replies[i] = replyOf(task.Reply{Code: task.Invalid, Field: fault.Field, Message: fault.Message})
			continue
		}
		good = append(good, v)
	}
	if len(good) == 0 {
		return replies, nil
	}
	answers, err := answer(good)
	if err != nil {
		return nil, err
	}
	if len(answers) != len(good) {
		return nil, fmt.Errorf("the store answered %d of %d entries", len(answers), len(good))
	}
	for i := range replies {
		if replies[i] == nil {
			replies[i], answers = replyOf(answers[0]), answers[1:]
		}
	}
	return replies, nil
}

func replyOf(r task.Reply) *perceptorv1.RunReply {
	code := perceptorv1.RunCode(r.Code)
	if _, known := perceptorv1.RunCode_name[int32(code)]; !known || code == 0 {
		code = perceptorv1.RunCode_RUN_CODE_RETRY // changes nothing, and is asked again
	}
	return &perceptorv1.RunReply{Code: code, Lease: lease(r.Lease), Field: r.Field, Message: shortened(r.Message), Terms: termsOf(r.Terms)}
}

// termsOf returns nil for none, and for params that cannot be read: then the
// listener goes on with those that it has.
func termsOf(t *task.RunTerms) *perceptorv1.RunTerms {
	if t == nil {
		return nil
	}
	var params perceptorv1.Params
	if proto.Unmarshal(t.Params, &params) != nil {
		return nil
	}
	return &perceptorv1.RunTerms{Version: t.Version, Kind: t.Kind, Params: &params}
}

func attemptOf(a *perceptorv1.Attempt) (task.Attempt, *task.Fault) {
	fault := func(field, format string, args ...any) (task.Attempt, *task.Fault) {
		f := faultf(field, format, args...)
		return task.Attempt{}, &f
	}
	switch {
	case a.GetTaskId() <= 0:
		return fault("task_id", "%d is not positive", a.GetTaskId())
	case a.GetSeq() < 1:
		return fault("seq", "%d is not a number from 1", a.GetSeq())
	case a.GetAttempt() < 1:
		return fault("attempt", "%d is not a number from 1", a.GetAttempt())
	}
	return task.Attempt{
		RunID:   task.RunID{Task: task.ID(a.TaskId), Seq: a.Seq},
		Attempt: a.Attempt,
	}, nil
}

// reportOf returns the report that an entry states, or its first fault.
func reportOf(e *perceptorv1.RunResult, holder task.Holder, paramsBytes int) (task.Report, *task.Fault) {
	attempt, fault := attemptOf(e.GetAttempt())
	if fault != nil {
		fault.Field = "attempt." + fault.Field
		return task.Report{}, fault
	}
	r := &reader{}
	result := task.Result{
		Outcome:   task.Outcome(e.Outcome),
		Error:     errorText(e.Error),
		Next:      r.time("next_execute_time", e.NextExecuteTime),
		Stop:      e.Stop,
		Permanent: e.Permanent,
		After:     r.given("redeliver_after", e.RedeliverAfter),
	}
	if p := e.ParamsPatch; p != nil && (len(p.Set)+len(p.Remove) > 0 || p.Payload != nil || p.RemovePayload) {
		result.Patch = &task.ParamsPatch{
			Set: p.Set, Remove: p.Remove, Payload: r.payload("params_patch.payload", p.Payload), RemovePayload: p.RemovePayload,
		}
	}
	if faults := slices.Concat(r.faults, result.Validate(paramsBytes)); len(faults) > 0 {
		return task.Report{}, &faults[0]
	}
	return task.Report{Attempt: attempt, Holder: holder, Result: result}, nil
}

// errorText makes what a handler said storable: at most [task.MaxErrorBytes],
// whole characters, no NUL. A failure must count however it is worded.
func errorText(text string) string {
	if len(text) > task.MaxErrorBytes {
		end := task.MaxErrorBytes
		for end > 0 && !utf8.RuneStart(text[end]) {
			end--
		}
		text = text[:end]
	}
	return strings.ReplaceAll(text, "\x00", " ")
}
