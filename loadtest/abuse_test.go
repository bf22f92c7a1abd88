package main

import (
	"context"
	"testing"
	"time"

	"github.com/perceptor/perceptor/loadtest/abuse"
	"github.com/perceptor/perceptor/loadtest/harness"
)

// The short form has two attacks and no polite tenant to compare with that other tests would
// not disturb. So its bounds are wide. Without the defences, adds of the victim fail or wait
// for many seconds.
func TestAnAttackOfOneTenantLeavesAnotherItsService(t *testing.T) {
	if testing.Short() {
		t.Skip("starts every real part; make test runs it")
	}
	t.Parallel()
	ctx, cancel := context.WithTimeout(context.Background(), e2eLimit)
	defer cancel()
	o := abuse.DefaultOptions()
	o.Only, o.Rate, o.Before, o.Phase, o.Undefended = "unfinished-requests,previews", 20, 2*time.Second, 3*time.Second, false
	// Other tests share the machine, so a second is nothing unusual here. Without defences, the
	// victim's adds are refused for as long as an attack lasts, and its errors tell.
	o.Calm, o.AddLimit = 5*time.Second, time.Minute
	o.Real.Postgres["fsync"] = "off" // only processes are stopped, not the machine
	o.Real.Postgres["shared_buffers"] = "128MB"
	o.Progress = testLog{t}
	report, err := harness.Run(ctx, &o)
	if err != nil {
		t.Fatal(err)
	}
	var table harness.Table
	report.Table(&table)
	t.Log(table.String())
	for _, a := range report.Attacks {
		// Medians, because other tests share the machine; the command judges the 99th percentiles.
		if most := 5000.0; a.AddMedian > most || a.LateMedian > most || a.Errors > 0 || a.Samples == 0 {
			t.Errorf("%s: medians of adds %.0f ms, of lateness %.0f ms, %d errors of %d adds", a.Name, a.AddMedian, a.LateMedian, a.Errors, a.Samples)
		}
	}
	if report.Lost > 0 {
		t.Errorf("%d acknowledged tasks were never called", report.Lost)
	}
}
