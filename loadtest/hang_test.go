package main

import (
	"context"
	"os"
	"testing"
	"time"

	"github.com/perceptor/perceptor/internal/testenv"
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
	t.Parallel()
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
	requireNoHarm(t, report)
}

// Without what notices a part that hangs, what it holds is delayed for the whole freeze.
func TestAPartThatHangsDelaysOnlyWhatItHeld(t *testing.T) {
	drilled(t)
	for _, part := range []string{"broker", "taskd", "zookeeper", "dispatcher", "listener"} {
		t.Run(part, func(t *testing.T) {
			ctx, cancel := context.WithTimeout(context.Background(), e2eLimit)
			defer cancel()
			self, err := os.Executable()
			if err != nil {
				t.Fatal(err)
			}
			o := hang.DefaultOptions()
			o.Part, o.Rate, o.Warmup, o.Before, o.During, o.After, o.Recovery = part, 10, 15*time.Second, 5*time.Second, 40*time.Second, time.Second, 5*time.Second
			o.Real.Postgres["fsync"] = "off" // only processes are stopped, not the machine
			o.Real.Postgres["shared_buffers"] = "128MB"
			o.ListenerCommand, o.Progress = []string{self, harness.ListenerName}, testLog{t}
			report, err := harness.Run(ctx, &o)
			if err != nil {
				t.Fatal(err)
			}
			requireNoHarm(t, report)
			for key, delayed := range report.HeldDelayed {
				if delayed > report.TakeoverS {
					t.Errorf("%s was delayed for %.0f s, want at most %.0f s", key, delayed, report.TakeoverS)
				}
			}
		})
	}
}

func requireNoHarm(t *testing.T, report *hang.Report) {
	t.Helper()
	var table harness.Table
	report.Table(&table)
	t.Log(table.String())
	for kind, n := range report.Violations {
		t.Errorf("%d violations of %s", n, kind)
	}
	for key, median := range report.P50During { // other tests share the machine; the command judges the 99th percentiles
		if most := 2000 * testenv.Slowness(); median > most || report.Samples[key] == 0 {
			t.Errorf("%s: median %.0f ms of %d samples, want at most %.0f ms", key, median, report.Samples[key], most)
		}
	}
}
