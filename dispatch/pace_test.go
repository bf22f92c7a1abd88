package dispatch

import (
	"testing"
	"time"
)

// paceDay drives a pace for a while: rows are taken whenever there are tokens, and
// 200 records of the front a second are late as told.
func paceDay(p *pace, from time.Time, seconds int, late func(perSecond float64) time.Duration) (to time.Time, rows int) {
	next := from
	for i := range seconds * 200 {
		now := from.Add(time.Duration(i) * 5 * time.Millisecond)
		p.published(now, late(p.perSecond))
		for !now.Before(next) {
			n, wait := p.take(now, true)
			if rows += n; n == 0 {
				next = now.Add(wait)
			}
		}
	}
	return from.Add(time.Duration(seconds) * time.Second), rows
}

func TestPaceRisesWhileTheFrontIsInTimeAndSettlesWhereItIsNot(t *testing.T) {
	p, start := newPace(), time.Unix(0, 0)
	if _, rows := paceDay(&p, start, 10, func(float64) time.Duration { return time.Millisecond }); p.perSecond < 50_000 || rows < 100_000 {
		t.Errorf("after 10 s with a front in time the pace is %.0f, and %d rows were taken", p.perSecond, rows)
	}
	p = newPace()
	const bearable = 9000
	to, _ := paceDay(&p, start, 20, func(perSecond float64) time.Duration {
		if perSecond > bearable {
			return time.Second
		}
		return time.Millisecond
	})
	_, rows := paceDay(&p, to, 60, func(perSecond float64) time.Duration {
		if perSecond > bearable {
			return time.Second
		}
		return time.Millisecond
	})
	if mean := rows / 60; mean < bearable/2 || mean > bearable {
		t.Errorf("%d rows a second were taken; the front bears %d", mean, bearable)
	}
}

// TestFrontThatIsLateAnywayDoesNotHoldBackBacklogs: it is late at the least pace, so
// the pace is not why.
func TestFrontThatIsLateAnywayDoesNotHoldBackBacklogs(t *testing.T) {
	p := newPace()
	late := func(float64) time.Duration { return 300 * time.Millisecond }
	to, _ := paceDay(&p, time.Unix(0, 0), 30, late)
	if _, rows := paceDay(&p, to, 30, late); rows < 30*firstPace {
		t.Errorf("%d rows were taken in 30 s after 30 s with a front that is 300 ms late whatever is taken", rows)
	}
	if p.quiet > 30*time.Millisecond {
		t.Errorf("what is usual in quiet times was learnt from others: %v", p.quiet)
	}
}

func TestBacklogsDoNotWaitWhereThereIsNobodyElse(t *testing.T) {
	p, now := newPace(), time.Unix(0, 0)
	for range 10 {
		if n, wait := p.take(now, false); n != paceMost || wait != 0 {
			t.Fatalf("%d rows and a wait of %v", n, wait)
		}
	}
	if n, _ := p.take(now, true); n != 0 {
		t.Errorf("%d more rows at once beside a front", n)
	}
}

func TestPaceNeverStandsStill(t *testing.T) {
	p := newPace()
	_, rows := paceDay(&p, time.Unix(0, 0), 60, func(float64) time.Duration { return time.Minute })
	if rows < 55*leastPace {
		t.Errorf("%d rows were taken in 60 s beside a front that is late all the time; want %d", rows, 60*leastPace)
	}
}

func TestUsualLatenessIsLearntWhileNoBacklogIsTaken(t *testing.T) {
	p, now := newPace(), time.Unix(0, 0)
	for i := range 20_000 {
		late := 20 * time.Millisecond
		if i%50 == 0 { // two of a hundred
			late = 80 * time.Millisecond
		}
		now = now.Add(time.Millisecond)
		p.published(now, late)
	}
	if p.usual < 50*time.Millisecond || p.usual > 100*time.Millisecond {
		t.Errorf("usual is %v; two records in a hundred are 80 ms late", p.usual)
	}
}
