package server

import (
	"encoding/binary"
	"math"
	"slices"
	"time"

	"google.golang.org/protobuf/encoding/protowire"
	"google.golang.org/protobuf/types/known/durationpb"
	"google.golang.org/protobuf/types/known/timestamppb"

	perceptorv1 "github.com/perceptor/perceptor/proto/perceptor/v1"
	"github.com/perceptor/perceptor/task"
)

// specOf returns the spec that a task of a request asks for, with defaults, and
// all its faults, with paths relative to the task.
func specOf(t *perceptorv1.Task, tenant *Tenant, limits task.Limits) (task.Spec, []task.Fault) {
	if t == nil {
		t = &perceptorv1.Task{}
	}
	limits.ParamsBytes = tenant.ParamsBytes
	r := &reader{}
	s := task.Spec{
		Kind:          t.Kind,
		Type:          task.Type(t.Type),
		Begin:         r.instant("begin_time", t.BeginTime),
		End:           r.instant("end_time", t.EndTime),
		MaxCount:      t.MaxCount,
		Params:        t.Params,
		Retry:         r.retryPolicy(t.RetryPolicy),
		AckTimeout:    r.positive("ack_timeout", t.AckTimeout, limits.MinAckTimeout, task.MaxAckTimeout),
		GiveUpAfter:   r.positive("give_up_after", t.GiveUpAfter, limits.MinAckTimeout, task.MaxGiveUpAfter),
		StopOnFailure: t.StopOnFailure,
		Retention:     tenant.Retention,
	}
	if t.Retention != nil {
		s.Retention = r.duration("retention", t.Retention, 0, task.MaxRetention)
	}
	if f := keyFault(t.IdempotencyKey); f != nil {
		r.unlessFaulty(*f)
	}
	s.Extra = r.extra(t, &s, limits).Seal()
	for _, f := range s.Validate(limits) {
		r.unlessFaulty(f)
	}
	if len(r.faults) == 0 {
		s.ParamsWire = paramsWire(t.Params)
	}
	return s, r.faults
}

// paramsWire returns the bytes that are stored and delivered: the wire form of
// perceptor.v1.Params, the same for the same params. The general encoder takes
// four times as long for it; a test holds this one against it.
func paramsWire(params map[string]string) []byte {
	if len(params) == 0 {
		return nil
	}
	keys, size := make([]string, 0, len(params)), 0
	for k, v := range params {
		keys = append(keys, k)
		size += len(k) + len(v) + paramFraming
	}
	slices.Sort(keys)
	wire := make([]byte, 0, size)
	for _, k := range keys {
		v := params[k]
		wire = protowire.AppendTag(wire, 1, protowire.BytesType)
		wire = protowire.AppendVarint(wire, uint64(2+protowire.SizeBytes(len(k))+protowire.SizeBytes(len(v))))
		wire = protowire.AppendString(protowire.AppendTag(wire, 1, protowire.BytesType), k)
		wire = protowire.AppendString(protowire.AppendTag(wire, 2, protowire.BytesType), v)
	}
	return wire
}

// paramFraming is the most that an entry of params takes beside key and value.
const paramFraming = 3 + 3*binary.MaxVarintLen32

// reader takes values out of a request and collects what is wrong with them.
type reader struct{ faults []task.Fault }

func (r *reader) fault(field, format string, args ...any) {
	r.faults = append(r.faults, faultf(field, format, args...))
}

// unlessFaulty adds a fault of a field that has none yet.
func (r *reader) unlessFaulty(f task.Fault) {
	for _, known := range r.faults {
		if known.Field == f.Field {
			return
		}
	}
	r.faults = append(r.faults, f)
}

// instant returns [task.Never] for none and for a malformed one.
func (r *reader) instant(field string, t *timestamppb.Timestamp) task.Instant {
	if t == nil {
		return task.Never
	}
	if err := t.CheckValid(); err != nil {
		r.fault(field, "%d s and %d ns since 1970 is not an instant of the years 1 to 9999", t.Seconds, t.Nanos)
		return task.Never
	}
	i := task.At(t.AsTime())
	if i < 0 || i >= task.LastInstant {
		r.fault(field, "%s is not between 1970-01-01T00:00:00Z and 9000-01-01T00:00:00Z", i)
	}
	return i
}

// duration returns d if it is between the limits and of whole milliseconds, else
// low.
func (r *reader) duration(field string, d *durationpb.Duration, low, high time.Duration) time.Duration {
	v := d.AsDuration()
	switch {
	case d.CheckValid() != nil:
		r.fault(field, "%d s and %d ns is not a duration", d.Seconds, d.Nanos)
	case v < low || v > high:
		r.fault(field, "%s is not between %s and %s", v, low, high)
	case v%time.Millisecond != 0:
		r.fault(field, "%s is not a whole number of milliseconds", v)
	default:
		return v
	}
	return low
}

// positive returns 0, which stands for the default, only for none.
func (r *reader) positive(field string, d *durationpb.Duration, low, high time.Duration) time.Duration {
	if d == nil {
		return 0
	}
	return r.duration(field, d, low, high)
}

// traceParent returns a trace context that is worth to be kept, or "".
func (r *reader) traceParent(s string) string {
	if s == "" {
		return ""
	}
	if fault := task.TraceParentFault(s); fault != "" {
		r.fault("trace_parent", "%s", fault)
		return ""
	}
	if !task.Sampled(s) {
		return ""
	}
	return s
}

func (r *reader) retryPolicy(p *perceptorv1.RetryPolicy) task.RetryPolicy {
	if p == nil {
		return task.RetryPolicy{Jitter: -1}
	}
	policy := task.RetryPolicy{
		MaxAttempts: p.MaxAttempts,
		Multiplier:  r.hundredths("retry_policy.multiplier", p.Multiplier),
		MaxBackoff:  r.positive("retry_policy.max_backoff", p.MaxBackoff, 0, task.MaxBackoff),
		Jitter:      -1,
	}
	if d := p.InitialBackoff; d != nil {
		// A spec takes 0 for the default; the nearest to none at all is 1 ms.
		policy.InitialBackoff = max(r.duration("retry_policy.initial_backoff", d, 0, task.MaxBackoff), time.Millisecond)
	}
	if p.MaxBackoff != nil {
		policy.MaxBackoff = max(policy.MaxBackoff, time.Millisecond)
	}
	if p.Jitter != nil {
		policy.Jitter = r.hundredths("retry_policy.jitter", *p.Jitter)
		if policy.Jitter < 0 {
			r.fault("retry_policy.jitter", "%v is not between 0 and 1", *p.Jitter)
		}
	}
	return policy
}

// hundredths checks that x has at most two decimals.
func (r *reader) hundredths(field string, x float64) float64 {
	if math.Abs(x) < 1e9 && math.Round(x*100)/100 != x {
		r.fault(field, "%v has more than two decimals", x)
	}
	return x
}
