package server

import (
	"context"
	"fmt"
	"strconv"

	perceptorv1 "github.com/perceptor/perceptor/proto/perceptor/v1"
	"github.com/perceptor/perceptor/task"
)

func (s *taskService) CountTasks(ctx context.Context, _ *perceptorv1.CountTasksRequest) (*perceptorv1.CountTasksResponse, error) {
	counts, err := s.store.Counts(ctx, tenantOf(ctx).ID)
	if err != nil {
		return nil, err
	}
	return &perceptorv1.CountTasksResponse{Counts: CountsReply(counts)}, nil
}

// CountsReply returns counts in the form of the API.
func CountsReply(counts []task.TypeCounts) (out []*perceptorv1.TaskCounts) {
	for i := range counts {
		out = append(out, countsOf(&counts[i]))
	}
	return out
}

func countsOf(c *task.TypeCounts) *perceptorv1.TaskCounts {
	return &perceptorv1.TaskCounts{
		Type: perceptorv1.Task_Type(c.Type), Added: c.Added, Scheduled: c.Scheduled, Running: c.Running,
		Completed: c.Completed, Cancelled: c.Cancelled, Failed: c.Failed, Purged: c.Purged(),
		PurgedByState: &perceptorv1.PurgedCounts{Completed: c.PurgedCompleted, Cancelled: c.PurgedCancelled, Failed: c.PurgedFailed},
		DeadRuns:      c.Dead, DeadRunsEver: c.Died,
	}
}

func (s *taskService) ListRunEvents(ctx context.Context, r *perceptorv1.ListRunEventsRequest) (*perceptorv1.ListRunEventsResponse, error) {
	tenant := tenantOf(ctx).ID
	hash := pageHash("events", strconv.Itoa(int(tenant)), strconv.FormatInt(r.TaskId, 10))
	limit, badSize := pageSize(r.PageSize)
	cursor, badToken := cursorOf(hash, r.PageToken)
	faults := present(badSize, badToken, idFault("task_id", r.TaskId))
	after, ok := historyCursor(cursor)
	if !ok {
		faults = append(faults, faultf("page_token", "was not issued by this service"))
	}
	if len(faults) > 0 {
		return nil, invalid(faults)
	}
	events, err := s.store.History(ctx, tenant, task.ID(r.TaskId), after, limit)
	if err != nil {
		return nil, err
	}
	reply := &perceptorv1.ListRunEventsResponse{}
	for i := range events {
		reply.Events = append(reply.Events, eventOf(&events[i]))
	}
	if len(events) >= limit {
		c := events[len(events)-1].Cursor()
		reply.NextPageToken = pageToken(hash, fmt.Sprintf("%d.%d.%d.%d", c.At, c.Seq, c.Attempt, c.Event))
	}
	return reply, nil
}

// historyCursor parses a cursor; "" is the position before the newest event.
func historyCursor(text string) (task.HistoryCursor, bool) {
	if text == "" {
		return task.NewestEvent, true
	}
	var c task.HistoryCursor
	_, err := fmt.Sscanf(text+"\n", "%d.%d.%d.%d\n", &c.At, &c.Seq, &c.Attempt, &c.Event)
	return c, err == nil
}
