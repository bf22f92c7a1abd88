package client

import (
	"context"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"google.golang.org/genproto/googleapis/rpc/errdetails"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	perceptorv1 "github.com/perceptor/perceptor/proto/perceptor/v1"
	"github.com/perceptor/perceptor/task"
)

// callsOf makes n calls to two servers of which the first one hangs, once the client is
// connected to both, and returns how long the slowest one took.
func callsOf(t *testing.T, servers [2]*countingTasks, n int) (slowest time.Duration) {
	t.Helper()
	var addresses []string
	for _, s := range servers {
		addresses = append(addresses, serveOn(t, "127.0.0.1:0", func(server *grpc.Server) { perceptorv1.RegisterTaskServiceServer(server, s) }))
	}
	c, err := New(Config{Address: strings.Join(addresses, ","), Token: "token"})
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	var calling sync.WaitGroup
	defer calling.Wait()
	var most, failed atomic.Int64
	once := func() {
		began := time.Now()
		if _, err := c.GetTask(t.Context(), 1); err != nil && failed.Add(1) == 1 {
			t.Error(err)
		}
		for took := int64(time.Since(began)); ; {
			if was := most.Load(); took <= was || most.CompareAndSwap(was, took) {
				return
			}
		}
	}
	for end := time.Now().Add(10 * time.Second); servers[0].calls.Load() == 0; time.Sleep(time.Millisecond) {
		if time.Now().After(end) {
			t.Fatal("no call reached the first server")
		}
		calling.Go(once)
	}
	for range n {
		calling.Go(once)
		time.Sleep(2 * time.Millisecond)
	}
	calling.Wait()
	return time.Duration(most.Load())
}

// The first calls to a server that hangs ask the other one too, and later ones do not go there.
func TestAServerThatHangsHoldsUpCallsForAboutASecond(t *testing.T) {
	t.Parallel()
	servers := [2]*countingTasks{{hangs: true}, {}}
	const n = 1500 // 3 s
	slowest := callsOf(t, servers, n)
	if slowest < hedgeAfter || slowest > 20*time.Second { // the other server may not be connected at first
		t.Errorf("the slowest call took %v, want little more than %v", slowest, hedgeAfter)
	}
	if lost := servers[0].calls.Load(); lost > n/10 {
		t.Errorf("%d of %d calls went to the server that hangs", lost, n)
	}
}

// Slow servers are asked little more often than without second tries.
func TestSecondTriesAreBounded(t *testing.T) {
	t.Parallel()
	slow := hedgeAfter + 500*time.Millisecond
	servers := [2]*countingTasks{{takes: slow}, {takes: slow}}
	const n = 1000
	callsOf(t, servers, n)
	if calls := servers[0].calls.Load() + servers[1].calls.Load(); calls > n*5/4 {
		t.Errorf("the servers got %d calls, want little more than %d", calls, n)
	}
}

// refusing refuses all calls until it is well.
type refusing struct {
	perceptorv1.UnimplementedTaskServiceServer
	calls atomic.Int64
	well  atomic.Bool
}

func (s *refusing) GetTask(context.Context, *perceptorv1.GetTaskRequest) (*perceptorv1.Task, error) {
	s.calls.Add(1)
	if !s.well.Load() {
		return nil, status.Error(codes.Unavailable, "not now")
	}
	return &perceptorv1.Task{}, nil
}

func TestRepeatedSingleCallsAddLittleLoad(t *testing.T) {
	t.Parallel()
	s := &refusing{}
	address := serveOn(t, "127.0.0.1:0", func(server *grpc.Server) { perceptorv1.RegisterTaskServiceServer(server, s) })
	c, err := New(Config{Address: address, Token: "token", CallTimeout: 5 * time.Minute})
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	var calling sync.WaitGroup
	const n = 400
	for range n {
		calling.Go(func() {
			if _, err := c.GetTask(t.Context(), 1); err != nil {
				t.Error(err)
			}
		})
		time.Sleep(10 * time.Millisecond)
	}
	if calls := s.calls.Load(); calls > n*3/2+budgetMost {
		t.Errorf("%d calls made the service refuse %d, want at most half as many again", n, calls)
	}
	s.well.Store(true)
	calling.Wait() // all of them succeed, long before their time is over
}

// broken answers each call after a time, with an error.
type broken struct {
	perceptorv1.UnimplementedTaskServiceServer
	err   error
	after time.Duration
	calls atomic.Int64
}

func (s *broken) GetTask(context.Context, *perceptorv1.GetTaskRequest) (*perceptorv1.Task, error) {
	s.calls.Add(1)
	time.Sleep(s.after)
	return nil, s.err
}

// The second try of an edit may find its instants gone while the first one has been stored.
func TestARefusalWaitsForTheOtherServer(t *testing.T) {
	t.Parallel()
	late := status.Error(codes.InvalidArgument, "the task would never fire again")
	const slow = hedgeAfter + 500*time.Millisecond
	for name, tt := range map[string]struct {
		first time.Duration // after which the first server accepts
		want  codes.Code
	}{
		"that accepts":         {slow, codes.OK},
		"that does not answer": {10 * slow, codes.InvalidArgument},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				h := &hedged{ends: make(chan end, 2), asked: 2, both: true}
				first, second := &perceptorv1.Task{}, &perceptorv1.Task{}
				accepts := time.AfterFunc(tt.first-hedgeAfter, func() { h.ends <- end{into: first} })
				defer accepts.Stop()
				h.ends <- end{second, late}
				if e := h.first(t.Context(), first, func() { t.Error("a third server is asked") }); status.Code(e.err) != tt.want {
					t.Errorf("got %v, want %v", e.err, tt.want)
				}
			})
		})
	}
}

// An add moves to another database if no server may have stored it, so the error of two tries
// must be that of the one that may have.
func TestNoErrorSaysThatNothingWasDoneIfAnotherServerMayHaveDoneIt(t *testing.T) {
	t.Parallel()
	stalled, err := status.New(codes.Unavailable, "hangs").WithDetails(&errdetails.ErrorInfo{Reason: string(task.ReasonDatabaseStalled)})
	if err != nil {
		t.Fatal(err)
	}
	lost := status.Error(codes.Unavailable, "the answer was lost")
	const slow = hedgeAfter + 500*time.Millisecond
	for name, tt := range map[string]struct {
		servers []*broken
		want    string
	}{
		"the first to answer did nothing": {[]*broken{{err: stalled.Err(), after: slow}, {err: lost, after: slow}}, "the answer was lost"},
		"the last to answer did nothing":  {[]*broken{{err: lost, after: slow}, {err: stalled.Err(), after: 2 * slow}}, "the answer was lost"},
		"both did nothing":                {[]*broken{{err: stalled.Err(), after: slow}, {err: stalled.Err(), after: slow}}, "hangs"},
		"there is no other":               {[]*broken{{err: stalled.Err(), after: slow}}, "hangs"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			var addresses []string
			for _, s := range tt.servers {
				addresses = append(addresses, serveOn(t, "127.0.0.1:0", func(server *grpc.Server) { perceptorv1.RegisterTaskServiceServer(server, s) }))
			}
			c, err := New(Config{Address: strings.Join(addresses, ","), Token: "token"})
			if err != nil {
				t.Fatal(err)
			}
			defer c.Close()
			for tries := 0; ; tries++ {
				before := tt.servers[0].calls.Load() + tt.servers[len(tt.servers)-1].calls.Load()
				ctx, cancel := context.WithTimeout(t.Context(), 20*slow)
				_, err = c.tasks.GetTask(ctx, &perceptorv1.GetTaskRequest{Id: 1})
				cancel()
				// A server may not be connected at first.
				if len(tt.servers) == 1 || tt.servers[0].calls.Load()+tt.servers[1].calls.Load() == before+2 {
					break
				}
				if tries == 20 {
					t.Fatal("no call was sent to both servers")
				}
			}
			if got := status.Convert(err).Message(); got != tt.want {
				t.Errorf("the error %q, want %q", got, tt.want)
			}
		})
	}
}
