package server

import (
	"context"
	"testing"

	"google.golang.org/grpc/metadata"

	perceptorv1 "github.com/perceptor/perceptor/proto/perceptor/v1"
	"github.com/perceptor/perceptor/task"
)

// idleTasks stores nothing, so that the benchmark measures the API alone.
type idleTasks struct{ Tasks }

func (idleTasks) Add(_ context.Context, r task.AddRequest) (task.AddResult, error) {
	items := make([]task.AddItem, len(r.Specs))
	for i := range items {
		items[i].ID = task.NewID(int64(i+1), 1)
	}
	return task.AddResult{Items: items}, nil
}

func bearing(secret string) context.Context {
	return metadata.NewIncomingContext(context.Background(), metadata.Pairs("authorization", "Bearer "+secret))
}

func BenchmarkAddOf500Tasks(b *testing.B) { addOf500(b, nil) }

func BenchmarkAddOf500TasksWithAPayload(b *testing.B) {
	addOf500(b, &perceptorv1.Payload{Data: []byte(`{"order":42,"lines":[{"sku":"a","count":2}]}`), ContentType: "application/json"})
}

func addOf500(b *testing.B, payload *perceptorv1.Payload) {
	s := &taskService{store: idleTasks{}, limits: task.DefaultLimits(), events: &Events{}}
	request := &perceptorv1.AddTasksRequest{RequestId: "r"}
	for range 500 {
		t := full()
		t.Payload = payload
		request.Tasks = append(request.Tasks, t)
	}
	id := identities["acme-secret"]
	ctx := context.WithValue(bearing("acme-secret"), identityKey{}, &id)
	b.ReportAllocs()
	for b.Loop() {
		if _, err := s.AddTasks(ctx, request); err != nil {
			b.Fatal(err)
		}
	}
	b.ReportMetric(float64(b.Elapsed().Nanoseconds())/float64(b.N)/500, "ns/task")
}

// BenchmarkReportOf500Results uses gRPC over memory.
func BenchmarkReportOf500Results(b *testing.B) {
	s := setup(b)
	request := &perceptorv1.ReportResultsRequest{Holder: 1}
	for i := range int64(500) {
		request.Results = append(request.Results, &perceptorv1.RunResult{
			Attempt: attempt(1024+2*i, 1, 1), Outcome: perceptorv1.RunResult_SUCCESS,
		})
	}
	var reply perceptorv1.ReportResultsResponse
	ctx := metadata.AppendToOutgoingContext(b.Context(), "authorization", "Bearer acme-secret")
	for b.Loop() {
		s.runs.results = s.runs.results[:0]
		if err := s.conn.Invoke(ctx, report, request, &reply); err != nil {
			b.Fatal(err)
		}
	}
	b.ReportMetric(float64(b.Elapsed().Nanoseconds())/float64(b.N)/500, "ns/result")
}
