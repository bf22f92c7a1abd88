package shards

import (
	"slices"
	"testing"
	"time"

	"github.com/perceptor/perceptor/task"
)

func TestResultsAreLateWhenChecksAreManyAndWaitLong(t *testing.T) {
	long, short := slowCheck, slowCheck-1
	all := func(d time.Duration) []time.Duration { return slices.Repeat([]time.Duration{d}, task.Databases) }
	halfHang := slices.Concat(slices.Repeat([]time.Duration{time.Second}, task.Databases/2), slices.Repeat([]time.Duration{short}, task.Databases/2))
	for _, tt := range []struct {
		name            string
		checks, results int
		waits           []time.Duration
		want            task.Pace
	}{
		{"nothing is called", 0, 0, nil, task.Pace{}},
		{"no run is late", 0, 5000, nil, task.Pace{}},
		{"few runs are late", 1000, 5000, all(long), task.Pace{}},
		{"handlers are slow", 5000, 5000, all(short), task.Pace{}},
		{"the server of half of the databases hangs", 5000, 5000, halfHang, task.Pace{}},
		{"too much is asked for", 2000, 5000, all(long), task.Pace{Late: lateResults, PerSecond: 5000}},
		{"results wait, too", 2000, 0, all(long), task.Pace{Late: lateResults, PerSecond: 2000}},
	} {
		if got := paceOf(tt.checks, tt.results, tt.waits); got != tt.want {
			t.Errorf("%s: %v, want %v", tt.name, got, tt.want)
		}
	}
}
