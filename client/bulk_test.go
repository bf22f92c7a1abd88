package client

import (
	"context"
	"errors"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"google.golang.org/grpc"
	"google.golang.org/protobuf/testing/protocmp"

	perceptorv1 "github.com/perceptor/perceptor/proto/perceptor/v1"
)

// fakeBulk records requests and answers with one part.
type fakeBulk struct {
	perceptorv1.BulkServiceClient
	asked *perceptorv1.BulkOperation
}

func (f *fakeBulk) CreateBulkOperation(_ context.Context, q *perceptorv1.CreateBulkOperationRequest, _ ...grpc.CallOption) (*perceptorv1.BulkOperation, error) {
	if f.asked = q.GetOperation(); q.GetRequestId() == "" {
		return nil, errors.New("there is no request_id")
	}
	return &perceptorv1.BulkOperation{
		Id: 7, Action: f.asked.Action, State: perceptorv1.BulkOperation_RUNNING, Matched: 5, Done: 3, Failed: 2,
		Parts: []*perceptorv1.BulkOperation_Part{{Database: 4, State: perceptorv1.BulkOperation_DONE, Matched: 5, Done: 3, Failed: 2, Error: "no"}},
	}, nil
}

func TestABulkOperationIsAskedForWithAllThatSelects(t *testing.T) {
	_, c := api(t, Config{})
	fake := &fakeBulk{}
	c.bulk = fake
	at := time.Date(2030, 1, 1, 0, 0, 0, 0, time.UTC)
	for name, test := range map[string]struct {
		bulk Bulk
		want *perceptorv1.BulkOperation
	}{
		"everything": {Bulk{Action: BulkCancel}, &perceptorv1.BulkOperation{Action: perceptorv1.BulkOperation_CANCEL}},
		"by kind and time": {Bulk{Action: BulkReschedule, Tasks: Filter{Kind: "k"}, AddedUntil: at, Shift: time.Hour, MaxRate: 5, DryRunID: 6},
			&perceptorv1.BulkOperation{Action: perceptorv1.BulkOperation_RESCHEDULE, DryRunId: 6, Shift: protoDuration(time.Hour), MaxRate: 5,
				Filter: &perceptorv1.TaskFilter{Kind: "k", AddedUntil: protoTime(at)}}},
		"dead runs": {Bulk{Action: BulkReplay, DryRun: true, Dead: DeadFilter{TaskID: 512}},
			&perceptorv1.BulkOperation{Action: perceptorv1.BulkOperation_REPLAY, DryRun: true, DeadFilter: &perceptorv1.DeadRunFilter{TaskId: 512}}},
		// The service refuses it. It must not become a cancel of all tasks.
		"a filter of dead runs for tasks": {Bulk{Action: BulkCancel, Dead: DeadFilter{TaskID: 512}},
			&perceptorv1.BulkOperation{Action: perceptorv1.BulkOperation_CANCEL, DeadFilter: &perceptorv1.DeadRunFilter{TaskId: 512}}},
	} {
		t.Run(name, func(t *testing.T) {
			got, err := c.CreateBulk(t.Context(), test.bulk)
			if err != nil {
				t.Fatal(err)
			}
			if diff := cmp.Diff(test.want, fake.asked, protocmp.Transform()); diff != "" {
				t.Error(diff)
			}
			want := &BulkInfo{ID: 7, Action: test.bulk.Action, State: BulkRunning, Matched: 5, Done: 3, Failed: 2,
				Parts: []BulkPart{{Database: 4, State: BulkDone, Matched: 5, Done: 3, Failed: 2, Error: "no"}}}
			if diff := cmp.Diff(want, got); diff != "" {
				t.Error(diff)
			}
		})
	}
}
