package server

import (
	"cmp"
	"context"
	"log/slog"
	"slices"
	"sync"

	perceptorv1 "github.com/perceptor/perceptor/proto/perceptor/v1"
	"github.com/perceptor/perceptor/task"
)

// assignmentService implements the API's AssignmentService.
type assignmentService struct {
	perceptorv1.UnimplementedAssignmentServiceServer
	store  Assignment // nil: this installation has none
	epochs Epochs
	log    *slog.Logger
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

// RaiseEpochs asks the databases at once, so one that does not answer delays the others little.
func (s *assignmentService) RaiseEpochs(ctx context.Context, r *perceptorv1.RaiseEpochsRequest) (*perceptorv1.RaiseEpochsResponse, error) {
	databases, err := databasesIn(r.Databases)
	if err != nil {
		return nil, err
	}
	var asking sync.WaitGroup
	var mu sync.Mutex
	reply := &perceptorv1.RaiseEpochsResponse{}
	for _, d := range databases {
		asking.Go(func() {
			owned, err := s.epochs.RaiseEpochs(ctx, int(d))
			mu.Lock()
			defer mu.Unlock()
			if err != nil {
				s.log.WarnContext(ctx, "epochs not raised", "database", d, "err", err)
				reply.MissingDatabases = append(reply.MissingDatabases, d)
				return
			}
			reply.Raised = append(reply.Raised, raisedReply(d, owned))
		})
	}
	asking.Wait()
	slices.Sort(reply.MissingDatabases)
	slices.SortFunc(reply.Raised, func(a, b *perceptorv1.RaisedEpochs) int { return cmp.Compare(a.Database, b.Database) })
	s.log.InfoContext(ctx, "epochs raised", "caller", identityOf(ctx).TokenID, "databases", len(reply.Raised))
	return reply, nil
}

// databasesIn returns the numbers of databases, each once.
func databasesIn(numbers []int32) ([]int32, error) {
	if len(numbers) == 0 {
		return nil, task.Errorf(task.ReasonInvalidField, "databases: is empty: want at least one number, 0 to %d", task.Databases-1)
	}
	for _, d := range numbers {
		if d < 0 || d >= task.Databases {
			return nil, task.Errorf(task.ReasonInvalidField, "databases: %d: must be 0 to %d", d, task.Databases-1)
		}
	}
	numbers = slices.Clone(numbers)
	slices.Sort(numbers)
	return slices.Compact(numbers), nil
}

func raisedReply(database int32, owned []task.Ownership) *perceptorv1.RaisedEpochs {
	reply := &perceptorv1.RaisedEpochs{Database: database, Items: int32(len(owned))}
	for i, o := range owned {
		if i == 0 || o.Epoch < reply.LowestEpoch {
			reply.LowestEpoch = o.Epoch
		}
		reply.HighestEpoch = max(reply.HighestEpoch, o.Epoch)
	}
	return reply
}
