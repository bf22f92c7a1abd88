package shards

import (
	"context"
	"testing"
	"time"

	"github.com/perceptor/perceptor/task"
)

// overlapping is an hourly task with a run that was claimed at once and is open.
func overlapping(b *bundle, overlap task.Overlap, change ...func(*task.Spec)) (*diary, task.ID) {
	b.t.Helper()
	d := diaryOf(b)
	set := func(s *task.Spec) { s.Interval, s.AckTimeout, s.Overlap = time.Hour, 12*time.Hour, overlap }
	id := b.add(b.spec(task.NonBlocking, append([]func(*task.Spec){set}, change...)...))[0]
	d.until(0, time.Minute)
	d.says("1.1@0s")
	return d, id
}

// closes reports success of a run.
func (d *diary) closes(id task.ID, seq int64) {
	d.t.Helper()
	if got := d.report(success(id, seq, 1, 7)); got[0] != task.Accepted {
		d.t.Fatal(got)
	}
}

// has expects the number of missed instants and the next one of a task.
func (d *diary) has(id task.ID, missed int64, next time.Duration) {
	d.t.Helper()
	got, err := d.Get(context.Background(), d.tenant, id)
	if err != nil || got.Missed != missed || got.ScheduledAt != d.begin.Add(next) {
		d.t.Errorf("%d missed, next at %s (%v); want %d, %s", got.Missed, got.ScheduledAt.Sub(d.begin), err, missed, next)
	}
}

func TestAnInstantIsSkippedWhileARunIsOpen(t *testing.T) {
	var missed missedSum
	d, id := overlapping(setup(t, nearOnly, missed.collect), task.OverlapSkip)
	d.until(150*time.Minute, time.Minute)
	d.says("1.1@0s")
	d.has(id, 2, 3*time.Hour)
	if got := missed.take()[task.MissedBy{Tenant: d.tenant, Type: task.NonBlocking, Policy: task.ByOverlap}]; got != 2 {
		t.Errorf("%d are counted as missed by overlap, want 2", got)
	}
	d.closes(id, 1)
	d.until(3*time.Hour, time.Minute)
	d.says("1.1@0s 2.1@3h0m0s")
}

func TestAnInstantWaitsForTheOpenRun(t *testing.T) {
	for name, late := range map[string]func(d *diary, id task.ID){
		"closed by SQL":               func(d *diary, id task.ID) { d.closes(id, 1) },
		"closed by the state machine": func(d *diary, id task.ID) { d.heartbeat(7, attempt(id, 1, 1)); d.closes(id, 1) },
		"closed as dead": func(d *diary, id task.ID) {
			r := success(id, 1, 1, 7)
			r.Outcome, r.Permanent = task.Fail, true
			d.report(r)
		},
		"allowed by an edit": func(d *diary, id task.ID) { d.edit(id, func(s *task.Spec) { s.Overlap = 0 }) },
	} {
		t.Run(name, func(t *testing.T) {
			d, id := overlapping(setup(t, nearOnly), task.OverlapBufferOne)
			d.until(150*time.Minute, time.Minute)
			d.says("1.1@0s")
			d.has(id, 0, time.Hour)
			late(d, id)
			d.until(170*time.Minute, time.Minute)
			d.has(id, 1, 3*time.Hour)
			d.says("1.1@0s 2.1@2h31m0s")
		})
	}
}

// timing: T18.4
func TestASilentRunIsOpenUntilItIsDead(t *testing.T) {
	d, id := overlapping(setup(t, nearOnly), task.OverlapSkip, func(s *task.Spec) {
		s.AckTimeout, s.GiveUpAfter = time.Minute, 90*time.Minute
	})
	d.until(2*time.Hour, time.Minute)
	d.says("1.1@0s 1.2@1h0m0s 1.3@1h2m0s 1.4@1h6m0s 1.5@1h14m0s 1 dead@1h30m0s 2.1@2h0m0s")
	d.has(id, 1, 3*time.Hour)
}

// timing: T18.4
func TestASilentRunThatAnInstantWaitsForComesAgain(t *testing.T) {
	d, id := overlapping(setup(t, nearOnly), task.OverlapBufferOne, func(s *task.Spec) {
		s.Interval, s.AckTimeout, s.GiveUpAfter = 30*time.Hour, 10*time.Hour, 20*24*time.Hour
	})
	d.answer = func(p task.Publication) bool { return p.Attempt == 5 || p.Seq > 1 }
	d.until(61*time.Hour, time.Hour)
	d.says("1.1@0s 1.2@10h1m0s 1.3@20h1m0s 1.4@30h1m0s 1.5@40h1m0s 2.1@40h1m0s 3.1@60h1m0s")
	d.has(id, 0, 90*time.Hour)
}

func TestARowIsNotClaimedAheadWhileItsRunIsOpen(t *testing.T) {
	for _, overlap := range []task.Overlap{task.OverlapSkip, task.OverlapBufferOne} {
		d, id := overlapping(setup(t, nearOnly), overlap)
		d.setClock(d.begin.Add(time.Hour - 300*time.Millisecond))
		if c := d.claimAhead(task.RangeForm, time.Second); c.Rows != 0 || len(c.Publications) > 0 {
			t.Errorf("%s: claimed ahead: %+v", overlap, c)
		}
		d.closes(id, 1)
		c := d.claimAhead(task.RangeForm, time.Second)
		if len(c.Publications) != 1 || c.Publications[0].ScheduledAt != d.begin.Add(time.Hour) {
			t.Errorf("%s: after the result: %+v", overlap, c)
		}
		d.has(id, 0, 2*time.Hour)
	}
}
