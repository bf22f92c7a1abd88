package hang

import (
	"fmt"
	"slices"
	"sync"
	"time"

	"github.com/perceptor/perceptor/client"
	"github.com/perceptor/perceptor/loadtest/harness"
	"github.com/perceptor/perceptor/task"
)

// sample is one measured duration.
type sample struct {
	at   time.Time // when it began
	took time.Duration
}

// runState is what is known of one run.
type runState struct {
	ended    time.Time // zero: the handler has not ended
	answered bool
}

// observed records what callers and handlers see. Its methods may be called concurrently.
type observed struct {
	mu sync.Mutex
	// free has the samples of what the frozen part does not hold, held those of what it holds.
	free, held map[feature][]sample
	// oneShots has the acknowledged one-shots whose result has no answer. results has those
	// with a result that was answered before the add.
	oneShots, results map[int64]bool
	runs              map[string]*runState
	running           map[int64]bool // BLOCKING tasks whose handler runs
	violations        map[string]int64
	addsFailed        int64
}

func newObserved() *observed {
	return &observed{
		free: map[feature][]sample{}, held: map[feature][]sample{}, oneShots: map[int64]bool{}, results: map[int64]bool{},
		runs: map[string]*runState{}, running: map[int64]bool{}, violations: map[string]int64{},
	}
}

// record adds a sample of a task. o.mu is held.
func (o *observed) record(t *tenant, key feature, id int64, at time.Time, took time.Duration) {
	to := o.free
	if t.holds(t, key, task.ID(id)) {
		to = o.held
	}
	to[key] = append(to[key], sample{at, took})
}

func (o *observed) added(t *tenant, id int64, err error, oneShot bool, sent, answered time.Time) {
	o.mu.Lock()
	defer o.mu.Unlock()
	if err != nil {
		o.addsFailed++
		return
	}
	if !oneShot {
		return
	}
	o.record(t, add, id, sent, answered.Sub(sent))
	if o.results[id] {
		delete(o.results, id)
	} else {
		o.oneShots[id] = true
	}
}

// called records that a handler begins, and returns a function for its end.
func (o *observed) called(t *tenant, run *client.Run) (over func()) {
	now := time.Now()
	o.mu.Lock()
	defer o.mu.Unlock()
	if now.Before(run.ScheduledAt) {
		o.violations["early"]++
	}
	if run.Attempt == 1 {
		o.record(t, t.feature, run.TaskID, run.ScheduledAt, now.Sub(run.ScheduledAt))
	}
	if t.feature != blocking {
		return func() {}
	}
	if o.running[run.TaskID] {
		o.violations["overlap"]++
	}
	o.running[run.TaskID] = true
	return func() {
		o.mu.Lock()
		defer o.mu.Unlock()
		delete(o.running, run.TaskID)
	}
}

// ended records that a handler has ended.
func (o *observed) ended(d client.Delivery) {
	o.mu.Lock()
	defer o.mu.Unlock()
	if o.runs[d.RunID()] == nil {
		o.runs[d.RunID()] = &runState{ended: time.Now()}
	}
}

// reported records the answer to a result.
func (o *observed) reported(t *tenant, d client.Delivery, code string) {
	if code == task.Retry.String() {
		return
	}
	o.mu.Lock()
	defer o.mu.Unlock()
	r := o.runs[d.RunID()]
	if r == nil || r.answered {
		return
	}
	r.answered = true
	o.record(t, result, d.TaskID, r.ended, time.Since(r.ended))
	if d.Type != client.OneShot {
		return
	}
	if o.oneShots[d.TaskID] {
		delete(o.oneShots, d.TaskID)
	} else {
		o.results[d.TaskID] = true
	}
}

// open returns how many acknowledged one-shots have no answered result.
func (o *observed) open() int {
	o.mu.Lock()
	defer o.mu.Unlock()
	return len(o.oneShots)
}

// Report is the result of a run. The maps are by feature.
type Report struct {
	harness.Header
	harness.NoPicture
	Part    string  `json:"part"`
	Rate    float64 `json:"rate_per_tenant"`
	FrozenS float64 `json:"frozen_s"`

	// The figures are of what the frozen part did not hold. Lateness is counted from the
	// scheduled instant to the handler, add from the call to its answer, result from the end of
	// the handler to the answer.
	P99Before map[feature]float64 `json:"healthy_p99_ms_before"`
	P99During map[feature]float64 `json:"healthy_p99_ms_during"`
	P99After  map[feature]float64 `json:"healthy_p99_ms_after"`
	MaxDuring map[feature]float64 `json:"healthy_max_ms_during"`
	P50During map[feature]float64 `json:"healthy_p50_ms_during"`
	// Samples are the numbers of samples during the freeze, SamplesBefore before it.
	Samples       map[feature]int `json:"samples"`
	SamplesBefore map[feature]int `json:"samples_before"`
	// These figures are of what the part held. Delayed is the time from the freeze until the 99th
	// percentile of what began in the rest of the freeze was within the bound.
	HeldP99Before map[feature]float64 `json:"held_p99_ms_before,omitempty"`
	HeldMaxDuring map[feature]float64 `json:"held_max_ms_during,omitempty"`
	HeldDelayed   map[feature]float64 `json:"held_delayed_s,omitempty"`
	HeldSamples   map[feature]int     `json:"held_samples,omitempty"`
	// TakeoverS bounds HeldDelayed. 0: what the part held waits until it continues.
	TakeoverS float64 `json:"takeover_bound_s"`
	// RecoveredS is the first second after the freeze from which on the 99th percentile, up to
	// the end of the measurement, is in the bound. It is the longest of all features of what the
	// part did not hold. HeldRecoveredS is the same for runs of what it held that are scheduled
	// after the freeze.
	RecoveredS     float64 `json:"recovered_s"`
	HeldRecoveredS float64 `json:"held_recovered_s"`
	// AddsFailed is the number of adds without an acknowledgement.
	AddsFailed int64            `json:"adds_failed"`
	Violations map[string]int64 `json:"violations"`
}

func (o *observed) report(header harness.Header, r *runner, p phases) *Report {
	o.mu.Lock()
	defer o.mu.Unlock()
	rep := &Report{
		Header: header, Part: r.Part, TakeoverS: r.part.takeover.Seconds(), Rate: r.Rate, FrozenS: harness.Round(p.during.to.Sub(p.during.from).Seconds()),
		P99Before: map[feature]float64{}, P99During: map[feature]float64{}, P99After: map[feature]float64{}, MaxDuring: map[feature]float64{}, P50During: map[feature]float64{},
		Samples: map[feature]int{}, SamplesBefore: map[feature]int{},
		HeldP99Before: map[feature]float64{}, HeldMaxDuring: map[feature]float64{}, HeldDelayed: map[feature]float64{}, HeldSamples: map[feature]int{},
		AddsFailed: o.addsFailed, Violations: o.violations,
	}
	if n := len(o.oneShots); n > 0 {
		rep.Violations["lost"] = int64(n)
	}
	for _, key := range keys() {
		rep.addHeld(key, o.held[key], p)
		all := o.free[key]
		if len(all) == 0 {
			continue
		}
		before, during, after := within(all, p.before), within(all, p.during), within(all, p.after)
		rep.SamplesBefore[key], rep.Samples[key] = len(before), len(during)
		rep.P99Before[key], rep.P99During[key], rep.P99After[key] = quantile(before, 0.99), quantile(during, 0.99), quantile(after, 0.99)
		rep.P50During[key], rep.MaxDuring[key] = quantile(during, 0.5), quantile(during, 1)
		since, limit := span{p.during.to, p.after.to}, bound(rep.P99Before[key])
		rep.RecoveredS = max(rep.RecoveredS, delayed(all, since, limit))
		rep.HeldRecoveredS = max(rep.HeldRecoveredS, delayed(o.held[key], since, limit))
	}
	return rep
}

// addHeld adds the figures of what the part held, if it held anything.
func (rep *Report) addHeld(key feature, all []sample, p phases) {
	if len(all) == 0 {
		return
	}
	during := within(all, p.during)
	rep.HeldP99Before[key], rep.HeldMaxDuring[key] = quantile(within(all, p.before), 0.99), quantile(during, 1)
	rep.HeldSamples[key] = len(during)
	rep.HeldDelayed[key] = delayed(all, p.during, bound(rep.HeldP99Before[key]))
}

// delayed returns the first second of a span from which on the 99th percentile of the samples is
// within the limit, in seconds since the begin of the span.
func delayed(all []sample, s span, limit float64) float64 {
	n := int(s.to.Sub(s.from).Seconds())
	for i := range n {
		if quantile(within(all, span{s.from.Add(time.Duration(i) * time.Second), s.to}), 0.99) <= limit {
			return float64(i)
		}
	}
	return float64(n)
}

func keys() []feature { return append(slices.Clone(features), add, result) }

// within returns the durations of the samples of a span, sorted.
func within(all []sample, s span) []time.Duration {
	var out []time.Duration
	for _, x := range all {
		if s.has(x.at) {
			out = append(out, x.took)
		}
	}
	slices.Sort(out)
	return out
}

// quantile returns a quantile of sorted durations in milliseconds.
func quantile(sorted []time.Duration, q float64) float64 {
	if len(sorted) == 0 {
		return 0
	}
	return harness.Milliseconds(sorted[min(int(q*float64(len(sorted))), len(sorted)-1)])
}

// bound is the 99th percentile that is allowed during the freeze, in milliseconds.
func bound(before float64) float64 { return 2*before + 20 }

// Table implements [harness.Report].
func (rep *Report) Table(t *harness.Table) {
	t.Line("\none part frozen for %.0f s: %s (seed %d)", rep.FrozenS, rep.Part, rep.Seed)
	for _, key := range keys() {
		if _, ok := rep.P99Before[key]; !ok {
			continue
		}
		t.Row("p99 ms, "+string(key), "%8.1f before   %8.1f during (max %.0f)   %8.1f after   (%d samples)",
			rep.P99Before[key], rep.P99During[key], rep.MaxDuring[key], rep.P99After[key], rep.Samples[key])
	}
	for _, key := range keys() {
		if _, ok := rep.HeldDelayed[key]; ok {
			t.Row("held, "+string(key), "%8.1f ms before   delayed for %.0f s (max %.0f ms)   (%d samples)",
				rep.HeldP99Before[key], rep.HeldDelayed[key], rep.HeldMaxDuring[key], rep.HeldSamples[key])
		}
	}
	t.Row("recovered", "after %.0f s; what the part held, after %.0f s", rep.RecoveredS, rep.HeldRecoveredS)
	t.Row("adds without an answer", "%d", rep.AddsFailed)
	t.Row("violations", "%v", rep.Violations)
}

// Verdict implements [harness.Report].
func (rep *Report) Verdict() error {
	var faults []string
	for kind, n := range rep.Violations {
		faults = append(faults, fmt.Sprintf("%s %d", kind, n))
	}
	for _, key := range keys() {
		if limit := bound(rep.P99Before[key]); rep.P99During[key] > limit {
			faults = append(faults, fmt.Sprintf("p99 of %s during the freeze is %.0f ms, above %.0f ms", key, rep.P99During[key], limit))
		}
		if d := rep.HeldDelayed[key]; rep.TakeoverS > 0 && d > rep.TakeoverS {
			faults = append(faults, fmt.Sprintf("%s was delayed for %.0f s of the freeze, above %.0f s", key, d, rep.TakeoverS))
		}
	}
	slices.Sort(faults)
	return harness.Verdict(faults)
}
