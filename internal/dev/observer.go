package dev

import (
	"slices"
	"sync"
	"time"

	"github.com/perceptor/perceptor/loadtest/check"
	"github.com/perceptor/perceptor/task"
)

const (
	// forgetAfter is how long an ended task is remembered, to detect late calls of
	// its handler.
	forgetAfter = time.Minute
	maxExamples = 10
)

// observer records what the callers and handlers of the demo's tasks observe, and
// checks it against the contract with package loadtest/check. It uses no other
// knowledge about the installation. Its methods may be called concurrently. A call of a
// handler may be recorded before the answer to the add of its task.
type observer struct {
	mu       sync.Mutex
	tasks    map[task.ID]*observed
	swept    time.Time // when ended tasks were last checked and forgotten
	total    int64     // violations
	examples []string
}

// observed holds the observations of one task.
type observed struct {
	check.Task
	running int
	last    time.Time // time of the last observation
}

func newObserver() *observer { return &observer{tasks: map[task.ID]*observed{}} }

// touch returns the observations of a task and notes the time. The caller must hold the
// mutex.
func (o *observer) touch(id task.ID, now time.Time) *observed {
	t := o.tasks[id]
	if t == nil {
		t = &observed{Task: check.Task{ID: id}}
		o.tasks[id] = t
	}
	t.last = now
	return t
}

// added records an acknowledged task.
func (o *observer) added(a check.Add, now time.Time) {
	o.mu.Lock()
	defer o.mu.Unlock()
	a.Answer, a.Answered = check.Acknowledged, check.At(now)
	o.touch(a.ID, now).Add = &a
	if now.Sub(o.swept) > forgetAfter/2 {
		o.sweep(now)
	}
}

// started records that a handler has begun.
func (o *observer) started(id task.ID, now time.Time) {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.touch(id, now).running++
}

// ended records a whole call of a handler.
func (o *observer) ended(e check.Execution, now time.Time) {
	o.mu.Lock()
	defer o.mu.Unlock()
	t := o.touch(e.ID, now)
	t.running--
	e.End, e.Outcome = check.At(now), task.Success
	t.Executions = append(t.Executions, e)
}

// replied records the answer to a start or a report.
func (o *observer) replied(r check.Reply, now time.Time) {
	o.mu.Lock()
	defer o.mu.Unlock()
	r.Answered = check.At(now)
	t := o.touch(r.ID, now)
	t.Replies = append(t.Replies, r)
}

// accepted returns the number of runs whose result was accepted.
func (t *observed) accepted() int64 {
	seqs := map[int64]bool{}
	for _, r := range t.Replies {
		if r.Call == check.Report && r.Code == task.Accepted {
			seqs[r.Seq] = true
		}
	}
	return int64(len(seqs))
}

// over reports whether no further call of the handler is expected. Tasks of other callers
// have no Add.
func (t *observed) over() bool {
	return t.running <= 0 && (t.Add == nil || t.accepted() >= t.Add.MaxCount)
}

// waiting reports whether a handler runs or a result has no answer yet.
func (t *observed) waiting() bool {
	return t.running > 0 || slices.ContainsFunc(t.Executions, func(e check.Execution) bool {
		return !slices.ContainsFunc(t.Replies, func(r check.Reply) bool { return r.Call == check.Report && r.Seq == e.Seq })
	})
}

// check compares tasks with the contract. Every run due before quiet must be done. The
// zero time requires no run.
func (o *observer) check(tasks []*observed, quiet time.Time) check.Result {
	cfg := check.Config{Replies: true, OneClock: true}
	if !quiet.IsZero() {
		cfg.Quiet = check.At(quiet)
	}
	c := check.New(cfg)
	for _, t := range tasks {
		if t.Add != nil {
			c.Task(check.Task{ID: t.ID, Add: t.Add, Executions: slices.Clone(t.Executions), Replies: slices.Clone(t.Replies)})
		}
	}
	return c.Result()
}

// record adds the violations of a check to those found before.
func (o *observer) record(r check.Result) {
	o.total += r.Total()
	for _, v := range r.Examples {
		if len(o.examples) < maxExamples {
			o.examples = append(o.examples, v.String())
		}
	}
}

func (o *observer) all() (tasks []*observed) {
	for _, t := range o.tasks {
		tasks = append(tasks, t)
	}
	return tasks
}

// sweep checks and forgets the tasks that ended more than forgetAfter ago.
func (o *observer) sweep(now time.Time) {
	o.swept = now
	var ended []*observed
	for id, t := range o.tasks {
		if now.Sub(t.last) > forgetAfter && t.over() {
			ended = append(ended, t)
			delete(o.tasks, id)
		}
	}
	o.record(o.check(ended, now))
}

// pending reports whether a run that was due at an instant is not done.
func (o *observer) pending(at time.Time) bool {
	o.mu.Lock()
	defer o.mu.Unlock()
	return slices.ContainsFunc(o.all(), func(t *observed) bool { return t.Add != nil && t.waiting() }) ||
		o.check(o.all(), at).Violations[check.Lost] > 0
}

// unfinished returns the tasks that have runs to come.
func (o *observer) unfinished() (ids []int64) {
	o.mu.Lock()
	defer o.mu.Unlock()
	for id, t := range o.tasks {
		if t.Add != nil && !t.over() {
			ids = append(ids, int64(id))
		}
	}
	return ids
}

// verdict checks the remaining tasks with check. It returns the number of all violations
// and descriptions of the first ones.
func (o *observer) verdict(quiet time.Time) (total int64, examples []string) {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.record(o.check(o.all(), quiet))
	clear(o.tasks)
	return o.total, o.examples
}
