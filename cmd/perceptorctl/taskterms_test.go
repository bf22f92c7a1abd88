package main

import (
	"context"
	"regexp"
	"strings"
	"testing"
	"time"

	"google.golang.org/genproto/googleapis/rpc/errdetails"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"

	"github.com/perceptor/perceptor/internal/cli"
	perceptorv1 "github.com/perceptor/perceptor/proto/perceptor/v1"
	"github.com/perceptor/perceptor/task"
)

// tasks is an API of tasks that keeps the last requests.
type tasks struct {
	perceptorv1.UnimplementedTaskServiceServer
	updates []*perceptorv1.UpdateTaskRequest
	adds    []*perceptorv1.AddTaskRequest
}

// AddTask refuses every add but the first one and those like it.
func (s *tasks) AddTask(_ context.Context, r *perceptorv1.AddTaskRequest) (*perceptorv1.AddTaskResponse, error) {
	s.adds = append(s.adds, proto.CloneOf(r))
	switch first := s.adds[0]; {
	case proto.Equal(first.Task, r.Task) && (first.RequestId == r.RequestId || r.Task.IdempotencyKey != ""):
		return &perceptorv1.AddTaskResponse{Id: 7, Replayed: len(s.adds) > 1}, nil
	case r.Task.IdempotencyKey != "":
		return nil, reused(task.ReasonKeyReused)
	}
	return nil, reused(task.ReasonRequestIDReused)
}

func reused(reason task.ErrorReason) error {
	st, err := status.New(codes.AlreadyExists, "was used").WithDetails(&errdetails.ErrorInfo{Reason: string(reason)})
	if err != nil {
		return err
	}
	return st.Err()
}

func (s *tasks) GetTask(context.Context, *perceptorv1.GetTaskRequest) (*perceptorv1.Task, error) {
	return s.adds[0].Task, nil
}

func (s *tasks) UpdateTask(_ context.Context, r *perceptorv1.UpdateTaskRequest) (*perceptorv1.Task, error) {
	s.updates = append(s.updates, proto.CloneOf(r))
	return r.Task, nil
}

func (s *tasks) serve(t *testing.T) {
	t.Helper()
	api(t, func(g *grpc.Server) { perceptorv1.RegisterTaskServiceServer(g, s) })
}

func TestAnUpdateRefusesAnotherType(t *testing.T) {
	s := &tasks{}
	s.serve(t)
	for _, args := range [][]string{{"--type", "blocking"}, {"--type", "blocking", "--interval", "1h"}, {"--type", ""}} {
		code, _, said := runCtl(t, append([]string{"task", "update", "7"}, args...)...)
		if code != 2 || !strings.Contains(said, "--type: the type of a task never changes") {
			t.Errorf("%v ended with %d: %s", args, code, said)
		}
	}
	if len(s.updates) > 0 {
		t.Errorf("updates were sent: %v", s.updates)
	}
}

func TestTheHelpOfAnUpdateHasNoDefaultsOfNewTasks(t *testing.T) {
	_, help, _ := runCtl(t, "task", "update", "--help")
	for _, not := range []string{"default now", "default 5", "default 1m", "default UTC", "--type"} {
		if strings.Contains(help, not) {
			t.Errorf("the help says %q:\n%s", not, help)
		}
	}
	if !strings.Contains(help, "default application/json") {
		t.Errorf("the help leaves out the default of a payload, which is replaced as a whole:\n%s", help)
	}
	if _, help, _ := runCtl(t, "task", "add", "--help"); !strings.Contains(help, "default now") || !strings.Contains(help, "--type") {
		t.Errorf("the help of add is without its defaults:\n%s", help)
	}
}

// added runs an add of a one-shot task.
func added(t *testing.T, args ...string) (code int, out, said string) {
	t.Helper()
	return runCtl(t, append([]string{"task", "add", "--kind", "a", "--type", "one-shot"}, args...)...)
}

func TestAnAddWithADistanceSaysHowItIsRepeated(t *testing.T) {
	for _, name := range []string{"--key", "--request-id"} {
		t.Run(name, func(t *testing.T) {
			s := &tasks{}
			s.serve(t)
			code, out, said := added(t, name, "k1", "--begin", "+1h")
			begin := regexp.MustCompile(`to repeat this, give --begin (\S+Z): \+1h is another instant each time`).FindStringSubmatch(said)
			if code != 0 || begin == nil {
				t.Fatalf("it ended with %d: %s%s", code, out, said)
			}
			if code, out, said := added(t, name, "k1", "--begin", begin[1]); code != 0 || !strings.Contains(out, "true") || said != "" {
				t.Errorf("with the instant it ended with %d: %s%s", code, out, said)
			}
			code, _, said = added(t, name, "k1", "--begin", "+2h")
			if code != cli.Conflict || !strings.Contains(said, "hint: --begin +2h is another instant each time, now 2") || !strings.Contains(said, "give the instant that it had the first time") {
				t.Errorf("with another distance it ended with %d: %s", code, said)
			}
			if first := "the task has --begin " + begin[1]; strings.Contains(said, first) != (name == "--key") {
				t.Errorf("whether it says %q depends on who knows the task: %s", first, said)
			}
			if code, _, said := added(t, name, "k1"); code != cli.Conflict || strings.Contains(said, "hint") {
				t.Errorf("without a distance it ended with %d: %s", code, said)
			}
		})
	}
}

func TestAnAddThatNobodyRepeatsSaysNothingOfInstants(t *testing.T) {
	for _, args := range [][]string{{"--begin", "+1h"}, {"--key", "k", "--upsert", "--begin", "+1h"}, {"--key", "k", "--begin", "2031-01-01T00:00:00Z"}} {
		s := &tasks{}
		s.serve(t)
		if code, _, said := added(t, args...); code != 0 || said != "" {
			t.Errorf("%v ended with %d: %s", args, code, said)
		}
	}
}

func TestAnInstantMayBeADistanceInBothDirections(t *testing.T) {
	for text, want := range map[string]time.Duration{"+90s": 90 * time.Second, "-1d": -24 * time.Hour, "+0s": 0} {
		at, err := instant("begin", text)
		if err != nil {
			t.Fatal(err)
		}
		if off := time.Until(at.AsTime()) - want; off > 0 || off < -time.Minute || at.Nanos%1e6 != 0 {
			t.Errorf("%s is %s", text, at.AsTime())
		}
	}
	for text, want := range map[string]string{"+": "after its sign", "-x": "after its sign", "+-1h": "after its sign", "++1h": "after its sign", "--1h": "after its sign", "1h": "such as +90s or -24h"} {
		if _, err := instant("begin", text); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: %v", text, err)
		}
	}
}
