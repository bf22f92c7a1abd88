package shards

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/perceptor/perceptor/store/shards/kernel"
	"github.com/perceptor/perceptor/task"
)

// diary claims whatever is due, second by second, and writes down each delivery as
// "seq.attempt@time" and each dead run as "seq dead@time". Times count from begin.
type diary struct {
	*bundle
	begin  task.Instant
	answer func(p task.Publication) bool // whether the run succeeds at once
	lines  []string
}

func (d *diary) until(at time.Duration, step time.Duration) {
	d.t.Helper()
	for ; d.now.Sub(d.begin) <= at; d.advance(step) {
		for c := d.claim(task.RangeForm); c.Rows > 0; c = d.claim(task.RangeForm) {
			for _, p := range c.Publications {
				d.lines = append(d.lines, fmt.Sprintf("%d.%d@%s", p.Seq, p.Attempt, d.now.Sub(d.begin)))
				if d.answer != nil && d.answer(p) {
					if got := d.report(success(p.Task, p.Seq, p.Attempt, 7)); got[0] != task.Accepted {
						d.t.Fatal(got)
					}
				}
			}
			for _, dead := range c.Dead {
				d.lines = append(d.lines, fmt.Sprintf("%d dead@%s", dead.RunID.Seq, d.now.Sub(d.begin)))
			}
		}
	}
}

func (d *diary) says(want string) {
	d.t.Helper()
	if got := strings.Join(d.lines, " "); got != want {
		d.t.Errorf("got  %s\nwant %s", got, want)
	}
}

func diaryOf(b *bundle) *diary { return &diary{bundle: b, begin: b.now} }

func hours(s *task.Spec) { s.Interval, s.AckTimeout = time.Hour, time.Minute }

// timing: T9.6
func TestASilentRunComesAgainWithTheNextClaimOfItsTask(t *testing.T) {
	b := setup(t, nearOnly)
	d := diaryOf(b)
	d.answer = func(p task.Publication) bool { return p.Seq != 2 || p.Attempt == 3 }
	id := b.add(b.spec(task.NonBlocking, hours))[0]
	d.until(3*time.Hour+time.Minute, time.Minute)
	d.says("1.1@0s 2.1@1h0m0s 3.1@2h0m0s 2.2@2h0m0s 2.3@2h2m0s 4.1@3h0m0s")
	if r := b.rows(); len(r) != 1 || r[kernel.KeyOf(b.tenant, id, 0)].OpenRuns != 0 {
		t.Errorf("rows = %+v", r)
	}
}

func TestARunWithinItsAckTimeoutDoesNotComeAgain(t *testing.T) {
	b := setup(t, nearOnly)
	d := diaryOf(b)
	d.answer = func(p task.Publication) bool { return p.Seq > 1 }
	b.add(b.spec(task.NonBlocking, hours, func(s *task.Spec) { s.AckTimeout = 150 * time.Minute }))
	d.until(3*time.Hour+time.Minute, time.Minute)
	d.says("1.1@0s 2.1@1h0m0s 3.1@2h0m0s 4.1@3h0m0s 1.2@3h0m0s")
}

// timing: T9.7
func TestASilentRunThatNoClaimWillFindComesAtItsAckTimeout(t *testing.T) {
	ten := func(s *task.Spec) { s.AckTimeout = 10 * time.Minute }
	t.Run("the last run", func(t *testing.T) {
		b := setup(t, nearOnly)
		d := diaryOf(b)
		b.add(b.spec(task.NonBlocking, ten, func(s *task.Spec) { s.MaxCount = 3 }))
		d.until(12*time.Minute, time.Minute)
		d.says("1.1@0s 2.1@1m0s 3.1@2m0s 1.2@10m0s 2.2@11m0s 3.2@12m0s")
	})
	t.Run("paused", func(t *testing.T) {
		b := setup(t, nearOnly)
		d := diaryOf(b)
		id := b.add(b.spec(task.NonBlocking, ten))[0]
		d.until(2*time.Minute, time.Minute)
		if _, err := b.Pause(t.Context(), b.tenant, id); err != nil {
			t.Fatal(err)
		}
		d.until(12*time.Minute, time.Minute)
		d.says("1.1@0s 2.1@1m0s 3.1@2m0s 1.2@10m0s 2.2@11m0s 3.2@12m0s")
	})
	t.Run("every two days", func(t *testing.T) {
		b := setup(t, nearOnly)
		d := diaryOf(b)
		d.answer = func(p task.Publication) bool { return p.Attempt == 2 }
		id := b.add(b.spec(task.NonBlocking, hours, func(s *task.Spec) { s.Interval = 48 * time.Hour }))[0]
		d.until(2*time.Minute, time.Minute)
		b.setClock(d.begin.Add(48 * time.Hour))
		d.until(48*time.Hour+time.Minute, time.Minute)
		d.says("1.1@0s 1.2@1m0s 2.1@48h0m0s 2.2@48h1m0s")
		if r := b.rows(); len(r) != 1 || r[kernel.KeyOf(b.tenant, id, 0)].OpenRuns != 0 {
			t.Errorf("rows = %+v", r)
		}
	})
	t.Run("paused after its ack_timeout", func(t *testing.T) {
		b := setup(t, nearOnly)
		d := diaryOf(b)
		id := b.add(b.spec(task.NonBlocking, hours))[0]
		d.until(5*time.Minute, time.Minute)
		if _, err := b.Pause(t.Context(), b.tenant, id); err != nil {
			t.Fatal(err)
		}
		d.until(6*time.Minute, time.Minute)
		d.says("1.1@0s 1.2@6m0s")
	})
	// The result of the second run asks for a next one, whether SQL or the machine decides it.
	for name, c := range map[string]struct{ end, next time.Duration }{
		"the end of a handler":       {time.Hour, 2 * time.Hour},
		"a handler's choice in days": {100 * time.Hour, 48 * time.Hour},
	} {
		t.Run(name, func(t *testing.T) {
			b := setup(t, nearOnly)
			d := diaryOf(b)
			id := b.add(b.spec(task.NonBlocking, ten, func(s *task.Spec) { s.End = b.now.Add(c.end) }))[0]
			d.until(time.Minute, time.Minute)
			r := success(id, 2, 1, 7)
			r.Next = b.now.Add(c.next)
			if got := b.report(r); got[0] != task.Accepted {
				t.Fatal(got)
			}
			d.until(12*time.Minute, time.Minute)
			d.says("1.1@0s 2.1@1m0s 1.2@10m0s")
		})
	}
}

// timing: T9.8
func TestTheAckTimeoutOfARunCountsFromItsClaim(t *testing.T) {
	b := setup(t, nearOnly)
	d := diaryOf(b)
	d.answer = func(p task.Publication) bool { return p.Seq != 2 }
	b.add(b.spec(task.NonBlocking, hours, func(s *task.Spec) { s.AckTimeout = 50 * time.Minute }))
	d.until(0, time.Minute)
	b.setClock(d.begin.Add(80 * time.Minute)) // run 2 is late by 20 min
	d.until(3*time.Hour, time.Minute)
	d.says("1.1@0s 2.1@1h20m0s 3.1@2h0m0s 4.1@3h0m0s 2.2@3h0m0s")
}

func TestRunsThatCatchUpAreNotSilentBeforeTheirTime(t *testing.T) {
	b := setup(t, nearOnly)
	b.add(b.spec(task.NonBlocking, func(s *task.Spec) { s.Misfire, s.CatchUp = task.FireAll, 100 }))
	b.advance(9*time.Minute + 30*time.Second)
	d := diaryOf(b)
	d.until(900*time.Millisecond, 100*time.Millisecond)
	d.until(59*time.Second, time.Second)
	var want []string
	for i := range 10 {
		want = append(want, fmt.Sprintf("%d.1@%s", i+1, time.Duration(i)*100*time.Millisecond))
	}
	want = append(want, "11.1@30s")
	d.says(strings.Join(want, " "))
	d.lines = nil
	d.until(91*time.Second, time.Second)
	again := map[string]int{}
	for _, l := range d.lines {
		run, _, _ := strings.Cut(l, "@")
		again[run]++
	}
	for i := range 10 {
		if again[fmt.Sprintf("%d.2", i+1)] != 1 {
			t.Errorf("run %d came again %d times: %v", i+1, again[fmt.Sprintf("%d.2", i+1)], d.lines)
		}
	}
}

// timing: T9.3
func TestARunIsNotGivenUpBeforeTwoFurtherDeliveries(t *testing.T) {
	short := func(s *task.Spec) {
		s.AckTimeout, s.GiveUpAfter, s.Retry.MaxAttempts = time.Minute, time.Minute, 5
	}
	for _, c := range []struct {
		name string
		do   func(b *bundle, d *diary, id task.ID)
		want string
	}{
		{"after the first claim", func(*bundle, *diary, task.ID) {}, "1.1@0s 1.2@1m0s 1.3@3m0s 1 dead@7m0s"},
		{"after a failure", func(b *bundle, d *diary, id task.ID) {
			d.until(time.Minute, time.Minute)
			f := failure(id, 1, 2, 7)
			f.After = time.Minute
			b.report(f) // at 2 min
		}, "1.1@0s 1.2@1m0s 1.3@3m0s 1.4@5m0s 1 dead@9m0s"},
		{"after a heartbeat", func(b *bundle, d *diary, id task.ID) {
			d.until(time.Minute, time.Minute)
			b.heartbeat(7, attempt(id, 1, 2)) // at 2 min, until 3 min
		}, "1.1@0s 1.2@1m0s 1.3@3m0s 1.4@7m0s 1 dead@15m0s"},
	} {
		t.Run(c.name, func(t *testing.T) {
			b := setup(t, nearOnly)
			d := diaryOf(b)
			c.do(b, d, b.add(b.spec(task.OneShot, short))[0])
			d.until(20*time.Minute, time.Minute)
			d.says(c.want)
		})
	}
}
