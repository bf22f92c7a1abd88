package client

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/types/known/timestamppb"

	perceptorv1 "github.com/perceptor/perceptor/proto/perceptor/v1"
)

// historyService has two pages of events of one task, and refuses the third call.
type historyService struct {
	perceptorv1.UnimplementedTaskServiceServer
	asked []string
}

func (s *historyService) ListRunEvents(_ context.Context, q *perceptorv1.ListRunEventsRequest) (*perceptorv1.ListRunEventsResponse, error) {
	s.asked = append(s.asked, fmt.Sprintf("%d %s %s", q.TaskId, q.IdempotencyKey, q.PageToken))
	switch q.PageToken {
	case "":
		return &perceptorv1.ListRunEventsResponse{NextPageToken: "2", Events: []*perceptorv1.RunEvent{{
			Type: perceptorv1.RunEvent_FAILED, Seq: 7, Attempt: 2, Detail: "no ink", EventTime: timestamppb.New(time.Unix(100, 0)), HandlerBeginTime: timestamppb.New(time.Unix(98, 0)),
			Dispatcher: "d1", Listener: &perceptorv1.Listener{Name: "printer", Host: "h", Version: "v"},
		}}}, nil
	case "2":
		return &perceptorv1.ListRunEventsResponse{NextPageToken: "3", Events: []*perceptorv1.RunEvent{{Type: perceptorv1.RunEvent_CLAIMED, Seq: 7}}}, nil
	}
	return nil, status.Error(codes.PermissionDenied, "no more")
}

func TestTheHistoryOfATaskIsListedPageByPage(t *testing.T) {
	t.Parallel()
	s := &historyService{}
	c, err := New(Config{Address: serveOn(t, "127.0.0.1:0", func(server *grpc.Server) { perceptorv1.RegisterTaskServiceServer(server, s) }), Token: "token"})
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	var events []*RunEvent
	var failed error
	for e, err := range c.ListRunEvents(t.Context(), 513) {
		if err != nil {
			failed = err
			break
		}
		events = append(events, e)
	}
	want := RunEvent{
		Type: "FAILED", Seq: 7, Attempt: 2, Detail: "no ink", At: time.Unix(100, 0).UTC(), HandlerBeganAt: time.Unix(98, 0).UTC(), Dispatcher: "d1", Listener: "printer", Host: "h", Version: "v",
	}
	if len(events) != 2 || *events[0] != want || events[1].Type != "CLAIMED" || !events[1].At.IsZero() || !errors.Is(failed, ErrPermissionDenied) {
		t.Errorf("%+v, %v", events, failed)
	}
	for _, err := range c.ByKey("order-1").RunEvents(t.Context()) {
		if err != nil {
			t.Error(err)
		}
		break
	}
	if asked := strings.Join(s.asked, "|"); asked != "513  |513  2|513  3|0 order-1 " {
		t.Errorf("asked %q", asked)
	}
}
