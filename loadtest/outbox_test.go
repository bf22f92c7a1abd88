package main

import (
	"context"
	"testing"
	"time"

	"github.com/perceptor/perceptor/internal/testenv"
	"github.com/perceptor/perceptor/loadtest/harness"
	"github.com/perceptor/perceptor/loadtest/outbox"
)

func TestAnOutboxIsMovedOnceWhileEverythingAroundItIsKilled(t *testing.T) {
	if testing.Short() {
		t.Skip("starts every real part; make test runs it")
	}
	t.Parallel()
	ctx, cancel := context.WithTimeout(context.Background(), e2eLimit)
	defer cancel()
	o := outbox.DefaultOptions()
	o.Rate, o.For, o.Lease, o.Cells, o.Kill = 100, 12*time.Second, 2*time.Second, 20, true
	if testenv.Long() {
		o.Rate, o.For, o.Cells = 500, time.Minute, 100
	}
	o.Real.Postgres["fsync"] = "off" // only processes are killed, not the machine
	o.Real.Postgres["shared_buffers"] = "128MB"
	o.Progress = testLog{t}
	report, err := harness.Run(ctx, &o)
	if err != nil {
		t.Fatal(err)
	}
	if err := report.Verdict(); err != nil {
		t.Errorf("%v: %v", err, report.Examples)
	}
	if report.Added == 0 || report.Triggers == 0 || report.Rollbacks == 0 || len(report.Disturbances) == 0 {
		t.Errorf("%d adds, %d triggers, %d rollbacks, disturbances %v: the run shows nothing", report.Added, report.Triggers, report.Rollbacks, report.Disturbances)
	}
}
