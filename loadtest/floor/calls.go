package floor

import (
	"context"
	"net"
	"strings"
	"sync"
	"syscall"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/protobuf/types/known/timestamppb"

	"github.com/perceptor/perceptor/loadtest/harness"
	perceptorv1 "github.com/perceptor/perceptor/proto/perceptor/v1"
)

// answerAfter is how long a bare call takes: about as long as taskd waits for others to store with.
const answerAfter = 10 * time.Millisecond

// bareService answers without doing anything.
type bareService struct {
	perceptorv1.UnimplementedTaskServiceServer
}

func (bareService) AddTask(context.Context, *perceptorv1.AddTaskRequest) (*perceptorv1.AddTaskResponse, error) {
	time.Sleep(answerAfter)
	return &perceptorv1.AddTaskResponse{}, nil
}

// dialBare starts a server that does nothing, and connects to it. stop ends both, when all calls have ended.
func dialBare() (conn *grpc.ClientConn, stop func(), err error) {
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return nil, nil, err
	}
	server := grpc.NewServer()
	perceptorv1.RegisterTaskServiceServer(server, bareService{})
	perceptorv1.RegisterRunServiceServer(server, bareRuns{})
	go server.Serve(listener) //nolint:errcheck // calls fail if it ends early
	if conn, err = grpc.NewClient(listener.Addr().String(), grpc.WithTransportCredentials(insecure.NewCredentials())); err != nil {
		server.Stop()
		return nil, nil, err
	}
	return conn, func() {
		conn.Close() //nolint:errcheck // all calls have ended
		server.Stop()
	}, nil
}

// bareTask is a task like those of the real load.
func bareTask(paramsBytes int) *perceptorv1.Task {
	return &perceptorv1.Task{
		Kind: "load", Type: perceptorv1.Task_ONE_SHOT, BeginTime: timestamppb.Now(), Params: map[string]string{"p": strings.Repeat("x", paramsBytes)},
	}
}

// measureCalls makes bare gRPC calls at the rate, each with one task, over loopback. It returns the
// processor time of a call in µs, of caller and server together: what an AddTask of its own costs
// before anything is decided or stored.
func measureCalls(ctx context.Context, o *Options) (us float64, err error) {
	conn, stop, err := dialBare()
	if err != nil {
		return 0, err
	}
	defer stop()
	return paceCalls(ctx, perceptorv1.NewTaskServiceClient(conn), o)
}

// paceCalls starts the calls that are due every millisecond.
func paceCalls(ctx context.Context, c perceptorv1.TaskServiceClient, o *Options) (us float64, err error) {
	request := &perceptorv1.AddTaskRequest{
		RequestId: "a-request-id-of-the-usual-length-",
		Task:      bareTask(o.ParamsBytes),
	}
	var calls sync.WaitGroup
	var failed sync.Once
	began, made := time.Now(), 0
	used, err := harness.Rusage(syscall.RUSAGE_SELF).CPUTime()
	if err != nil {
		return 0, err
	}
	tick := time.NewTicker(time.Millisecond)
	defer tick.Stop()
	for time.Since(began) < o.For && ctx.Err() == nil {
		<-tick.C
		for ; float64(made) < o.Rate*time.Since(began).Seconds(); made++ {
			calls.Go(func() {
				limited, cancel := context.WithTimeout(ctx, time.Minute)
				defer cancel()
				if _, wrong := c.AddTask(limited, request); wrong != nil {
					failed.Do(func() { err = wrong })
				}
			})
		}
	}
	calls.Wait()
	after, wrong := harness.Rusage(syscall.RUSAGE_SELF).CPUTime()
	if err == nil {
		err = wrong
	}
	if err == nil {
		err = ctx.Err()
	}
	return harness.Round(float64((after - used).Microseconds()) / float64(max(made, 1))), err
}
