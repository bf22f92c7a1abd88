// Package midnight makes very many tasks due at one instant, or spread over a window after
// it, and judges how an installation copes. The README of loadtest has the rules of the
// verdict.
package midnight

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"math"
	"slices"
	"strconv"
	"time"

	"github.com/perceptor/perceptor/client"
	"github.com/perceptor/perceptor/internal/subprocess"
	"github.com/perceptor/perceptor/loadtest/check"
	"github.com/perceptor/perceptor/loadtest/harness"
	"github.com/perceptor/perceptor/loadtest/stack"
	"github.com/perceptor/perceptor/loadtest/tenantload"
	"github.com/perceptor/perceptor/loadtest/workload"
	"github.com/perceptor/perceptor/task"
)

// Options describe the burst and the load beside it. [Options.Declare] has units and bounds.
type Options struct {
	harness.Setup
	// Tasks is the number of tasks that are due at the instant, spread over the window
	// Spread; 0: no window.
	Tasks  int64
	Spread time.Duration
	// Cron makes them recurring tasks with a cron expression. Beside is the number of other
	// tasks due per second.
	Cron   bool
	Beside float64
	// Lead is the time from the first add to the instant; 0: the expected time of the adds
	// plus the horizon.
	Lead, Drain, Horizon            time.Duration
	ParamsBytes, Listeners, Workers int
}

// DefaultOptions returns the defaults of the flags.
func DefaultOptions() Options {
	return Options{
		Tasks: 1_000_000, Spread: 10 * time.Minute, Beside: 100, Drain: 20 * time.Minute, Horizon: time.Minute,
		ParamsBytes: 100, Listeners: 1, Workers: 256, Setup: harness.Setup{Real: harness.DefaultStack()},
	}
}

// About implements [harness.Experiment].
func (o *Options) About() harness.About { return harness.About{Name: "midnight", Picture: true} }

// Declare implements [harness.Experiment].
func (o *Options) Declare(f *harness.Flags) {
	harness.Num(f, &o.Tasks, "tasks", harness.Between[int64](1000, 100e6), "number of tasks: 50e3, 1e6")
	harness.Num(f, &o.Spread, "spread", harness.Between(0, task.MaxSpread), "window over which they are spread; 0: all at once")
	f.Require(o.Spread%time.Millisecond == 0, "--spread %v is not a multiple of 1ms", o.Spread)
	f.Switch(&o.Cron, "cron", "daily NON_BLOCKING tasks by a cron expression instead of one-shots")
	harness.Num(f, &o.Beside, "beside", harness.Between(1.0, 1000), "number of other one-shots due per second")
	harness.Num(f, &o.Lead, "lead", harness.Between(0, 24*time.Hour), "time from the first add to the instant (default: the expected time of the adds plus the horizon)")
	harness.Num(f, &o.Drain, "drain", harness.UpTo(24*time.Hour), "the longest wait for the last call")
	f.ParamsBytes(&o.ParamsBytes)
	f.Listeners(&o.Listeners, &o.Workers)
	harness.Num(f, &o.Horizon, "horizon", harness.Between(time.Minute, 24*time.Hour), "far.horizon of the installation")
	f.Seed()
	f.Stack()
}

// Measure implements [harness.Experiment].
func (o *Options) Measure(ctx context.Context) (*Report, error) {
	o.SetHorizon(o.Horizon)
	return harness.WithStack(ctx, &o.Setup, func(ctx context.Context, s *stack.Stack) (*Report, error) {
		return (&burst{Options: o, stack: s}).run(ctx)
	})
}

const (
	addsPerS  = 5000 // a low estimate
	firesPerS = 8000 // a low estimate
	leadMore  = 20 * time.Second
	beforeIt  = 5 * time.Second // time before the instant in which others are due
	ackTime   = 10 * time.Minute
)

// lead returns the time from the first add to the instant.
func (o *Options) lead() time.Duration {
	if o.Lead > 0 {
		return o.Lead
	}
	return time.Duration(o.all())*time.Second/addsPerS + o.Horizon + leadMore
}

// window returns the time after the instant in which others are due.
func (o *Options) window() time.Duration {
	return o.Spread + max(20*time.Second, time.Duration(o.Tasks)*time.Second/firesPerS)
}

// others returns the number of tasks that are not part of the burst.
func (o *Options) others() int64 { return int64(o.Beside * (beforeIt + o.window()).Seconds()) }

func (o *Options) all() int64 { return o.Tasks + o.others() }

// maxRows returns the largest number of rows that a claim may move.
func (o *Options) maxRows() int64 {
	if n, err := strconv.ParseInt(o.Real.Settings["dispatcher.max_rows"], 10, 64); err == nil {
		return n
	}
	return 5000
}

const reportEvery = 10 * time.Second

type burst struct {
	*Options
	stack  *stack.Stack
	load   *tenantload.Load
	memory memory
	header harness.Header

	at       time.Time // the instant
	complete bool
	claimed  int64 // number of rows of the largest claim
}

func (b *burst) run(ctx context.Context) (_ *Report, err error) {
	b.header = harness.NewHeader("midnight", b.Seed, b.stack.Versions)
	kind := "midnight-" + strconv.FormatInt(time.Now().UnixMicro(), 36)
	b.load, err = tenantload.Join(ctx, b.stack, &b.Setup, tenantload.Config{
		Plan:      workload.Plan{Kind: kind, ParamsBytes: b.ParamsBytes, Seed: b.Seed, AckTimeout: ackTime},
		Listeners: b.Listeners, Workers: b.Workers,
	})
	if err != nil {
		return nil, err
	}
	defer b.load.Close(ctx) //nolint:errcheck // the next run removes leftovers
	b.memory.pids = map[string]func() int{}
	for _, p := range b.stack.Programs() {
		b.memory.pids[p.Name] = p.PID
	}
	for name, listener := range b.load.Sources() {
		b.memory.pids[name] = listener.PID
	}
	if err = errors.Join(b.fire(ctx), b.stack.Died(), b.load.Leave(ctx)); err != nil {
		return nil, err
	}
	return b.report()
}

// fire adds the tasks and waits until all have been called.
func (b *burst) fire(ctx context.Context) (err error) {
	if err := b.addTasks(ctx); err != nil {
		return err
	}
	b.Say("added; the instant is in %v", time.Until(b.at).Round(time.Second))
	if err := harness.SleepUntil(ctx, b.at.Add(-2*beforeIt)); err != nil {
		return err
	}
	b.memory.look()
	stop := harness.Repeat(ctx, memoryEvery, b.memory.look)
	defer stop()
	defer b.load.SayProgress(ctx, b.all())()
	if b.complete, err = b.load.AwaitCalls(ctx, b.all(), b.at.Add(b.window()+b.Drain)); err != nil {
		return err
	}
	return b.readClaims(ctx)
}

func (b *burst) addTasks(ctx context.Context) error {
	b.at = time.Now().Add(b.lead()).Truncate(time.Second).Add(time.Second)
	b.Say("adding %d tasks due at %s, spread over %v, and %d others", b.Tasks, b.at.UTC().Format("15:04:05"), b.Spread, b.others())
	stop := harness.Repeat(ctx, reportEvery, func() { b.Say("added %d of %d", b.load.Adder.Added(), b.all()) })
	err := b.load.Adder.Fill(ctx, b.all(), b.task)
	stop()
	if err != nil {
		return err
	}
	if left := time.Until(b.at); left < b.Horizon {
		b.Say("the last add was %v before the instant and within the horizon: some tasks went to the near tier", left.Round(time.Second))
	}
	if time.Now().After(b.at.Add(-2 * beforeIt)) {
		return fmt.Errorf("adding took longer than expected and ended %v before the instant; choose a longer --lead than %v", time.Until(b.at), b.lead())
	}
	return nil
}

// task returns the task with a number. The tasks of the burst have the first numbers.
func (b *burst) task(number int64) (client.Task, check.Add) {
	at := b.at
	if number > b.Tasks {
		part := time.Duration(float64(number-b.Tasks) / b.Beside * float64(time.Second))
		at = at.Add(part - beforeIt)
	}
	a := check.Add{Type: task.OneShot, Begin: task.At(at), End: task.Never, MaxCount: 1}
	t := client.Task{Type: client.OneShot, Begin: at, Retention: client.NoRetention}
	if number <= b.Tasks {
		b.setTerms(&t, &a)
	}
	return t, a
}

func (b *burst) setTerms(t *client.Task, a *check.Add) {
	if b.Spread > 0 || b.Cron {
		a.Terms, t.Spread = &check.Terms{Spread: b.Spread}, b.Spread
	}
	if b.Cron {
		at := b.at.UTC()
		a.Terms.Cron, a.Terms.Zone = fmt.Sprintf("%d %d %d * * *", at.Second(), at.Minute(), at.Hour()), "UTC"
		a.Type, t.Type, a.MaxCount = task.NonBlocking, client.NonBlocking, 0
		t.Cron = &client.Cron{Expression: a.Terms.Cron, Zone: a.Terms.Zone}
	}
}

// readClaims reads the largest claim from the dispatchers' metrics.
func (b *burst) readClaims(ctx context.Context) error {
	for i := range b.Real.Dispatchers {
		m, err := b.stack.Metrics(ctx, fmt.Sprintf("dispatcher-%d", i+1))
		if err != nil {
			return err
		}
		b.claimed = max(b.claimed, int64(m["perceptor_claim_rows_max"]))
	}
	if b.claimed == 0 {
		return errors.New("perceptor_claim_rows_max is 0 at every dispatcher")
	}
	return nil
}

const (
	maxDeviation = 0.05   // of a part from the mean, as a share
	perPart      = 10_000 // expected calls
	maxParts     = 60
	maxRise      = 0.1 // of the lateness, as a share of its peak
	leastRise    = 1.0 // s; a smaller rise is always allowed
)

// Part is one of the equal parts of the window. FromS and ToS are seconds from the begin of
// the window.
type Part struct {
	FromS float64 `json:"from_s"`
	ToS   float64 `json:"to_s"`
	// Scheduled counts the runs with a scheduled instant in the part. Fires counts the runs
	// that were called in it.
	Scheduled int64 `json:"scheduled"`
	Fires     int64 `json:"fires"`
}

// partition returns the parts of a window over which n tasks are spread.
func partition(n int64, window time.Duration) []Part {
	parts := make([]Part, min(max(n/perPart, 2), maxParts))
	length := window.Seconds() / float64(len(parts))
	for i := range parts {
		parts[i] = Part{FromS: float64(i) * length, ToS: float64(i+1) * length}
	}
	return parts
}

// partAt returns the part in which an instant lies, s seconds after the begin of the window.
// Calls after the window, of runs that are due at its very end, count in the last part.
func partAt(parts []Part, s float64) *Part {
	length := parts[0].ToS
	return &parts[min(max(int(s/length), 0), len(parts)-1)]
}

// Flatness describes how much the parts differ.
type Flatness struct {
	// Scheduled and Fires are the largest deviations of a part from the mean, as shares of
	// the mean.
	Scheduled float64 `json:"scheduled"`
	Fires     float64 `json:"fires"`
	Flat      bool    `json:"flat"`
}

func judgeParts(parts []Part) Flatness {
	f := Flatness{
		Scheduled: deviation(parts, func(p Part) int64 { return p.Scheduled }),
		Fires:     deviation(parts, func(p Part) int64 { return p.Fires }),
	}
	f.Flat = f.Fires <= maxDeviation && f.Scheduled <= maxDeviation
	return f
}

// deviation returns the largest difference of a part from the mean, as a share of the mean.
// It returns 1 if all parts are empty.
func deviation(parts []Part, of func(Part) int64) float64 {
	total := int64(0)
	for _, p := range parts {
		total += of(p)
	}
	mean, most := float64(total)/float64(len(parts)), 1.0
	if total > 0 {
		most = 0
		for _, p := range parts {
			most = max(most, math.Abs(float64(of(p))/mean-1))
		}
	}
	return math.Round(most*1e4) / 1e4
}

// Fall describes the lateness of the others after its peak.
type Fall struct {
	PeakS  float64 `json:"peak_s"`   // the highest median of a second
	PeakAt int     `json:"peak_at"`  // seconds after the instant
	Rise   float64 `json:"rise_s"`   // the largest rise after the peak
	LastS  float64 `json:"last_s"`   // median of the last second
	Room   float64 `json:"may_be_s"` // the bound of Rise and LastS
	// Faults describe how the fall was not steady.
	Faults []string `json:"faults,omitempty"`
	Steady bool     `json:"steady"`
}

// judgeFall judges the median lateness of the others. medians has one value for each second
// from the instant on in which others were due; NaN: none were due.
func judgeFall(medians []float64) Fall {
	var f Fall
	medians = slices.Clone(medians)
	for i, m := range medians {
		if m > f.PeakS {
			f.PeakS, f.PeakAt = m, i
		}
	}
	f.Room = max(leastRise, maxRise*f.PeakS)
	lowest, seen := math.Inf(1), 0
	for _, m := range medians[min(f.PeakAt, len(medians)):] {
		if math.IsNaN(m) {
			continue
		}
		seen++
		f.Rise, f.LastS = max(f.Rise, m-lowest), m
		lowest = min(lowest, m)
	}
	if seen < 2 {
		f.Faults = append(f.Faults, "others were due in fewer than two seconds")
	}
	if f.Rise > f.Room {
		f.Faults = append(f.Faults, fmt.Sprintf("it rose again by %.1f s, at most %.1f s is allowed", f.Rise, f.Room))
	}
	if f.LastS > f.Room {
		f.Faults = append(f.Faults, fmt.Sprintf("it was %.1f s in the last second, at most %.1f s is allowed", f.LastS, f.Room))
	}
	f.Steady = len(f.Faults) == 0
	return f
}

// Room is the number of bytes by which the resident memory of a program may grow during the
// burst. A program has at most 64 MiB of records and about 32 MiB of bookkeeping in memory,
// and its garbage collector lets the heap grow to five times the live size.
const Room = 5 * (64 + 32) << 20

const memoryEvery = time.Second

// memory samples the resident memory of programs.
type memory struct {
	pids    map[string]func() int
	samples []memorySample
}

type memorySample struct {
	at             time.Time
	resident, peak map[string]int64 // bytes, by program
}

// look takes a sample. The first one precedes the burst.
func (m *memory) look() {
	s := memorySample{at: time.Now(), resident: map[string]int64{}, peak: map[string]int64{}}
	for name, pid := range m.pids {
		if now, peak, err := subprocess.Memory(pid()); err == nil {
			s.resident[name], s.peak[name] = now, peak
		}
	}
	m.samples = append(m.samples, s)
}

// Memory is the resident memory of a program in MiB: before the burst, at its peak, and the
// bound of the peak.
type Memory struct {
	Before float64 `json:"before_mib"`
	Peak   float64 `json:"peak_mib"`
	Bound  float64 `json:"bound_mib"`
}

// Bounded reports whether the peak was measured and is within the bound.
func (m Memory) Bounded() bool { return m.Peak > 0 && m.Peak <= m.Bound }

func (m *memory) report() map[string]Memory {
	out := map[string]Memory{}
	for name := range m.pids {
		before, peak := int64(0), int64(0)
		for _, s := range m.samples {
			if before == 0 {
				before = s.resident[name]
			}
			peak = max(peak, s.peak[name])
		}
		// An earlier peak, such as that of the adds, does not count for the burst.
		bound := max(before, m.samples[0].peak[name]) + Room
		out[name] = Memory{Before: harness.MiB(before), Peak: harness.MiB(peak), Bound: harness.MiB(bound)}
	}
	return out
}

func (m *memory) names() []string { return slices.Sorted(maps.Keys(m.pids)) }
