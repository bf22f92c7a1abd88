package check

import (
	"math/bits"
	"time"

	"github.com/HdrHistogram/hdrhistogram-go"

	"github.com/perceptor/perceptor/task"
)

// Histograms hold microseconds with three significant digits.
const (
	longest      = int64(time.Hour / time.Microsecond)
	digits       = 3
	maxSeconds   = 24 * 3600 // of the series
	seriesMargin = 10        // seconds of the series before the window
)

// Slices is the number of equal parts of the window that are counted separately.
const Slices = 5

// Figures are the measurements. The histograms, Window and Slices cover the window only,
// all other fields the whole history.
type Figures struct {
	// Tasks, Runs and Callbacks count all tasks, runs and callbacks.
	Tasks, Runs, Callbacks int64
	// Silent counts calls of handlers that ended with the death of their listener.
	Silent int64
	// NotKnown counts adds without an answer, Refused counts refused adds.
	NotKnown, Refused int64
	// Missed counts recorded misses.
	Missed int64
	// Window counts events within the window.
	Window Counts
	// Lateness is the time from scheduled_at to the first call of a handler, in µs, of the
	// runs scheduled within the window.
	Lateness *hdrhistogram.Histogram
	// LatenessOf is the lateness by task type, for the types that have runs.
	LatenessOf map[task.Type]*hdrhistogram.Histogram
	// AddTime is the time from sending an add to its answer, in µs.
	AddTime *hdrhistogram.Histogram
	// Slices has the counts of the equal parts of the window.
	Slices [Slices]Counts
	// Seconds has the counts of each second from SeriesFrom on, also outside the window.
	Seconds    []Second
	SeriesFrom Micros
	// CaughtUp says for each of [Config].Spans when the last of the runs scheduled in it
	// was first handled. It is 0 if there was no run.
	CaughtUp []Micros

	cfg Config
}

// Counts are numbers of events.
type Counts struct {
	// Adds is the number of acknowledged adds.
	Adds int64
	// Fires is the number of runs that were handled for the first time.
	Fires int64
	// Callbacks is the number of calls of handlers.
	Callbacks int64
	// Results is the number of accepted results, failures included.
	Results int64
	// Cycles is the number of runs whose final result was accepted.
	Cycles int64
}

// Second is one second of the series.
type Second struct {
	Counts
	// LatestMicros is the largest lateness of the runs scheduled in the second, in µs.
	LatestMicros int64
	// Lateness is the lateness of all runs scheduled in the second. It is nil if there are none.
	Lateness *Spread
}

func newFigures(cfg Config) Figures {
	return Figures{
		cfg:        cfg,
		Lateness:   hdrhistogram.New(1, longest, digits),
		LatenessOf: map[task.Type]*hdrhistogram.Histogram{},
		AddTime:    hdrhistogram.New(1, longest, digits),
		SeriesFrom: cfg.From.Add(-seriesMargin * time.Second),
		CaughtUp:   make([]Micros, len(cfg.Spans)),
	}
}

// From returns the begin of the window.
func (f *Figures) From() Micros { return f.cfg.From }

// SecondAt returns the instant at which a second of the series begins.
func (f *Figures) SecondAt(i int) Micros { return f.SeriesFrom.Add(time.Duration(i) * time.Second) }

func (f *Figures) within(m Micros) bool { return f.cfg.From <= m && m < f.cfg.To }

// second returns the second of the series that m lies in. Outside the series it returns a
// second that is not shown.
func (f *Figures) second(m Micros) *Second {
	i := int64(m-f.SeriesFrom) / int64(time.Second/time.Microsecond)
	if m < f.SeriesFrom || i >= maxSeconds {
		return &Second{}
	}
	for int64(len(f.Seconds)) <= i {
		f.Seconds = append(f.Seconds, Second{})
	}
	return &f.Seconds[i]
}

// count counts one event at m, overall and by second.
func (f *Figures) count(m Micros, field func(*Counts) *int64) {
	*field(&f.second(m).Counts)++
	if f.within(m) {
		*field(&f.Window)++
		*field(&f.Slices[int64(m-f.cfg.From)*Slices/int64(f.cfg.To-f.cfg.From)])++
	}
}

func (f *Figures) add(a *Add) {
	if a == nil {
		return
	}
	switch a.Answer {
	case NotKnown:
		f.NotKnown++
		return
	case Refused:
		f.Refused++
		return
	}
	f.Tasks++
	f.count(a.Answered, func(c *Counts) *int64 { return &c.Adds })
	if f.within(a.Sent) {
		record(f.AddTime, a.Answered.Sub(a.Sent))
	}
}

func (f *Figures) run(r *run, add *Add) {
	if f.cfg.Fired != nil && add != nil {
		f.cfg.Fired(add, r.at, r.first)
	}
	f.Runs++
	f.Callbacks += int64(len(r.executions))
	f.Missed += r.missed
	f.count(r.first, func(c *Counts) *int64 { return &c.Fires })
	for _, e := range r.executions {
		f.count(e.Start, func(c *Counts) *int64 { return &c.Callbacks })
	}
	at := Of(r.at)
	late := r.first.Sub(at)
	s := f.second(at)
	s.LatestMicros = max(s.LatestMicros, late.Microseconds())
	if s.Lateness == nil {
		s.Lateness = &Spread{}
	}
	s.Lateness.Add(late)
	if f.within(at) {
		record(f.Lateness, late)
		if add != nil {
			record(f.latenessOf(add.Type), late)
		}
	}
	for i, span := range f.cfg.Spans {
		if span.holds(at) {
			f.CaughtUp[i] = max(f.CaughtUp[i], r.first)
		}
	}
}

func (f *Figures) latenessOf(t task.Type) *hdrhistogram.Histogram {
	h := f.LatenessOf[t]
	if h == nil {
		h = hdrhistogram.New(1, longest, digits)
		f.LatenessOf[t] = h
	}
	return h
}

func (f *Figures) reply(p *Reply, failed bool) {
	if p.Code != task.Accepted {
		return
	}
	f.count(p.Answered, func(c *Counts) *int64 { return &c.Results })
	if !failed {
		f.count(p.Answered, func(c *Counts) *int64 { return &c.Cycles })
	}
}

func record(h *hdrhistogram.Histogram, d time.Duration) {
	h.RecordValue(min(max(d.Microseconds(), 0), longest)) //nolint:errcheck // within the range
}

// Balance compares the API's counts of a tenant with the answers to its callers. before and
// after are the counts before the run and at the end, when no call was in progress. Balance
// must be called after the last [Checker.Task].
func (c *Checker) Balance(before, after task.Counts) {
	k := &checking{Checker: c}
	if sum := after.Scheduled + after.Running + after.Finished(); sum != after.Added {
		k.violate(Mismatch, 0, "%d tasks were added, but %d scheduled, %d running, %d finished and kept, and %d purged ones are %d",
			after.Added, after.Scheduled, after.Running, after.Finished()-after.Purged(), after.Purged(), sum)
	}
	added, f := after.Added-before.Added, &c.figures
	if added < f.Tasks-c.gone {
		k.violate(Lost, 0, "%d adds were acknowledged, but the API counts only %d", f.Tasks, added)
	}
	if added > f.Tasks+f.NotKnown+c.gone {
		k.violate(Phantom, 0, "the API counts %d adds, but %d were acknowledged and only %d got no answer", added, f.Tasks, f.NotKnown)
	}
}

// Spread counts durations in 1.8 kB of memory. It counts durations of up to 31 µs exactly
// and longer ones in buckets of a sixteenth of their power of two. The zero value is ready
// to use.
type Spread struct {
	n      int64
	counts [16*28 + 16]uint32
}

const spreadLimit = 1<<32 - 1 // µs, more than an hour

func bucket(micros int64) int {
	v := uint64(min(max(micros, 0), spreadLimit))
	e := max(0, bits.Len64(v)-5)
	return 16*e + int(v>>e)
}

// middle returns the duration that stands for a bucket: its middle.
func middle(i int) time.Duration {
	if i < 32 {
		return time.Duration(i) * time.Microsecond
	}
	e := i/16 - 1
	low := int64(i-16*e) << e
	return time.Duration(low+(1<<e)/2) * time.Microsecond
}

// Add counts d.
func (s *Spread) Add(d time.Duration) {
	s.counts[bucket(d.Microseconds())]++
	s.n++
}

// Merge adds the durations of o, which may be nil.
func (s *Spread) Merge(o *Spread) {
	if o == nil {
		return
	}
	s.n += o.n
	for i, c := range o.counts {
		s.counts[i] += c
	}
}

// Quantile returns the duration that the given share of all durations does not exceed,
// within 4 %. It returns 0 if there are no durations. s may be nil.
func (s *Spread) Quantile(share float64) time.Duration {
	if s == nil || s.n == 0 {
		return 0
	}
	left := int64(share * float64(s.n))
	for i, c := range s.counts {
		if left -= int64(c); left < 0 {
			return middle(i)
		}
	}
	return middle(len(s.counts) - 1)
}
