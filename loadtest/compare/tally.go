package compare

import (
	"slices"
	"sync"
	"sync/atomic"
	"time"
)

// tally counts the runs of each job of a phase. It may be used concurrently.
type tally struct {
	runs  []atomic.Uint32
	total atomic.Int64
	first atomic.Int64 // when the first run was, in Unix ns
	// all is closed when as many runs have been reported as there are jobs.
	all      chan struct{}
	reported atomic.Int64

	mu   sync.Mutex
	late []float64 // ms
}

func newTally(jobs int) *tally {
	return &tally{runs: make([]atomic.Uint32, jobs), all: make(chan struct{})}
}

// ran counts a run of job n.
func (t *tally) ran(n int) {
	if t.total.Add(1) == 1 {
		t.first.Store(time.Now().UnixNano())
	}
	if n >= 0 && n < len(t.runs) {
		t.runs[n].Add(1)
	}
}

// begin is when the first run was.
func (t *tally) begin() time.Time { return time.Unix(0, t.first.Load()) }

// completed counts n completions that the database has.
func (t *tally) completed(n int) {
	after := t.reported.Add(int64(n))
	if after >= int64(len(t.runs)) && after-int64(n) < int64(len(t.runs)) {
		close(t.all)
	}
}

// lateBy notes the lateness of runs.
func (t *tally) lateBy(ms []float64) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.late = append(t.late, ms...)
}

// violations is how many jobs did not run exactly once.
func (t *tally) violations() (n int64) {
	for i := range t.runs {
		if t.runs[i].Load() != 1 {
			n++
		}
	}
	return n
}

func (t *tally) quantiles() Quantiles {
	t.mu.Lock()
	defer t.mu.Unlock()
	if len(t.late) == 0 {
		return Quantiles{}
	}
	slices.Sort(t.late)
	at := func(q float64) float64 { return t.late[min(len(t.late)-1, int(q*float64(len(t.late))))] }
	return Quantiles{P50: at(0.5), P99: at(0.99), Max: t.late[len(t.late)-1]}
}

// dueOf is when job n of a phase is due, after the phase's begin: evenly over
// the spread, in an order that has nothing to do with that of the adds.
func dueOf(n, jobs int, spread time.Duration) time.Duration {
	const stride = 7919 // a prime; any that does not divide the number of jobs
	return time.Duration(float64(spread) * float64(n*stride%jobs) / float64(jobs))
}
