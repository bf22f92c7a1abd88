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
		Terms: r.terms(t, tenant, limits), Type: task.Type(t.Type), Params: t.Params, Payload: r.payload("payload", t.Payload),
		Origin: task.Origin{Key: t.IdempotencyKey, TraceParent: r.traceParent(t.TraceParent)},
	}
	if f := keyFault(t.IdempotencyKey); f != nil {
		r.unlessFaulty(*f)
	}
	for _, f := range s.Validate(limits) {
		r.unlessFaulty(f)
	}
	if len(r.faults) == 0 {
		s.ParamsWire = paramsWire(t.Params, s.Payload)
	}
	return s, r.faults
}

// paramsWire returns the bytes that are stored and delivered: the wire form of
// perceptor.v1.Params, the same for the same params and payload. The general encoder
// takes four times as long for it; a test holds this one against it. A nil payload
// means none.
func paramsWire(params map[string]string, payload *task.Payload) []byte {
	if len(params) == 0 && payload == nil {
		return nil
	}
	keys, size := make([]string, 0, len(params)), 0
	if payload != nil {
		size = paramFraming + len(payload.Data) + len(payload.ContentType)
	}
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
	if payload == nil {
		return wire
	}
	wire = protowire.AppendBytes(protowire.AppendTag(wire, 2, protowire.BytesType), payload.Data)
	if t := payload.StoredType(); t != "" {
		wire = protowire.AppendString(protowire.AppendTag(wire, 3, protowire.BytesType), t)
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

// unlessFaulty adds a fault of a field that has none yet, and none beyond those that an answer has.
func (r *reader) unlessFaulty(f task.Fault) {
	if len(r.faults) > maxViolations {
		return
	}
	for _, known := range r.faults {
		if known.Field == f.Field {
			return
		}
	}
	r.faults = append(r.faults, f)
}

// time returns [task.Never] for none and for a malformed one.
func (r *reader) time(field string, t *timestamppb.Timestamp) task.Instant {
	if t == nil {
		return task.Never
	}
	if f := timeFault(field, t); f != nil {
		r.faults = append(r.faults, *f)
		return task.Never
	}
	return task.At(t.AsTime())
}

// timeFault returns the fault of an instant that is none, or nil.
func timeFault(field string, t *timestamppb.Timestamp) *task.Fault {
	if t == nil || t.IsValid() {
		return nil
	}
	f := faultf(field, "%d s and %d ns since 1970 is not an instant of the years 1 to 9999", t.Seconds, t.Nanos)
	return &f
}

// durationFault returns the fault of a duration that is none, or nil.
func durationFault(field string, d *durationpb.Duration) *task.Fault {
	switch {
	case d == nil:
		return nil
	case !d.IsValid():
		f := faultf(field, "%d s and %d ns is not a duration", d.Seconds, d.Nanos)
		return &f
	case d.Seconds > maxSeconds || d.Seconds < -maxSeconds:
		f := faultf(field, "%d s is more than 292 years", d.Seconds)
		return &f
	}
	return nil
}

// maxSeconds is where AsDuration begins to return another duration than the one that was sent.
const maxSeconds = int64(math.MaxInt64 / time.Second)

// instant is time for instants that no rule of package task judges.
func (r *reader) instant(field string, t *timestamppb.Timestamp) task.Instant {
	i := r.time(field, t)
	if i != task.Never {
		if message := task.InstantFault(i); message != "" {
			r.fault(field, "%s", message)
		}
	}
	return i
}

// millis returns 0 for none and for a duration that is malformed or not of whole
// milliseconds.
func (r *reader) millis(field string, d *durationpb.Duration) time.Duration {
	v := d.AsDuration()
	f := durationFault(field, d)
	switch {
	case d == nil:
	case f != nil:
		r.faults = append(r.faults, *f)
	case v%time.Millisecond != 0:
		r.fault(field, "%s is not a whole number of milliseconds", v)
	default:
		return v
	}
	return 0
}

// given is millis for a field whose 0 stands for the default, which a caller asks
// for by leaving it out.
func (r *reader) given(field string, d *durationpb.Duration) time.Duration {
	if d != nil && d.Seconds == 0 && d.Nanos == 0 {
		return task.ZeroDuration
	}
	return r.millis(field, d)
}

// duration is millis for durations that no rule of package task judges. It returns
// low for one that is out of range.
func (r *reader) duration(field string, d *durationpb.Duration, low, high time.Duration) time.Duration {
	v := r.millis(field, d)
	if v < low || v > high {
		r.unlessFaulty(faultf(field, "%s is not between %s and %s", v, low, high))
		return low
	}
	return v
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
