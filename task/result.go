package task

import (
	"fmt"
	"strings"
	"time"
)

// Outcome is how a handler ended. The numbers are those of the API.
type Outcome int16

// How handlers end.
const (
	Success Outcome = 1
	Fail    Outcome = 2
	Snooze  Outcome = 3 // neither: the run is to be delivered again later
)

// String returns the word of the API: "SUCCESS", "FAIL" or "SNOOZE".
func (o Outcome) String() string {
	switch o {
	case Success:
		return "SUCCESS"
	case Fail:
		return "FAIL"
	case Snooze:
		return "SNOOZE"
	}
	return fmt.Sprintf("Outcome(%d)", int16(o))
}

// Result is what a handler says about an attempt.
type Result struct {
	Outcome Outcome
	// Error says why the attempt failed; at most [MaxErrorBytes] are kept.
	Error string
	// Next is when the next run shall be scheduled; Never: by the schedule.
	// With Success only.
	Next Instant
	// Stop ends the task as COMPLETED with this result. Not with Snooze.
	Stop bool
	// Permanent makes the run dead at once, whatever attempts are left. With Fail
	// only.
	Permanent bool
	// After is the distance to the next delivery: of Snooze, which needs one, and
	// of Fail instead of the backoff; 0: by the retry policy.
	After time.Duration
	// Patch changes the params of later runs; nil: no change.
	Patch *ParamsPatch
}

// ParamsPatch is a change of params: first Remove, then Set.
type ParamsPatch struct {
	Set    map[string]string
	Remove []string
}

// Report is the result of an attempt as its holder reports it.
type Report struct {
	Attempt
	Holder Holder
	Result
}

// Ends reports whether the result is the last one of its run, whatever its retry
// policy says.
func (r *Result) Ends() bool { return r.Outcome == Success || r.Stop || r.Permanent }

// Validate returns every broken rule. paramsBytes is the tenant's limit. A Next that
// counts with Success only may be there with any outcome. After is [ZeroDuration]
// where it was set to 0.
func (r *Result) Validate(paramsBytes int) []Fault {
	v := &faults{}
	if r.Next != Never {
		v.instant("next_execute_time", r.Next)
	}
	if r.After != 0 {
		v.between("redeliver_after", r.After, MinAfter, MaxAfter)
	}
	switch r.Outcome {
	case Success:
		if r.After != 0 {
			v.add("redeliver_after", "%s: a run that succeeded is not delivered again", shownDuration(r.After))
		}
	case Fail:
	case Snooze:
		if r.After == 0 {
			v.add("redeliver_after", "is missing: SNOOZE needs one")
		}
		if r.Stop {
			v.add("stop", "is true: a task is not ended by SNOOZE")
		}
	default:
		v.add("outcome", "%d is none of SUCCESS, FAIL and SNOOZE", int16(r.Outcome))
	}
	if r.Permanent && r.Outcome != Fail {
		v.add("permanent", "is true: only FAIL can be permanent, not %s", r.Outcome)
	}
	r.Patch.validate(v, paramsBytes)
	return v.list
}

// validate judges a change of params as far as that goes without the stored ones.
func (p *ParamsPatch) validate(v *faults, paramsBytes int) {
	if p == nil {
		return
	}
	if n := len(p.Set); n > MaxParams {
		v.add("params_patch.set", "has %d entries; at most %d are allowed", n, MaxParams)
	}
	if n := len(p.Remove); n > MaxParams {
		v.add("params_patch.remove", "has %d entries; at most %d are allowed", n, MaxParams)
	}
	if f, bad := ParamsFault(p.Set, paramsBytes); bad {
		v.add("params_patch.set"+strings.TrimPrefix(f.Field, "params"), "%s", f.Message)
	}
}
