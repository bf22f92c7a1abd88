package task

import (
	"slices"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
)

// machineOf returns a task of the type. Attempt 1 of its run 1 has been open since now.
func machineOf(t *testing.T, typ Type, now Instant, change ...func(*Spec)) *Machine {
	t.Helper()
	s := valid(typ)
	s.Begin = now
	s.Retry = RetryPolicy{MaxAttempts: 3, Jitter: UnsetJitter}
	s.AckTimeout, s.GiveUpAfter = time.Minute, time.Hour
	for _, f := range change {
		f(&s)
	}
	if faults := s.Validate(limits()); len(faults) > 0 {
		t.Fatal(faults)
	}
	s.ResolveBegin(now)
	m := &Machine{Task: NewRow(1, NewID(9, 3), &s, now), Runs: map[int64]*Row{}}
	if p := m.Due(0, now); p == nil || p.Seq != 1 || p.Attempt != 1 {
		t.Fatalf("claimed publication = %+v", p)
	}
	if typ == Blocking {
		started(t, m, 1, now)
	}
	return m
}

func started(t *testing.T, m *Machine, n int32, now Instant) {
	t.Helper()
	if r := m.Start(first(m, n), 7, now); r.Code != Accepted {
		t.Fatalf("reply to start = %+v", r)
	}
}

// first names attempt n of the task's run 1.
func first(m *Machine, n int32) Attempt {
	return Attempt{RunID: RunID{Task: m.Task.ID, Seq: 1}, Attempt: n}
}

// ofRun1 returns the row that holds run 1, and its number.
func ofRun1(m *Machine) (*Row, int64) {
	if r := m.Runs[1]; r != nil {
		return r, 1
	}
	return m.Task, 0
}

func snoozed(m *Machine, n int32, d time.Duration) Report {
	return Report{Attempt: first(m, n), Holder: 7, Result: Result{Outcome: Snooze, After: d, Next: Never}}
}

func failed(m *Machine, n int32) Report {
	return Report{Attempt: first(m, n), Holder: 7, Result: Result{Outcome: Fail, Error: "no", Next: Never}}
}

func says(t *testing.T, m *Machine, res Report, now Instant, want Code) {
	t.Helper()
	if r := m.Report(res, now, 0, nil); r.Code != want {
		t.Fatalf("report %+v: reply = %+v, want %s", res, r, want)
	}
}

func TestASnoozedRunComesAgainAfterItsDistanceWithoutAFailure(t *testing.T) {
	for _, typ := range Types {
		t.Run(typ.String(), func(t *testing.T) {
			now := Instant(1_000_000)
			m := machineOf(t, typ, now)
			for n := int32(1); n <= 30; n++ { // more snoozes than max_attempts
				says(t, m, snoozed(m, n, time.Minute), now, Accepted)
				r, run := ofRun1(m)
				if r.DueAt != now.Add(time.Minute) || r.Out || r.Holder != 0 || r.Failures != 0 || r.Snoozes != n || r.State != Running {
					t.Fatalf("row after snooze %d = %+v", n, r)
				}
				now = r.DueAt
				p := m.Due(run, now)
				if p == nil || p.Attempt != n+1 || p.ScheduledAt != 1_000_000 {
					t.Fatalf("delivery %d = %+v", n+1, p)
				}
				if r.DueAt != now.Add(time.Minute) {
					t.Fatalf("after %d snoozes the delay of a silent run = %s", n, r.DueAt.Sub(now))
				}
				if typ == Blocking {
					started(t, m, n+1, now)
				}
			}
			if len(m.Dead) != 0 {
				t.Fatalf("dead runs = %+v", m.Dead)
			}
		})
	}
}

// timing: T9.5
func TestASnoozeReachesNoFurtherThanGiveUpAfterAndTheNextOneIsTheEnd(t *testing.T) {
	for typ, want := range map[Type]State{OneShot: Failed, NonBlocking: Scheduled, Blocking: Scheduled} {
		t.Run(typ.String(), func(t *testing.T) {
			now := Instant(1_000_000)
			m := machineOf(t, typ, now)
			says(t, m, snoozed(m, 1, 24*time.Hour), now, Accepted)
			r, run := ofRun1(m)
			if r.DueAt != now.Add(time.Hour) {
				t.Fatalf("next delivery is due after %s", r.DueAt.Sub(now))
			}
			now = r.DueAt
			if p := m.Due(run, now); p == nil || p.Attempt != 2 {
				t.Fatalf("last delivery = %+v", p)
			}
			if typ == Blocking {
				started(t, m, 2, now)
			}
			says(t, m, snoozed(m, 2, time.Second), now, Accepted)
			if len(m.Dead) != 1 || m.Dead[0].Reason != Silent || m.Dead[0].Error != "snoozed until give_up_after 1h0m0s was over" {
				t.Fatalf("dead runs = %+v", m.Dead)
			}
			if m.Task.State != want {
				t.Fatalf("state = %s, want %s", m.Task.State, want)
			}
		})
	}
}

func TestASnoozeCountsOnlyForTheAttemptThatIsOut(t *testing.T) {
	now := Instant(1_000_000)
	for _, typ := range Types {
		m := machineOf(t, typ, now)
		says(t, m, snoozed(m, 2, time.Minute), now, Unknown)
		says(t, m, snoozed(m, 1, time.Minute), now, Accepted)
		says(t, m, snoozed(m, 1, time.Minute), now, Superseded)
		says(t, m, failed(m, 1), now, Superseded)
	}
}

func TestABlockingRunIsSnoozedByItsHolderAndByAnybodyWhileItHasNone(t *testing.T) {
	now := Instant(1_000_000)
	m := machineOf(t, Blocking, now)
	other := snoozed(m, 1, time.Minute)
	other.Holder = 8
	says(t, m, other, now, Superseded)
	says(t, m, snoozed(m, 1, time.Minute), now, Accepted)
	now = m.Task.DueAt
	m.Due(0, now)
	other = snoozed(m, 2, time.Minute)
	other.Holder = 8
	says(t, m, other, now, Accepted)
	if r := m.Start(first(m, 2), 7, now); r.Code != Superseded {
		t.Fatalf("reply to a start after the snooze = %+v", r)
	}
}

func TestAPermanentFailureMakesTheRunDeadAtOnce(t *testing.T) {
	for _, c := range []struct {
		typ  Type
		stop bool // stop_on_failure
		want State
	}{
		{OneShot, false, Failed}, {NonBlocking, false, Scheduled}, {Blocking, false, Scheduled},
		{NonBlocking, true, Failed}, {Blocking, true, Failed},
	} {
		now := Instant(1_000_000)
		m := machineOf(t, c.typ, now, func(s *Spec) { s.StopOnFailure = c.stop })
		res := failed(m, 1)
		res.Permanent = true
		says(t, m, res, now, Accepted)
		want := []DeadRun{{Tenant: 1, Type: m.Task.Type, RunID: first(m, 1).RunID, Attempt: 1, Kind: "check", ScheduledAt: 1_000_000, DiedAt: now, Reason: Permanent, Error: "no"}}
		if diff := cmp.Diff(want, m.Dead); diff != "" || m.Task.State != c.want {
			t.Errorf("%s, stop_on_failure %v: state %s, dead runs %s", c.typ, c.stop, m.Task.State, diff)
		}
		if c.typ == Blocking && !c.stop && m.Task.ScheduledAt != now.Add(time.Hour) {
			t.Errorf("next run is at %s", m.Task.ScheduledAt)
		}
	}
}

func TestStopOutweighsPermanent(t *testing.T) {
	now := Instant(1_000_000)
	m := machineOf(t, Blocking, now)
	res := failed(m, 1)
	res.Permanent, res.Stop = true, true
	says(t, m, res, now, Accepted)
	if m.Task.State != Completed || len(m.Dead) != 0 {
		t.Fatalf("state = %s, dead runs = %+v", m.Task.State, m.Dead)
	}
}

func TestAFailureMayNameTheDistanceOfItsRetry(t *testing.T) {
	for _, typ := range Types {
		now := Instant(1_000_000)
		m := machineOf(t, typ, now)
		for n := int32(1); n <= 3; n++ {
			res := failed(m, n)
			res.After = 7 * time.Second
			says(t, m, res, now, Accepted)
			if n == 3 {
				break
			}
			r, run := ofRun1(m)
			if r.DueAt != now.Add(7*time.Second) || r.Failures != n {
				t.Fatalf("%s: row after failure %d = %+v", typ, n, r)
			}
			now = r.DueAt
			m.Due(run, now)
			if typ == Blocking {
				started(t, m, n+1, now)
			}
		}
		if len(m.Dead) != 1 || m.Dead[0].Reason != OutOfAttempts {
			t.Errorf("%s: dead runs = %+v", typ, m.Dead)
		}
	}
}

func TestASnoozeLeavesTheParamsAlone(t *testing.T) {
	now := Instant(1_000_000)
	m := machineOf(t, Blocking, now)
	res := snoozed(m, 1, time.Minute)
	res.Patch = &ParamsPatch{Set: map[string]string{"k": "v"}}
	says(t, m, res, now, Accepted) // would panic if it called merge
}

// timing: T9.4
func TestOnlySilentDeliveriesLengthenTheDelay(t *testing.T) {
	for _, answer := range []func(m *Machine, n int32) Report{
		func(m *Machine, n int32) Report { r := failed(m, n); r.After = time.Minute; return r },
		func(m *Machine, n int32) Report { return snoozed(m, n, time.Minute) },
	} {
		const begin = Instant(1_000_000)
		m := machineOf(t, OneShot, begin)
		var at []time.Duration
		for n := int32(2); n <= 5; n++ {
			now := m.Task.DueAt
			p := m.Due(0, now)
			if p == nil || p.Attempt != n {
				t.Fatalf("delivery %d = %+v", n, p)
			}
			at = append(at, now.Sub(begin))
			if n == 2 {
				says(t, m, answer(m, n), now, Accepted)
			}
		}
		if want := []time.Duration{1 * time.Minute, 2 * time.Minute, 4 * time.Minute, 8 * time.Minute}; !slices.Equal(at, want) {
			t.Errorf("deliveries after %s, want %s", at, want)
		}
	}
}

// timing: T9.3
func TestARunIsGivenUpAfterTheLastWordAboutIt(t *testing.T) {
	const begin = Instant(1_000_000)
	hour := func(n int32) Instant { return begin.Add(time.Duration(n) * time.Hour) }
	for _, typ := range Types {
		for name, word := range map[string]func(m *Machine, n int32){
			"a failure": func(m *Machine, n int32) {
				res := failed(m, n)
				res.After = time.Hour
				says(t, m, res, hour(n-1), Accepted)
			},
			"a heartbeat": func(m *Machine, n int32) {
				if r := m.Heartbeat(first(m, n), 7, hour(n-1)); r.Code != Accepted {
					t.Fatal(r)
				}
			},
		} {
			m := machineOf(t, typ, begin, func(s *Spec) {
				s.GiveUpAfter, s.AckTimeout, s.Retry.MaxAttempts = 24*time.Hour, time.Hour, 100
				s.Interval = 0
				if typ != OneShot {
					s.Interval = 1000 * time.Hour
				}
			})
			for n := int32(1); n <= 24; n++ { // an hourly word, from 0 h to 23 h
				if n > 1 {
					_, run := ofRun1(m)
					if p := m.Due(run, hour(n-1)); p == nil || p.Attempt != n {
						t.Fatalf("%s, %s: delivery %d = %+v", typ, name, n, p)
					}
					if typ == Blocking {
						started(t, m, n, hour(n-1))
					}
				}
				word(m, n)
			}
			var last Instant
			for len(m.Dead) == 0 {
				r, run := ofRun1(m)
				last = r.DueAt
				m.Due(run, last)
			}
			if want := hour(47); last != want || m.Dead[0].Reason != Silent {
				t.Errorf("%s, %s: given up at %s, want %s: %+v", typ, name, last, want, m.Dead)
			}
		}
	}
}
