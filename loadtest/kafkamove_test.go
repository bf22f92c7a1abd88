package main

import (
	"context"
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/perceptor/perceptor/internal/testenv"
	"github.com/perceptor/perceptor/loadtest/harness"
	"github.com/perceptor/perceptor/loadtest/scenario"
	"github.com/perceptor/perceptor/loadtest/stack"
)

// TestAnInstallationMovesToAnotherKafkaClusterUnderLoad does what docs/kafka-move.md says: topics, taskd, half of
// the listeners, dispatchers, the other half. Each cluster is one broker. Then the first
// one is stopped, and tasks fire as before.
func TestAnInstallationMovesToAnotherKafkaClusterUnderLoad(t *testing.T) {
	drilled(t)
	t.Parallel()
	ctx, cancel := context.WithTimeout(context.Background(), e2eLimit)
	defer cancel()
	s, next := stackWithTwoKafkas(t)
	said, err := s.Perceptorctl(ctx, []string{"PERCEPTOR_KAFKA_BROKERS=" + next.Addr()}, "tenant", "provision")
	if err != nil || !strings.HasPrefix(said, "1 tenants have their topics") {
		t.Fatalf("said %q, %v", said, err)
	}
	if err := s.Reconfigure(func(sections map[string]map[string]any) { sections["kafka"]["brokers"] = []string{next.Addr()} }); err != nil {
		t.Fatal(err)
	}
	restart := func(part string, at time.Duration) scenario.Disturbance {
		return scenario.Disturbance{Action: scenario.Restart, Part: part, After: at}
	}
	load := e2eOptions(t, s, []scenario.Disturbance{
		restart("taskd-1", 0), restart("listener-2", 2*time.Second),
		restart("dispatcher-1", 5*time.Second), restart("dispatcher-2", 7*time.Second), restart("listener-1", 10*time.Second),
	})
	load.Listeners, load.For, load.Rate = 2, 12*time.Second, 100
	run := func(load *scenario.Options) {
		t.Helper()
		report, err := harness.Run(ctx, load)
		if err != nil {
			t.Error(err)
		}
		if report != nil {
			judge(t, report, 0)
		}
	}
	run(load)
	first, err := s.Part("kafka")
	if err == nil {
		err = first.Stop(ctx)
	}
	if err := errors.Join(err, everyReady(ctx, s)); err != nil {
		t.Fatal(err)
	}
	run(e2eOptions(t, s, nil))
}

// stackWithTwoKafkas starts a stack, and a broker beside it that the programs do not know.
func stackWithTwoKafkas(t *testing.T) (*stack.Stack, *testenv.KafkaServer) {
	t.Helper()
	o := harness.DefaultStack()
	o.Taskds, o.Dispatchers, o.Session, o.Assignment, o.Open = 1, 2, e2eSession, stack.InPostgres, true
	o.Progress = func(what string) { t.Log(what) }
	o.Postgres["fsync"], o.Postgres["shared_buffers"] = "off", "256MB"
	return ownStack(t, o), testenv.NewKafka(t)
}
