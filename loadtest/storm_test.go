package main

import (
	"context"
	"os"
	"testing"
	"time"

	"github.com/perceptor/perceptor/internal/testenv"
	"github.com/perceptor/perceptor/loadtest/harness"
	"github.com/perceptor/perceptor/loadtest/storm"
)

// The short storm has two faults. Its seed takes the death of a listener first.
const stormSeed = 1

var stormFaults = []string{"kill-listener", "fail-over-async"}

// It runs beside no other test of its package: on a machine that is too busy nothing happens
// while a fault lasts.
func TestTheContractIsKeptInAStorm(t *testing.T) {
	drilled(t)
	ctx, cancel := context.WithTimeout(context.Background(), 15*time.Minute)
	defer cancel()
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	o := storm.DefaultOptions()
	o.Seed, o.Faults, o.For, o.Tenants, o.Rate = stormSeed, stormFaults, 25*time.Second, 2, 60
	if testenv.Long() {
		o.Seed, o.Faults, o.For, o.Tenants = 0, nil, 5*time.Minute, 3
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
