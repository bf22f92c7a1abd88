package client

import (
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/perceptor/perceptor/task"
)

// A fail-over to a replica that was behind loses the claims and the results of some
// runs; the runs are claimed again. The listener was there all the time.
func TestRunsWhoseResultsWereLostAreHandledAgain(t *testing.T) {
	t.Parallel()
	b := setup(t, 1)
	var c counter
	var reopened atomic.Int32
	b.listen(ListenerConfig{Check: CheckNever, Events: Events{Reopened: func(Delivery) { reopened.Add(1) }}}, map[string]Handler{"count": c.handle})
	pubs := manyRuns(6, "count")
	b.publish(pubs...)
	b.svc.await(t, "the results", func() bool { return b.svc.codes["report ACCEPTED"] == len(pubs) })
	b.svc.with(func() { clear(b.svc.runs) })
	for i := range pubs {
		pubs[i].ClaimedAt = pubs[i].ClaimedAt.Add(time.Minute)
	}
	b.publish(pubs...)
	b.svc.await(t, "the results again", func() bool { return b.svc.codes["report ACCEPTED"] == 2*len(pubs) })
	b.awaitCommitted()
	for id, n := range c.runs {
		if n != 2 {
			t.Errorf("run %s was handled %d times, want 2", id, n)
		}
	}
	if got := int(reopened.Load()); got != len(pubs) {
		t.Errorf("%d runs were told to be open again, want %d", got, len(pubs))
	}
	if n := strings.Count(b.logs.String(), "has lost the result of a run"); n != 1 {
		t.Errorf("the loss was logged %d times, want once per interval", n)
	}
}

// A dispatcher that takes over a shard publishes again what it finds in the outbox.
func TestFinishedRunsThatArePublishedAgainAreNotHandled(t *testing.T) {
	t.Parallel()
	b := setup(t, 1)
	var c counter
	b.listen(ListenerConfig{Check: CheckNever}, map[string]Handler{"count": c.handle})
	pubs := manyRuns(6, "count")
	b.publish(pubs...)
	b.svc.await(t, "the results", func() bool { return b.svc.codes["report ACCEPTED"] == len(pubs) })
	for i := range pubs {
		pubs[i].ClaimedAt = 0
		if pubs[i].Type == task.OneShot {
			pubs[i].ClaimedAt, pubs[i].Attempt = task.At(time.Now().Add(time.Hour)), 2
		}
	}
	b.publish(pubs...)
	b.svc.await(t, "answers", func() bool {
		return b.svc.codes["check ALREADY"]+b.svc.codes["check UNKNOWN"] == 4 && b.svc.codes["start ALREADY"] == 2
	})
	b.awaitCommitted()
	for id, n := range c.runs {
		if n != 1 {
			t.Errorf("run %s was handled %d times, want once", id, n)
		}
	}
}
