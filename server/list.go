package server

import (
	"context"
	"fmt"
	"strconv"

	"google.golang.org/protobuf/types/known/timestamppb"

	perceptorv1 "github.com/perceptor/perceptor/proto/perceptor/v1"
	"github.com/perceptor/perceptor/task"
)

func (s *taskService) ListTasks(ctx context.Context, r *perceptorv1.ListTasksRequest) (*perceptorv1.ListTasksResponse, error) {
	q, hash, faults := listQuery(r, tenantOf(ctx).ID)
	if len(faults) > 0 {
		return nil, invalid(faults)
	}
	if q.After == nil {
		// A page has a bounded cost in any case, so it does not fail for want of an estimate.
		if err := s.mayScan(ctx, &q); err != nil && (q.Complete || task.CodeOf(err) != task.Unavailable) {
			return nil, err
		}
	}
	page, err := s.store.List(ctx, q)
	if err != nil {
		return nil, err
	}
	reply := &perceptorv1.ListTasksResponse{Tasks: make([]*perceptorv1.Task, len(page.Tasks))}
	for i, snapshot := range page.Tasks {
		if reply.Tasks[i], err = taskOf(snapshot); err != nil {
			return nil, err
		}
	}
	for _, d := range page.Missing {
		reply.MissingDatabases = append(reply.MissingDatabases, int32(d))
	}
	if page.Next != nil {
		reply.NextPageToken = pageToken(hash, page.Next.String())
	}
	return reply, nil
}

// dueScans multiplies MaxScan for listings with a range of due times or with
// RUNNING, because callers cannot narrow them further.
const dueScans = 10

// mayScan refuses a filter that would read very many tasks to find few.
// Listings that return all tasks that they read are always allowed.
func (s *taskService) mayScan(ctx context.Context, q *task.ListQuery) error {
	if !q.Narrow() && q.State != task.Running {
		return nil
	}
	counts, err := s.store.Counts(ctx, q.Tenant)
	if err != nil {
		return err
	}
	var living, finished int64
	for _, c := range counts {
		living += c.Scheduled + c.Running
		finished += c.Completed + c.Cancelled + c.Failed
	}
	switch {
	case q.State.Final() && finished > s.maxScan:
		return task.Errorf(task.ReasonListTooLarge,
			"the filter would read all %d finished tasks; the maximum is %d: list them without kind, type and tags", finished, s.maxScan)
	case q.State.Final() || living <= s.maxScan:
		return nil
	case q.DueUntil == 0 && q.State != task.Running:
		return task.Errorf(task.ReasonListTooLarge,
			"the filter would read all %d unfinished tasks; the maximum is %d: add due_from and due_until, or list without kind, type and tags",
			living, s.maxScan)
	}
	n, err := s.store.ListCost(ctx, q, living)
	most := dueScans * s.maxScan
	switch {
	case err != nil || n <= most:
		return err
	case q.DueUntil == 0:
		return task.Errorf(task.ReasonListTooLarge,
			"the filter would read about %d tasks that are due soon or RUNNING; the maximum is %d: add due_from and due_until", n, most)
	}
	return task.Errorf(task.ReasonListTooLarge,
		"the filter would read about %d tasks that are due between due_from %s and due_until %s; the maximum is %d: choose a shorter range, or list without kind, type and tags",
		n, q.DueFrom, q.DueUntil, most)
}

func listQuery(r *perceptorv1.ListTasksRequest, tenant int32) (q task.ListQuery, hash []byte, faults []task.Fault) {
	check := &reader{}
	f := check.filter(r)
	parts := []string{"tasks", strconv.Itoa(int(tenant)), f.Kind, strconv.Itoa(int(f.Type)), strconv.Itoa(int(f.State)),
		f.DueFrom.String(), f.DueUntil.String()}
	hash = pageHash(append(parts, f.Tags...)...)
	limit, badSize := pageSize(r.PageSize)
	cursor, badToken := cursorOf(hash, r.PageToken)
	check.faults = append(check.faults, present(badSize, badToken)...)
	var after *task.ListCursor
	if cursor != "" {
		var err error
		if after, err = task.ParseListCursor(cursor); err != nil {
			check.fault("page_token", "was not issued by this service")
		}
	}
	return task.ListQuery{Tenant: tenant, After: after, Limit: limit, Filter: f, Complete: r.Complete}, hash, check.faults
}

// filterFields are the fields that all filters of tasks have.
type filterFields interface {
	GetKind() string
	GetType() perceptorv1.Task_Type
	GetState() perceptorv1.Task_State
	GetTags() []string
	GetDueFrom() *timestamppb.Timestamp
	GetDueUntil() *timestamppb.Timestamp
}

// filter reads a filter of tasks.
func (r *reader) filter(q filterFields) task.Filter {
	if q.GetKind() != "" {
		if message := task.NameFault(q.GetKind(), task.MaxKindBytes); message != "" {
			r.fault("kind", "%s", message)
		}
	}
	if _, known := perceptorv1.Task_Type_name[int32(q.GetType())]; !known {
		r.fault("type", "%d is not one of ONE_SHOT, NON_BLOCKING, BLOCKING", int32(q.GetType()))
	}
	if _, known := perceptorv1.Task_State_name[int32(q.GetState())]; !known {
		r.fault("state", "%d is not one of SCHEDULED, RUNNING, COMPLETED, CANCELLED, FAILED", int32(q.GetState()))
	}
	f := task.Filter{Kind: q.GetKind(), Type: task.Type(q.GetType()), State: task.State(q.GetState()), Tags: r.tags(q.GetTags())}
	f.DueFrom, f.DueUntil = r.between("due_from", q.GetDueFrom(), "due_until", q.GetDueUntil())
	if f.HasDue() && f.State.Final() {
		r.fault("due_from", "finished tasks have no due time: omit state, or due_from and due_until")
	}
	return f
}

// between reads a range of instants; 0 means no bound.
func (r *reader) between(fromField string, from *timestamppb.Timestamp, untilField string, until *timestamppb.Timestamp) (a, z task.Instant) {
	if from != nil {
		a = r.instant(fromField, from)
	}
	if until != nil {
		z = max(1, r.instant(untilField, until))
	}
	if from != nil && until != nil && z <= a {
		r.fault(untilField, "%s is not after %s %s", z, fromField, a)
	}
	return a, z
}

func (r *reader) tags(tags []string) []string {
	if len(tags) > task.MaxTags {
		r.fault("tags", "has %d entries; at most %d are allowed", len(tags), task.MaxTags)
		return nil
	}
	for i, t := range tags {
		if message := task.NameFault(t, task.MaxTagBytes); message != "" {
			r.fault(fmt.Sprintf("tags[%d]", i), "%s", message)
		}
	}
	return task.SortTags(tags)
}
