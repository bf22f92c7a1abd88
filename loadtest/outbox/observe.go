package outbox

import (
	"context"
	"slices"
	"strconv"
	"sync"
	"time"

	"github.com/perceptor/perceptor/client"
)

// observed is what the listener has seen, and when transactions have committed. Its methods may be
// called concurrently.
type observed struct {
	mu sync.Mutex
	// fired has the ids of the tasks that have fired for a number, begun the instant of the first.
	fired map[int64][]int64
	begun map[int64]time.Time
	// runs has the least v that a run has had, by key and number of the run.
	runs map[string]map[int64]int
	done map[int64]time.Time // when the transaction of a number had committed
}

func newObserved() *observed {
	return &observed{fired: map[int64][]int64{}, begun: map[int64]time.Time{}, runs: map[string]map[int64]int{}, done: map[int64]time.Time{}}
}

// handle is the handler of all runs.
func (o *observed) handle(_ context.Context, run *client.Run) error {
	o.mu.Lock()
	defer o.mu.Unlock()
	if key := run.Params["key"]; key != "" {
		v, err := strconv.Atoi(run.Params["v"])
		if err != nil {
			return client.Permanent(err)
		}
		if o.runs[key] == nil {
			o.runs[key] = map[int64]int{}
		}
		if known, ok := o.runs[key][run.Seq]; !ok || v < known {
			o.runs[key][run.Seq] = v
		}
		return nil
	}
	n, err := strconv.ParseInt(run.Params["n"], 10, 64)
	if err != nil {
		return client.Permanent(err)
	}
	if !slices.Contains(o.fired[n], run.TaskID) {
		o.fired[n] = append(o.fired[n], run.TaskID)
	}
	if o.begun[n].IsZero() {
		o.begun[n] = run.ScheduledAt
	}
	return nil
}

// committed records when a transaction had committed.
func (o *observed) committed(numbers []int64, at time.Time) {
	o.mu.Lock()
	defer o.mu.Unlock()
	for _, n := range numbers {
		o.done[n] = at
	}
}

// adds returns how many tasks without keys have fired.
func (o *observed) adds() int {
	o.mu.Lock()
	defer o.mu.Unlock()
	return len(o.fired)
}

// lags returns the times from commits to the instants at which tasks were stored, sorted: a task without a
// begin has that of its storage.
func (o *observed) lags() (list []time.Duration) {
	o.mu.Lock()
	defer o.mu.Unlock()
	for n, at := range o.begun {
		if done, ok := o.done[n]; ok {
			list = append(list, max(at.Sub(done), 0))
		}
	}
	slices.Sort(list)
	return list
}
