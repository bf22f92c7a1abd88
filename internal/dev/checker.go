package dev

import (
	"fmt"
	"sync"
	"time"
)

// The kinds of violations, in the order in which they are shown.
const (
	early           = "early"            // a callback before its instant
	overCount       = "over_count"       // more runs than max_count
	outOfBounds     = "out_of_bounds"    // an instant outside [begin, end)
	overlapping     = "overlap"          // two handlers of one BLOCKING task at once
	duplicateResult = "duplicate_result" // two accepted results of one run
	lost            = "lost"             // due and never called
)

// forgetAfter is how long a task that is over is remembered, to see callbacks
// that should not be.
const forgetAfter = time.Minute

// spec is what was asked for, in the precision of the contract.
type spec struct {
	typ        string
	begin, end time.Time
	interval   time.Duration
	count      int64
}

// call is one callback of a run.
type call struct {
	task, seq int64
	blocking  bool
	scheduled time.Time
	missed    int64
}

// checker holds what handlers see against the contract, from outside: it knows
// only what was added, and what was called. Its methods may be called
// concurrently, and callbacks may come before their task is known.
type checker struct {
	mu         sync.Mutex
	tasks      map[int64]*watched
	violations map[string]int
	examples   []string
}

// watched is what is known of one task.
type watched struct {
	spec     *spec // nil: somebody else's, or not yet known
	runs     map[int64]*watchedRun
	missed   int64
	running  int
	last     time.Time // when something happened
	resulted time.Time // when the last result was accepted
}

type watchedRun struct {
	scheduled time.Time
	results   int
}

func newChecker() *checker {
	return &checker{tasks: map[int64]*watched{}, violations: map[string]int{}}
}

func (c *checker) task(id int64) *watched {
	w := c.tasks[id]
	if w == nil {
		w = &watched{runs: map[int64]*watchedRun{}}
		c.tasks[id] = w
	}
	return w
}

func (c *checker) violated(kind, format string, args ...any) {
	c.violations[kind]++
	if len(c.examples) < 10 {
		c.examples = append(c.examples, kind+": "+fmt.Sprintf(format, args...))
	}
}

// added tells of a task. Callbacks that came before are judged now.
func (c *checker) added(id int64, s spec, now time.Time) {
	c.mu.Lock()
	defer c.mu.Unlock()
	w := c.task(id)
	w.spec, w.last = &s, now
	for seq, r := range w.runs {
		c.judge(id, seq, w, r)
	}
	c.forget(now)
}

// judge holds a run that was called for the first time against its task.
func (c *checker) judge(id, seq int64, w *watched, r *watchedRun) {
	s := w.spec
	if r.scheduled.Before(s.begin) || !s.end.IsZero() && !r.scheduled.Before(s.end) {
		c.violated(outOfBounds, "run %d-%d was scheduled at %s, outside [%s, %s)", id, seq, r.scheduled, s.begin, s.end)
	}
	if seq > s.count || int64(len(w.runs)) > s.count {
		c.violated(overCount, "run %d-%d: the task has %d runs", id, seq, s.count)
	}
}

// started tells that a handler has begun.
func (c *checker) started(d call, now time.Time) {
	c.mu.Lock()
	defer c.mu.Unlock()
	w := c.task(d.task)
	w.last = now
	if now.Before(d.scheduled) {
		c.violated(early, "run %d-%d was called %s before its instant", d.task, d.seq, d.scheduled.Sub(now))
	}
	if w.running++; d.blocking && w.running > 1 {
		c.violated(overlapping, "run %d-%d began beside another run of its task", d.task, d.seq)
	}
	if w.runs[d.seq] != nil {
		return // delivered again
	}
	r := &watchedRun{scheduled: d.scheduled}
	w.runs[d.seq] = r
	w.missed += d.missed
	if w.spec != nil {
		c.judge(d.task, d.seq, w, r)
	}
}

// ended tells that a handler has returned.
func (c *checker) ended(d call, now time.Time) {
	c.mu.Lock()
	defer c.mu.Unlock()
	w := c.task(d.task)
	w.last = now
	w.running--
}

// resulted tells that a run's final result was accepted.
func (c *checker) resulted(task, seq int64, now time.Time) {
	c.mu.Lock()
	defer c.mu.Unlock()
	w := c.task(task)
	w.last, w.resulted = now, now
	if r := w.runs[seq]; r != nil {
		if r.results++; r.results > 1 {
			c.violated(duplicateResult, "run %d-%d has %d accepted results", task, seq, r.results)
		}
	}
}

// over reports whether nothing more is to come.
func (w *watched) over() bool {
	if w.running > 0 || w.spec == nil {
		return w.running <= 0 && w.spec == nil
	}
	if int64(len(w.runs)) < w.spec.count {
		return false
	}
	for _, r := range w.runs {
		if r.results == 0 {
			return false
		}
	}
	return true
}

// due returns how many runs were due at an instant and have not been called.
func (w *watched) due(at time.Time) int64 {
	s := w.spec
	called := int64(len(w.runs))
	switch {
	case s == nil || s.begin.After(at):
		return 0
	case s.typ == oneShot:
		return max(1-called, 0)
	case s.typ == nonBlocking:
		instants := min(int64(at.Sub(s.begin)/s.interval)+1, s.count+w.missed)
		return max(instants-called-w.missed, 0)
	case called >= s.count || w.running > 0:
		return 0
	case called == 0:
		return 1
	}
	// BLOCKING: the next run is one interval after the last accepted result.
	for _, r := range w.runs {
		if r.results == 0 {
			return 0
		}
	}
	if w.resulted.Add(s.interval).After(at) {
		return 0
	}
	return 1
}

// open returns how many runs were due at an instant and not called, and how
// many handlers or results are still under way.
func (c *checker) open(at time.Time) (uncalled, underWay int) {
	c.mu.Lock()
	defer c.mu.Unlock()
	for _, w := range c.tasks {
		uncalled += int(w.due(at))
		underWay += w.running
		for _, r := range w.runs {
			if r.results == 0 && w.spec != nil {
				underWay++
			}
		}
	}
	return uncalled, underWay
}

// unfinished returns the tasks that have runs to come.
func (c *checker) unfinished() []int64 {
	c.mu.Lock()
	defer c.mu.Unlock()
	var ids []int64
	for id, w := range c.tasks {
		if w.spec != nil && !w.over() {
			ids = append(ids, id)
		}
	}
	return ids
}

// close counts what was due at an instant and never called.
func (c *checker) close(at time.Time) {
	c.mu.Lock()
	defer c.mu.Unlock()
	for id, w := range c.tasks {
		if n := w.due(at); n > 0 {
			c.violated(lost, "%d due runs of the %s task %d were never called", n, w.spec.typ, id)
		}
	}
}

// forget drops tasks that have been over for a while.
func (c *checker) forget(now time.Time) {
	for id, w := range c.tasks {
		if now.Sub(w.last) > forgetAfter && w.over() {
			delete(c.tasks, id)
		}
	}
}

// verdict returns the number of violations, and the first ones in words.
func (c *checker) verdict() (total int, examples []string) {
	c.mu.Lock()
	defer c.mu.Unlock()
	for _, n := range c.violations {
		total += n
	}
	return total, c.examples
}
