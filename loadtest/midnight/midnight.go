// Package midnight makes very many tasks due at one instant, with or without a window
// that they are spread over, and judges how an installation copes. The README of
// loadtest has the rules of the verdict.
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

// Options say what is due. Their units and bounds are those of the flags.
type Options struct {
	harness.Setup
	// Tasks are due at the instant, spread over the window Spread; 0: no window.
	Tasks  int64
	Spread time.Duration
	Cron   bool
	Beside float64
	// Lead is the time from the first add to the instant; 0: the expected time of the
	// adds, and the horizon.
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
	harness.Num(f, &o.Spread, "spread", harness.Between(0, task.MaxSpread), "the window over which they are spread; 0: all at once")
	f.Require(o.Spread%time.Millisecond == 0, "--spread %v is not in whole milliseconds", o.Spread)
	f.Switch(&o.Cron, "cron", "daily NON_BLOCKING tasks by a cron expression instead of one-shots")
	harness.Num(f, &o.Beside, "beside", harness.Between(1.0, 1000), "other one-shots due per second")
	harness.Num(f, &o.Lead, "lead", harness.Between(0, 24*time.Hour), "how long before the instant adding begins (default: the expected time, and the horizon)")
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
	addsPerS  = 5000 // on the slow side
	firesPerS = 8000 // likewise
	leadMore  = 20 * time.Second
	beforeIt  = 5 * time.Second // others are due before the instant
	ackTime   = 10 * time.Minute
)

// lead returns how long before the instant adding begins.
func (o *Options) lead() time.Duration {
	if o.Lead > 0 {
		return o.Lead
	}
	return time.Duration(o.all())*time.Second/addsPerS + o.Horizon + leadMore
}

// window returns how long after the instant others become due.
func (o *Options) window() time.Duration {
	return o.Spread + max(20*time.Second, time.Duration(o.Tasks)*time.Second/firesPerS)
}

// others returns the number of tasks beside the burst.
func (o *Options) others() int64 { return int64(o.Beside * (beforeIt + o.window()).Seconds()) }

// all returns the number of tasks.
func (o *Options) all() int64 { return o.Tasks + o.others() }

// maxRows returns the bound of a claim.
func (o *Options) maxRows() int64 {
	if n, err := strconv.ParseInt(o.Real.Settings["dispatcher.max_rows"], 10, 64); err == nil {
		return n
	}
	return 5000
}

const reportEvery = 10 * time.Second

// burst is one run.
type burst struct {
	*Options
	stack  *stack.Stack
	load   *tenantload.Load
	memory memory
	header harness.Header

	at       time.Time // the instant
	complete bool
	claimed  int64 // rows of the largest claim
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
	defer b.load.Close(ctx) //nolint:errcheck // the next run removes what is left
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

// addTasks adds everything that will be due.
func (b *burst) addTasks(ctx context.Context) error {
	b.at = time.Now().Add(b.lead()).Truncate(time.Second).Add(time.Second)
	b.Say("adding %d tasks that are due at %s, spread over %v, and %d others", b.Tasks, b.at.UTC().Format("15:04:05"), b.Spread, b.others())
	stop := harness.Repeat(ctx, reportEvery, func() { b.Say("added %d of %d", b.load.Adder.Added(), b.all()) })
	err := b.load.Adder.Fill(ctx, b.all(), b.task)
	stop()
	if err != nil {
		return err
	}
	if left := time.Until(b.at); left < b.Horizon {
		b.Say("adding ended %v before the instant, within the horizon: some were added to the near tier", left.Round(time.Second))
	}
	if time.Now().After(b.at.Add(-2 * beforeIt)) {
		return fmt.Errorf("adding took longer than expected: it ended %v before the instant; choose a longer --lead than %v", time.Until(b.at), b.lead())
	}
	return nil
}

// task returns the task of a number. Those of the burst come first.
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

// setTerms makes a task one of the burst.
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
		return errors.New("no dispatcher has a largest claim (perceptor_claim_rows_max)")
	}
	return nil
}

const (
	maxDeviation = 0.05
	perPart      = 10_000 // calls
	maxParts     = 60
	maxRise      = 0.1 // of the peak of lateness
	leastRise    = 1.0 // s
)

// Part is an equal part of the window.
type Part struct {
	FromS float64 `json:"from_s"`
	ToS   float64 `json:"to_s"`
	// Scheduled counts the runs whose instant lies in it, Fires those that were
	// called in it.
	Scheduled int64 `json:"scheduled"`
	Fires     int64 `json:"fires"`
}

// partition returns the parts of a window that n tasks are spread over.
func partition(n int64, window time.Duration) []Part {
	parts := make([]Part, min(max(n/perPart, 2), maxParts))
	length := window.Seconds() / float64(len(parts))
	for i := range parts {
		parts[i] = Part{FromS: float64(i) * length, ToS: float64(i+1) * length}
	}
	return parts
}

// partAt returns the part that an instant lies in; calls after the window, of runs
// that are due at its very end, count in the last one.
func partAt(parts []Part, s float64) *Part {
	length := parts[0].ToS
	return &parts[min(max(int(s/length), 0), len(parts)-1)]
}

// Flatness says how much the parts differ.
type Flatness struct {
	// Scheduled and Fires are the largest deviations from the mean, as shares.
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

// deviation returns the largest distance of a part from the mean, as a share of it.
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

// Fall says how the lateness of the others went from its peak on.
type Fall struct {
	PeakS  float64 `json:"peak_s"`   // the highest median of a second
	PeakAt int     `json:"peak_at"`  // seconds after the instant
	Rise   float64 `json:"rise_s"`   // the most that it went up again
	LastS  float64 `json:"last_s"`   // in the last second
	Room   float64 `json:"may_be_s"` // what rise and last may be
	// Faults say what was not steady.
	Faults []string `json:"faults,omitempty"`
	Steady bool     `json:"steady"`
}

// judgeFall takes the median lateness of the others by the second that they were
// due in, from the instant on. What is no number had none.
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
		f.Faults = append(f.Faults, "fewer than two seconds have others in them")
	}
	if f.Rise > f.Room {
		f.Faults = append(f.Faults, fmt.Sprintf("it went up again by %.1f s, more than %.1f s", f.Rise, f.Room))
	}
	if f.LastS > f.Room {
		f.Faults = append(f.Faults, fmt.Sprintf("it was still %.1f s in the last second, more than %.1f s", f.LastS, f.Room))
	}
	f.Steady = len(f.Faults) == 0
	return f
}

// Room is how much more memory a program may have resident during the burst than
// before it. It holds at most 64 MiB of records under way and some 32 MiB of
// bookkeeping, and its collector lets the heap grow to five times the live size.
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

// look takes a sample. The first one is from before the burst.
func (m *memory) look() {
	s := memorySample{at: time.Now(), resident: map[string]int64{}, peak: map[string]int64{}}
	for name, pid := range m.pids {
		if now, peak, err := subprocess.Memory(pid()); err == nil {
			s.resident[name], s.peak[name] = now, peak
		}
	}
	m.samples = append(m.samples, s)
}

// Memory is what a program had resident, in MiB.
type Memory struct {
	Before float64 `json:"before_mib"`
	Peak   float64 `json:"peak_mib"`
	Bound  float64 `json:"bound_mib"`
}

// Bounded reports whether the program stayed within its bound.
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
		// An earlier peak, such as that of adding, is not the burst's.
		bound := max(before, m.samples[0].peak[name]) + Room
		out[name] = Memory{Before: harness.MiB(before), Peak: harness.MiB(peak), Bound: harness.MiB(bound)}
	}
	return out
}

func (m *memory) names() []string { return slices.Sorted(maps.Keys(m.pids)) }
