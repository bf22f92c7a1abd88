package client

import (
	"fmt"
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
	l := b.listen(ListenerConfig{Check: CheckNever, Events: Events{Reopened: func(Delivery) { reopened.Add(1) }}}, map[string]Handler{"count": c.handle})
	pubs := manyRuns(6, "count")
	b.publish(pubs...)
	b.svc.await(t, "the results", func() bool { return b.svc.codes["report ACCEPTED"] == len(pubs) })
	// A record that comes before the answer to the result is left to the next delivery.
	b.eventually("the listener has read the answers", l.idle)
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
	b.awaitCommitted() // the listener has read the answers
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

// The claim and the result of a run are lost in a fail-over, and the run is claimed
// again: as the same attempt at another time, or it was only published again.
func TestRunWhoseResultWasLostIsExecutedAgain(t *testing.T) {
	for _, typ := range task.Types {
		for name, next := range map[string]struct {
			attempt int32
			claim   task.Instant
		}{"claimed again": {1, 5000}, "published again": {1, 0}, "a later attempt": {2, 2000}} {
			s := newScript(t, typ)
			s.arrive(1)
			s.begin()
			if typ == task.Blocking {
				s.started(task.Accepted)
			}
			s.succeed(1)
			s.reported(task.Accepted)
			s.log = nil
			s.again(next.attempt, next.claim)
			s.begin()
			s.started(task.Accepted)
			started := fmt.Sprintf("start ACCEPTED: execute %d", next.attempt)
			if typ == task.Blocking {
				started = fmt.Sprintf("start ACCEPTED: commit @1, execute %d", next.attempt)
			}
			s.want(fmt.Sprintf("arrive %d: queue %[1]d", next.attempt), fmt.Sprintf("begin: start %d", next.attempt), started)
			if t.Failed() {
				t.Fatalf("%s, %s", typ, name)
			}
		}
	}
}

// The new claim arrives while the result of the lost one is on its way.
func TestRecordOfAnotherClaimThatWaitedIsJudgedAgain(t *testing.T) {
	s := newScript(t, task.NonBlocking)
	s.arrive(1)
	s.begin()
	s.succeed(1)
	s.arrive(1)      // a copy
	s.again(1, 5000) // only Kafka has it
	s.reported(task.Accepted)
	s.begin()
	s.started(task.Accepted)
	s.want("arrive 1: queue 1", "begin: execute 1", "success: report SUCCESS of 1", "arrive 1", "arrive 1",
		"report ACCEPTED: commit @0, skip @1, commit @1, queue 1", "begin: start 1", "start ACCEPTED: execute 1")
}

// Two records of a settled run arrive. The service is asked about the newer one, too.
func TestNewestOfSuspectAttemptsIsAskedAbout(t *testing.T) {
	s := newScript(t, task.OneShot)
	s.arrive(1)
	s.begin()
	s.succeed(1)
	s.reported(task.Accepted)
	s.log = nil
	s.arrive(2)
	s.arrive(3)
	s.begin()
	s.started(task.Already)
	s.want("arrive 2: queue 2", "arrive 3: commit @2", "begin: commit @1, skip @1, start 3", "start ALREADY")
}

func TestQueuedSuspectOfALostPartitionStaysRemembered(t *testing.T) {
	s := newScript(t, task.OneShot)
	s.arrive(1)
	s.begin()
	s.succeed(1)
	s.reported(task.Accepted)
	s.log = nil
	s.arrive(2)
	s.on.over = true
	s.begin() // left to the next owner of the partition
	s.on = newTracker(0, 0)
	s.offset = 0
	s.arrive(1)
	s.want("arrive 2: queue 2", "begin", "arrive 1: skip @0, commit @0")
}
