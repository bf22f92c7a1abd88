package client

import (
	"fmt"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/perceptor/perceptor/task"
)

// script applies named inputs to a table and records the actions.
type script struct {
	t      *testing.T
	table  *table
	typ    task.Type
	on     *tracker
	offset int64
	last   *entry // the entry of the last action that has one
	log    []string
}

func newScript(t *testing.T, typ task.Type) *script {
	return &script{t: t, table: newTable(100), typ: typ, on: newTracker(0, 0)}
}

// arrive adds a record of the run.
func (s *script) arrive(attempt int32) { s.arriveAs(attempt, true) }

// again adds a record of another claim of the same attempt. 0 stands for a record
// that does not have its claim time.
func (s *script) again(attempt int32, claim task.Instant) { s.add(attempt, claim, true) }

func (s *script) arriveAs(attempt int32, handled bool) {
	s.add(attempt, task.Instant(attempt)*1000, handled)
}

func (s *script) add(attempt int32, claim task.Instant, handled bool) {
	pub := task.Publication{Task: task.NewID(1, 1), Seq: 1, Attempt: attempt, Type: s.typ, Kind: "k", ClaimedAt: claim}
	at := s.on.add(s.offset)
	s.offset++
	s.note(fmt.Sprintf("arrive %d", attempt), s.table.arrive(nil, &arrival{pub: pub, handled: handled, at: at}))
}

func (s *script) begin() { s.note("begin", s.table.begin(nil, s.last)) }
func (s *script) started(code task.Code) {
	s.note("start "+code.String(), s.table.startAnswered(nil, s.last, code))
}

func (s *script) beat(attempt int32) {
	s.note("beat", s.table.heartbeatAccepted(nil, s.last, attempt))
}

func (s *script) succeed(attempt int32) {
	s.note("success", s.table.handlerEnded(nil, s.last, attempt, task.Result{Outcome: task.Success}))
}

func (s *script) fail(attempt int32) {
	s.note("fail", s.table.handlerEnded(nil, s.last, attempt, task.Result{Outcome: task.Fail}))
}

func (s *script) stopWithFail(attempt int32) {
	s.note("fail and stop", s.table.handlerEnded(nil, s.last, attempt, task.Result{Outcome: task.Fail, Stop: true}))
}

func (s *script) reported(code task.Code) {
	s.note("report "+code.String(), s.table.reportAnswered(nil, s.last, code, "why"))
}

func (s *script) handedBack(code task.Code) {
	s.note("hand back "+code.String(), s.table.handBackAnswered(nil, s.last, code))
}

func (s *script) note(input string, acts []action) {
	var out []string
	for _, a := range acts {
		if a.entry != nil {
			s.last = a.entry
		}
		text := fmt.Sprintf("%s %d", a.verb, a.rec.pub.Attempt)
		switch {
		case a.verb == doCommit:
			text = fmt.Sprintf("commit @%d", a.rec.at.offset)
			a.rec.at.tracker.done(a.rec.at.offset)
		case a.verb == doReport && a.res.Outcome == task.Fail:
			text = fmt.Sprintf("report FAIL of %d", a.rec.pub.Attempt)
		case a.verb == doReport:
			text = fmt.Sprintf("report SUCCESS of %d", a.rec.pub.Attempt)
		case a.verb == doSkip:
			text = fmt.Sprintf("skip @%d", a.rec.at.offset)
		}
		out = append(out, text)
	}
	s.log = append(s.log, input+": "+strings.Join(out, ", "))
}

func (s *script) want(lines ...string) {
	s.t.Helper()
	for i := range s.log {
		s.log[i] = strings.TrimSuffix(s.log[i], ": ")
	}
	if d := cmp.Diff(lines, s.log); d != "" {
		s.t.Error(d)
	}
}

func TestOneShotRunsAndIsSettled(t *testing.T) {
	s := newScript(t, task.OneShot)
	s.arrive(1)
	s.begin()
	s.succeed(1)
	s.reported(task.Accepted)
	s.arrive(1)
	s.want("arrive 1: queue 1", "begin: execute 1", "success: report SUCCESS of 1",
		"report ACCEPTED: commit @0", "arrive 1: skip @1, commit @1")
}

// After the overrun of a lease the answer is SUPERSEDED; later attempts must
// run.
func TestAttemptAfterSupersededRuns(t *testing.T) {
	s := newScript(t, task.Blocking)
	s.arrive(1)
	s.begin()
	s.started(task.Accepted)
	s.succeed(1)
	s.reported(task.Superseded)
	s.arrive(2)
	s.begin()
	s.started(task.Accepted)
	s.want("arrive 1: queue 1", "begin: start 1", "start ACCEPTED: commit @0, execute 1",
		"success: report SUCCESS of 1", "report SUPERSEDED",
		"arrive 2: queue 2", "begin: start 2", "start ACCEPTED: commit @1, execute 2")
}

// Attempts 1 and 2 both wait on the topic when a listener returns, and the
// start of the first is answered with SUPERSEDED.
func TestAttemptAfterSupersededStartRuns(t *testing.T) {
	s := newScript(t, task.Blocking)
	s.arrive(1)
	s.begin()
	s.arrive(2)
	s.started(task.Superseded)
	s.begin()
	s.started(task.Accepted)
	s.want("arrive 1: queue 1", "begin: start 1", "arrive 2: commit @1",
		"start SUPERSEDED: commit @0, queue 2", "begin: start 2", "start ACCEPTED: execute 2")
}

func TestOldAttemptAfterSupersededIsNotExecuted(t *testing.T) {
	s := newScript(t, task.OneShot)
	s.arrive(2)
	s.begin()
	s.fail(2)
	s.reported(task.Superseded)
	s.arrive(2)
	s.arrive(1)
	s.begin()
	s.started(task.Superseded)
	s.arrive(3)
	s.want("arrive 2: queue 2", "begin: execute 2", "fail: report FAIL of 2", "report SUPERSEDED: commit @0",
		"arrive 2: skip @1, commit @1", "arrive 1: queue 1", "begin: start 1", "start SUPERSEDED: commit @2",
		"arrive 3: queue 3")
}

func TestNewestOfQueuedAttemptsIsTheOneThatRuns(t *testing.T) {
	s := newScript(t, task.NonBlocking)
	s.arrive(1)
	s.arrive(2)
	s.arrive(3)
	s.begin()
	s.fail(3)
	s.reported(task.Accepted)
	s.want("arrive 1: queue 1", "arrive 2: commit @1", "arrive 3: commit @2, skip @1",
		"begin: commit @0, skip @0, execute 3", "fail: report FAIL of 3", "report ACCEPTED")
}

// The answer to the FAIL of attempt 1 is late and attempt 2 waits. The FAIL is
// repeated under attempt 1 only, and attempt 2 is executed.
// The service knows newer terms of an attempt that has waited for as long as the one before.
func TestTheNewestOfQueuedAttemptsIsCheckedLikeTheOldest(t *testing.T) {
	s := newScript(t, task.NonBlocking)
	s.arrive(1)
	s.last.rec.check = true // as the engine sets it
	s.arrive(2)
	s.begin()
	s.want("arrive 1: queue 1", "arrive 2: commit @1", "begin: commit @0, skip @0, start 2")
}

func TestRememberedFailIsNeverReportedUnderALaterAttempt(t *testing.T) {
	s := newScript(t, task.OneShot)
	s.arrive(1)
	s.begin()
	s.fail(1)
	s.arrive(2)
	s.reported(task.Retry)
	s.reported(task.Superseded)
	s.begin()
	s.fail(2)
	s.want("arrive 1: queue 1", "begin: execute 1", "fail: report FAIL of 1", "arrive 2: commit @1",
		"report RETRY: report FAIL of 1", "report SUPERSEDED: commit @0, queue 2",
		"begin: execute 2", "fail: report FAIL of 2")
}

func TestRetryInTheSameProcessRuns(t *testing.T) {
	for _, typ := range task.Types {
		s := newScript(t, typ)
		s.arrive(1)
		s.begin()
		if typ == task.Blocking {
			s.started(task.Accepted)
		}
		s.fail(1)
		s.reported(task.Accepted)
		s.arrive(1)
		s.log = nil
		s.arrive(2)
		s.want("arrive 2: queue 2")
	}
}

// TestCopyThatWaitedIsNotExecutedAgain holds that a record which waited while an older one of
// its run was asked about is asked about as well, if its attempt was settled before both.
func TestCopyThatWaitedIsNotExecutedAgain(t *testing.T) {
	s := newScript(t, task.OneShot)
	s.arrive(2)
	s.begin()
	s.fail(2)
	s.reported(task.Accepted)
	s.arrive(1)
	s.begin()
	s.log = nil
	s.arrive(2)
	s.started(task.Superseded)
	s.begin()
	s.started(task.Superseded)
	s.want("arrive 2: commit @2", "start SUPERSEDED: commit @1, queue 2", "begin: start 2",
		"start SUPERSEDED")
}

func TestDuplicateOfARunningNonBlockingRunKeepsItsOffset(t *testing.T) {
	s := newScript(t, task.NonBlocking)
	s.arrive(1)
	s.begin()
	s.arrive(1) // only Kafka has the run
	s.beat(1)   // now the run has a row
	s.arrive(1)
	s.succeed(1)
	s.reported(task.Accepted)
	s.want("arrive 1: queue 1", "begin: execute 1", "arrive 1", "beat: commit @0, commit @1, skip @1",
		"arrive 1: commit @2, skip @2", "success: report SUCCESS of 1", "report ACCEPTED")
}

func TestHeldStartIsForgotten(t *testing.T) {
	s := newScript(t, task.Blocking)
	s.arrive(1)
	s.begin()
	s.started(task.Held)
	s.arrive(1)
	s.want("arrive 1: queue 1", "begin: start 1", "start HELD: commit @0", "arrive 1: queue 1")
}

func TestHeldStartLetsAWaitingAttemptStart(t *testing.T) {
	s := newScript(t, task.Blocking)
	s.arrive(1)
	s.begin()
	s.arrive(3)
	s.arrive(2)
	s.started(task.Held)
	s.want("arrive 1: queue 1", "begin: start 1", "arrive 3: commit @1", "arrive 2: commit @2, skip @2",
		"start HELD: commit @0, queue 3")
}

// A run that is over gets no second execution, whatever the attempt. The service is
// asked about records that are not copies of the settled one.
func TestRunThatIsOverIsExecutedOnlyIfTheServiceSaysThatItIsOpen(t *testing.T) {
	for _, code := range []task.Code{task.Already, task.Finished, task.Unknown} {
		s := newScript(t, task.OneShot)
		s.arrive(1)
		s.begin()
		s.arrive(2)
		s.fail(1)
		s.reported(code)
		s.arrive(1)
		s.arrive(3)
		s.begin()
		s.started(code)
		s.arrive(3)
		s.want("arrive 1: queue 1", "begin: execute 1", "arrive 2: commit @1", "fail: report FAIL of 1",
			"report "+code.String()+": commit @0, skip @1", "arrive 1: skip @2, commit @2",
			"arrive 3: queue 3", "begin: start 3", "start "+code.String()+": commit @3", "arrive 3: skip @4, commit @4")
	}
}

func TestStopWithFailEndsTheRun(t *testing.T) {
	s := newScript(t, task.OneShot)
	s.arrive(1)
	s.begin()
	s.stopWithFail(1)
	s.reported(task.Accepted)
	s.arrive(2)
	s.begin()
	s.want("arrive 1: queue 1", "begin: execute 1", "fail and stop: report FAIL of 1",
		"report ACCEPTED: commit @0", "arrive 2: queue 2", "begin: start 2")
}

func TestStartAnsweredRetryIsAskedAgain(t *testing.T) {
	s := newScript(t, task.Blocking)
	s.arrive(1)
	s.begin()
	s.started(task.Retry)
	s.started(task.Accepted)
	s.want("arrive 1: queue 1", "begin: start 1", "start RETRY: start 1", "start ACCEPTED: commit @0, execute 1")
}

func TestRefusedResultBecomesAFailure(t *testing.T) {
	s := newScript(t, task.OneShot)
	s.arrive(1)
	s.begin()
	s.succeed(1)
	s.reported(task.Invalid)
	if msg := s.last.result.Error; !strings.Contains(msg, "why") {
		t.Errorf("the failure says %q", msg)
	}
	s.reported(task.Accepted)
	s.arrive(2)
	s.want("arrive 1: queue 1", "begin: execute 1", "success: report SUCCESS of 1", "report INVALID: report FAIL of 1",
		"report ACCEPTED: commit @0", "arrive 2: queue 2")
}

// A run whose kind has no handler is handed back under its attempt. Its offset
// is done only after the answer.
func TestHandBackIsDoneOnlyWhenAnswered(t *testing.T) {
	for _, code := range []task.Code{task.Accepted, task.Superseded, task.Held, task.Already, task.Finished, task.Unknown} {
		s := newScript(t, task.NonBlocking)
		s.arriveAs(1, false)
		s.handedBack(task.Retry)
		s.handedBack(code)
		s.arriveAs(2, false)
		s.want("arrive 1: hand back 1", "hand back RETRY: hand back 1", "hand back "+code.String()+": commit @0",
			"arrive 2: hand back 2")
	}
}

func TestSecondResultOfAnAttemptIsIgnored(t *testing.T) {
	s := newScript(t, task.OneShot)
	s.arrive(1)
	s.begin()
	s.fail(1)    // reported for a handler that hangs
	s.succeed(1) // the handler returns late
	s.want("arrive 1: queue 1", "begin: execute 1", "fail: report FAIL of 1", "success")
}

func TestQueuedRecordOfALostPartitionIsLeftToItsNextOwner(t *testing.T) {
	s := newScript(t, task.NonBlocking)
	s.arrive(1)
	s.on.over = true
	s.begin()
	if len(s.table.active) != 0 || s.table.pending != 0 {
		t.Errorf("%d active, %d pending", len(s.table.active), s.table.pending)
	}
	s.on = newTracker(0, 0) // the same process gets the partition again
	s.offset = 0
	s.arrive(1)
	s.begin()
	s.want("arrive 1: queue 1", "begin", "arrive 1: queue 1", "begin: execute 1")
}

// The offset of a duplicate was committed because the queued record is
// executed. So that record must run, although its partition was reassigned.
func TestQueuedRecordThatADuplicateLeansOnRuns(t *testing.T) {
	s := newScript(t, task.OneShot)
	s.arrive(1)
	s.on.over = true
	s.on = newTracker(0, 0)
	s.offset = 0
	s.arrive(1)
	s.begin()
	s.want("arrive 1: queue 1", "arrive 1: commit @0, skip @0", "begin: execute 1")
}

func TestLeaseThatIsOverBeforeTheHandlerBeganIsForgotten(t *testing.T) {
	s := newScript(t, task.Blocking)
	s.arrive(1)
	s.begin()
	s.started(task.Accepted)
	s.note("dropped", s.table.leaseExpired(nil, s.last, 1))
	s.arrive(2)
	s.want("arrive 1: queue 1", "begin: start 1", "start ACCEPTED: commit @0, execute 1", "dropped", "arrive 2: queue 2")
}

func TestRunWithoutALeaseIsNeverForgotten(t *testing.T) {
	s := newScript(t, task.NonBlocking)
	s.arrive(1)
	s.begin()
	if acts := s.table.leaseExpired(nil, s.last, 1); len(acts) != 0 || s.table.pending != 1 {
		t.Errorf("a run without a row was forgotten: %v", acts)
	}
}

func TestMemoryIsBoundedAndForgetsTheOldest(t *testing.T) {
	tab := newTable(10)
	on := newTracker(0, 0)
	settle := func(number int64, attempt int32) {
		pub := task.Publication{Task: task.NewID(number, 1), Seq: 1, Attempt: attempt, Type: task.OneShot, ClaimedAt: task.Instant(attempt)}
		acts := tab.arrive(nil, &arrival{pub: pub, handled: true, at: on.add(on.next)})
		if acts[0].verb != doQueue {
			t.Fatalf("task %d attempt %d: %s", number, attempt, acts[0].verb)
		}
		e := acts[0].entry
		tab.begin(nil, e)
		tab.handlerEnded(nil, e, attempt, task.Result{Outcome: task.Fail})
		tab.reportAnswered(nil, e, task.Accepted, "")
	}
	for n := range int64(1000) {
		settle(n+1, 1)
		settle(500_000, int32(n)+1) // always among the newest
	}
	if newer, older := len(tab.past.newer), len(tab.past.older); newer > 10 || older > 10 || tab.pending != 0 || len(tab.active) != 0 {
		t.Errorf("%d and %d remembered, %d pending, %d active", newer, older, tab.pending, len(tab.active))
	}
	if tab.past.get(task.RunID{Task: task.NewID(500_000, 1), Seq: 1}).ran == 0 {
		t.Error("the newest run was forgotten")
	}
	if tab.past.get(task.RunID{Task: task.NewID(1, 1), Seq: 1}).ran != 0 {
		t.Error("the oldest run was kept")
	}
}
