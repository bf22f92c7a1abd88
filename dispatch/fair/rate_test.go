package fair

import (
	"testing"
	"time"
)

// simulate drives a controller for the given seconds. It takes rows whenever there are
// tokens, and publishes 200 foreground records per second, whose lateness late returns.
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
		t.Errorf("after 10 s with a punctual foreground rate = %.0f, rows taken = %d, want at least 50000 and 100000", c.perSecond, rows)
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
		t.Errorf("%d rows per second were taken, want %d to %d", mean, bearable/2, bearable)
	}
}

// TestRateRecoversFasterTheLongerTheForegroundIsOnTime has a foreground that is late for a
// moment, as by a burst, and then on time.
func TestRateRecoversFasterTheLongerTheForegroundIsOnTime(t *testing.T) {
	c := NewRateController()
	to, _ := simulate(&c, time.Unix(0, 0), 2, func(float64) time.Duration { return time.Second })
	if c.perSecond > firstRate {
		t.Fatalf("the rate is %.0f beside a late foreground, want at most %d", c.perSecond, firstRate)
	}
	to, _ = simulate(&c, to, floorWindows*int(rateWindow/time.Millisecond)/1000+1, func(float64) time.Duration { return time.Millisecond })
	var rates []float64
	for range 3 {
		to, _ = simulate(&c, to, 1, func(float64) time.Duration { return time.Millisecond })
		rates = append(rates, c.perSecond)
	}
	if rates[2]/rates[1] <= rates[1]/rates[0] {
		t.Errorf("the rates of three seconds are %.0f, want the last to grow by a larger part than the one before", rates)
	}
}

// TestForegroundThatIsLateAnywayDoesNotHoldBackBacklogs has a foreground that is late even
// at the lowest rate, so the rate is not the reason.
func TestForegroundThatIsLateAnywayDoesNotHoldBackBacklogs(t *testing.T) {
	c := NewRateController()
	late := func(float64) time.Duration { return 300 * time.Millisecond }
	to, _ := simulate(&c, time.Unix(0, 0), 30, late)
	if _, rows := simulate(&c, to, 30, late); rows < 30*firstRate {
		t.Errorf("%d rows were taken in 30 s beside a foreground that is always 300 ms late, want at least %d", rows, 30*firstRate)
	}
	if c.quiet > 30*time.Millisecond {
		t.Errorf("quiet = %v, want it unchanged by the time in which a backlog was claimed", c.quiet)
	}
}

// TestLatenessThatComesAgainAndAgainDoesNotHoldBackBacklogs has a foreground that is late now and then whatever the
// rate is, such as by a chore of the machine.
func TestLatenessThatComesAgainAndAgainDoesNotHoldBackBacklogs(t *testing.T) {
	for _, every := range []time.Duration{time.Second, 1500 * time.Millisecond, 2 * time.Second, 2500 * time.Millisecond, 4 * time.Second} {
		c, records := NewRateController(), 0
		late := func(float64) time.Duration {
			records++
			if at := time.Duration(records) * 5 * time.Millisecond; at%every < 300*time.Millisecond {
				return 200 * time.Millisecond
			}
			return time.Millisecond
		}
		to, _ := simulate(&c, time.Unix(0, 0), 30, late)
		_, rows := simulate(&c, to, 60, late)
		t.Logf("late each %s: %d rows a second", every, rows/60)
		if rows < 60*5000 {
			t.Errorf("%d rows a second were taken beside a foreground that is late each %s, want at least 5000", rows/60, every)
		}
	}
}

func TestBacklogsDoNotWaitWhereThereIsNobodyElse(t *testing.T) {
	c, now := NewRateController(), time.Unix(0, 0)
	for range 10 {
		if n, wait := c.TakeRows(now, false); n != mostSlice || wait != 0 {
			t.Fatalf("TakeRows without a foreground = %d, %v, want %d, 0", n, wait, mostSlice)
		}
	}
	if n, _ := c.TakeRows(now, true); n != 0 {
		t.Errorf("TakeRows with a foreground = %d right after, want 0", n)
	}
}

func TestRateNeverStandsStill(t *testing.T) {
	c := NewRateController()
	_, rows := simulate(&c, time.Unix(0, 0), 60, func(float64) time.Duration { return time.Minute })
	if rows < 55*leastRate {
		t.Errorf("%d rows were taken in 60 s beside a foreground that is always late, want at least %d", rows, 55*leastRate)
	}
}

func TestUsualLatenessIsLearntWhileNoBacklogIsTaken(t *testing.T) {
	c, now := NewRateController(), time.Unix(0, 0)
	for i := range 20_000 {
		late := 20 * time.Millisecond
		if i%50 == 0 { // two records in a hundred
			late = 80 * time.Millisecond
		}
		now = now.Add(time.Millisecond)
		c.Published(now, late)
	}
	if c.usual < 50*time.Millisecond || c.usual > 100*time.Millisecond {
		t.Errorf("usual = %v with two records in a hundred 80 ms late, want 50ms to 100ms", c.usual)
	}
}

// TestALatenessThatIsOverDoesNotCount has an outage, after which the foreground is on time again unless too many rows of
// the backlog are claimed. The backlog is claimed before the outage, or only after it.
func TestALatenessThatIsOverDoesNotCount(t *testing.T) {
	const bearable = 5000
	for _, claimed := range []bool{false, true} {
		c, now := NewRateController(), time.Unix(0, 0)
		const second = 200 // records
		for i := range 5 * second {
			now = now.Add(time.Second / second)
			c.Published(now, time.Duration(i%50)*100*time.Millisecond)
			if claimed {
				c.TakeRows(now, true)
			}
		}
		late := func(perSecond float64) time.Duration {
			if perSecond > bearable {
				return 400 * time.Millisecond
			}
			return time.Millisecond
		}
		to, _ := simulate(&c, now, 20, late)
		if _, rows := simulate(&c, to, 30, late); rows > 30*bearable {
			t.Errorf("claimed before: %v: %d rows a second are taken although the foreground is late beyond %d", claimed, rows/30, bearable)
		}
	}
}
