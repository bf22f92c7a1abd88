package client

import (
	"context"
	"errors"
	"slices"
	"testing"
	"time"

	"google.golang.org/genproto/googleapis/rpc/errdetails"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/types/known/durationpb"

	perceptorv1 "github.com/perceptor/perceptor/proto/perceptor/v1"
)

func (s *fakeService) PauseKind(_ context.Context, q *perceptorv1.PauseKindRequest) (*perceptorv1.PauseKindResponse, error) {
	return &perceptorv1.PauseKindResponse{PausedKinds: []string{q.GetKind(), "other"}}, nil
}

func (s *fakeService) ResumeKind(context.Context, *perceptorv1.ResumeKindRequest) (*perceptorv1.ResumeKindResponse, error) {
	return &perceptorv1.ResumeKindResponse{PausedKinds: []string{"other"}}, nil
}

func TestKindsArePausedAndResumed(t *testing.T) {
	_, c := api(t, Config{})
	if got, err := c.PauseKind(t.Context(), "mail"); err != nil || !slices.Equal(got, []string{"mail", "other"}) {
		t.Errorf("paused are %q, %v", got, err)
	}
	if got, err := c.ResumeKind(t.Context(), "mail"); err != nil || !slices.Equal(got, []string{"other"}) {
		t.Errorf("paused are %q, %v", got, err)
	}
}

func TestAQuotaErrorSaysWhenToTryAgain(t *testing.T) {
	over, err := status.New(codes.ResourceExhausted, "max_backlog: 5 may live").WithDetails(&errdetails.RetryInfo{RetryDelay: durationpb.New(5 * time.Second)})
	if err != nil {
		t.Fatal(err)
	}
	got := errorOf("AddTask", over)
	if !errors.Is(got, ErrResourceExhausted) || got.RetryAfter != 5*time.Second {
		t.Errorf("%+v", got)
	}
}
