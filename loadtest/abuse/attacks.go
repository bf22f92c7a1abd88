package abuse

import (
	"cmp"
	"context"
	"crypto/rand"
	"fmt"
	"slices"
	"strings"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/metadata"
	"google.golang.org/protobuf/types/known/durationpb"
	"google.golang.org/protobuf/types/known/timestamppb"

	"github.com/perceptor/perceptor/loadtest/harness"
	perceptorv1 "github.com/perceptor/perceptor/proto/perceptor/v1"
)

// An attack is something that one tenant does to harm the others.
type attack struct {
	name string
	// options are those of the attacker's connections.
	options []grpc.DialOption
	// callers is the number of concurrent callers.
	callers int
	// pause is how long a caller waits after an error; 0 means refusedPause.
	pause time.Duration
	// prepare may add tasks that the calls need. call makes one call of a caller.
	prepare func(context.Context, *attacker) error
	call    func(ctx context.Context, a *attacker, caller int) error
}

// An attacker has the connections of one attack and a token of its own.
type attacker struct {
	secret string
	conns  []*grpc.ClientConn
	tasks  []int64 // that were prepared
}

const (
	// connsOfAttack is the number of connections of an attack.
	connsOfAttack = 5
	// refusedPause is how long a caller waits after an error. It ignores longer delays that
	// the service asks for.
	refusedPause = 10 * time.Millisecond
)

func newAttacker(o *order, options ...grpc.DialOption) (*attacker, error) {
	transport, err := o.transport()
	if err != nil {
		return nil, err
	}
	address, _, _ := strings.Cut(o.Address, ",")
	a := &attacker{secret: o.Secret}
	for range connsOfAttack {
		conn, err := grpc.NewClient(address, append(slices.Clone(options), grpc.WithTransportCredentials(transport),
			grpc.WithDefaultCallOptions(grpc.MaxCallRecvMsgSize(1<<30)))...)
		if err != nil {
			a.leave()
			return nil, fmt.Errorf("connect the attacker: %w", err)
		}
		a.conns = append(a.conns, conn)
	}
	return a, nil
}

func (a *attacker) leave() {
	for _, c := range a.conns {
		_ = c.Close() // nothing is expected from it
	}
}

func (a *attacker) conn(caller int) *grpc.ClientConn { return a.conns[caller%len(a.conns)] }

func (a *attacker) api(caller int) perceptorv1.TaskServiceClient {
	return perceptorv1.NewTaskServiceClient(a.conn(caller))
}

func (a *attacker) runs(caller int) perceptorv1.RunServiceClient {
	return perceptorv1.NewRunServiceClient(a.conn(caller))
}

// with adds a token to the context of a call.
func with(ctx context.Context, secret string) context.Context {
	return metadata.AppendToOutgoingContext(ctx, "authorization", "Bearer "+secret)
}

// attack makes calls until ctx ends.
func (a *attacker) attack(ctx context.Context, by *attack) {
	ended := make(chan struct{}, by.callers)
	for caller := range by.callers {
		go func() {
			defer func() { ended <- struct{}{} }()
			for ctx.Err() == nil {
				if by.call(ctx, a, caller) != nil && harness.Sleep(ctx, cmp.Or(by.pause, refusedPause)) != nil {
					return
				}
			}
		}()
	}
	for range by.callers {
		<-ended
	}
}

// add adds n tasks of a size that are due at an instant in the far future.
func (a *attacker) add(ctx context.Context, caller, n, params int) ([]int64, error) {
	q := &perceptorv1.AddTasksRequest{}
	text := strings.Repeat("x", params)
	for range n {
		t := &perceptorv1.Task{Kind: "attack", Type: perceptorv1.Task_ONE_SHOT, BeginTime: timestamppb.New(time.Now().Add(time.Hour))}
		if params > 0 {
			t.Params = map[string]string{"x": text}
		}
		q.Tasks = append(q.Tasks, t)
	}
	reply, err := a.api(caller).AddTasks(with(ctx, a.secret), q)
	var ids []int64
	for _, r := range reply.GetResults() {
		ids = append(ids, r.GetId())
	}
	return ids, err
}

// prepared adds thousands of tasks that the attack reads or changes.
func prepared(thousands int) func(context.Context, *attacker) error {
	return func(ctx context.Context, a *attacker) error {
		for len(a.tasks) < thousands*1000 {
			ids, err := a.add(ctx, 0, 1000, 0)
			if err != nil {
				if harness.Sleep(ctx, time.Second) != nil {
					return ctx.Err()
				}
				continue
			}
			a.tasks = append(a.tasks, ids...)
		}
		return nil
	}
}

func (a *attacker) task(caller int) int64 { return a.tasks[caller%len(a.tasks)] }

// strangers are attempts of runs that the tenant does not have.
func strangers(n int) []*perceptorv1.Attempt {
	list := make([]*perceptorv1.Attempt, n)
	for i := range list {
		list[i] = &perceptorv1.Attempt{TaskId: int64(1_000_000+i)*512 + int64(i%512), Seq: 1, Attempt: 1}
	}
	return list
}

// unfinished opens a stream and sends nothing on it.
func unfinished(ctx context.Context, a *attacker, caller int) error {
	s, err := a.conn(caller).NewStream(with(ctx, a.secret), &grpc.StreamDesc{ClientStreams: true}, perceptorv1.TaskService_AddTasks_FullMethodName)
	if err != nil {
		return err
	}
	return s.RecvMsg(&perceptorv1.AddTasksResponse{})
}

// attacks are all attacks, in the order of the report.
var attacks = []*attack{
	{name: "unfinished-requests", callers: 4500, pause: time.Second, call: unfinished},
	{name: "adds", callers: 8, call: func(ctx context.Context, a *attacker, caller int) error {
		_, err := a.add(ctx, caller, 1000, 0)
		return err
	}},
	{name: "large-adds", callers: 64, call: func(ctx context.Context, a *attacker, caller int) error {
		_, err := a.add(ctx, caller, 250, 15<<10)
		return err
	}},
	{name: "lists", callers: 64, prepare: prepared(3), call: func(ctx context.Context, a *attacker, caller int) error {
		_, err := a.api(caller).ListTasks(with(ctx, a.secret), &perceptorv1.ListTasksRequest{PageSize: 1000})
		return err
	}},
	{name: "counts", callers: 64, call: func(ctx context.Context, a *attacker, caller int) error {
		_, err := a.api(caller).CountTasks(with(ctx, a.secret), &perceptorv1.CountTasksRequest{})
		return err
	}},
	{name: "previews", callers: 128, call: func(ctx context.Context, a *attacker, caller int) error {
		_, err := a.api(caller).PreviewSchedule(with(ctx, a.secret), &perceptorv1.PreviewScheduleRequest{Count: 1000, Task: &perceptorv1.Task{
			Type: perceptorv1.Task_NON_BLOCKING, Schedule: &perceptorv1.Task_Cron{Cron: &perceptorv1.Cron{Expression: "7 3 29 2 *", TimeZone: "Europe/Berlin"}}}})
		return err
	}},
	{name: "updates", callers: 256, prepare: prepared(1), call: func(ctx context.Context, a *attacker, caller int) error {
		if _, err := a.api(caller).PauseTask(with(ctx, a.secret), &perceptorv1.PauseTaskRequest{Id: a.task(caller)}); err != nil {
			return err
		}
		_, err := a.api(caller).ResumeTask(with(ctx, a.secret), &perceptorv1.ResumeTaskRequest{Id: a.task(caller)})
		return err
	}},
	{name: "settings", callers: 16, call: func(ctx context.Context, a *attacker, caller int) error {
		_, err := a.api(caller).PauseKind(with(ctx, a.secret), &perceptorv1.PauseKindRequest{Kind: fmt.Sprint("kind-", time.Now().UnixNano()%50)})
		return err
	}},
	{name: "foreign-results", callers: 32, call: func(ctx context.Context, a *attacker, caller int) error {
		q := &perceptorv1.ReportResultsRequest{Holder: 1}
		for _, s := range strangers(2000) {
			q.Results = append(q.Results, &perceptorv1.RunResult{Attempt: s, Outcome: perceptorv1.RunResult_SUCCESS})
		}
		_, err := a.runs(caller).ReportResults(with(ctx, a.secret), q)
		return err
	}},
	{name: "foreign-heartbeats", callers: 32, call: func(ctx context.Context, a *attacker, caller int) error {
		_, err := a.runs(caller).HeartbeatRuns(with(ctx, a.secret), &perceptorv1.HeartbeatRunsRequest{Holder: 1, Attempts: strangers(2000)})
		return err
	}},
	{name: "triggers", callers: 64, prepare: recurring, call: func(ctx context.Context, a *attacker, caller int) error {
		_, err := a.api(caller).TriggerTask(with(ctx, a.secret), &perceptorv1.TriggerTaskRequest{Id: a.task(caller)})
		return err
	}},
	{name: "unknown-tokens", callers: 256, call: func(ctx context.Context, a *attacker, caller int) error {
		token := "pct_" + strings.ToLower(rand.Text()[:12]) + "_" + rand.Text() + rand.Text()[:17]
		_, err := a.api(caller).CountTasks(with(ctx, token), &perceptorv1.CountTasksRequest{})
		return err
	}},
	{name: "upserts", callers: 64, prepare: declared, call: func(ctx context.Context, a *attacker, caller int) error {
		_, err := a.api(caller).AddTasks(with(ctx, a.secret), upserts(caller))
		return err
	}},
	{name: "known-keys", callers: 64, prepare: declared, call: func(ctx context.Context, a *attacker, caller int) error {
		q := &perceptorv1.AddTasksRequest{Tasks: keyed(caller%keyedSets, 0)}
		q.Tasks = append(q.Tasks, &perceptorv1.Task{Kind: "attack", Type: perceptorv1.Task_ONE_SHOT, IdempotencyKey: rand.Text()})
		_, err := a.api(caller).AddTasks(with(ctx, a.secret), q)
		return err
	}},
	{name: "abandoned-calls", callers: 64, pause: time.Millisecond, call: func(ctx context.Context, a *attacker, caller int) error {
		ctx, leave := context.WithTimeout(ctx, time.Duration(20+caller)*time.Millisecond)
		defer leave()
		_, err := a.runs(caller).HeartbeatRuns(with(ctx, a.secret), &perceptorv1.HeartbeatRunsRequest{Holder: 1, Attempts: strangers(5000)})
		return err
	}},
	{name: "unread-answers", callers: 64, options: smallWindows, prepare: large, call: leaveUnread},
	{name: "bulk-operations", callers: 32, prepare: prepared(1), call: func(ctx context.Context, a *attacker, caller int) error {
		_, err := perceptorv1.NewBulkServiceClient(a.conn(caller)).CreateBulkOperation(with(ctx, a.secret), &perceptorv1.CreateBulkOperationRequest{
			Operation: &perceptorv1.BulkOperation{Action: perceptorv1.BulkOperation_PAUSE, DryRun: true}})
		return err
	}},
}

// recurring adds tasks that can be triggered without end.
func recurring(ctx context.Context, a *attacker) error {
	for range 64 {
		reply, err := a.api(0).AddTask(with(ctx, a.secret), &perceptorv1.AddTaskRequest{Task: &perceptorv1.Task{
			Kind: "attack", Type: perceptorv1.Task_NON_BLOCKING, BeginTime: timestamppb.New(time.Now().Add(time.Hour)),
			Schedule: &perceptorv1.Task_Interval{Interval: durationpb.New(time.Hour)}}})
		if err != nil {
			return fmt.Errorf("prepare the attack: %w", err)
		}
		a.tasks = append(a.tasks, reply.GetId())
	}
	return nil
}

// keyedSets is the number of sets of keys. Each has keyedTasks tasks.
const keyedSets, keyedTasks = 16, 500

// keyed returns the tasks of a set of keys. Those of another turn have other terms.
func keyed(set int, turn int64) []*perceptorv1.Task {
	list := make([]*perceptorv1.Task, keyedTasks)
	for i := range list {
		list[i] = &perceptorv1.Task{
			Kind: "attack", Type: perceptorv1.Task_ONE_SHOT, IdempotencyKey: fmt.Sprintf("%d-%d", set, i),
			BeginTime: timestamppb.New(time.Unix(time.Now().Unix()/86400*86400, 0).Add(48*time.Hour + time.Duration(turn)*time.Second)),
		}
	}
	return list
}

// upserts returns a request that changes all tasks of a set.
func upserts(caller int) *perceptorv1.AddTasksRequest {
	return &perceptorv1.AddTasksRequest{Upsert: true, Tasks: keyed(caller%keyedSets, time.Now().UnixNano()%80_000)}
}

// declared adds the tasks of all sets.
func declared(ctx context.Context, a *attacker) error {
	for set := range keyedSets {
		for {
			_, err := a.api(0).AddTasks(with(ctx, a.secret), &perceptorv1.AddTasksRequest{Tasks: keyed(set, 0)})
			if err == nil {
				break
			}
			if harness.Sleep(ctx, time.Second) != nil {
				return ctx.Err()
			}
		}
	}
	return nil
}

// smallWindows let the service send little of an answer before it is read.
var smallWindows = []grpc.DialOption{grpc.WithStaticStreamWindowSize(64 << 10), grpc.WithStaticConnWindowSize(64 << 10)}

// large adds tasks that fill an answer of about 1 MiB.
func large(ctx context.Context, a *attacker) error {
	_, err := a.add(ctx, 0, 70, 15<<10)
	return err
}

// unreadEach is how many answers a caller leaves unread at once: enough to show what they cost,
// and few enough for the machine to bear it.
const unreadEach = 14

// leaveUnread makes calls whose answers nobody reads, and waits.
func leaveUnread(ctx context.Context, a *attacker, caller int) error {
	ctx, end := context.WithCancel(ctx)
	defer end()
	for range unreadEach {
		s, err := a.conn(caller).NewStream(with(ctx, a.secret), &grpc.StreamDesc{ServerStreams: true}, perceptorv1.TaskService_ListTasks_FullMethodName)
		if err != nil {
			return err
		}
		if err := s.SendMsg(&perceptorv1.ListTasksRequest{PageSize: 1000}); err != nil {
			return err
		}
		if err := s.CloseSend(); err != nil {
			return err
		}
	}
	<-ctx.Done()
	return ctx.Err()
}
