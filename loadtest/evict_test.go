package main

import (
	"context"
	"slices"
	"testing"
	"time"

	"github.com/perceptor/perceptor/loadtest/harness"
	"github.com/perceptor/perceptor/loadtest/scenario"
	"github.com/perceptor/perceptor/loadtest/stack"
)

const (
	// handOver bounds the lateness when dispatchers hand over, on slow machines. Without a hand-over the
	// shards would wait for the end of evictedSession.
	handOver       = 8 * time.Second
	evictedSession = 10 * time.Second
)

// TestProgramsThatKubernetesEndsHandOver ends every program once, as Kubernetes ends pods: each is
// ready until its signal, is not ready afterwards, and ends within its grace. No add fails, and nothing is
// later than by a hand-over.
func TestProgramsThatKubernetesEndsHandOver(t *testing.T) {
	drilled(t)
	t.Parallel()
	ctx, cancel := context.WithTimeout(context.Background(), e2eLimit)
	defer cancel()
	o := harness.DefaultStack()
	o.Taskds, o.Dispatchers, o.Session, o.Assignment = 2, 2, evictedSession, stack.InPostgres
	o.Progress = func(what string) { t.Log(what) }
	o.Postgres["fsync"], o.Postgres["shared_buffers"] = "off", "256MB"
	o.Settings = map[string]string{"taskd.drain_delay": "1s"}
	s := ownStack(t, o)
	evict := func(part string, at time.Duration) scenario.Disturbance {
		return scenario.Disturbance{Action: scenario.Evict, Part: part, After: at, For: time.Second}
	}
	load := e2eOptions(t, s, []scenario.Disturbance{evict("dispatcher-1", 0), evict("taskd-1", time.Second), evict("dispatcher-2", 6*time.Second), evict("taskd-2", 8*time.Second)})
	load.For, load.Rate, load.Fail = 13*time.Second, 100, 0
	report, err := harness.Run(ctx, load)
	if err != nil {
		t.Error(err)
	}
	if report == nil {
		return
	}
	judge(t, report, 0)
	if report.AddsUnanswered+report.AddsRefused != 0 {
		t.Errorf("%d adds were not answered and %d refused", report.AddsUnanswered, report.AddsRefused)
	}
	latest := slices.MaxFunc(report.Series, func(a, b scenario.SecondReport) int { return int(a.LatestMs - b.LatestMs) })
	if late := time.Duration(latest.LatestMs * float64(time.Millisecond)); late > handOver {
		t.Errorf("a run of second %d was late by %v, want at most %v", latest.S, late, handOver)
	}
}
