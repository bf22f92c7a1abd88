package main

import (
	"context"
	"os"
	"testing"
	"time"

	"github.com/perceptor/perceptor/loadtest/harness"
	"github.com/perceptor/perceptor/loadtest/storm"
)

// The short storm has two faults. Its seed takes the death of a listener first.
const stormSeed = 1

var stormFaults = []string{"kill-listener", "fail-over-async"}

// Storms run beside no other test of their package: on a machine that is too busy nothing happens
// while a fault lasts.
func TestTheContractIsKeptInAStorm(t *testing.T) {
	drilled(t)
	short := storm.DefaultOptions()
	short.Seed, short.Faults, short.For, short.Tenants, short.Rate = stormSeed, stormFaults, 25*time.Second, 2, 60
	long := storm.DefaultOptions()
	long.For, long.Tenants, long.Rate = 5*time.Minute, 3, 60
	t.Run("short", func(t *testing.T) { weather(t, short) })
	t.Run("long", func(t *testing.T) { weather(t, long) })
}

// weather runs a storm.
func weather(t *testing.T, o storm.Options) {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), 15*time.Minute)
	defer cancel()
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	o.ListenerCommand, o.Progress = []string{self, harness.ListenerName}, testLog{t}
	report, err := harness.Run(ctx, &o)
	if err != nil {
		t.Error(err)
	}
	if report == nil {
		return
	}
	if err := harness.WriteTable(testLog{t}, report); err != nil {
		t.Error(err)
	}
	if err := report.Verdict(); err != nil {
		t.Errorf("seed %d: %v", o.Seed, err)
	}
	if !report.Complete || len(report.Faults) == 0 || report.Tasks == 0 || report.Runs <= report.Tasks {
		t.Errorf("%d faults, %d tasks with %d runs, complete: %v, want a complete storm with faults and more runs than tasks",
			len(report.Faults), report.Tasks, report.Runs, report.Complete)
	}
}
