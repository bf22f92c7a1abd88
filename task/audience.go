package task

import (
	"fmt"
	"slices"
)

// Audience is what is known of the listeners of a tenant.
type Audience struct {
	// Members is the number of listeners at the instant Asked. Asked is 0 if it is not known.
	Members int
	Asked   Instant
	// Unhandled has the kinds of runs that listeners have handed back lately because they have no
	// handler for them, and when they did so last.
	Unhandled map[string]Instant
}

// AddAudience adds the reasons that lie with the tenant's listeners. They come first if a run was
// delivered and has no result, and last if no run waits for a listener. A task that has ended, or
// does not exist, needs none.
func (e *Explanation) AddAudience(a *Audience) {
	if e.Task == nil || e.Task.State.Final() {
		return
	}
	var more []Reason
	if a.Asked != 0 && a.Members == 0 {
		more = append(more, Reason{Why: WhyNoListener, Since: a.Asked, Text: "the tenant has no listener: nobody handles its runs"})
	}
	if at := a.Unhandled[e.Task.Kind]; at != 0 {
		more = append(more, Reason{Why: WhyNoHandler, Since: at,
			Text: fmt.Sprintf("listeners have handed runs of the kind %q back because they have no handler for it", e.Task.Kind)})
	}
	if slices.ContainsFunc(e.Reasons, Reason.waitsForListener) {
		e.Reasons = append(more, e.Reasons...)
	} else {
		e.Reasons = append(e.Reasons, more...)
	}
}

// waitsForListener reports whether the reason is about a run that was delivered.
func (r Reason) waitsForListener() bool {
	switch r.Why {
	case WhyWaitingForResult, WhyRetrying, WhySilent, WhyLastRunsOpen:
		return true
	}
	return false
}
