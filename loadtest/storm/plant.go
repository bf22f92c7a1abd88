package storm

import (
	"slices"

	"github.com/perceptor/perceptor/loadtest/check"
	"github.com/perceptor/perceptor/loadtest/history"
	"github.com/perceptor/perceptor/task"
)

// plant is a way to falsify the observations of one task as if the installation had broken
// the contract.
type plant struct {
	// finds is the kind of the violation that the check must find.
	finds check.Kind
	// falsify changes a task. It returns false if the task does not suit.
	falsify func(*check.Task) bool
}

// plants are all falsifications.
var plants = map[string]plant{
	"loss":    {check.Lost, plantLoss},
	"double":  {check.DuplicateResult, plantDouble},
	"early":   {check.Early, plantEarly},
	"overlap": {check.Overlap, plantOverlap},
	"foreign": {check.Phantom, plantForeign},
}

// planting falsifies the first task that suits, of all histories that are checked.
type planting struct {
	name string
	done bool
}

// before returns a sink that passes the tasks on to c. p may be nil or have no name.
func (p *planting) before(c *check.Checker) history.Sink {
	if p == nil || p.name == "" {
		return c
	}
	return falsified{p, c}
}

type falsified struct {
	*planting
	checker *check.Checker
}

// Task implements [history.Sink].
func (f falsified) Task(t check.Task) {
	if !f.done && t.Add != nil && t.Add.Answer == check.Acknowledged && len(t.Ops) == 0 {
		f.done = plants[f.name].falsify(&t)
	}
	f.checker.Task(t)
}

// plantLoss removes all signs of the run of a one-shot.
func plantLoss(t *check.Task) bool {
	if t.Add.Type != task.OneShot || len(t.Executions) == 0 {
		return false
	}
	t.Executions, t.Replies = nil, nil
	return true
}

// plantDouble accepts the result of a run twice.
func plantDouble(t *check.Task) bool {
	i := slices.IndexFunc(t.Replies, func(r check.Reply) bool { return r.Call == check.Report && r.Code == task.Accepted })
	plain := !slices.ContainsFunc(t.Executions, func(e check.Execution) bool { return e.Unfinished || e.Outcome != task.Success })
	if i < 0 || !plain || len(t.Executions) == 0 {
		return false
	}
	t.Replies = append(t.Replies, t.Replies[i])
	return true
}

// plantEarly calls a handler a second before the instant of its run.
func plantEarly(t *check.Task) bool {
	if len(t.Executions) == 0 {
		return false
	}
	e := &t.Executions[0]
	e.Start = check.Of(e.ScheduledAt).Add(-1e9)
	return true
}

// plantOverlap lets a handler of a BLOCKING task last until the next one has begun.
func plantOverlap(t *check.Task) bool {
	finished := slices.DeleteFunc(slices.Clone(t.Executions), func(e check.Execution) bool { return e.Unfinished })
	if t.Add.Type != task.Blocking || len(finished) < 2 {
		return false
	}
	slices.SortFunc(finished, func(a, b check.Execution) int { return int(a.Start - b.Start) })
	for i := range t.Executions {
		if e := &t.Executions[i]; *e == finished[0] {
			e.End = finished[1].Start.Add(1e9)
		}
	}
	return true
}

// plantForeign calls the handler of a tenant for a task that the tenant has not added.
func plantForeign(t *check.Task) bool {
	if len(t.Executions) == 0 {
		return false
	}
	t.Add, t.Final = nil, nil
	return true
}
