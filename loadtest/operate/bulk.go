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
	// afterAbort is how long an aborted operation is watched, abortPoll how often.
	afterAbort = 2 * time.Second
	abortPoll  = 20 * time.Millisecond
)

// BulkFigures are those of one operation.
type BulkFigures struct {
	Name    string `json:"name"`
	State   string `json:"state"`
	Matched int64  `json:"matched"`
	Done    int64  `json:"done"`
	Failed  int64  `json:"failed"`
	// BeginsMs is how long after its creation the first tasks were met, at a look
	// every 200 ms.
	BeginsMs  int64   `json:"begins_after_ms"`
	Seconds   float64 `json:"seconds"`
	TasksPerS float64 `json:"tasks_per_s"`
	// CPU is per task, less what the steady tenant needs by itself.
	harness.CPU
	// LatenessMs is that of the steady tenant meanwhile.
	LatenessMs harness.Quantiles `json:"lateness_ms"`
	// MemoryMiB is what programs have resident after it.
	MemoryMiB map[string]float64 `json:"memory_mib"`

	// Of operations that were aborted. MaxRate and Rate are per second; Rate is that
	// from the first progress on. ActsMs is from the call until nothing was changed any
	// more, AnsweredMs until it was answered.
	MaxRate    int     `json:"max_rate,omitempty"`
	Rate       float64 `json:"rate,omitempty"`
	ActsMs     float64 `json:"abort_acts_after_ms,omitempty"`
	AnsweredMs float64 `json:"abort_answered_after_ms,omitempty"`

	from, to time.Time
}

// n is how many tasks the figures are divided by.
func (f *BulkFigures) n() int64 { return max(f.Matched, f.Done) }

// operation is one bulk operation of the large tenant.
type operation struct {
	name string
	bulk client.Bulk
	// until ends it before it is done, by abort; nil: it goes on.
	until func(info *client.BulkInfo, since time.Duration) bool
}

// do creates an operation, watches it to its end, and takes its figures.
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

// watch waits for the end of an operation, or aborts it.
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
			r.Say("%s: %d done, in %d of 16 databases to the end", op.name, info.Done, info.FinishedParts)
		}
	}
	return info, nil
}

func ended(info *client.BulkInfo) bool {
	return info.State == client.BulkDone || info.State == client.BulkAborted && !info.FinishedAt.IsZero()
}

// abort aborts an operation and watches when it stands.
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

// tasksOf selects the tasks of a kind.
func tasksOf(kind int) client.Filter { return client.Filter{Kind: kindNames[kind]} }

// step is an operation on a whole kind: first counted, then done, then looked at.
type step struct {
	name  string
	kind  int
	bulk  client.Bulk
	apply func(*entry) // what it makes of the kind
}

func (r *runner) steps() []step {
	return []step{
		{"pause", kindPause, client.Bulk{Action: client.BulkPause}, func(e *entry) { e.Paused = e.Count }},
		{"resume", kindPause, client.Bulk{Action: client.BulkResume}, func(e *entry) { e.Paused = 0 }},
		{"reschedule by 1h", kindMove, client.Bulk{Action: client.BulkReschedule, Shift: shift}, func(e *entry) { *e = r.books.moved }},
		{"cancel", kindCancel, client.Bulk{Action: client.BulkCancel}, func(e *entry) { r.cancelled, *e = e.Count, entry{} }},
	}
}

// bulks does all operations, and verifies after each.
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

// whole counts, does and verifies a step.
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
		r.fault("%s: the dry run says %d matched and %d done; there are %d", s.name, counted.Matched, counted.Done, want)
	}
	if done.Matched != want || done.Done != want || done.Failed != 0 {
		r.fault("%s: %d matched, %d done, %d failed; the dry run said %d", s.name, done.Matched, done.Done, done.Failed, counted.Matched)
	}
	r.books.change(s.kind, s.apply)
	return r.verify(ctx, s.name)
}

// throttled pauses a kind at a rate, and aborts that after a while.
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
		r.fault("%s: %.0f tasks a second, more than %.0f", f.Name, f.Rate, most)
	}
	r.books.change(kindAbort, func(e *entry) { e.Paused += f.Done })
	return r.verify(ctx, f.Name)
}

// rateBound is what a rate may look like over a while: each database may make up for
// two seconds, and does a whole step at once, of what another one allows.
func rateBound(rate int, over time.Duration) float64 {
	return float64(rate) * (1.02 + 3/over.Seconds())
}

// aborted pauses the rest of the kind at full speed, and aborts that on its way.
func (r *runner) aborted(ctx context.Context) error {
	left := r.books.groups[kindAbort].Count - r.books.groups[kindAbort].Paused
	f, err := r.do(ctx, operation{
		name:  "pause, aborted on its way",
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

// verify reads everything back and compares it with what it should be.
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
		r.fault("after %s: %d tasks of %s are kept as cancelled; want %d", after, cancelled, kindNames[kindCancel], r.cancelled)
	}
	r.report.Verified++
	r.Say("read back in %.1f s", time.Since(begin).Seconds())
	return errors.Join(ctx.Err(), r.stack.Died())
}
