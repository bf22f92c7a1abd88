package server

import (
	"math"
	"time"

	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/durationpb"

	perceptorv1 "github.com/perceptor/perceptor/proto/perceptor/v1"
	"github.com/perceptor/perceptor/task"
)

// terms reads the terms of a task. It reports what cannot be read, and what package
// task cannot know; whether values are in range [task.Spec.Validate] says.
func (r *reader) terms(t *perceptorv1.Task, tenant *Tenant, limits task.Limits) task.Terms {
	interval, cron := r.schedule(t, limits)
	terms := task.Terms{
		Kind:          t.Kind,
		Begin:         r.time("begin_time", t.BeginTime),
		End:           r.time("end_time", t.EndTime),
		Interval:      interval,
		MaxCount:      t.MaxCount,
		Retry:         r.retryPolicy(t.RetryPolicy),
		AckTimeout:    r.given("ack_timeout", t.AckTimeout),
		GiveUpAfter:   r.given("give_up_after", t.GiveUpAfter),
		StopOnFailure: t.StopOnFailure,
		Retention:     tenant.Retention,
		Cron:          cron,
		Misfire:       task.Misfire(t.MisfirePolicy),
		CatchUp:       t.MisfireLimit,
		Grace:         r.millis("misfire_grace", t.MisfireGrace),
		Overlap:       task.Overlap(t.Overlap),
		Exclude:       t.ExcludeCalendars,
		Only:          t.OnlyCalendars,
		Spread:        r.millis("spread", t.Spread),
		Tags:          t.Tags,
	}
	if t.Retention != nil {
		terms.Retention = r.millis("retention", t.Retention)
	}
	if t.MisfireGrace == nil && terms.Misfire == task.Skip {
		terms.Grace = task.DefaultGrace
	}
	return terms
}

// setTerms puts terms into a task, in the words of the API.
func setTerms(t *perceptorv1.Task, terms *task.Terms) {
	t.Kind = terms.Kind
	t.BeginTime, t.EndTime = timestamp(terms.Begin), timestamp(terms.End)
	t.MaxCount = terms.MaxCount
	t.RetryPolicy = retryPolicyOf(terms.Retry)
	t.AckTimeout, t.GiveUpAfter = durationpb.New(terms.AckTimeout), durationpb.New(terms.GiveUpAfter)
	t.StopOnFailure = terms.StopOnFailure
	t.Retention = durationpb.New(terms.Retention)
	t.MisfirePolicy = max(perceptorv1.Task_MisfirePolicy(terms.Misfire), perceptorv1.Task_FIRE_ONCE)
	t.MisfireLimit = terms.CatchUp
	t.Overlap = max(perceptorv1.Task_Overlap_Policy(terms.Overlap), perceptorv1.Task_Overlap_ALLOW)
	t.Tags = terms.Tags
	t.ExcludeCalendars, t.OnlyCalendars = terms.Exclude, terms.Only
	switch {
	case terms.Interval > 0:
		t.Schedule = &perceptorv1.Task_Interval{Interval: durationpb.New(terms.Interval)}
	case terms.Cron != nil:
		t.Schedule = &perceptorv1.Task_Cron{Cron: &perceptorv1.Cron{
			Dialect: perceptorv1.Cron_Dialect(terms.Cron.Dialect), Expression: terms.Cron.Expression, TimeZone: terms.Cron.Zone,
		}}
	}
	if terms.Misfire == task.Skip {
		t.MisfireGrace = durationpb.New(terms.Grace)
	}
	if terms.Spread > 0 {
		t.Spread = durationpb.New(terms.Spread)
	}
}

func (r *reader) retryPolicy(p *perceptorv1.RetryPolicy) task.RetryPolicy {
	if p == nil {
		return task.RetryPolicy{Jitter: task.UnsetJitter}
	}
	policy := task.RetryPolicy{
		MaxAttempts:    p.MaxAttempts,
		Multiplier:     r.hundredths("retry_policy.multiplier", p.Multiplier),
		InitialBackoff: r.backoff("retry_policy.initial_backoff", p.InitialBackoff),
		MaxBackoff:     r.backoff("retry_policy.max_backoff", p.MaxBackoff),
		Jitter:         task.UnsetJitter,
	}
	if p.Jitter != nil {
		policy.Jitter = r.hundredths("retry_policy.jitter", *p.Jitter)
	}
	return policy
}

// backoff returns 1 ms, the nearest to none at all, where the caller asks for none,
// because 0 stands for the default.
func (r *reader) backoff(field string, d *durationpb.Duration) time.Duration {
	if v := r.given(field, d); v != task.ZeroDuration {
		return v
	}
	return time.Millisecond
}

func retryPolicyOf(p task.RetryPolicy) *perceptorv1.RetryPolicy {
	return &perceptorv1.RetryPolicy{
		MaxAttempts:    p.MaxAttempts,
		InitialBackoff: durationpb.New(p.InitialBackoff),
		Multiplier:     p.Multiplier,
		MaxBackoff:     durationpb.New(p.MaxBackoff),
		Jitter:         proto.Float64(p.Jitter),
	}
}

// hundredths checks that x has at most two decimals. It returns 0 for one that has
// more.
func (r *reader) hundredths(field string, x float64) float64 {
	if math.Abs(x) < 1e9 && math.Round(x*100)/100 != x {
		r.fault(field, "%v has more than two decimals", x)
		return 0
	}
	return x
}
