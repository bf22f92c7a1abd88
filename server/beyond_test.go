package server

import (
	"context"
	"fmt"
	"log/slog"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/perceptor/perceptor/internal/ctxtime"
	perceptorv1 "github.com/perceptor/perceptor/proto/perceptor/v1"
	"github.com/perceptor/perceptor/task"
)

// Tests of what a tenant may do beyond one of its quotas.

// knownKeys is a store in which every key belongs to a task but "new". Its buckets have what
// their rates have in one second.
type knownKeys struct {
	fullBucket
	looks int
}

func (k *knownKeys) Replay(_ context.Context, r task.AddRequest) (task.AddResult, bool, error) {
	k.looks++
	return editedOrKnown(r), r.Key != "new", nil
}

func editedOrKnown(r task.AddRequest) task.AddResult {
	return task.AddResult{Items: make([]task.AddItem, len(r.Specs)), Updated: r.Upsert, Replayed: !r.Upsert}
}

type editedTasks struct{ Tasks }

func (editedTasks) Add(_ context.Context, r task.AddRequest) (task.AddResult, error) {
	return editedOrKnown(r), nil
}

// beyond returns a service whose tenant, acme, has these quotas.
func beyond(t *testing.T, limits task.Quotas) (*taskService, *knownKeys, context.Context) {
	store := &knownKeys{}
	s := &taskService{
		store: editedTasks{}, events: &Events{}, limits: task.DefaultLimits(),
		quotas: quotasOf(store, slog.New(slog.DiscardHandler), &Events{}),
	}
	s.quotas.defaults = limits
	return s, store, context.WithValue(t.Context(), identityKey{}, &Identity{Tenant: acme})
}

// keyed returns n tasks with keys.
func keyed(n int) []*perceptorv1.Task {
	list := make([]*perceptorv1.Task, n)
	for i := range list {
		list[i] = &perceptorv1.Task{Kind: "k", Type: perceptorv1.Task_ONE_SHOT, IdempotencyKey: fmt.Sprint("key-", i)}
	}
	return list
}

func TestUpsertsOfKnownTasksUseTheRateOfChanges(t *testing.T) {
	for name, limits := range map[string]task.Quotas{
		"within the rate of adds": {task.QuotaUpdates: 20},
		"beyond the rate of adds": {task.QuotaUpdates: 20, task.QuotaAdds: 1},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				s, _, ctx := beyond(t, limits)
				if name == "beyond the rate of adds" {
					if _, err := s.quotas.admit(ctx, &acme, 1); err != nil {
						t.Fatal(err)
					}
				}
				upsert := func(n int) error {
					_, err := s.AddTasks(ctx, &perceptorv1.AddTasksRequest{Tasks: keyed(n), Upsert: true})
					return err
				}
				if err := upsert(50); err != nil {
					t.Fatalf("the first call: %v", err)
				}
				time.Sleep(takeWait) // the charge is settled with the bucket
				wantQuota(t, upsert(1), task.QuotaUpdates)
				if _, err := s.AddTasks(ctx, &perceptorv1.AddTasksRequest{Tasks: keyed(1)}); err != nil {
					t.Errorf("an add without upsert: %v", err)
				}
			})
		})
	}
}

func TestLookUpsBeyondTheAddRateUseTheRateOfReads(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s, store, ctx := beyond(t, task.Quotas{task.QuotaAdds: 1, task.QuotaReads: 100})
		if _, err := s.quotas.admit(ctx, &acme, 1); err != nil {
			t.Fatal(err)
		}
		fresh := &perceptorv1.Task{Kind: "k", Type: perceptorv1.Task_ONE_SHOT, IdempotencyKey: "new"}
		for range 1000 {
			_, err := s.AddTask(ctx, &perceptorv1.AddTaskRequest{Task: fresh})
			wantQuota(t, err, task.QuotaAdds)
		}
		if store.looks > 100 {
			t.Errorf("1000 refused adds have made %d look-ups, want at most 100", store.looks)
		}
		if _, err := s.AddTasks(ctx, &perceptorv1.AddTasksRequest{Tasks: append(keyed(200), fresh)}); status.Code(err) != codes.ResourceExhausted || store.looks > 100 {
			t.Errorf("%d look-ups, %v", store.looks, err)
		}
	})
}

func TestTasksWithKeysBesideARepeatedRequestNeedARoom(t *testing.T) {
	s, store, ctx := beyond(t, task.Quotas{task.QuotaAdds: 1})
	if _, err := s.quotas.admit(ctx, &acme, 1); err != nil {
		t.Fatal(err)
	}
	fresh := &perceptorv1.Task{Kind: "k", Type: perceptorv1.Task_ONE_SHOT, IdempotencyKey: "new"}
	plain := &perceptorv1.Task{Kind: "k", Type: perceptorv1.Task_ONE_SHOT}
	_, err := s.AddTasks(ctx, &perceptorv1.AddTasksRequest{RequestId: "stored before", Tasks: []*perceptorv1.Task{plain, fresh}})
	if store.looks != 2 {
		t.Errorf("%d look-ups, want one for the request and one for the key", store.looks)
	}
	wantQuota(t, err, task.QuotaAdds)
}

// abandoned is a store whose answers come when their callers have left.
type abandoned struct{ Runs }

func (abandoned) Heartbeat(ctx context.Context, _ int32, _ task.Holder, _ []task.Attempt) ([]task.Reply, error) {
	<-ctx.Done()
	return nil, ctx.Err()
}

func TestCallersThatLeaveAreChargedForWhatTheyAskedFor(t *testing.T) {
	t.Parallel()
	store := &fullBucket{}
	b := setupWith(t, func(d *Deps) { d.Quotas, d.Runs = store, abandoned{} }, func(c *Config) { c.Quotas = task.Quotas{task.QuotaRuns: 100} })
	attempts := make([]*perceptorv1.Attempt, 200)
	for i := range attempts {
		attempts[i] = &perceptorv1.Attempt{TaskId: 1001, Seq: 1, Attempt: 1}
	}
	api := perceptorv1.NewRunServiceClient(b.conn)
	beat := func(within time.Duration) error {
		ctx, leave := context.WithTimeout(as(t.Context(), "acme-secret"), within)
		defer leave()
		_, err := api.HeartbeatRuns(ctx, &perceptorv1.HeartbeatRunsRequest{Holder: 1, Attempts: attempts})
		return err
	}
	err := beat(50 * time.Millisecond)
	for end := time.Now().Add(time.Minute); status.Code(err) == codes.DeadlineExceeded && time.Now().Before(end); {
		err = beat(200 * time.Millisecond)
	}
	wantQuota(t, err, task.QuotaRuns)
}

func TestAStatementGoesOnForAMomentWhenItsCallerLeaves(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		g := &gate{timeout: time.Minute}
		ctx, leave := context.WithTimeout(t.Context(), time.Minute)
		statement, end := g.lasting(ctx, getTask)
		defer end()
		group, _ := g.lasting(ctx, report)
		if ctxtime.Left(statement) {
			t.Error("the caller has left before it has")
		}
		leave()
		if !ctxtime.Left(statement) {
			t.Error("the statement does not know that its caller has left")
		}
		time.Sleep(leaveGrace - time.Millisecond)
		if statement.Err() != nil || group.Err() == nil {
			t.Errorf("a statement: %v, a call that waits for a group: %v", statement.Err(), group.Err())
		}
		time.Sleep(2 * time.Millisecond)
		if statement.Err() == nil {
			t.Error("the statement goes on for ever")
		}
	})
}

func TestACountMissesNoTaskThatIsBeingAdded(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b, counting, stored := &backlog{}, make(chan int64), int64(0)
		count := func(context.Context) (int64, error) { return <-counting, nil }
		reserve := func(n int64) bool {
			_, ok, err := b.reserve(t.Context(), n, 100, 1, count)
			if err != nil {
				t.Fatal(err)
			}
			return ok
		}
		go func() { counting <- stored }()
		if first, second := reserve(30), reserve(30); !first || !second {
			t.Fatal("60 of 100 tasks were refused")
		}
		b.end(30, 30) // the other add goes on
		time.Sleep(countedFor)
		synctest.Wait()
		reserve(1000) // begins a count that sees the first 30
		b.end(30, 30) // stored after that
		counting <- 30
		synctest.Wait()
		if n := b.known(); n != 60 {
			t.Errorf("%d tasks are known, want 60", n)
		}
		if reserve(41) || !reserve(40) {
			t.Error("40 tasks should fit, and no more")
		}
		time.Sleep(countedFor)
		go func() { counting <- 60 }()
		synctest.Wait()
		reserve(1000)
		synctest.Wait()
		if n := b.known(); n != 100 {
			t.Errorf("%d tasks are known while 40 are being added, want 100", n)
		}
		b.end(40, 0)
		if n := b.known(); n != 60 {
			t.Errorf("%d tasks are known after an add that failed, want 60", n)
		}
	})
}

// halfStalled is a store in which keys that begin with "held" belong to a database that hangs.
type halfStalled struct{ editedTasks }

func (halfStalled) Add(_ context.Context, r task.AddRequest) (task.AddResult, error) {
	if strings.HasPrefix(r.Key, "held") {
		return task.AddResult{}, task.Errorf(task.ReasonDatabaseStalled, "a database does not answer; try again")
	}
	return task.AddResult{Items: []task.AddItem{{ID: 512}}}, nil
}

func TestTheKeysOfADatabaseThatHangsHoldUpNoOthers(t *testing.T) {
	s, _, ctx := beyond(t, task.Quotas{})
	s.store = halfStalled{}
	named := func(keys ...string) (list []*perceptorv1.Task) {
		for _, key := range keys {
			list = append(list, &perceptorv1.Task{Kind: "k", Type: perceptorv1.Task_ONE_SHOT, IdempotencyKey: key})
		}
		return list
	}
	a, err := s.AddTasks(ctx, &perceptorv1.AddTasksRequest{RequestId: "r", Tasks: named("a", "held", "b")})
	if err != nil {
		t.Fatal(err)
	}
	for i, want := range []codes.Code{codes.OK, codes.Unavailable, codes.OK} {
		if got := codes.Code(a.Results[i].GetError().GetCode()); got != want {
			t.Errorf("task %d: %v, want %v", i, got, want)
		}
	}
	if _, err := s.AddTasks(ctx, &perceptorv1.AddTasksRequest{Tasks: named("held", "held too")}); task.CodeOf(err) != task.Unavailable {
		t.Errorf("no task has an outcome: %v, want UNAVAILABLE for the call", err)
	}
}
