package server

import (
	"fmt"
	"time"

	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/durationpb"
	"google.golang.org/protobuf/types/known/timestamppb"

	perceptorv1 "github.com/perceptor/perceptor/proto/perceptor/v1"
	"github.com/perceptor/perceptor/task"
)

// taskOf returns a snapshot in the words of the API.
func taskOf(s *task.Snapshot) (*perceptorv1.Task, error) {
	var params perceptorv1.Params
	if err := proto.Unmarshal(s.Params, &params); err != nil {
		return nil, fmt.Errorf("decode params of task %d: %w", s.ID, err)
	}
	t := &perceptorv1.Task{
		Id:            int64(s.ID),
		Kind:          s.Kind,
		Type:          perceptorv1.Task_Type(s.Type),
		BeginTime:     timestamp(s.Begin),
		EndTime:       timestamp(s.End),
		MaxCount:      s.MaxCount,
		Params:        params.Entries,
		RetryPolicy:   retryPolicyOf(s.Retry),
		AckTimeout:    durationpb.New(s.AckTimeout),
		GiveUpAfter:   durationpb.New(s.GiveUpAfter),
		StopOnFailure: s.StopOnFailure,
		MisfirePolicy: perceptorv1.Task_FIRE_ONCE,
		Retention:     durationpb.New(s.Retention),
		State:         perceptorv1.Task_State(s.State),
		Paused:        s.Paused,
		RunCount:      s.Seq,
		MissedCount:   s.Missed,
		OpenRunCount:  s.OpenCount(),
		Version:       s.Version,
		CreateTime:    timestamp(s.CreatedAt),
		FinishTime:    timestamp(s.FinishedAt),
	}
	if e := s.Extra; e != nil {
		t.Tags, t.IdempotencyKey, t.TraceParent = e.Tags, e.Key, e.TraceParent
		timingOf(t, e)
		if e.ReplayOf.Task != 0 {
			t.ReplayOf = e.ReplayOf.String()
		}
	}
	if s.Interval > 0 {
		t.Schedule = &perceptorv1.Task_Interval{Interval: durationpb.New(s.Interval)}
	}
	if !s.State.Final() {
		t.ScheduledTime, t.DueTime = timestamp(s.ScheduledAt), timestamp(s.DueAt)
		if s.Type != task.NonBlocking {
			t.Attempt = s.Attempt
		}
	}
	return t, nil
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

// timestamp returns nil for [task.Never].
func timestamp(i task.Instant) *timestamppb.Timestamp {
	if i == task.Never {
		return nil
	}
	return timestamppb.New(i.Time())
}

// lease returns nil for none.
func lease(d time.Duration) *durationpb.Duration {
	if d <= 0 {
		return nil
	}
	return durationpb.New(d)
}
