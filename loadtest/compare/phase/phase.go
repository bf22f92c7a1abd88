// Package phase does one phase of the work of package compare. It measures, counts and
// reports, while the program of a contestant adds jobs and runs them. The programs in Go
// share it. That of River is a separate module and is built with a copy, so the package
// imports only the standard library.
package phase

import (
	"context"
	"encoding/json"
	"flag"
	"fmt"
	"io"
	"slices"
	"sync"
	"sync/atomic"
	"syscall"
	"time"
)

// The phases. The README of loadtest describes them.
const (
	Cycle    = "cycle"
	Drain    = "drain"
	Lateness = "lateness"
	Burst    = "burst"
)

// Adds of a burst: two callers at full speed, in the batches of a service.
const (
	burstBatch  = 1000
	burstAdders = 2
)

const (
	// MaxJobs bounds the memory in which a program counts the runs of each job.
	MaxJobs = 100_000_000

	aMonth     = 30 * 24 * time.Hour // time until waiting jobs are due
	pacedEvery = 10 * time.Millisecond
	// afterWarmup is the time from the last run of the warm-up to the measured jobs, in which its
	// completions are written.
	afterWarmup = time.Second
)

// Work describes one phase of a contestant.
type Work struct {
	Phase string
	// Jobs is the number of jobs that are added and run, each with ParamsBytes of params.
	Jobs, ParamsBytes int
	// Spread is the time over which the jobs of cycle and drain are due.
	Spread time.Duration
	// Waiting is the number of further jobs in the table, due in a month.
	Waiting int
	// Rate is the rate of the phase lateness in jobs per second. Each job is due Ahead
	// after its add; in a burst, between Ahead and Ahead and Spread after its batch was built.
	Rate  int
	Ahead time.Duration
	// Warmup is the number of the first jobs of the phase lateness that are not measured. All of them
	// have run before the others are added.
	Warmup int
}

// Measured is the number of jobs that are measured.
func (w *Work) Measured() int { return w.Jobs - w.Warmup }

// TimesRuns says that the phase measures the lateness of each run.
func (w *Work) TimesRuns() bool { return w.Phase == Lateness || w.Phase == Burst }

// fields returns the integers of the work by the names of their flags.
func (w *Work) fields(spreadMs, aheadMs *int) map[string]*int {
	return map[string]*int{
		"jobs": &w.Jobs, "params-bytes": &w.ParamsBytes, "spread-ms": spreadMs, "waiting": &w.Waiting, "rate": &w.Rate, "ahead-ms": aheadMs,
		"warmup": &w.Warmup,
	}
}

// Args returns the work as flags of a contestant's program.
func (w Work) Args() []string {
	spread, ahead := int(w.Spread.Milliseconds()), int(w.Ahead.Milliseconds())
	args := []string{"--phase=" + w.Phase}
	for name, v := range w.fields(&spread, &ahead) {
		args = append(args, fmt.Sprintf("--%s=%d", name, *v))
	}
	return args
}

// Parse returns the work of flags that [Work.Args] returned.
func Parse(args []string) (w Work, err error) {
	var spread, ahead int
	f := flag.NewFlagSet("work", flag.ContinueOnError)
	f.SetOutput(io.Discard)
	f.StringVar(&w.Phase, "phase", "", "")
	for name, v := range w.fields(&spread, &ahead) {
		f.IntVar(v, name, 0, "")
	}
	err = f.Parse(args)
	w.Spread, w.Ahead = time.Duration(spread)*time.Millisecond, time.Duration(ahead)*time.Millisecond
	switch {
	case err != nil:
	case w.Phase != Cycle && w.Phase != Drain && !w.TimesRuns():
		err = fmt.Errorf("phase %q is not one of cycle, drain, lateness, burst", w.Phase)
	case w.Jobs < 1 || w.Jobs > MaxJobs:
		err = fmt.Errorf("jobs %d is not between 1 and %d", w.Jobs, MaxJobs)
	case w.Phase == Lateness && w.Rate < 1:
		err = fmt.Errorf("rate %d is not positive", w.Rate)
	case w.Warmup < 0 || w.Warmup >= w.Jobs || w.Warmup > 0 && w.Phase != Lateness:
		err = fmt.Errorf("warmup %d is not below the %d jobs of the phase lateness", w.Warmup, w.Jobs)
	}
	return w, err
}

// String describes the phase for people.
func (w Work) String() string {
	switch {
	case w.Phase == Lateness:
		return fmt.Sprintf("%d jobs at %d/s, after %d that are not measured", w.Measured(), w.Rate, w.Warmup)
	case w.Phase == Burst:
		return fmt.Sprintf("%d jobs in a burst, due %v to %v after their adds", w.Jobs, w.Ahead, w.Ahead+w.Spread)
	case w.Phase == Cycle:
		return fmt.Sprintf("%d jobs, added and run at the same time", w.Jobs)
	case w.Waiting > 0:
		return fmt.Sprintf("%d jobs added, then run, beside %d that wait", w.Jobs, w.Waiting)
	}
	return fmt.Sprintf("%d jobs added, then run", w.Jobs)
}

// Result is what a program reports about its phase.
type Result struct {
	// Version is the version of the contestant.
	Version string `json:"version"`
	// EnqueueS is the duration of the adds and WholeS that of the measured phase, in seconds.
	EnqueueS float64 `json:"enqueue_s"`
	WholeS   float64 `json:"whole_s"`
	// CPUS is the processor time of the program between begin and end, in seconds.
	CPUS float64 `json:"cpu_s"`
	// Runs counts calls of the handler. Violations counts the jobs that did not run exactly once.
	Runs       int64 `json:"runs"`
	Violations int64 `json:"violations"`
	// LatenessMs is the time from the due instant to the call of the handler.
	LatenessMs Quantiles `json:"lateness_ms"`
}

// Quantiles has quantiles of a distribution, in milliseconds.
type Quantiles struct {
	P50 float64 `json:"p50"`
	P99 float64 `json:"p99"`
	Max float64 `json:"max"`
}

// The events of a [Line].
const (
	BeginEvent  = "begin"
	EndEvent    = "end"
	ResultEvent = "result"
)

// Line is one line of a program's output.
type Line struct {
	Event string `json:"event"`
	Result
}

// Program is the part of a contestant's program that uses the contestant.
type Program interface {
	// Add stores the jobs [from, to) in one batch. due returns the due instant of a job.
	// Add may be called concurrently.
	Add(ctx context.Context, from, to int, due func(n int) time.Time) error
	// Added is called after a bulk insert.
	Added(ctx context.Context) error
	// Start begins to run jobs.
	Start(ctx context.Context) error
	// AwaitAll returns when every job has run and its completion is in the database.
	AwaitAll(ctx context.Context) error
	// Wrong returns the number of jobs without exactly one completion in the database.
	Wrong(ctx context.Context) (int64, error)
}

// Runner does a phase with a program.
type Runner struct {
	Work
	Program
	*Tally
	// Batch is the number of jobs of an add, Adders the number of concurrent adds.
	Batch, Adders int
	// Version is the version of the contestant.
	Version string
	// Out receives a [Line] for each event.
	Out io.Writer

	begun    time.Time
	begunCPU time.Duration
}

// Run does the phase.
func (r *Runner) Run(ctx context.Context) error {
	if err := r.addWaiting(ctx); err != nil {
		return err
	}
	took, err := r.work(ctx)
	if err != nil {
		return err
	}
	return r.finish(ctx, took)
}

// addWaiting adds the jobs that are not due during the phase.
func (r *Runner) addWaiting(ctx context.Context) error {
	due := time.Now().Add(aMonth)
	err := r.addMany(ctx, r.Waiting, func(n int) time.Time { return due.Add(DueOf(n, r.Waiting, aMonth)) })
	if err == nil {
		err = r.Added(ctx)
	}
	return err
}

// work does the phase and returns the duration of the adds.
func (r *Runner) work(ctx context.Context) (took time.Duration, err error) {
	if r.Phase == Drain {
		if took, err = r.addAll(ctx); err == nil {
			err = r.Added(ctx)
		}
		if err != nil {
			return 0, err
		}
		if err := sleep(ctx, r.Spread); err != nil {
			return 0, err
		}
		r.begin()
		return took, r.Start(ctx)
	}
	if err := r.Start(ctx); err != nil {
		return 0, err
	}
	if err := r.warmUp(ctx); err != nil {
		return 0, err
	}
	r.begin()
	switch r.Phase {
	case Lateness:
		return r.addPaced(ctx, r.Warmup, r.Jobs)
	case Burst:
		if took, err = r.addBurst(ctx); err == nil {
			err = r.Added(ctx)
		}
		return took, err
	}
	return r.addAll(ctx)
}

// addBurst adds all jobs at full speed. Those of a batch are due after the instant at which the
// batch was built.
func (r *Runner) addBurst(ctx context.Context) (time.Duration, error) {
	r.Batch, r.Adders = burstBatch, burstAdders
	begin, b := time.Now(), r.newBatches(ctx)
	for from := 0; from < r.Jobs; from += r.Batch {
		b.build(from, min(r.Jobs, from+r.Batch), func() func(int) time.Time {
			built := time.Now().Add(r.Ahead)
			return func(n int) time.Time { return built.Add(DueOf(n, r.Jobs, r.Spread)) }
		})
	}
	err := b.wait()
	return time.Since(begin), err
}

func (r *Runner) begin() {
	_ = r.emit(Line{Event: BeginEvent}) // if it fails, the later events fail, too
	r.begun, r.begunCPU = time.Now(), cpuTime()
}

func (r *Runner) emit(l any) error { return json.NewEncoder(r.Out).Encode(l) }

func (r *Runner) addAll(ctx context.Context) (time.Duration, error) {
	begin := time.Now()
	err := r.addMany(ctx, r.Jobs, func(n int) time.Time { return begin.Add(DueOf(n, r.Jobs, r.Spread)) })
	return time.Since(begin), err
}

// addMany adds n jobs in full batches.
func (r *Runner) addMany(ctx context.Context, n int, due func(n int) time.Time) error {
	b := r.newBatches(ctx)
	for from := 0; from < n; from += r.Batch {
		b.add(from, min(n, from+r.Batch), due)
	}
	return b.wait()
}

// warmUp adds the jobs of the warm-up, waits until they have run, and forgets how late they were.
func (r *Runner) warmUp(ctx context.Context) error {
	if r.Warmup == 0 {
		return nil
	}
	if _, err := r.addPaced(ctx, 0, r.Warmup); err != nil {
		return err
	}
	for r.total.Load() < int64(r.Warmup) {
		if err := sleep(ctx, pacedEvery); err != nil {
			return err
		}
	}
	r.forgetLateness()
	return sleep(ctx, afterWarmup)
}

func sleep(ctx context.Context, d time.Duration) error {
	select {
	case <-time.After(d):
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}

// addPaced adds the jobs [first, end) at the rate, each due Ahead after its add.
func (r *Runner) addPaced(ctx context.Context, first, end int) (time.Duration, error) {
	b, begin := r.newBatches(ctx), time.Now()
	due := func(n int) time.Time {
		return begin.Add(r.Ahead + time.Duration(n-first)*time.Second/time.Duration(r.Rate))
	}
	tick := time.NewTicker(pacedEvery)
	defer tick.Stop()
	for from := first; from < end && b.ctx.Err() == nil; {
		<-tick.C
		to := min(end, first+int(time.Since(begin).Seconds()*float64(r.Rate)))
		for from < to {
			last := min(to, from+r.Batch)
			b.add(from, last, due)
			from = last
		}
	}
	err := b.wait()
	return time.Since(begin), err
}

// batches makes adds concurrently, up to a bound. The first error ends them.
type batches struct {
	r      *Runner
	ctx    context.Context
	cancel context.CancelCauseFunc
	places chan struct{}
	all    sync.WaitGroup
}

func (r *Runner) newBatches(ctx context.Context) *batches {
	ctx, cancel := context.WithCancelCause(ctx)
	return &batches{r: r, ctx: ctx, cancel: cancel, places: make(chan struct{}, r.Adders)}
}

func (b *batches) add(from, to int, due func(n int) time.Time) {
	b.build(from, to, func() func(int) time.Time { return due })
}

// build adds a batch whose due instants are known when its turn comes.
func (b *batches) build(from, to int, due func() func(n int) time.Time) {
	if b.ctx.Err() != nil {
		return
	}
	b.places <- struct{}{}
	b.all.Go(func() {
		defer func() { <-b.places }()
		if err := b.r.Add(b.ctx, from, to, due()); err != nil {
			b.cancel(err)
		}
	})
}

func (b *batches) wait() error {
	b.all.Wait()
	err := context.Cause(b.ctx)
	b.cancel(nil)
	return err
}

// finish waits for the last completion, compares the completions in the database with the
// counted ones, and writes the result.
func (r *Runner) finish(ctx context.Context, added time.Duration) error {
	if err := r.AwaitAll(ctx); err != nil {
		return err
	}
	whole, used := time.Since(r.begun), cpuTime()-r.begunCPU
	if r.Phase == Drain {
		whole = time.Since(time.Unix(0, r.first.Load()))
	}
	if err := r.emit(Line{Event: EndEvent}); err != nil {
		return err
	}
	wrong, err := r.Wrong(ctx)
	if err != nil {
		return fmt.Errorf("count the completions: %w", err)
	}
	return r.emit(Line{Event: ResultEvent, Result: Result{
		Version: r.Version, EnqueueS: added.Seconds(), WholeS: whole.Seconds(), CPUS: used.Seconds(),
		Runs: r.total.Load(), Violations: max(r.Violations(), wrong), LatenessMs: r.Quantiles(),
	}})
}

// Tally counts the runs of each job of a phase. It may be used concurrently.
type Tally struct {
	// All is closed when the number of completions reaches the number of jobs.
	All chan struct{}

	runs      []atomic.Uint32
	total     atomic.Int64
	first     atomic.Int64 // time of the first run, in Unix ns
	completed atomic.Int64

	mu   sync.Mutex
	late []float64 // ms
}

// NewTally returns a tally for a number of jobs.
func NewTally(jobs int) *Tally {
	return &Tally{runs: make([]atomic.Uint32, jobs), All: make(chan struct{})}
}

// Ran counts a run of job n.
func (t *Tally) Ran(n int) {
	if t.total.Add(1) == 1 {
		t.first.Store(time.Now().UnixNano())
	}
	if n >= 0 && n < len(t.runs) {
		t.runs[n].Add(1)
	}
}

// Completed counts n completions.
func (t *Tally) Completed(n int) {
	after := t.completed.Add(int64(n))
	if after >= int64(len(t.runs)) && after-int64(n) < int64(len(t.runs)) {
		close(t.All)
	}
}

// LateBy records the lateness of runs in milliseconds.
func (t *Tally) LateBy(ms ...float64) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.late = append(t.late, ms...)
}

func (t *Tally) forgetLateness() {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.late = nil
}

// Violations returns the number of jobs that did not run exactly once.
func (t *Tally) Violations() (n int64) {
	for i := range t.runs {
		if t.runs[i].Load() != 1 {
			n++
		}
	}
	return n
}

// Quantiles returns the quantiles of the lateness.
func (t *Tally) Quantiles() Quantiles {
	t.mu.Lock()
	defer t.mu.Unlock()
	if len(t.late) == 0 {
		return Quantiles{}
	}
	slices.Sort(t.late)
	at := func(q float64) float64 { return t.late[min(len(t.late)-1, int(q*float64(len(t.late))))] }
	return Quantiles{P50: at(0.5), P99: at(0.99), Max: t.late[len(t.late)-1]}
}

// DueOf returns the time from the begin of a phase until its job n is due. The jobs are due
// evenly over the spread, in another order than that of the adds.
func DueOf(n, jobs int, spread time.Duration) time.Duration {
	const stride = 7919 // any prime that does not divide the number of jobs would do
	return time.Duration(float64(spread) * float64(n*stride%jobs) / float64(jobs))
}

// cpuTime returns the processor time of this process, or 0 if it is not known.
func cpuTime() time.Duration {
	var u syscall.Rusage
	if err := syscall.Getrusage(syscall.RUSAGE_SELF, &u); err != nil {
		return 0
	}
	return time.Duration(u.Utime.Nano() + u.Stime.Nano())
}
