package outbox

import (
	"context"
	"errors"
	"fmt"
	"strconv"
	"sync"

	"github.com/jackc/pgx/v5"

	"github.com/perceptor/perceptor/client"
)

// lookUps is how many tasks are looked up at a time.
const lookUps = 32

// check compares the service's tables with what the installation has and has fired.
func (r *runner) check(ctx context.Context, rep *Report) error {
	rep.Violations = map[string]int64{}
	counts, err := r.shop.counts(ctx)
	if err != nil {
		return err
	}
	rep.Added, rep.Triggers, rep.Lives = counts.added, counts.triggers, counts.lives
	rep.broke("refused", counts.refused, "operations were set aside")
	if left, err := r.shop.left(ctx); err != nil || left > 0 {
		rep.broke("left", max(left, 1), "operations are still in the outbox")
	}
	if err := r.checkLives(ctx, rep); err != nil {
		return err
	}
	if !r.fires() {
		return r.checkCount(ctx, rep)
	}
	return errors.Join(r.checkAdded(ctx, rep), r.checkRuns(ctx, rep))
}

// checkCount compares only the number of tasks, for those that do not fire.
func (r *runner) checkCount(ctx context.Context, rep *Report) error {
	sum, err := r.stack.Sum(ctx)
	if err != nil {
		return err
	}
	if d := sum.Added - rep.Added - rep.Lives; d > 0 {
		rep.broke("twice", d, "more tasks than committed adds")
	} else if d < 0 {
		rep.broke("lost", -d, "fewer tasks than committed adds")
	}
	return nil
}

// checkAdded compares the tasks without keys.
func (r *runner) checkAdded(ctx context.Context, rep *Report) error {
	rows, err := listAdded.Query(ctx, r.shop.pool)
	if err != nil {
		return err
	}
	numbers, err := pgx.CollectRows(rows, pgx.RowTo[int64])
	if err != nil {
		return err
	}
	r.seen.mu.Lock()
	defer r.seen.mu.Unlock()
	known := map[int64]bool{}
	for _, n := range numbers {
		known[n] = true
		switch times := len(r.seen.fired[n]); {
		case times == 0:
			rep.broke("lost", 1, "add %d was committed and has not fired", n)
		case times > 1:
			rep.broke("twice", 1, "add %d was committed once and has tasks %v", n, r.seen.fired[n])
		}
	}
	for n := range r.seen.fired {
		if !known[n] {
			rep.broke("rolled_back", 1, "add %d was rolled back and has fired", n)
		}
	}
	return nil
}

// life is a task with a key, as the service has left it.
type life struct {
	Key         string
	V, Triggers int
	Ended       bool
}

// checkLives compares the tasks with keys: their last params, state and runs.
func (r *runner) checkLives(ctx context.Context, rep *Report) error {
	rows, err := listLives.Query(ctx, r.shop.pool)
	if err != nil {
		return err
	}
	lives, err := pgx.CollectRows(rows, pgx.RowToStructByPos[life])
	if err != nil {
		return err
	}
	var calls sync.WaitGroup
	slots := make(chan struct{}, lookUps)
	var mu sync.Mutex
	var failed error
	for _, l := range lives {
		slots <- struct{}{}
		calls.Go(func() {
			defer func() { <-slots }()
			info, err := r.client.ByKey(l.Key).Get(ctx)
			mu.Lock()
			defer mu.Unlock()
			switch {
			case errors.Is(err, client.ErrNotFound):
				rep.broke("lost", 1, "%s was committed and does not exist", l.Key)
			case err != nil:
				failed = fmt.Errorf("look up %s: %w", l.Key, err)
			default:
				rep.compare(l, info)
			}
		})
	}
	calls.Wait()
	return failed
}

// compare compares a task with its life.
func (rep *Report) compare(l life, info *client.TaskInfo) {
	if info.Params["v"] != strconv.Itoa(l.V) {
		rep.broke("order", 1, "%s has v %s, and the last committed one is %d", l.Key, info.Params["v"], l.V)
	}
	if (info.State == client.Cancelled) != l.Ended {
		rep.broke("state", 1, "%s is %s; it was cancelled: %v", l.Key, info.State, l.Ended)
	}
	if int(info.RunCount) != l.Triggers {
		rep.broke("triggers", 1, "%s has %d runs after %d triggers", l.Key, info.RunCount, l.Triggers)
	}
}

// checkRuns compares the params of triggered runs: a run has at least the changes that were committed before its
// trigger.
func (r *runner) checkRuns(ctx context.Context, rep *Report) error {
	rows, err := listDrawn.Query(ctx, r.shop.pool)
	if err != nil {
		return err
	}
	r.seen.mu.Lock()
	defer r.seen.mu.Unlock()
	var key string
	var seq int64
	var v int
	_, err = pgx.ForEachRow(rows, []any{&key, &seq, &v}, func() error {
		// A run of a task that was cancelled soon after need not have been delivered.
		if seen, ok := r.seen.runs[key][seq]; ok && seen < v {
			rep.broke("order", 1, "run %d of %s had v %d, and %d was committed before its trigger", seq, key, seen, v)
		}
		return nil
	})
	return err
}
