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
	// healthy and frozen have the samples of the tasks on each server.
	healthy, frozen map[feature][]sample
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
		healthy: map[feature][]sample{}, frozen: map[feature][]sample{}, oneShots: map[int64]bool{}, results: map[int64]bool{},
		runs: map[string]*runState{}, running: map[int64]bool{}, violations: map[string]int64{},
	}
}

// record adds a sample of a task. o.mu is held.
func (o *observed) record(key feature, id int64, at time.Time, took time.Duration) {
	to := o.frozen
	if healthy(task.ID(id).Shard().Database()) {
		to = o.healthy
	}
	to[key] = append(to[key], sample{at, took})
}

func (o *observed) added(id int64, err error, oneShot bool, sent, answered time.Time) {
	o.mu.Lock()
	defer o.mu.Unlock()
	if err != nil {
		o.addsFailed++
		return
	}
	if !oneShot {
		return
	}
	o.record(add, id, sent, answered.Sub(sent))
	if o.results[id] {
		delete(o.results, id)
	} else {
		o.oneShots[id] = true
	}
}

// called records that a handler begins, and returns a function for its end.
func (o *observed) called(f feature, run *client.Run) (over func()) {
	now := time.Now()
	o.mu.Lock()
	defer o.mu.Unlock()
	if now.Before(run.ScheduledAt) {
		o.violations["early"]++
	}
	if run.Attempt == 1 {
		o.record(f, run.TaskID, run.ScheduledAt, now.Sub(run.ScheduledAt))
	}
	if f != blocking {
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
func (o *observed) reported(d client.Delivery, code string) {
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
	o.record(result, d.TaskID, r.ended, time.Since(r.ended))
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
	Rate    float64 `json:"rate_per_tenant"`
	FrozenS float64 `json:"frozen_s"`

	// The figures are of tasks on the server that was not frozen. Lateness is counted from
	// the scheduled instant to the handler, add from the call to its answer, result from the
	// end of the handler to the answer.
	P99Before map[feature]float64 `json:"healthy_p99_ms_before"`
	P99During map[feature]float64 `json:"healthy_p99_ms_during"`
	P99After  map[feature]float64 `json:"healthy_p99_ms_after"`
	MaxDuring map[feature]float64 `json:"healthy_max_ms_during"`
	// Samples are the numbers of samples during the freeze, SamplesBefore before it.
	Samples       map[feature]int `json:"samples"`
	SamplesBefore map[feature]int `json:"samples_before"`
	// RecoveredS is when the last second began after the freeze whose 99th percentile was
	// above the bound, in seconds since the freeze. It covers all features.
	RecoveredS float64 `json:"recovered_s"`
	// AddsFailed is the number of adds without an acknowledgement.
	AddsFailed int64            `json:"adds_failed"`
	Violations map[string]int64 `json:"violations"`
}

func (o *observed) report(header harness.Header, r *runner, p phases) *Report {
	o.mu.Lock()
	defer o.mu.Unlock()
	rep := &Report{
		Header: header, Rate: r.Rate, FrozenS: harness.Round(p.during.to.Sub(p.during.from).Seconds()),
		P99Before: map[feature]float64{}, P99During: map[feature]float64{}, P99After: map[feature]float64{}, MaxDuring: map[feature]float64{},
		Samples: map[feature]int{}, SamplesBefore: map[feature]int{}, AddsFailed: o.addsFailed, Violations: o.violations,
	}
	if n := len(o.oneShots); n > 0 {
		rep.Violations["lost"] = int64(n)
	}
	for _, key := range keys() {
		all := o.healthy[key]
		before, during, after := within(all, p.before), within(all, p.during), within(all, p.after)
		rep.SamplesBefore[key], rep.Samples[key] = len(before), len(during)
		rep.P99Before[key], rep.P99During[key], rep.P99After[key] = quantile(before, 0.99), quantile(during, 0.99), quantile(after, 0.99)
		rep.MaxDuring[key] = quantile(during, 1)
		rep.RecoveredS = max(rep.RecoveredS, recovered(all, p, bound(rep.P99Before[key])))
	}
	return rep
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

// recovered returns the end of the last second after the freeze whose 99th percentile was
// above the limit, in seconds since the freeze.
func recovered(all []sample, p phases, limit float64) float64 {
	last := 0
	for i := range int(p.after.to.Sub(p.during.to).Seconds()) {
		from := p.during.to.Add(time.Duration(i) * time.Second)
		if quantile(within(all, span{from, from.Add(time.Second)}), 0.99) > limit {
			last = i + 1
		}
	}
	return float64(last)
}

// Table implements [harness.Report].
func (rep *Report) Table(t *harness.Table) {
	t.Line("\none of two PostgreSQL servers frozen for %.0f s, seen by tasks of the other one (seed %d)", rep.FrozenS, rep.Seed)
	for _, key := range keys() {
		t.Row("p99 ms, "+string(key), "%8.1f before   %8.1f during (max %.0f)   %8.1f after   (%d samples)",
			rep.P99Before[key], rep.P99During[key], rep.MaxDuring[key], rep.P99After[key], rep.Samples[key])
	}
	t.Row("recovered", "after %.0f s", rep.RecoveredS)
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
	}
	slices.Sort(faults)
	return harness.Verdict(faults)
}
