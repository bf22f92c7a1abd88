package server

import (
	"fmt"
	"time"

	"google.golang.org/protobuf/types/known/durationpb"
	"google.golang.org/protobuf/types/known/timestamppb"

	perceptorv1 "github.com/perceptor/perceptor/proto/perceptor/v1"
	"github.com/perceptor/perceptor/task"
)

// taskOf returns a snapshot in the words of the API.
func taskOf(s *task.Snapshot) (*perceptorv1.Task, error) {
	params, payload, err := storedParams(s.Params)
	if err != nil {
		return nil, fmt.Errorf("decode params of task %d: %w", s.ID, err)
	}
	t := &perceptorv1.Task{
		Id:             int64(s.ID),
		Type:           perceptorv1.Task_Type(s.Type),
		Params:         params,
		Payload:        payload,
		IdempotencyKey: s.Key,
		ReplayOf:       replayOf(s.ReplayOf),
		BackfillOf:     int64(s.BackfillOf),
		BackfillId:     s.Backfill,
		TraceParent:    s.TraceParent,
		State:          perceptorv1.Task_State(s.State),
		Paused:         s.Paused,
		RunCount:       s.Seq,
		MissedCount:    s.Missed,
		OpenRunCount:   s.OpenCount(),
		Version:        s.Version,
		CreateTime:     timestamp(s.CreatedAt),
		FinishTime:     timestamp(s.FinishedAt),
	}
	setTerms(t, &s.Terms)
	if !s.State.Final() {
		t.ScheduledTime, t.DueTime = timestamp(s.CurrentInstant()), timestamp(s.DueAt)
		if s.Type != task.NonBlocking {
			t.Attempt = s.Attempt
		}
	}
	return t, nil
}

// replayOf returns "" for none.
func replayOf(id task.RunID) string {
	if id.Task == 0 {
		return ""
	}
	return id.String()
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
