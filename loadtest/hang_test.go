package main

import (
	"context"
	"testing"
	"time"

	"github.com/perceptor/perceptor/loadtest/hang"
	"github.com/perceptor/perceptor/loadtest/harness"
)

// The short form does not compare with the figures before: other tests use the machine at the
// same time. Without what keeps a server that hangs apart, tasks of the other one wait for
// most of the freeze.
func TestAServerThatHangsHarmsOnlyItsOwnTasks(t *testing.T) {
	if testing.Short() {
		t.Skip("starts every real part; make test runs it")
	}
	ctx, cancel := context.WithTimeout(context.Background(), e2eLimit)
	defer cancel()
	o := hang.DefaultOptions()
	o.Rate, o.Warmup, o.Before, o.During, o.After, o.Recovery = 20, 2*time.Second, 2*time.Second, 8*time.Second, time.Second, 2*time.Second
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
	for kind, n := range report.Violations {
		t.Errorf("%d violations of %s", n, kind)
	}
	for key, p99 := range report.P99During {
		if most := 4000.0; p99 > most || report.Samples[key] == 0 {
			t.Errorf("%s: p99 %.0f ms of %d samples, want at most %.0f ms", key, p99, report.Samples[key], most)
		}
	}
}
