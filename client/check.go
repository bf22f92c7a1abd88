package client

import (
	"time"

	"google.golang.org/protobuf/types/known/timestamppb"

	perceptorv1 "github.com/perceptor/perceptor/proto/perceptor/v1"
	"github.com/perceptor/perceptor/task"
)

// CheckPolicy says which runs a listener asks about before it calls their handler.
//
// A run that was published before its task was cancelled or edited is still on its
// way. The answer tells: that the task has ended, that the run is closed, or the
// new terms. Then the handler is not called, or is called with the new terms. For
// BLOCKING runs the lease, which they need in any case, tells the same.
type CheckPolicy uint8

const (
	// CheckLate asks about runs that have waited for longer than a second since they
	// were claimed, or were due if they were claimed ahead of that: in Kafka, or here
	// for a worker. A punctual run costs nothing more, and its handler may start up to
	// that second, and the half by which claims go ahead, after its task was cancelled.
	CheckLate CheckPolicy = iota
	// CheckAlways asks about every run. None is handled whose task was cancelled
	// before the question.
	CheckAlways
	// CheckNever asks about none.
	CheckNever
)

// lateAfter is how old a run may be that is not asked about.
const lateAfter = time.Second

// wantsCheck reports whether the service is asked about a record before its
// handler is called. The lock is held.
func (g *engine) wantsCheck(a *arrival) bool {
	switch {
	case a.pub.Type == task.Blocking || g.l.cfg.Check == CheckNever:
		return false
	case g.l.cfg.Check == CheckAlways:
		return true
	}
	// Of what a dispatcher has taken over, when it was claimed is not known.
	return task.At(time.Now().Add(g.clockAhead)).Sub(a.pub.ClaimedAt) > lateAfter
}

// setClock notes how far the service's clock is ahead of the one here.
func (g *engine) setClock(now *timestamppb.Timestamp, asked time.Time) {
	if now == nil {
		return
	}
	answered := time.Now()
	g.mu.Lock()
	defer g.mu.Unlock()
	g.clockAhead = now.AsTime().Sub(asked.Add(answered.Sub(asked) / 2))
}

// freeSlot gives back the slot of an entry whose handler is not called. The lock
// is held.
func (g *engine) freeSlot(e *entry) {
	if l := e.slot; l != nil {
		e.slot = nil
		g.release(l)
	}
}

func allAccepted(n int) []*perceptorv1.RunReply {
	replies := make([]*perceptorv1.RunReply, n)
	for i := range replies {
		replies[i] = &perceptorv1.RunReply{Code: perceptorv1.RunCode_RUN_CODE_ACCEPTED}
	}
	return replies
}
