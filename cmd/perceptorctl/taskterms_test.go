package main

import (
	"context"
	"strings"
	"testing"

	"google.golang.org/grpc"
	"google.golang.org/protobuf/proto"

	perceptorv1 "github.com/perceptor/perceptor/proto/perceptor/v1"
)

// tasks is an API of tasks that keeps the last requests.
type tasks struct {
	perceptorv1.UnimplementedTaskServiceServer
	updates []*perceptorv1.UpdateTaskRequest
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
