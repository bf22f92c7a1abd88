package fair

import (
	"testing"
	"time"
)

// simulate drives a controller for a while: rows are taken whenever there are tokens, and
// 200 records of the foreground a second are late as told.
func simulate(c *RateController, from time.Time, seconds int, late func(perSecond float64) time.Duration) (to time.Time, rows int) {
	next := from
	for i := range seconds * 200 {
		now := from.Add(time.Duration(i) * 5 * time.Millisecond)
		c.Published(now, late(c.perSecond))
		for !now.Before(next) {
			n, wait := c.TakeRows(now, true)
			if rows += n; n == 0 {
				next = now.Add(wait)
			}
		}
	}
	return from.Add(time.Duration(seconds) * time.Second), rows
}

func TestRateRisesWhileTheForegroundIsOnTimeAndSettlesWhereItIsNot(t *testing.T) {
	c, start := NewRateController(), time.Unix(0, 0)
	if _, rows := simulate(&c, start, 10, func(float64) time.Duration { return time.Millisecond }); c.perSecond < 50_000 || rows < 100_000 {
		t.Errorf("after 10 s with a foreground in time the rate is %.0f, and %d rows were taken", c.perSecond, rows)
	}
	c = NewRateController()
	const bearable = 9000
	to, _ := simulate(&c, start, 20, func(perSecond float64) time.Duration {
		if perSecond > bearable {
			return time.Second
		}
		return time.Millisecond
	})
	_, rows := simulate(&c, to, 60, func(perSecond float64) time.Duration {
		if perSecond > bearable {
			return time.Second
		}
		return time.Millisecond
	})
	if mean := rows / 60; mean < bearable/2 || mean > bearable {
		t.Errorf("%d rows a second were taken; the foreground bears %d", mean, bearable)
	}
}

// TestForegroundThatIsLateAnywayDoesNotHoldBackBacklogs: it is late at the lowest rate, so
// the rate is not why.
func TestForegroundThatIsLateAnywayDoesNotHoldBackBacklogs(t *testing.T) {
	c := NewRateController()
	late := func(float64) time.Duration { return 300 * time.Millisecond }
	to, _ := simulate(&c, time.Unix(0, 0), 30, late)
	if _, rows := simulate(&c, to, 30, late); rows < 30*firstRate {
		t.Errorf("%d rows were taken in 30 s after 30 s with a foreground that is 300 ms late whatever is taken", rows)
	}
	if c.quiet > 30*time.Millisecond {
		t.Errorf("what is usual in quiet times was learnt from others: %v", c.quiet)
	}
}

func TestBacklogsDoNotWaitWhereThereIsNobodyElse(t *testing.T) {
	c, now := NewRateController(), time.Unix(0, 0)
	for range 10 {
		if n, wait := c.TakeRows(now, false); n != mostSlice || wait != 0 {
			t.Fatalf("%d rows and a wait of %v", n, wait)
		}
	}
	if n, _ := c.TakeRows(now, true); n != 0 {
		t.Errorf("%d more rows at once beside a foreground", n)
	}
}

func TestRateNeverStandsStill(t *testing.T) {
	c := NewRateController()
	_, rows := simulate(&c, time.Unix(0, 0), 60, func(float64) time.Duration { return time.Minute })
	if rows < 55*leastRate {
		t.Errorf("%d rows were taken in 60 s beside a foreground that is late all the time; want %d", rows, 60*leastRate)
	}
}

func TestUsualLatenessIsLearntWhileNoBacklogIsTaken(t *testing.T) {
	c, now := NewRateController(), time.Unix(0, 0)
	for i := range 20_000 {
		late := 20 * time.Millisecond
		if i%50 == 0 { // two of a hundred
			late = 80 * time.Millisecond
		}
		now = now.Add(time.Millisecond)
		c.Published(now, late)
	}
	if c.usual < 50*time.Millisecond || c.usual > 100*time.Millisecond {
		t.Errorf("usual is %v; two records in a hundred are 80 ms late", c.usual)
	}
}
