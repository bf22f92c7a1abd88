package operate

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/perceptor/perceptor/client"
	"github.com/perceptor/perceptor/internal/subprocess"
	"github.com/perceptor/perceptor/loadtest/harness"
	"github.com/perceptor/perceptor/task"
)

const (
	pollEvery = 200 * time.Millisecond
	sayEvery  = 10 * time.Second
	// afterAbort is the time for which an aborted operation is watched, abortPoll the
	// interval of the looks.
	afterAbort = 2 * time.Second
	abortPoll  = 20 * time.Millisecond
)

// BulkFigures has the figures of one bulk operation.
type BulkFigures struct {
	Name    string `json:"name"`
	State   string `json:"state"`
	Matched int64  `json:"matched"`
	Done    int64  `json:"done"`
	Failed  int64  `json:"failed"`
	// BeginsMs is the time from the creation of the operation until it has matched a task,
	// with a resolution of 200 ms.
	BeginsMs  int64   `json:"begins_after_ms"`
	Seconds   float64 `json:"seconds"`
	TasksPerS float64 `json:"tasks_per_s"`
	// CPU is the processor time per task, less that of the steady tenant alone.
	harness.CPU
	// LatenessMs is the lateness of the steady tenant during the operation.
	LatenessMs harness.Quantiles `json:"lateness_ms"`
	// MemoryMiB is the resident memory of each program after the operation.
	MemoryMiB map[string]float64 `json:"memory_mib"`

	// MaxRate is the limit of the rate, and Rate the measured rate from the first progress
	// on, in tasks per second. ActsMs is the time from the call that aborts the operation
	// until no more tasks are changed, AnsweredMs the time until the answer.
	MaxRate    int     `json:"max_rate,omitempty"`
	Rate       float64 `json:"rate,omitempty"`
	ActsMs     float64 `json:"abort_acts_after_ms,omitempty"`
	AnsweredMs float64 `json:"abort_answered_after_ms,omitempty"`

	from, to time.Time
}

// n returns the number of tasks by which rates and processor time are divided.
func (f *BulkFigures) n() int64 { return max(f.Matched, f.Done) }

// operation is a bulk operation on tasks of the large tenant.
type operation struct {
	name string
	bulk client.Bulk
	// until reports whether to abort the operation, a time since after its first progress;
	// nil: never.
	until func(info *client.BulkInfo, since time.Duration) bool
}

// do creates an operation, watches it to its end, and returns its figures.
func (r *runner) do(ctx context.Context, op operation) (*BulkFigures, error) {
	ctx, cancel := context.WithTimeout(ctx, r.Limit)
	defer cancel()
	f := &BulkFigures{Name: op.name, MaxRate: op.bulk.MaxRate, from: time.Now(), MemoryMiB: map[string]float64{}}
	before := r.meter.Sample()
	info, err := r.client.CreateBulk(ctx, op.bulk)
	if err == nil {
		info, err = r.watch(ctx, f, op, info)
	}
	if err != nil {
		return nil, fmt.Errorf("%s: %w", op.name, err)
	}
	f.to = time.Now()
	f.State, f.Matched, f.Done, f.Failed = info.State.String(), info.Matched, info.Done, info.Failed
	if f.Seconds = harness.Round(info.FinishedAt.Sub(info.CreatedAt).Seconds()); f.Seconds > 0 {
		f.TasksPerS = harness.Round(float64(f.n()) / f.Seconds)
	}
	f.CPU = harness.NewCPU(net(harness.Used(before, r.meter.Sample()), r.alone, f.to.Sub(f.from)), f.n())
	for _, p := range r.stack.Programs() {
		if now, _, err := subprocess.Memory(p.PID()); err == nil {
			f.MemoryMiB[p.Name] = harness.MiB(now)
		}
	}
	r.Say("%s: %s, %d of %d tasks in %.1f s", op.name, f.State, f.Done, f.Matched, f.Seconds)
	return f, nil
}

// watch waits for the end of an operation, or aborts it when op.until reports true.
func (r *runner) watch(ctx context.Context, f *BulkFigures, op operation, info *client.BulkInfo) (*client.BulkInfo, error) {
	var first time.Time // of progress
	at, said := int64(0), time.Now()
	for !ended(info) {
		if err := harness.Sleep(ctx, pollEvery); err != nil {
			return info, err
		}
		next, err := r.client.GetBulk(ctx, info.ID)
		if err != nil {
			return info, err
		}
		info = next
		now := time.Now()
		if first.IsZero() && info.Matched > 0 {
			first, at, f.BeginsMs = now, info.Done, now.Sub(f.from).Milliseconds()
		}
		if since := now.Sub(first); !first.IsZero() && since > time.Second {
			f.Rate = harness.Round(float64(info.Done-at) / since.Seconds())
			if op.until != nil && op.until(info, since) {
				return r.abort(ctx, f, info.ID)
			}
		}
		if now.Sub(said) > sayEvery {
			said = now
			r.Say("%s: %d tasks done, %d of 16 databases finished", op.name, info.Done, info.FinishedParts)
		}
	}
	return info, nil
}

func ended(info *client.BulkInfo) bool {
	return info.State == client.BulkDone || info.State == client.BulkAborted && !info.FinishedAt.IsZero()
}

// abort aborts an operation and measures when it stops changing tasks.
func (r *runner) abort(ctx context.Context, f *BulkFigures, id int64) (*client.BulkInfo, error) {
	begin := time.Now()
	info, err := r.client.AbortBulk(ctx, id)
	if err != nil {
		return nil, err
	}
	answered := time.Now()
	last := answered
	for done := info.Done; time.Since(answered) < afterAbort || !ended(info); done = info.Done {
		if err := harness.Sleep(ctx, abortPoll); err != nil {
			return nil, err
		}
		if info, err = r.client.GetBulk(ctx, id); err != nil {
			return nil, err
		}
		if info.Done != done {
			last = time.Now()
		}
	}
	f.AnsweredMs, f.ActsMs = harness.Milliseconds(answered.Sub(begin)), harness.Milliseconds(last.Sub(begin))
	return info, nil
}

func tasksOf(kind int) client.Filter { return client.Filter{Kind: kindNames[kind]} }

// step is an operation on a whole kind. It is counted by a dry run, done, and verified.
type step struct {
	name  string
	kind  int
	bulk  client.Bulk
	apply func(*entry) // applies the operation to the expected entry of the kind
}

func (r *runner) steps() []step {
	return []step{
		{"pause", kindPause, client.Bulk{Action: client.BulkPause}, func(e *entry) { e.Paused = e.Count }},
		{"resume", kindPause, client.Bulk{Action: client.BulkResume}, func(e *entry) { e.Paused = 0 }},
		{"reschedule by 1h", kindMove, client.Bulk{Action: client.BulkReschedule, Shift: shift}, func(e *entry) { *e = r.books.moved }},
		{"cancel", kindCancel, client.Bulk{Action: client.BulkCancel}, func(e *entry) { r.cancelled, *e = e.Count, entry{} }},
	}
}

// bulks does all operations and verifies all tasks after each.
func (r *runner) bulks(ctx context.Context) error {
	for _, s := range r.steps() {
		if err := r.whole(ctx, s); err != nil {
			return err
		}
	}
	for _, partial := range []func(context.Context) error{r.throttled, r.aborted} {
		if err := partial(ctx); err != nil {
			return err
		}
	}
	return nil
}

// whole does a step: dry run, operation, verification.
func (r *runner) whole(ctx context.Context, s step) error {
	want := r.books.groups[s.kind].Count
	s.bulk.Tasks = tasksOf(s.kind)
	dry := s.bulk
	dry.DryRun = true
	counted, err := r.do(ctx, operation{name: s.name + ", dry run", bulk: dry})
	if err != nil {
		return err
	}
	done, err := r.do(ctx, operation{name: s.name, bulk: s.bulk})
	if err != nil {
		return err
	}
	r.report.Bulk = append(r.report.Bulk, counted, done)
	if counted.Matched != want || counted.Done != 0 {
		r.fault("%s: the dry run reports %d matched and %d done, want %d and 0", s.name, counted.Matched, counted.Done, want)
	}
	if done.Matched != want || done.Done != want || done.Failed != 0 {
		r.fault("%s: %d matched, %d done, %d failed; want all %d of the dry run done", s.name, done.Matched, done.Done, done.Failed, counted.Matched)
	}
	r.books.change(s.kind, s.apply)
	return r.verify(ctx, s.name)
}

// throttled pauses a kind at a limited rate and aborts the operation after ThrottleFor.
func (r *runner) throttled(ctx context.Context) error {
	f, err := r.do(ctx, operation{
		name:  fmt.Sprintf("pause, at most %d/s, aborted", r.Throttle),
		bulk:  client.Bulk{Action: client.BulkPause, Tasks: tasksOf(kindAbort), MaxRate: r.Throttle},
		until: func(_ *client.BulkInfo, since time.Duration) bool { return since >= r.ThrottleFor },
	})
	if err != nil {
		return err
	}
	r.report.Bulk = append(r.report.Bulk, f)
	if most := rateBound(r.Throttle, r.ThrottleFor); f.Rate > most {
		r.fault("%s: %.0f tasks per second, at most %.0f are allowed", f.Name, f.Rate, most)
	}
	r.books.change(kindAbort, func(e *entry) { e.Paused += f.Done })
	return r.verify(ctx, f.Name)
}

// rateBound returns the highest rate that may be measured over a period. Beyond the limit,
// each database may make up for two seconds and do one whole step of a second at once.
func rateBound(rate int, over time.Duration) float64 {
	return float64(rate) * (1.02 + 3/over.Seconds())
}

// aborted pauses the rest of the kind at full speed and aborts after a quarter of it.
func (r *runner) aborted(ctx context.Context) error {
	left := r.books.groups[kindAbort].Count - r.books.groups[kindAbort].Paused
	f, err := r.do(ctx, operation{
		name:  "pause, aborted after a quarter",
		bulk:  client.Bulk{Action: client.BulkPause, Tasks: tasksOf(kindAbort)},
		until: func(info *client.BulkInfo, _ time.Duration) bool { return info.Done >= left/4 },
	})
	if err != nil {
		return err
	}
	r.report.Bulk = append(r.report.Bulk, f)
	r.books.change(kindAbort, func(e *entry) { e.Paused += f.Done })
	return r.verify(ctx, f.Name)
}

// verify reads all tasks back and compares them with the expected ones.
func (r *runner) verify(ctx context.Context, after string) error {
	found := &book{large: r.mix.large, steady: r.steadyID}
	begin := time.Now()
	if err := r.read(ctx, found); err != nil {
		return fmt.Errorf("read back after %s: %w", after, err)
	}
	for _, fault := range compare(&r.books.groups, &found.groups) {
		r.fault("after %s: %s", after, fault)
	}
	cancelled, err := r.store.Finished(ctx, r.mix.large, kindNames[kindCancel], task.Cancelled)
	if err != nil {
		return err
	}
	if cancelled != r.cancelled {
		r.fault("after %s: %d tasks of kind %s are retained as cancelled, want %d", after, cancelled, kindNames[kindCancel], r.cancelled)
	}
	r.report.Verified++
	r.Say("read back in %.1f s", time.Since(begin).Seconds())
	return errors.Join(ctx.Err(), r.stack.Died())
}
