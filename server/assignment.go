package server

import (
	"context"
	"log/slog"

	perceptorv1 "github.com/perceptor/perceptor/proto/perceptor/v1"
	"github.com/perceptor/perceptor/task"
)

// assignmentService implements the API's AssignmentService.
type assignmentService struct {
	perceptorv1.UnimplementedAssignmentServiceServer
	store Assignment // nil: this installation has none
	log   *slog.Logger
}

// errNoAssignment is the answer if no coordinator is configured.
var errNoAssignment = task.Errorf(task.ReasonNoAssignment, "this installation distributes nothing over dispatchers")

func (s *assignmentService) GetAssignment(ctx context.Context, _ *perceptorv1.GetAssignmentRequest) (*perceptorv1.Assignment, error) {
	if s.store == nil {
		return nil, errNoAssignment
	}
	return s.store.Assignment(ctx)
}

func (s *assignmentService) UpdateStrategy(ctx context.Context, r *perceptorv1.UpdateStrategyRequest) (*perceptorv1.Strategy, error) {
	if s.store == nil {
		return nil, errNoAssignment
	}
	updated, err := s.store.UpdateStrategy(ctx, r)
	if err != nil {
		return nil, err
	}
	s.log.InfoContext(ctx, "strategy updated", "caller", identityOf(ctx).TokenID)
	return updated, nil
}
