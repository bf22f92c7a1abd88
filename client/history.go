package client

import (
	"context"
	"iter"
	"time"

	perceptorv1 "github.com/perceptor/perceptor/proto/perceptor/v1"
)

// RunEvent is an event of a run in the history of its task. All times are of the service's clock;
// those that are not known are zero.
type RunEvent struct {
	// Type is the name of the event in the API: CLAIMED, REDELIVERY, SUCCEEDED, FAILED, DEAD, SKIPPED,
	// HANDED_BACK or SNOOZED.
	Type string
	// Seq is the number of the run within its task, and Attempt that of the delivery.
	Seq     int64
	Attempt int
	At      time.Time
	// ScheduledAt is the instant that the run was meant to fire at. It is zero if the CLAIMED event of the run has it.
	ScheduledAt time.Time
	// Detail has the error of FAILED, reason and error of DEAD, the number of SKIPPED instants or the delay of SNOOZED.
	Detail string
	// The timeline of the attempt, of the event of a result.
	ClaimedAt, PublishedAt, ReceivedAt, HandlerBeganAt, HandlerEndedAt time.Time
	// Dispatcher has published the record, or claimed the run or given it up.
	Dispatcher string
	// Listener is the name of the listener that has reported the result, and Host and Version are its own.
	Listener, Host, Version string
}

// ListRunEvents lists the events of a task's runs, newest first. The history level of the tenant says which events are recorded. The
// history outlives its task; that of an unknown task is empty. It fetches page after page. An error ends the list.
func (c *Client) ListRunEvents(ctx context.Context, id int64) iter.Seq2[*RunEvent, error] {
	return c.runEvents(ctx, &perceptorv1.ListRunEventsRequest{TaskId: id})
}

// RunEvents is [Client.ListRunEvents].
func (k KeyedTask) RunEvents(ctx context.Context) iter.Seq2[*RunEvent, error] {
	return k.c.runEvents(ctx, &perceptorv1.ListRunEventsRequest{IdempotencyKey: k.key})
}

// runEvents lists the events of the task that q names. The list may be used repeatedly.
func (c *Client) runEvents(ctx context.Context, q *perceptorv1.ListRunEventsRequest) iter.Seq2[*RunEvent, error] {
	return func(yield func(*RunEvent, error) bool) {
		q := &perceptorv1.ListRunEventsRequest{TaskId: q.TaskId, IdempotencyKey: q.IdempotencyKey}
		for {
			page, err := call(ctx, c, "ListRunEvents", c.tasks.ListRunEvents, q)
			if err != nil {
				yield(nil, err)
				return
			}
			for _, e := range page.GetEvents() {
				if !yield(runEvent(e), nil) {
					return
				}
			}
			if q.PageToken = page.GetNextPageToken(); q.PageToken == "" {
				return
			}
		}
	}
}

func runEvent(e *perceptorv1.RunEvent) *RunEvent {
	return &RunEvent{
		Type: e.GetType().String(), Seq: e.GetSeq(), Attempt: int(e.GetAttempt()), At: goTime(e.GetEventTime()),
		ScheduledAt: goTime(e.GetScheduledTime()), Detail: e.GetDetail(),
		ClaimedAt: goTime(e.GetClaimTime()), PublishedAt: goTime(e.GetPublishTime()), ReceivedAt: goTime(e.GetReceiveTime()),
		HandlerBeganAt: goTime(e.GetHandlerBeginTime()), HandlerEndedAt: goTime(e.GetHandlerEndTime()),
		Dispatcher: e.GetDispatcher(), Listener: e.GetListener().GetName(), Host: e.GetListener().GetHost(), Version: e.GetListener().GetVersion(),
	}
}
