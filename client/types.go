package client

import (
	"cmp"
	"fmt"
	"time"
	"unicode/utf8"

	"google.golang.org/protobuf/types/known/durationpb"
	"google.golang.org/protobuf/types/known/timestamppb"

	perceptorv1 "github.com/perceptor/perceptor/proto/perceptor/v1"
)

// Type says when the next run of a task is scheduled.
type Type int

const (
	// OneShot has one run, at Begin.
	OneShot Type = 1
	// NonBlocking schedules run n at Begin + (n-1)*Interval, however long the
	// handlers take. Runs may overlap.
	NonBlocking Type = 2
	// Blocking schedules the next run one interval after the result of the last
	// one. Runs never overlap.
	Blocking Type = 3
)

// String returns the name of the type in the API, such as "ONE_SHOT".
func (t Type) String() string { return perceptorv1.Task_Type(t).String() }

// State is the state of a task.
type State int

const (
	// Scheduled means that the task waits for its next run.
	Scheduled State = 1
	// Running means that a run is open, and that no other run is claimed before
	// it is closed.
	Running State = 2
	// Completed means that the task ended by its bounds or by its handler.
	Completed State = 3
	// Cancelled means that the task ended by CancelTask.
	Cancelled State = 4
	// Failed means that the task ended because a run was given up.
	Failed State = 5
)

// String returns the name of the state in the API, such as "SCHEDULED".
func (s State) String() string { return perceptorv1.Task_State(s).String() }

// Final reports whether the task has ended.
func (s State) Final() bool { return s >= Completed }

// Task says when and how often to call a handler, and with what params. Times
// have millisecond precision and are truncated to it.
type Task struct {
	// Kind is the name of the handler. Required; 1 to 100 bytes.
	Kind string
	// IdempotencyKey identifies the task within its tenant. Adding a task again
	// under the same key stores nothing and returns the existing id, or
	// [ErrAlreadyExists] if the task differs; see [WithUpsert]. A key is
	// remembered as long as the task can be looked up, and at least for 24 h.
	// It has up to 128 printable ASCII characters. Default: none.
	IdempotencyKey string
	// Tags are labels to find the task by: up to 16, of 1 to 64 bytes each.
	Tags []string
	// Type says when the next run is scheduled. Required.
	Type Type
	// Begin is the earliest instant of a run. Default (zero): now.
	Begin time.Time
	// End is the exclusive latest instant of a run. Default (zero): none.
	End time.Time
	// Interval is the time between runs. OneShot has none; the other types need
	// it or Cron.
	Interval time.Duration
	// Cron replaces Interval. The first run is at the first match at or after
	// Begin. A OneShot task with Cron fires at that match only.
	Cron *Cron
	// Misfire says what happens to instants that passed without firing. Default
	// (0): FireOnce.
	Misfire Misfire
	// MisfireGrace is how late an instant may fire under SkipMissed. Default
	// (0): 1 min. NoGrace: it must not be late.
	MisfireGrace time.Duration
	// Overlap says what happens to instants of a NonBlocking task that come while an earlier
	// run is open. Default AllowOverlap. The others do not go with FireAll.
	Overlap Overlap
	// ExcludeCalendars and OnlyCalendars are names of day calendars of the tenant: no
	// instant fires in one of the former, and, if there are any of the latter, outside of
	// them. Not for OneShot; at most 4 each.
	ExcludeCalendars, OnlyCalendars []string
	// MisfireLimit is the maximum number of missed instants that FireAll fires;
	// it fires the newest. Default (0): 1000.
	MisfireLimit int
	// Spread is a window over which the instants of many tasks are distributed.
	// All instants of this task are delayed by the same part of it. It must be
	// less than Interval.
	Spread time.Duration
	// MaxCount is the number of runs after which the task is completed. Default
	// (0): no limit.
	MaxCount int64
	// Params are passed to the handler. At most 64 entries and, with the payload,
	// 16 KiB, unless the tenant has another limit.
	Params map[string]string
	// Payload is passed to the handler, too; see [JSON]. Default (nil): none.
	Payload *Payload
	// Retry says what happens when the handler fails.
	Retry RetryPolicy
	// AckTimeout is how long a run may be without a result or heartbeat before
	// it is delivered again. For Blocking it is also the length of the lease.
	// Default (0): 60 s.
	AckTimeout time.Duration
	// GiveUpAfter is how long after its first claim a run without a result is
	// given up. Default (0): 24 h.
	GiveUpAfter time.Duration
	// StopOnFailure ends the task as Failed when a run is given up.
	StopOnFailure bool
	// Retention is how long a finished task can be looked up. Default (0): the
	// tenant's. NoRetention: not at all.
	Retention time.Duration
}

// Cron is a schedule given by a cron expression.
type Cron struct {
	// Expression has five fields, or six with seconds first, unless Dialect
	// says otherwise. Names such as @daily, "@every 90m" and recurrence rules
	// need no dialect.
	Expression string
	// Zone is the IANA name of a time zone. Default: UTC.
	Zone string
	// Dialect is the dialect of the expression. Default (0): NamedCron if it
	// begins with @, RRuleCron if it begins with DTSTART, RRULE: or FREQ=,
	// otherwise StandardCron.
	Dialect Dialect
}

// Dialect is a dialect of cron expressions.
type Dialect int

const (
	// StandardCron has five fields, or six with seconds. The task's id
	// determines H.
	StandardCron Dialect = 1
	// QuartzCron has six or seven fields, as in Quartz.
	QuartzCron Dialect = 2
	// NamedCron has @yearly, @monthly, @weekly, @daily, @hourly and similar
	// names.
	NamedCron Dialect = 3
	// RRuleCron is a recurrence rule of RFC 5545, with its start by the clock of
	// the zone: "DTSTART:20260105T090000 RRULE:FREQ=WEEKLY;BYDAY=MO".
	RRuleCron Dialect = 4
)

// Misfire says what happens to scheduled instants that passed without firing.
// Instants that do not fire are counted as missed.
type Misfire int

const (
	// FireOnce fires the stored instant late, then the first instant after now.
	FireOnce Misfire = 1
	// FireAll fires all missed instants in order, up to MisfireLimit.
	FireAll Misfire = 2
	// SkipMissed does not fire an instant that is late by more than MisfireGrace.
	SkipMissed Misfire = 3
)

// Overlap says what happens to an instant of a NonBlocking task that comes while an earlier
// run of the task is open: claimed or triggered, and without its final result.
type Overlap int

const (
	// AllowOverlap fires the instant.
	AllowOverlap Overlap = 1
	// SkipOverlap does not fire the instant and counts it as missed.
	SkipOverlap Overlap = 2
	// BufferOne lets the first such instant wait until no run is open, and counts later ones
	// as missed.
	BufferOne Overlap = 3
)

// NoGrace as Task.MisfireGrace means that no instant fires late.
const NoGrace time.Duration = -1

// NoRetention as Task.Retention means that a finished task is deleted at once.
const NoRetention time.Duration = -1

// NoJitter as RetryPolicy.Jitter means that delays are exact.
const NoJitter float64 = -1

// RetryPolicy says when a failed run is retried: after min(MaxBackoff,
// InitialBackoff * Multiplier^(failures-1)), plus a random part of it of up to
// Jitter. Zero fields take their defaults.
type RetryPolicy struct {
	MaxAttempts    int           // default 5
	InitialBackoff time.Duration // default 1 s
	Multiplier     float64       // default 2
	MaxBackoff     time.Duration // default 1 h
	Jitter         float64       // default 0.1; see NoJitter
}

// TaskInfo is a stored task.
type TaskInfo struct {
	Task
	// ID is positive and unique among all tenants.
	ID    int64
	State State
	// Paused means that no run is claimed.
	Paused bool
	// RunCount is the number of runs claimed so far.
	RunCount int64
	// MissedCount is the number of scheduled instants that passed without firing.
	MissedCount int64
	// ParamsErr says why the [Codec] could not decode Params or Payload. Then
	// both are as stored; do not send them back.
	ParamsErr error
	// OpenRuns is the number of runs without a final result.
	OpenRuns int
	// Attempt is the number of deliveries of the current run; 0 if no run is
	// open.
	Attempt int
	// ScheduledAt is the instant of the current or next run; zero in a final
	// state.
	ScheduledAt time.Time
	// DueAt is when the task needs attention next; zero: never.
	DueAt time.Time
	// CreatedAt is when the task was accepted, FinishedAt when it ended (zero
	// before).
	CreatedAt  time.Time
	FinishedAt time.Time
	// Version grows with every change by a caller.
	Version int
	// BackfillOf is the task whose past instants this one makes fire, and BackfillID the
	// operation that added it; 0: it belongs to no backfill. See BulkBackfill.
	BackfillOf, BackfillID int64
}

// fault returns a fault that cannot be expressed in a request, or would fail
// other tasks in the same request; nil: none.
func (t *Task) fault() *FieldError {
	if t.Interval != 0 && t.Cron != nil {
		return &FieldError{"interval", t.Interval.String() + ": a task has an interval or a cron expression, not both"}
	}
	text := func(field, s string) *FieldError {
		if utf8.ValidString(s) {
			return nil
		}
		return &FieldError{field, fmt.Sprintf("%.80q is not valid UTF-8", s)}
	}
	for k, v := range t.Params {
		switch {
		case !utf8.ValidString(k):
			return text("params", k)
		case !utf8.ValidString(v):
			return text(fmt.Sprintf("params[%q]", k), v)
		}
	}
	if t.Payload != nil {
		if f := text("payload.content_type", t.Payload.ContentType); f != nil {
			return f
		}
	}
	for _, tag := range t.Tags {
		if f := text("tags", tag); f != nil {
			return f
		}
	}
	cron := Cron{}
	if t.Cron != nil {
		cron = *t.Cron
	}
	return cmp.Or(text("kind", t.Kind), text("idempotency_key", t.IdempotencyKey), text("cron.expression", cron.Expression), text("cron.time_zone", cron.Zone))
}

func (t *Task) proto() *perceptorv1.Task {
	p := &perceptorv1.Task{
		Kind: t.Kind, Type: perceptorv1.Task_Type(t.Type), MaxCount: t.MaxCount, Params: t.Params, Payload: t.Payload.proto(),
		BeginTime: protoTime(t.Begin), EndTime: protoTime(t.End),
		AckTimeout: protoDuration(t.AckTimeout), GiveUpAfter: protoDuration(t.GiveUpAfter),
		StopOnFailure: t.StopOnFailure, RetryPolicy: t.Retry.proto(),
		IdempotencyKey: t.IdempotencyKey, Tags: t.Tags,
	}
	t.protoTiming(p)
	switch {
	case t.Retention == NoRetention:
		p.Retention = durationpb.New(0)
	case t.Retention != 0:
		p.Retention = durationpb.New(t.Retention)
	}
	return p
}

func (t *Task) protoTiming(p *perceptorv1.Task) {
	if t.Interval != 0 {
		p.Schedule = &perceptorv1.Task_Interval{Interval: durationpb.New(t.Interval)}
	}
	if c := t.Cron; c != nil {
		p.Schedule = &perceptorv1.Task_Cron{Cron: &perceptorv1.Cron{Expression: c.Expression, TimeZone: c.Zone, Dialect: perceptorv1.Cron_Dialect(c.Dialect)}}
	}
	p.MisfirePolicy, p.MisfireLimit = perceptorv1.Task_MisfirePolicy(t.Misfire), int32(min(t.MisfireLimit, 1<<31-1))
	p.MisfireGrace, p.Spread = protoDuration(t.MisfireGrace), protoDuration(t.Spread)
	p.Overlap = perceptorv1.Task_Overlap_Policy(t.Overlap)
	p.ExcludeCalendars, p.OnlyCalendars = t.ExcludeCalendars, t.OnlyCalendars
	if t.MisfireGrace == NoGrace {
		p.MisfireGrace = durationpb.New(0)
	}
}

func (t *Task) readTiming(p *perceptorv1.Task) {
	if c := p.GetCron(); c != nil {
		t.Cron = &Cron{Expression: c.GetExpression(), Zone: c.GetTimeZone(), Dialect: Dialect(c.GetDialect())}
	}
	t.Misfire, t.MisfireLimit = Misfire(p.GetMisfirePolicy()), int(p.GetMisfireLimit())
	t.MisfireGrace, t.Spread = p.GetMisfireGrace().AsDuration(), p.GetSpread().AsDuration()
	t.Overlap = Overlap(p.GetOverlap())
	t.ExcludeCalendars, t.OnlyCalendars = p.GetExcludeCalendars(), p.GetOnlyCalendars()
	if p.GetMisfireGrace() != nil && t.MisfireGrace == 0 {
		t.MisfireGrace = NoGrace
	}
}

func (r *RetryPolicy) proto() *perceptorv1.RetryPolicy {
	if *r == (RetryPolicy{}) {
		return nil
	}
	p := &perceptorv1.RetryPolicy{
		MaxAttempts: int32(min(r.MaxAttempts, 1<<31-1)), Multiplier: r.Multiplier,
		InitialBackoff: protoDuration(r.InitialBackoff), MaxBackoff: protoDuration(r.MaxBackoff),
	}
	if r.Jitter != 0 {
		jitter := r.Jitter
		if jitter == NoJitter {
			jitter = 0
		}
		p.Jitter = &jitter
	}
	return p
}

func protoTime(t time.Time) *timestamppb.Timestamp {
	if t.IsZero() {
		return nil
	}
	return timestamppb.New(t)
}

func protoDuration(d time.Duration) *durationpb.Duration {
	if d == 0 {
		return nil
	}
	return durationpb.New(d)
}

func goTime(t *timestamppb.Timestamp) time.Time {
	if t == nil {
		return time.Time{}
	}
	return t.AsTime()
}

// TaskInfoOf converts a task of the API, for interceptors and for requests that
// are made without a Client.
func TaskInfoOf(p *perceptorv1.Task) *TaskInfo { return taskInfo(p) }

func taskInfo(p *perceptorv1.Task) *TaskInfo {
	r := p.GetRetryPolicy()
	info := &TaskInfo{
		ID: p.GetId(), State: State(p.GetState()), Paused: p.GetPaused(), RunCount: p.GetRunCount(),
		MissedCount: p.GetMissedCount(), OpenRuns: int(p.GetOpenRunCount()), Attempt: int(p.GetAttempt()),
		ScheduledAt: goTime(p.GetScheduledTime()), DueAt: goTime(p.GetDueTime()),
		CreatedAt: goTime(p.GetCreateTime()), FinishedAt: goTime(p.GetFinishTime()), Version: int(p.GetVersion()),
		BackfillOf: p.GetBackfillOf(), BackfillID: p.GetBackfillId(),
		Task: Task{
			Kind: p.GetKind(), Type: Type(p.GetType()), Begin: goTime(p.GetBeginTime()), End: goTime(p.GetEndTime()),
			Interval: p.GetInterval().AsDuration(), MaxCount: p.GetMaxCount(), Params: p.GetParams(), Payload: payloadOf(p.GetPayload()),
			AckTimeout: p.GetAckTimeout().AsDuration(), GiveUpAfter: p.GetGiveUpAfter().AsDuration(),
			IdempotencyKey: p.GetIdempotencyKey(), Tags: p.GetTags(),
			StopOnFailure: p.GetStopOnFailure(), Retention: p.GetRetention().AsDuration(),
			Retry: RetryPolicy{
				MaxAttempts: int(r.GetMaxAttempts()), InitialBackoff: r.GetInitialBackoff().AsDuration(),
				Multiplier: r.GetMultiplier(), MaxBackoff: r.GetMaxBackoff().AsDuration(), Jitter: r.GetJitter(),
			},
		},
	}
	info.readTiming(p)
	if p.GetRetention() != nil && info.Retention == 0 {
		info.Retention = NoRetention
	}
	if r != nil && r.Jitter != nil && info.Retry.Jitter == 0 {
		info.Retry.Jitter = NoJitter
	}
	return info
}

// RunID returns the id of a run as in logs and record headers: "TASK-SEQ".
func RunID(task, seq int64) string { return fmt.Sprintf("%d-%d", task, seq) }
