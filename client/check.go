package client

import (
	"time"

	"google.golang.org/protobuf/types/known/timestamppb"

	perceptorv1 "github.com/perceptor/perceptor/proto/perceptor/v1"
	"github.com/perceptor/perceptor/task"
)

// CheckPolicy selects the runs for which a listener asks the service whether to
// execute them, before it calls the handler.
//
// A run may have been published before its task was cancelled or edited. The
// answer says that the task has ended, that the run is closed, or what the new
// terms are. The listener then does not call the handler, or calls it with the new
// terms. A BLOCKING run needs no check: the answer to its lease request says the
// same.
type CheckPolicy uint8

const (
	// CheckLate checks runs that have waited for more than a second, in Kafka
	// or in the listener, since they were claimed or, if they were claimed
	// ahead, since they were due. A punctual run costs no call. Its handler may
	// start up to 1.5 seconds after its task was cancelled: that second, and
	// the half second by which claims go ahead. A late run is checked when the
	// handlers before it should end within 100 ms, so after handlers that suddenly
	// take longer it may start later.
	CheckLate CheckPolicy = iota
	// CheckAlways checks every run. No handler starts if its task was cancelled
	// before the check.
	CheckAlways
	// CheckNever checks no run.
	CheckNever
)

// lateAfter is the age from which CheckLate checks a run.
const lateAfter = time.Second

// wantsCheck reports whether to check a record before its handler is called.
// The caller holds the lock.
func (g *engine) wantsCheck(a *arrival) bool {
	switch {
	case a.pub.Type == task.Blocking || g.l.cfg.Check == CheckNever:
		return false
	case g.l.cfg.Check == CheckAlways:
		return true
	}
	// For runs of a dispatcher that took over a shard the claim time is
	// unknown; they count as late.
	return task.At(g.service.now(time.Now())).Sub(a.pub.ClaimedAt) > lateAfter
}

// serviceClock estimates the clock of the service. The zero value takes it for the
// local one.
type serviceClock struct {
	shown time.Time     // what the service's clock showed at read
	read  time.Time     // with the reading of the local monotonic clock
	ahead time.Duration // how far it was ahead of the local wall clock
}

// now returns the later one of two estimates. One counts by the local monotonic clock,
// which stands still while the machine is suspended; the other one by the local wall
// clock, which may be set. A run that seems older than it is costs a check; one that
// seems younger would not be checked.
func (c serviceClock) now(local time.Time) time.Time {
	if c.read.IsZero() {
		return local
	}
	return c.later(local.Round(0), local.Sub(c.read))
}

// later returns the later estimate, for what the local wall clock shows and for the
// time that has passed by the monotonic clock.
func (c serviceClock) later(wall time.Time, passed time.Duration) time.Time {
	byWall, steady := wall.Add(c.ahead), c.shown.Add(passed)
	if steady.After(byWall) {
		return steady
	}
	return byWall
}

// setClock reads the service's clock from an answer to a question sent at asked. The clock may
// have been read at once, and the answer have taken all of the time, so that the estimate is
// never behind. An answer that took long says too little, if there was another one before.
func (g *engine) setClock(now *timestamppb.Timestamp, asked time.Time) {
	if now == nil {
		return
	}
	shown, took := now.AsTime(), time.Since(asked)
	g.mu.Lock()
	defer g.mu.Unlock()
	if took > lateAfter/2 && !g.service.read.IsZero() {
		return
	}
	g.service = serviceClock{shown: shown, read: asked, ahead: shown.Sub(asked.Round(0))}
}

// reopened tells that a run that was settled here is open again.
func (g *engine) reopened(p *task.Publication) {
	fire(g.l.cfg.Events.Reopened, p)
	if suppressed, ok := g.lostResults.allow(); ok {
		g.l.log.Warn("a database has lost the result of a run; its handler is called again", append(aboutRun(p), "suppressed", suppressed)...)
	}
}

// freeSlot releases the slot of an entry whose handler is not called. The
// caller holds the lock.
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
