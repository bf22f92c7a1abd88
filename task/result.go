package task

import (
	"fmt"
	"strings"
	"time"
)

// Outcome is how a handler ended. The numbers are those of the API.
type Outcome int16

// The outcomes of handlers.
const (
	Success Outcome = 1
	Fail    Outcome = 2
	Snooze  Outcome = 3 // neither; the run is delivered again later
)

// String returns the name in the API: "SUCCESS", "FAIL" or "SNOOZE".
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

// Result is the result of an attempt as its handler returned it.
type Result struct {
	Outcome Outcome
	// Error says why the attempt failed. At most [MaxErrorBytes] of it are kept.
	Error string
	// Next is the instant of the next run. Never means that the schedule decides. It is
	// allowed with Success only.
	Next Instant
	// Stop ends the task as COMPLETED. It is not allowed with Snooze.
	Stop bool
	// Permanent makes the run dead at once, even if attempts are left. It is allowed with
	// Fail only.
	Permanent bool
	// After is the delay before the next delivery. Snooze needs it. For Fail it replaces
	// the backoff, and 0 means that the retry policy decides.
	After time.Duration
	// Patch changes the params of later runs. nil means no change.
	Patch *ParamsPatch
}

// ParamsPatch is a change of params and payload: it removes first, then sets.
type ParamsPatch struct {
	Set    map[string]string
	Remove []string
	// Payload is the new payload. nil means no change.
	Payload       *Payload
	RemovePayload bool
}

// Report is the result of an attempt as its holder reports it.
type Report struct {
	Attempt
	Holder Holder
	Result
	// Capped is set if the run may be of a kind with a concurrency cap. Such a result frees
	// a place for another run, so it waits less for others that are stored with it.
	Capped bool
	// Idle says that the listener could have executed more runs than it did.
	Idle bool
	// Timeline is for the history; nil: not known.
	Timeline *Timeline
}

// Ends reports whether the result is the last one of its run under every retry policy.
func (r *Result) Ends() bool { return r.Outcome == Success || r.Stop || r.Permanent }

// Validate returns every broken rule. paramsBytes is the tenant's limit. After is
// [ZeroDuration] if the request sets it to 0.
func (r *Result) Validate(paramsBytes int) []Fault {
	v := &faults{}
	if r.Next != Never {
		v.instant("next_execute_time", r.Next)
		if r.Outcome == Fail || r.Outcome == Snooze {
			v.add("next_execute_time", "%s: only SUCCESS sets the next run, not %s", r.Next, r.Outcome)
		}
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

// validate checks the part of a patch that can be checked without the stored params.
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
	if f, bad := ParamsFault(p.Set, 0, paramsBytes); bad {
		v.add("params_patch.set"+strings.TrimPrefix(f.Field, "params"), "%s", f.Message)
	}
	if p.Payload == nil {
		return
	}
	if f, bad := p.Payload.Fault(); bad {
		v.list = append(v.list, f.under("params_patch.payload"))
	}
	if n := p.Payload.Size(); n > paramsBytes {
		v.add("params_patch.payload.data", "has %d bytes; the tenant's limit is %d", n, paramsBytes)
	}
}
