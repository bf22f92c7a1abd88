// Package workload puts load on an installation from outside, as its users do:
// adders and listeners that know the client SDK and nothing else, and write down
// what they see.
//
// The rate of a [Plan] is in full cycles per second: a run that is due, called
// and reported. ONE_SHOT tasks are added at that rate all the time, each due after a
// random delay. Recurring tasks are added before the load begins, as many as make
// that many runs per second at their interval; half of them end by max_count,
// half by end_time. The loop is open: adders keep to their clock however slow the
// answers are, up to a bound.
package workload

import (
	"fmt"
	"math"
	"math/rand/v2"
	"strconv"
	"strings"
	"time"

	"github.com/perceptor/perceptor/client"
	"github.com/perceptor/perceptor/loadtest/check"
	"github.com/perceptor/perceptor/task"
)

const (
	numberParam = "n"
	padParam    = "pad"
	markParam   = "v" // what an edit sets
	scriptParam = "s" // how attempts end

	retention = time.Hour

	// blockingLag is what a BLOCKING task needs beyond its interval from one run to
	// the next: to be claimed, published, called and reported.
	blockingLag = 200 * time.Millisecond
)

// Plan says what load to put on.
type Plan struct {
	// Kind of all tasks. No other run of load may use it.
	Kind string
	// Types share the rate evenly.
	Types []task.Type
	// Rate is in full cycles per second, all types together.
	Rate float64
	// Lasts is how long the load goes on.
	Lasts time.Duration
	// Interval of recurring tasks.
	Interval time.Duration
	// AckTimeout of all tasks.
	AckTimeout time.Duration
	// ParamsBytes is the size of the params of a task.
	ParamsBytes int
	// AddsPerCall is how many one-shots are sent in one call; 1: by AddTask,
	// which the SDK sends together as it sees fit. 0: as many as come in 20 ms.
	AddsPerCall int
	// Delay says when one-shots are due, counted from their being sent.
	Delay Delay
	// DueAt, if set, is when all one-shots are due, whatever Delay says.
	DueAt time.Time
	// Keyed sends each one-shot by a request of its own.
	Keyed bool
	// Retain is the share of tasks that can be looked up when they have ended.
	Retain float64
	// Seed of everything random.
	Seed uint64
}

// Types returns the types that a name stands for: ONE_SHOT and so on in lower
// case, or mix for all.
func Types(name string) ([]task.Type, error) {
	if name == "mix" {
		return task.Types, nil
	}
	for _, t := range task.Types {
		if strings.EqualFold(name, t.String()) {
			return []task.Type{t}, nil
		}
	}
	return nil, fmt.Errorf("type %q is not one of one_shot, non_blocking, blocking, mix", name)
}

// rateOf is the rate of one of the plan's types.
func (p *Plan) rateOf(t task.Type) float64 {
	for _, u := range p.Types {
		if t == u {
			return p.Rate / float64(len(p.Types))
		}
	}
	return 0
}

func (p *Plan) addsPerCall() int {
	if p.Keyed {
		return 1
	}
	if p.AddsPerCall > 0 {
		return p.AddsPerCall
	}
	return min(max(int(p.rateOf(task.OneShot)/50), 1), 500)
}

// callsOut bounds the calls that are not answered yet.
func (p *Plan) callsOut() int {
	if p.addsPerCall() == 1 {
		return maxSinglesOut
	}
	return maxCallsOut
}

// Population is how many recurring tasks the plan has.
func (p *Plan) Population() int {
	return p.populationOf(task.NonBlocking) + p.populationOf(task.Blocking)
}

// populationOf is the number of tasks of a recurring type that make its rate.
func (p *Plan) populationOf(t task.Type) int {
	rate, every := p.rateOf(t), p.Interval
	if rate == 0 {
		return 0
	}
	if t == task.Blocking {
		every += blockingLag
	}
	return max(1, int(math.Round(rate*every.Seconds())))
}

// Pad is the param that fills up the params of every task.
func (p *Plan) Pad() string {
	const letters = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789+/"
	random := rand.New(rand.NewPCG(p.Seed, 1))
	pad := make([]byte, max(0, p.ParamsBytes-len(numberParam)-len(padParam)-8))
	for i := range pad {
		pad[i] = letters[random.IntN(len(letters))]
	}
	return string(pad)
}

// item is a task that is sent, as the SDK and as the checker see it.
type item struct {
	task client.Task
	add  check.Add
}

// oneShot returns a task that is due soon after now.
func (p *Plan) oneShot(number int64, pad string, now time.Time) item {
	due := p.DueAt
	if due.IsZero() {
		due = now.Add(p.Delay.at(mix(p.Seed, number)))
	}
	return p.item(check.Add{
		Number: number, Type: task.OneShot, Begin: task.At(due), End: task.Never, MaxCount: 1,
	}, pad)
}

// recurring returns task i of n of a type: they begin evenly over the first
// interval after from.
func (p *Plan) recurring(number int64, pad string, t task.Type, i, n int, from time.Time) item {
	a := check.Add{Number: number, Type: t, End: task.Never, Interval: p.Interval}
	a.Begin = task.At(from.Add(p.Interval * time.Duration(i) / time.Duration(n)))
	if i%2 == 0 {
		a.MaxCount = int64(math.Ceil(p.Lasts.Seconds() / p.Interval.Seconds()))
	} else {
		a.End = a.Begin.Add(p.Lasts)
	}
	return p.item(a, pad)
}

func (p *Plan) item(a check.Add, pad string) item {
	a.Retained = float64(mix(p.Seed+1, a.Number))/math.MaxUint64 < p.Retain
	t := client.Task{
		Kind: p.Kind, Type: client.Type(a.Type), Begin: a.Begin.Time(), End: a.End.Time(),
		Interval: a.Interval, MaxCount: a.MaxCount, AckTimeout: p.AckTimeout, Retention: retention,
		Params: map[string]string{numberParam: strconv.FormatInt(a.Number, 10), padParam: pad},
	}
	if !a.Retained {
		t.Retention = client.NoRetention
	}
	return item{t, a}
}

// mix spreads n over all 64 bits (the finaliser of SplitMix64).
func mix(seed uint64, n int64) uint64 {
	z := seed + uint64(n)*0x9e3779b97f4a7c15
	z = (z ^ z>>30) * 0xbf58476d1ce4e5b9
	z = (z ^ z>>27) * 0x94d049bb133111eb
	return z ^ z>>31
}

// numberOf returns the number that params carry, or -1 when they are not as sent.
func numberOf(params map[string]string, pad string) int64 {
	n, err := strconv.ParseInt(params[numberParam], 10, 64)
	known := 2
	for _, name := range []string{markParam, scriptParam} {
		if _, ok := params[name]; ok {
			known++
		}
	}
	if err != nil || n < 0 || params[padParam] != pad || len(params) != known {
		return -1
	}
	return n
}

// markOf returns the mark that params carry; 0: none, below 0: no number.
func markOf(params map[string]string) int64 {
	text, ok := params[markParam]
	if !ok {
		return 0
	}
	mark, err := strconv.ParseInt(text, 10, 64)
	if err != nil {
		return -1
	}
	return mark
}

const longestDelay = 366 * 24 * time.Hour

// Delay is a time between two bounds, evenly spread. It is a flag: "2s" or
// "2s..4s".
type Delay struct{ Min, Max time.Duration }

// Type implements pflag.Value.
func (d *Delay) Type() string { return "duration[..duration]" }

// String returns what Set reads.
func (d Delay) String() string {
	if d.Min == d.Max {
		return d.Min.String()
	}
	return d.Min.String() + ".." + d.Max.String()
}

// Set reads one duration or two with ".." between.
func (d *Delay) Set(text string) error {
	low, high, two := strings.Cut(text, "..")
	if !two {
		high = low
	}
	least, err := time.ParseDuration(low)
	if err == nil {
		d.Max, err = time.ParseDuration(high)
	}
	if err != nil {
		return fmt.Errorf("%q is neither a duration such as 2s nor two such as 1s..10s", text)
	}
	d.Min = least
	return d.Validate()
}

// Validate refuses bounds that are none.
func (d Delay) Validate() error {
	if d.Min < 0 || d.Max < d.Min || d.Max > longestDelay {
		return fmt.Errorf("%v is not between 0s and 8784h, the shorter one first", d)
	}
	return nil
}

// at returns the delay that a random number stands for.
func (d Delay) at(random uint64) time.Duration {
	return d.Min + time.Duration(random%uint64(d.Max-d.Min+1))
}
