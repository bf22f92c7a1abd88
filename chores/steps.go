package chores

import (
	"context"
	"errors"
	"time"

	"github.com/perceptor/perceptor/task"
)

// errLost ends a loop because the chores have another owner.
var errLost = errors.New("the chores have another owner")

// size returns the maximum number of tasks per step, or 0 for the store's default.
func (l *loop) size() int {
	if l.c.cfg.Busy() {
		return smallStep
	}
	return 0
}

// forecastShare returns the share of one core's time that counting the load calendar may take now.
func (l *loop) forecastShare() float64 {
	if l.c.cfg.Busy() {
		return busyForecastShare
	}
	return forecastShare
}

func (l *loop) compactionStep(kind task.CompactionKind) func(context.Context) (work, error) {
	return func(ctx context.Context) (work, error) {
		cut, err := l.c.store.Compact(ctx, task.CompactionRequest{Database: l.d, Own: l.own, Kind: kind, MaxTasks: l.size()})
		return l.moved(kind.String(), &cut, err)
	}
}

// compactStep compacts, in as many steps as necessary, the tasks that were in
// level 0 when the round began.
func (l *loop) compactStep(ctx context.Context) (work, error) {
	cut, err := l.c.store.Compact(ctx, task.CompactionRequest{Database: l.d, Own: l.own, Kind: task.CompactLevel0, Before: l.round, MaxTasks: l.size()})
	if l.round == 0 && cut.Now != 0 {
		l.round = cut.Now + 1
	}
	found, err := l.moved(task.CompactLevel0.String(), &cut, err)
	if found != more {
		l.round = 0
	}
	return found, err
}

// demoteStep moves rows into packs.
func (l *loop) demoteStep(ctx context.Context) (work, error) {
	if l.c.cfg.Horizon < 0 {
		return nothing, nil
	}
	cut, err := l.c.store.Demote(ctx, l.d, l.own, l.size())
	return l.moved("demote", &cut, err)
}

// moved reports the tasks that a step has moved. A failed step may have moved
// some, too.
func (l *loop) moved(name string, cut *task.Compaction, err error) (work, error) {
	if cut.Lost {
		return nothing, errLost
	}
	l.c.events.Moved(l.d, name, cut)
	return done(cut.Read+cut.Near+cut.Packed, cut.More), err
}

// bulkSlice is how long one run of the bulk chore continues. Single steps are short.
// Together they should be long enough for the pause after them to have an effect.
const bulkSlice = 200 * time.Millisecond

func (l *loop) bulkStep(ctx context.Context) (work, error) {
	for began := time.Now(); ; {
		step, err := l.c.store.Bulk(ctx, l.d, l.own, l.c.cfg.Busy())
		if step.Lost {
			return nothing, errLost
		}
		if step.Action != 0 {
			l.c.events.Bulk(l.d, &step)
		}
		if step.Err != nil {
			l.c.cfg.Log.Warn("step of a bulk operation failed; trying again", "database", l.d, "action", step.Action, "err", step.Err)
		}
		switch {
		case err != nil:
			return nothing, err
		case step.Action == 0:
			return waiting(step.Open), nil
		case !step.More:
			return some, nil
		case time.Since(began) > bulkSlice || ctx.Err() != nil:
			return more, nil
		}
		select {
		case <-l.stopping:
			return some, nil
		default:
		}
	}
}

// waiting returns the work of a chore that has nothing to do now. If something is open it looks
// again soon.
func waiting(open bool) work {
	if open {
		return some
	}
	return nothing
}

// locatorPages bounds one purge of the locator.
const locatorPages = 2000

func (l *loop) locatorStep(ctx context.Context) (work, error) {
	n, err := l.c.store.PurgeLocator(ctx, l.d, l.own, locatorPages)
	return done(n, n == locatorPages), err
}

func (l *loop) historyStep(ctx context.Context) (work, error) {
	return nothing, l.c.store.MaintainHistory(ctx, l.d, l.c.cfg.HistoryDays)
}

// statsStep reads the state of the database, and makes a compaction due when
// many tasks wait.
func (l *loop) statsStep(ctx context.Context) (work, error) {
	far, err := l.c.store.FarStats(ctx, l.d)
	if err != nil {
		return nothing, err
	}
	oldest, err := l.c.store.OldestSnapshot(ctx, l.d)
	if err != nil {
		return nothing, err
	}
	l.c.events.Stats(l.d, far, oldest)
	if far.Level0Tasks >= l.c.cfg.CompactTasks {
		l.compaction.at = earlier(l.compaction.at, time.Now())
	}
	return nothing, nil
}

// counted returns the step of a chore that is one call of the store.
func counted(call func(ctx context.Context, d int) (n int, more bool, err error), d int) func(context.Context) (work, error) {
	return func(ctx context.Context) (work, error) {
		n, again, err := call(ctx, d)
		return done(n, again), err
	}
}
