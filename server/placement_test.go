package server

import (
	"testing"
	"time"

	"github.com/perceptor/perceptor/task"
)

func TestAddsMeetInTheMoreShardsTheMoreIsAdded(t *testing.T) {
	second := func(n int64) time.Time { return time.Unix(1_000_000+n, 0) }
	for _, c := range []struct {
		name      string
		processes int
		// calls are the tasks of each call by second; want is the answer to the last one.
		calls [][]int
		want  int
	}{
		{"nothing was added before", 1, [][]int{{1}}, 1},
		{"as much as one shard is for", 1, [][]int{{1000, 1000}}, 1},
		{"somewhat more", 1, [][]int{{1000, 1000, 1}}, 2},
		{"the second before counts, for this one has just begun", 1, [][]int{{20_000}, {1}}, 10},
		{"the second before that does not", 1, [][]int{{20_000}, {1}, {1}}, 1},
		{"nor one before a pause", 1, [][]int{{20_000}, nil, {1}}, 1},
		{"other processes add as much", 3, [][]int{{1000, 1000}}, 3},
		{"processes are not known yet", 0, [][]int{{1}}, 1},
		{"never more than there are", 1, [][]int{{1_000_000, 1_000_000}}, task.Shards},
	} {
		m := newPlacement(func() int { return c.processes })
		got := 0
		for n, calls := range c.calls {
			for _, tasks := range calls {
				got = m.add(second(int64(n)), tasks)
			}
		}
		if got != c.want {
			t.Errorf("%s: %d shards, want %d", c.name, got, c.want)
		}
	}
	if got := newPlacement(nil).add(second(0), 1); got != 1 {
		t.Errorf("alone: %d shards, want 1", got)
	}
}
