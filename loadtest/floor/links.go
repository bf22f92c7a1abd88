package floor

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"sync/atomic"
	"time"

	"github.com/perceptor/perceptor/loadtest/harness"
	perceptorv1 "github.com/perceptor/perceptor/proto/perceptor/v1"
)

// A link carries a part of each cycle between two programs. Beside the four statements a cycle has three: the task
// goes to the service, its run goes through Kafka, and the result comes back. A bare link sends what an engine must send,
// in requests as large as those of the real one at this rate, and nobody looks at it: nothing is checked, signed,
// grouped, remembered or counted. Both ends are in this process, which costs less than two.
type link struct {
	name string
	// every is the time from one request to the next.
	every time.Duration
	// send sends n of them in one request, and returns when they have arrived.
	send func(ctx context.Context, n int) error
}

// The times between requests are those of the real programs at 20,000 cycles a second.
const (
	addsEvery    = 10 * time.Millisecond
	recordsEvery = 40 * time.Millisecond
	resultsEvery = 50 * time.Millisecond
	sendWithin   = time.Minute
)

// links are the ends of all links.
type links struct {
	stop   func() // ends the gRPC server
	broker *broker
	all    []link
}

// newLinks connects the ends. broker is the address of a Kafka broker.
func newLinks(ctx context.Context, kafka string, o *Options) (*links, error) {
	conn, stop, err := dialBare()
	if err != nil {
		return nil, err
	}
	l := &links{stop: stop}
	if l.broker, err = newBroker(ctx, kafka, o.ParamsBytes); err != nil {
		stop()
		return nil, fmt.Errorf("floor, records: %w", err)
	}
	l.all = []link{
		{"tasks by gRPC", addsEvery, sendTasks(perceptorv1.NewTaskServiceClient(conn), o.ParamsBytes)},
		{"records through Kafka", recordsEvery, l.broker.send},
		{"results by gRPC", resultsEvery, sendResults(perceptorv1.NewRunServiceClient(conn))},
	}
	return l, nil
}

func (l *links) close() {
	l.broker.close()
	l.stop()
}

func sendTasks(c perceptorv1.TaskServiceClient, paramsBytes int) func(context.Context, int) error {
	task := bareTask(paramsBytes)
	return func(ctx context.Context, n int) error {
		res, err := c.AddTasks(ctx, &perceptorv1.AddTasksRequest{Tasks: repeat(task, n), RequestId: "a-request-id-of-the-usual-length-"})
		return arrived(len(res.GetResults()), n, err)
	}
}

func sendResults(c perceptorv1.RunServiceClient) func(context.Context, int) error {
	result := &perceptorv1.RunResult{
		Attempt: &perceptorv1.Attempt{TaskId: 1 << 40, Seq: 1, Attempt: 1}, Outcome: perceptorv1.RunResult_SUCCESS,
	}
	return func(ctx context.Context, n int) error {
		res, err := c.ReportResults(ctx, &perceptorv1.ReportResultsRequest{Holder: 1 << 60, Results: repeat(result, n)})
		return arrived(len(res.GetReplies()), n, err)
	}
}

func repeat[T any](one T, n int) []T {
	all := make([]T, n)
	for i := range all {
		all[i] = one
	}
	return all
}

func arrived(got, want int, err error) error {
	if err == nil && got != want {
		err = fmt.Errorf("%d answers for %d", got, want)
	}
	return err
}

// AddTasks answers with an id for each task.
func (bareService) AddTasks(_ context.Context, req *perceptorv1.AddTasksRequest) (*perceptorv1.AddTasksResponse, error) {
	result := &perceptorv1.AddTasksResponse_Result{Outcome: &perceptorv1.AddTasksResponse_Result_Id{Id: 1 << 40}}
	return &perceptorv1.AddTasksResponse{Results: repeat(result, len(req.GetTasks()))}, nil
}

// bareRuns accepts all results.
type bareRuns struct {
	perceptorv1.UnimplementedRunServiceServer
}

func (bareRuns) ReportResults(_ context.Context, req *perceptorv1.ReportResultsRequest) (*perceptorv1.ReportResultsResponse, error) {
	return &perceptorv1.ReportResultsResponse{Replies: repeat(&perceptorv1.RunReply{}, len(req.GetResults()))}, nil
}

// pace sends at the rate until ctx ends or d has passed, and returns what has arrived by the time at which all requests have ended.
func (l *link) pace(ctx context.Context, rate float64, d time.Duration) (int64, error) {
	var requests sync.WaitGroup
	var moved atomic.Int64
	faults := make(chan error, 1)
	sent := 0
	for began := time.Now(); time.Since(began) < d && len(faults) == 0; {
		if err := harness.Sleep(ctx, l.every); err != nil {
			requests.Wait()
			return moved.Load(), err
		}
		n := int(rate*time.Since(began).Seconds()) - sent
		sent += n
		if n == 0 {
			continue
		}
		requests.Go(func() {
			limited, cancel := context.WithTimeout(ctx, sendWithin)
			defer cancel()
			if err := l.send(limited, n); err != nil {
				select {
				case faults <- fmt.Errorf("%s: %w", l.name, err):
				default:
				}
				return
			}
			moved.Add(int64(n))
		})
	}
	requests.Wait()
	select {
	case err := <-faults:
		return moved.Load(), err
	default:
		return moved.Load(), nil
	}
}

// paceAll lets all links send at the rate for d, and returns what has arrived over the slowest.
func (l *links) paceAll(ctx context.Context, rate float64, d time.Duration) (least int64, err error) {
	moved, faults := make([]int64, len(l.all)), make([]error, len(l.all))
	var all sync.WaitGroup
	for i := range l.all {
		all.Go(func() { moved[i], faults[i] = l.all[i].pace(ctx, rate, d) })
	}
	all.Wait()
	least = moved[0]
	for _, n := range moved[1:] {
		least = min(least, n)
	}
	return least, errors.Join(faults...)
}

// measureWhole measures each link alone, and then all of a cycle at once.
func (m *mover) measureWhole(ctx context.Context, kafka string, rep *Report) (err error) {
	if m.links, err = newLinks(ctx, kafka, &m.Options); err != nil {
		return err
	}
	defer m.links.close()
	m.Say("floor: warming up the links")
	if _, err := m.links.paceAll(ctx, m.Rate, m.Warmup); err != nil {
		return err
	}
	for i := range m.links.all {
		l := &m.links.all[i]
		m.Say("floor: %s", l.name)
		run, err := m.measureLink(ctx, l)
		if err != nil {
			return err
		}
		rep.Links = append(rep.Links, run)
	}
	f := form{paced: true, whole: true}
	m.Say("floor: %s", f)
	run, err := m.run(ctx, f)
	if err != nil {
		return err
	}
	rep.add(f, run)
	return m.links.broker.settle(ctx)
}

// measureLink measures a link alone.
func (m *mover) measureLink(ctx context.Context, l *link) (*Run, error) {
	var moved int64
	used, err := harness.MeasureStretch(ctx, m.meter, m.dsn, func() (err error) {
		moved, err = l.pace(ctx, m.Rate, m.For)
		return err
	})
	if err != nil {
		return nil, err
	}
	if moved == 0 {
		return nil, fmt.Errorf("%s: nothing arrived in %v", l.name, used.Took)
	}
	return &Run{
		Form: l.name, CyclesPerS: harness.Round(float64(moved) / used.Took.Seconds()), Seconds: harness.Round(used.Took.Seconds()),
		CPU: harness.NewCPU(used.CPU, moved),
	}, nil
}
