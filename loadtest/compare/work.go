package compare

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"math"

	"github.com/perceptor/perceptor/loadtest/compare/phase"
)

// errNoResult is returned for a program that ended without a result.
var errNoResult = errors.New("the program reported no result")

// output reads what a program writes, and calls begin and end on its events.
type output struct {
	begin, end func() error
	seen       []string
	result     *phase.Result
}

// line takes one line. Anything that is not an event is an error: a program that
// prints other things prints them to standard error.
func (o *output) line(text []byte) error {
	if len(bytes.TrimSpace(text)) == 0 {
		return nil
	}
	var l phase.Line
	if err := json.Unmarshal(text, &l); err != nil {
		return fmt.Errorf("read the program's output %q: %w", text, err)
	}
	order := []string{phase.BeginEvent, phase.EndEvent, phase.ResultEvent}
	if n := len(o.seen); n >= len(order) || l.Event != order[n] {
		return fmt.Errorf("the program told %q after %q", l.Event, o.seen)
	}
	o.seen = append(o.seen, l.Event)
	switch l.Event {
	case phase.BeginEvent:
		return o.begin()
	case phase.EndEvent:
		return o.end()
	}
	o.result = &l.Result
	return nil
}

// done returns the result of a program that has ended.
func (o *output) done(w phase.Work) (phase.Result, error) {
	if o.result == nil {
		return phase.Result{}, fmt.Errorf("%w: it told %q", errNoResult, o.seen)
	}
	r := *o.result
	for name, v := range map[string]float64{"enqueue_s": r.EnqueueS, "whole_s": r.WholeS, "cpu_s": r.CPUS} {
		if v <= 0 || math.IsInf(v, 0) || math.IsNaN(v) {
			return phase.Result{}, fmt.Errorf("the program told %s = %v, which is not a positive time", name, v)
		}
	}
	if r.Violations < 0 || r.Runs < 0 || r.Violations > int64(w.Jobs) {
		return phase.Result{}, fmt.Errorf("the program told %d violations in %d runs of %d jobs", r.Violations, r.Runs, w.Jobs)
	}
	return r, nil
}

// DSNVariable names the environment variable with the connection string of a
// program's database.
const DSNVariable = "DATABASE_URL"
