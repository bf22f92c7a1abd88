// Package workload puts load on an installation from outside, as its users do: its adders
// and listeners use only the client SDK, and record what they see.
//
// The rate of a [Plan] is in full cycles per second: a run that is due, called and
// reported. ONE_SHOT tasks are added at that rate all the time, each due after a random
// delay. Recurring tasks are added before the load begins, as many as make that number of
// runs per second at their interval. Half of them end by max_count, half by end_time. The
// load is open-loop: adders keep to their clock however slow the answers are, up to a bound
// on unanswered calls.
package workload

import (
	"cmp"
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
	markParam   = "v" // the mark that an edit sets
	scriptParam = "s" // the outcomes of the attempts

	retention = time.Hour

	blockingLag = 200 * time.Millisecond
)

// Plan describes the load.
type Plan struct {
	// Kind is the kind of all tasks. No other run of load may use it.
	Kind string
	// Types share the rate evenly.
	Types []task.Type
	// Rate is in full cycles per second, all types together.
	Rate float64
	// Lasts is the duration of the load.
	Lasts time.Duration
	// Interval is the interval of recurring tasks.
	Interval time.Duration
	// Lag is the time that a BLOCKING task needs from one run to the next in addition to its
	// interval: to be claimed, published, called and reported. 0 means 200 ms. If it is set,
	// tasks with a max_count have an end_time, too, so that none goes on after the load.
	Lag time.Duration
	// Cron is the share of the NON_BLOCKING tasks that have a calendar in the place of an interval.
	// They are due once in the Interval, which is a number of seconds that divides a minute.
	Cron float64
	// AckTimeout is the ack_timeout of all tasks.
	AckTimeout time.Duration
	// ParamsBytes is the size of the params of a task.
	ParamsBytes int
	// AddsPerCall is the number of one-shots in one AddTasks call. 1 means AddTask, whose
	// calls the SDK batches. 0 means all tasks of 20 ms in one call.
	AddsPerCall int
	// Delay is the time from sending a one-shot until it is due.
	Delay Delay
	// DueAt, if set, is when all one-shots are due. It overrides Delay.
	DueAt time.Time
	// Keyed says that each one-shot is sent in a request of its own.
	Keyed bool
	// Retain is the share of tasks that can be looked up after their end.
	Retain float64
	// Seed is the seed of all random values.
	Seed uint64
}

// Types returns the task types of a name: a type in lower case, such as one_shot, or mix
// for all types.
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

// callsOut returns the bound on unanswered calls.
func (p *Plan) callsOut() int {
	if p.addsPerCall() == 1 {
		return maxSinglesOut
	}
	return maxCallsOut
}

// Population returns the number of recurring tasks of the plan.
func (p *Plan) Population() int {
	return p.populationOf(task.NonBlocking) + p.populationOf(task.Blocking)
}

// populationOf returns the number of tasks of a recurring type that make its rate.
func (p *Plan) populationOf(t task.Type) int {
	rate := p.rateOf(t)
	if rate == 0 {
		return 0
	}
	return max(1, int(math.Round(rate*p.paceOf(t).Seconds())))
}

// paceOf returns the expected time from one run of a recurring task to the next.
func (p *Plan) paceOf(t task.Type) time.Duration {
	if t == task.Blocking {
		return p.Interval + cmp.Or(p.Lag, blockingLag)
	}
	return p.Interval
}

// Pad returns the param that fills the params of every task up to ParamsBytes.
func (p *Plan) Pad() string {
	const letters = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789+/"
	random := rand.New(rand.NewPCG(p.Seed, 1))
	pad := make([]byte, max(0, p.ParamsBytes-len(numberParam)-len(padParam)-8))
	for i := range pad {
		pad[i] = letters[random.IntN(len(letters))]
	}
	return string(pad)
}

// item is a task to add, as the SDK and as the checker see it.
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

// recurring returns task i of n of a type. The tasks begin evenly distributed over the
// first interval after from.
func (p *Plan) recurring(number int64, pad string, t task.Type, i, n int, from time.Time) item {
	a := check.Add{Number: number, Type: t, End: task.Never, Interval: p.Interval}
	a.Begin = task.At(from.Add(p.Interval * time.Duration(i) / time.Duration(n)))
	if i%2 == 0 {
		a.MaxCount = int64(math.Ceil(p.Lasts.Seconds() / p.paceOf(t).Seconds()))
	}
	if i%2 != 0 || p.Lag > 0 {
		a.End = a.Begin.Add(p.Lasts)
	}
	if t == task.NonBlocking && share(p.Seed+2, number) < p.Cron {
		a.Interval, a.Terms = 0, p.calendar(i)
	}
	return p.item(a, pad)
}

// calendar returns the terms of a task that is due once in the interval. The seconds of the tasks,
// and the spread, distribute their runs evenly.
func (p *Plan) calendar(i int) *check.Terms {
	seconds := int(p.Interval / time.Second)
	return &check.Terms{
		Cron: fmt.Sprintf("%d-59/%d * * * * *", i%seconds, seconds), Zone: zones[i%len(zones)], Spread: time.Second,
	}
}

func (p *Plan) item(a check.Add, pad string) item {
	a.Retained = share(p.Seed+1, a.Number) < p.Retain
	t := client.Task{
		Kind: p.Kind, Type: client.Type(a.Type), Begin: a.Begin.Time(), End: a.End.Time(),
		Interval: a.Interval, MaxCount: a.MaxCount, AckTimeout: p.AckTimeout, Retention: retention,
		Params: map[string]string{numberParam: strconv.FormatInt(a.Number, 10), padParam: pad},
	}
	if !a.Retained {
		t.Retention = client.NoRetention
	}
	terms(&t, a.Terms)
	return item{t, a}
}

// share returns a random number between 0 and 1 for n.
func share(seed uint64, n int64) float64 { return float64(mix(seed, n)) / math.MaxUint64 }

// mix hashes n to all 64 bits (the finaliser of SplitMix64).
func mix(seed uint64, n int64) uint64 {
	z := seed + uint64(n)*0x9e3779b97f4a7c15
	z = (z ^ z>>30) * 0xbf58476d1ce4e5b9
	z = (z ^ z>>27) * 0x94d049bb133111eb
	return z ^ z>>31
}

// numberOf returns the number in the params, or -1 if the params are not as sent.
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

// markOf returns the mark in the params: 0 if there is none, negative if it is not a number.
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

// Delay is a uniformly random time between two bounds. It is a flag value: "2s" or "2s..4s".
type Delay struct{ Min, Max time.Duration }

// Type implements pflag.Value.
func (d *Delay) Type() string { return "duration[..duration]" }

// String returns the text that Set parses.
func (d Delay) String() string {
	if d.Min == d.Max {
		return d.Min.String()
	}
	return d.Min.String() + ".." + d.Max.String()
}

// Set parses one duration, or two with ".." between.
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
		return fmt.Errorf("%q is neither a duration such as 2s nor a range such as 1s..10s", text)
	}
	d.Min = least
	return d.Validate()
}

// Validate returns an error if the bounds are out of range or in the wrong order.
func (d Delay) Validate() error {
	if d.Min < 0 || d.Max < d.Min || d.Max > longestDelay {
		return fmt.Errorf("%v: want bounds between 0s and 8784h, the shorter one first", d)
	}
	return nil
}

// at returns the delay for a random number.
func (d Delay) at(random uint64) time.Duration {
	return d.Min + time.Duration(random%uint64(d.Max-d.Min+1))
}
