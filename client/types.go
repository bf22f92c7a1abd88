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

// Type says how the runs of a task follow each other.
type Type int

const (
	// OneShot has one run, at Begin.
	OneShot Type = 1
	// NonBlocking schedules run n at Begin + (n-1)*Interval, whatever the handlers
	// do or how long they take. Runs may overlap.
	NonBlocking Type = 2
	// Blocking schedules the next run one interval after the result of the last
	// one. Runs never overlap.
	Blocking Type = 3
)

// String returns the name of the type in the API, such as "ONE_SHOT".
func (t Type) String() string { return perceptorv1.Task_Type(t).String() }

// State is where a task is in its life.
type State int

const (
	// Scheduled means waiting for the next run.
	Scheduled State = 1
	// Running means that a run is open and no further one may be claimed before it is closed.
	Running State = 2
	// Completed means ended as its bounds or its handler said.
	Completed State = 3
	// Cancelled means ended by CancelTask.
	Cancelled State = 4
	// Failed means ended because a run was given up.
	Failed State = 5
)

// String returns the name of the state in the API, such as "SCHEDULED".
func (s State) String() string { return perceptorv1.Task_State(s).String() }

// Final reports whether a task in this state has ended.
func (s State) Final() bool { return s >= Completed }

// Task says when a handler is to be called, how often, and with what. Times have
// millisecond precision; finer digits are cut off.
type Task struct {
	// Kind is the name of the handler. Required; 1 to 100 bytes.
	Kind string
	// IdempotencyKey names the task among those of its tenant: adding it again under
	// the same key stores nothing and returns the id that it has, or
	// [ErrAlreadyExists] if its body is another one; see [WithUpsert]. It holds while
	// the task can be looked up, and for 24 h at least. Up to 128 printable ASCII
	// characters. Default: none.
	IdempotencyKey string
	// Tags are what to find the task by: up to 16, of 1 to 64 bytes each.
	Tags []string
	// Type says how the runs follow each other. Required.
	Type Type
	// Begin is the first instant a run may be scheduled at. Default (zero): now.
	Begin time.Time
	// End: no run is scheduled at or after it. Default (zero): none.
	End time.Time
	// Interval is the distance of the runs. OneShot has none; the others need it, or
	// Cron.
	Interval time.Duration
	// Cron says when, in place of Interval: the first run is at the first match at
	// or after Begin. OneShot may have it, and fires at that match.
	Cron *Cron
	// Misfire says what happens to instants that passed without firing. Default (0):
	// FireOnce.
	Misfire Misfire
	// MisfireGrace is how late an instant may fire under SkipMissed. Default (0): 1 min;
	// NoGrace: not at all.
	MisfireGrace time.Duration
	// MisfireLimit is how many missed instants fire under FireAll, the newest.
	// Default (0): 1000.
	MisfireLimit int
	// Spread is the window over which the instants of many tasks are spread: each of
	// this task's is later by the same part of it. Less than Interval.
	Spread time.Duration
	// MaxCount is the number of runs after which the task is completed. Default
	// (0): no limit.
	MaxCount int64
	// Params are passed to the handler: at most 64 entries, 16 KiB unless the
	// tenant has another limit.
	Params map[string]string
	// Retry says what happens when the handler fails.
	Retry RetryPolicy
	// AckTimeout is how long a run may stay silent before it is delivered again;
	// for Blocking also the length of the lease. Default (0): 60 s.
	AckTimeout time.Duration
	// GiveUpAfter is how long after its first claim a silent run is given up.
	// Default (0): 24 h.
	GiveUpAfter time.Duration
	// StopOnFailure ends the task as Failed when a run is given up.
	StopOnFailure bool
	// Retention is how long the finished task can be looked up. Default (0): the
	// tenant's. NoRetention: not at all.
	Retention time.Duration
}

// Cron is a schedule by expression.
type Cron struct {
	// Expression has five fields, or six with seconds first, unless Dialect says
	// otherwise. Names such as @daily, and "@every 90m", need no dialect.
	Expression string
	// Zone is the IANA name of a time zone. Default: UTC.
	Zone string
	// Dialect is the language of the expression. Default (0): StandardCron, or
	// NamedCron for what begins with @.
	Dialect Dialect
}

// Dialect is the language of a cron expression.
type Dialect int

const (
	// StandardCron has five fields, or six with seconds; H is drawn by the task's id.
	StandardCron Dialect = 1
	// QuartzCron has six or seven fields, as Quartz has them.
	QuartzCron Dialect = 2
	// NamedCron are @yearly, @monthly, @weekly, @daily, @hourly and their kin.
	NamedCron Dialect = 3
)

// Misfire says what happens to scheduled instants that passed without firing. All
// that do not fire are counted.
type Misfire int

const (
	// FireOnce fires the stored instant, late; then the first one after now.
	FireOnce Misfire = 1
	// FireAll fires each missed instant, one after the other, up to MisfireLimit.
	FireAll Misfire = 2
	// SkipMissed does not fire an instant that is late by more than MisfireGrace.
	SkipMissed Misfire = 3
)

// NoGrace as Task.MisfireGrace lets nothing fire late.
const NoGrace time.Duration = -1

// NoRetention as Task.Retention keeps nothing of a finished task.
const NoRetention time.Duration = -1

// NoJitter as RetryPolicy.Jitter means exact distances.
const NoJitter float64 = -1

// RetryPolicy says what happens when a handler fails: another attempt follows
// after min(MaxBackoff, InitialBackoff * Multiplier^(failures-1)), lengthened by
// a random share of up to Jitter. Zero fields take their defaults.
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
	// ID is positive and unique over all tenants.
	ID    int64
	State State
	// Paused: no new run is claimed.
	Paused bool
	// RunCount is the number of runs claimed so far.
	RunCount int64
	// MissedCount is the number of scheduled instants that passed without firing.
	MissedCount int64
	// OpenRuns is the number of runs that await their result.
	OpenRuns int
	// Attempt is the number of deliveries of the current run; 0 when none is open.
	Attempt int
	// ScheduledAt is the instant of the current or next run; zero in a final state.
	ScheduledAt time.Time
	// DueAt is when the task needs attention next; zero when there is nothing to wait for.
	DueAt time.Time
	// CreatedAt is when the task was accepted; FinishedAt when it ended, zero before.
	CreatedAt  time.Time
	FinishedAt time.Time
	// Version grows with every change made by a caller.
	Version int
}

// fault is what is wrong with a task that cannot be said in a request, or would
// spoil those that are sent with it; nil: nothing.
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
		Kind: t.Kind, Type: perceptorv1.Task_Type(t.Type), MaxCount: t.MaxCount, Params: t.Params,
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

// TaskInfoOf reads a task of the API, for those who meet one elsewhere: in an
// interceptor, or a request of their own.
func TaskInfoOf(p *perceptorv1.Task) *TaskInfo { return taskInfo(p) }

func taskInfo(p *perceptorv1.Task) *TaskInfo {
	r := p.GetRetryPolicy()
	info := &TaskInfo{
		ID: p.GetId(), State: State(p.GetState()), Paused: p.GetPaused(), RunCount: p.GetRunCount(),
		MissedCount: p.GetMissedCount(), OpenRuns: int(p.GetOpenRunCount()), Attempt: int(p.GetAttempt()),
		ScheduledAt: goTime(p.GetScheduledTime()), DueAt: goTime(p.GetDueTime()),
		CreatedAt: goTime(p.GetCreateTime()), FinishedAt: goTime(p.GetFinishTime()), Version: int(p.GetVersion()),
		Task: Task{
			Kind: p.GetKind(), Type: Type(p.GetType()), Begin: goTime(p.GetBeginTime()), End: goTime(p.GetEndTime()),
			Interval: p.GetInterval().AsDuration(), MaxCount: p.GetMaxCount(), Params: p.GetParams(),
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

// RunID returns the identity of a run as logs and headers have it: "TASK-SEQ".
func RunID(task, seq int64) string { return fmt.Sprintf("%d-%d", task, seq) }
