package server

import (
	"context"
	"fmt"
	"strconv"

	"google.golang.org/protobuf/types/known/durationpb"
	"google.golang.org/protobuf/types/known/timestamppb"

	perceptorv1 "github.com/perceptor/perceptor/proto/perceptor/v1"
	"github.com/perceptor/perceptor/task"
)

// DeadLetters stores runs that were given up. All methods may be called
// concurrently. They return [task.NotFound] if the tenant has no such run.
type DeadLetters interface {
	// ListDead returns the page of dead runs after a cursor, newest first.
	ListDead(ctx context.Context, q task.DeadQuery) (task.DeadPage, error)
	Dead(ctx context.Context, tenant int32, id task.RunID) (*task.DeadLetter, error)
	// ReplayDead adds a task that repeats a dead run. Repeated calls add one
	// task.
	ReplayDead(ctx context.Context, tenant int32, id task.RunID) (task.Replayed, error)
	PurgeDead(ctx context.Context, tenant int32, id task.RunID) error
}

// deadLetterService implements the API's DeadLetterService.
type deadLetterService struct {
	perceptorv1.UnimplementedDeadLetterServiceServer
	store  DeadLetters
	quotas *quotas
}

func (s *deadLetterService) ListDeadRuns(ctx context.Context, r *perceptorv1.ListDeadRunsRequest) (*perceptorv1.ListDeadRunsResponse, error) {
	tenant := tenantOf(ctx).ID
	check := &reader{}
	f := check.deadFilter(r)
	hash := pageHash("dead", strconv.Itoa(int(tenant)), fmt.Sprintf("%q %d %d %d %q %d %d", f.Kind, f.Type, f.Reason, f.Task, f.Tags, f.DiedFrom, f.DiedUntil))
	limit, badSize := pageSize(r.PageSize)
	text, badToken := cursorOf(hash, r.PageToken)
	check.faults = append(check.faults, present(badSize, badToken)...)
	q := task.DeadQuery{Tenant: tenant, Limit: limit, DeadFilter: f}
	if text != "" {
		c := task.DeadCursor{}
		if _, err := fmt.Sscanf(text, "%d.%d.%d", &c.DiedAt, &c.Task, &c.Seq); err != nil || text != deadCursor(&c) {
			check.fault("page_token", "was not issued by this service")
		}
		q.After = &c
	}
	if len(check.faults) > 0 {
		return nil, invalid(check.faults)
	}
	page, err := s.store.ListDead(ctx, q)
	if err != nil {
		return nil, err
	}
	reply := &perceptorv1.ListDeadRunsResponse{DeadRuns: make([]*perceptorv1.DeadRun, len(page.Runs))}
	for i, d := range page.Runs {
		if reply.DeadRuns[i], err = deadRunOf(d); err != nil {
			return nil, err
		}
	}
	if page.Next != nil {
		reply.NextPageToken = pageToken(hash, deadCursor(page.Next))
	}
	return reply, nil
}

func deadCursor(c *task.DeadCursor) string { return fmt.Sprintf("%d.%d.%d", c.DiedAt, c.Task, c.Seq) }

// deadFields are the fields that all filters of dead runs have.
type deadFields interface {
	GetKind() string
	GetType() perceptorv1.Task_Type
	GetReason() perceptorv1.DeadRun_Reason
	GetTaskId() int64
	GetTags() []string
	GetDiedFrom() *timestamppb.Timestamp
	GetDiedUntil() *timestamppb.Timestamp
}

// deadFilter reads a filter of dead runs.
func (r *reader) deadFilter(f deadFields) task.DeadFilter {
	if f.GetKind() != "" {
		if message := task.NameFault(f.GetKind(), task.MaxKindBytes); message != "" {
			r.fault("kind", "%s", message)
		}
	}
	if _, known := perceptorv1.Task_Type_name[int32(f.GetType())]; !known {
		r.fault("type", "%d is not one of ONE_SHOT, NON_BLOCKING, BLOCKING", int32(f.GetType()))
	}
	if _, known := perceptorv1.DeadRun_Reason_name[int32(f.GetReason())]; !known {
		r.fault("reason", "%d is not one of OUT_OF_ATTEMPTS, SILENT, UNPUBLISHABLE, PERMANENT", int32(f.GetReason()))
	}
	if id := f.GetTaskId(); id != 0 && !task.ID(id).Valid() {
		r.fault("task_id", "%d is not a task id", id)
	}
	out := task.DeadFilter{
		Kind: f.GetKind(), Type: task.Type(f.GetType()), Reason: task.DeadReason(f.GetReason()), Task: task.ID(f.GetTaskId()), Tags: r.tags(f.GetTags()),
	}
	out.DiedFrom, out.DiedUntil = r.between("died_from", f.GetDiedFrom(), "died_until", f.GetDiedUntil())
	return out
}

func (s *deadLetterService) GetDeadRun(ctx context.Context, r *perceptorv1.GetDeadRunRequest) (*perceptorv1.DeadRun, error) {
	id, err := runID(r.RunId)
	if err != nil {
		return nil, err
	}
	d, err := s.store.Dead(ctx, tenantOf(ctx).ID, id)
	if err != nil {
		return nil, err
	}
	return deadRunOf(d)
}

func (s *deadLetterService) ReplayDeadRun(ctx context.Context, r *perceptorv1.ReplayDeadRunRequest) (*perceptorv1.ReplayDeadRunResponse, error) {
	id, err := runID(r.RunId)
	if err != nil {
		return nil, err
	}
	done, err := s.replay(ctx, tenantOf(ctx), id)
	if err != nil {
		return nil, err
	}
	return &perceptorv1.ReplayDeadRunResponse{TaskId: int64(done.ID), Replayed: done.Before}, nil
}

// replay replays a dead run within the tenant's quotas, or returns the task that an earlier
// call has added.
func (s *deadLetterService) replay(ctx context.Context, t *Tenant, id task.RunID) (task.Replayed, error) {
	place, over := s.quotas.admit(ctx, t, 1)
	if over != nil {
		return s.quotas.replayedDead(ctx, t, id, over)
	}
	done, err := s.store.ReplayDead(ctx, t.ID, id)
	place.end(addedBy(task.AddResult{Replayed: done.Before}, err, 1))
	return done, err
}

func (s *deadLetterService) PurgeDeadRun(ctx context.Context, r *perceptorv1.PurgeDeadRunRequest) (*perceptorv1.PurgeDeadRunResponse, error) {
	id, err := runID(r.RunId)
	if err != nil {
		return nil, err
	}
	return &perceptorv1.PurgeDeadRunResponse{}, s.store.PurgeDead(ctx, tenantOf(ctx).ID, id)
}

func runID(text string) (task.RunID, error) {
	id, err := task.ParseRunID(text)
	if err != nil {
		return id, invalid([]task.Fault{faultf("run_id", "%.60q is not a task id, a hyphen and a number from 1", text)})
	}
	return id, nil
}

// deadRunOf converts a dead run to its form in the API.
func deadRunOf(d *task.DeadLetter) (*perceptorv1.DeadRun, error) {
	params, payload, err := storedParams(d.Params)
	if err != nil {
		return nil, fmt.Errorf("decode params of dead run %s: %w", d.RunID, err)
	}
	return &perceptorv1.DeadRun{
		RunId: d.RunID.String(), TaskId: int64(d.RunID.Task), Seq: d.RunID.Seq, Kind: d.Kind, Type: perceptorv1.Task_Type(d.Type),
		ScheduledTime: timestamp(d.ScheduledAt), DiedTime: timestamp(d.DiedAt), Attempt: d.Attempt,
		Reason: perceptorv1.DeadRun_Reason(d.Reason), Error: d.Error, Params: params, Payload: payload, RetryPolicy: retryPolicyOf(d.Terms.Retry),
		AckTimeout: durationpb.New(d.Terms.AckTimeout), GiveUpAfter: durationpb.New(d.Terms.GiveUpAfter), Retention: durationpb.New(d.Terms.Retention),
		Tags: d.Terms.Tags, ReplayOf: replayOf(d.Origin.ReplayOf),
	}, nil
}
