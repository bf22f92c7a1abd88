package schedule

import (
	"fmt"
	"math/rand/v2"
	"sync"
	"testing"
	"time"

	"github.com/perceptor/perceptor/task"
)

func TestCountIsHowOftenNextWalks(t *testing.T) {
	zones := []string{"UTC", "America/New_York", "Europe/London", "Australia/Lord_Howe", "Africa/Casablanca", "Pacific/Apia", "America/Sao_Paulo", "Asia/Kathmandu"}
	seed := rand.Uint64()
	r := rand.New(rand.NewPCG(seed, 1))
	for range 3000 {
		m := newModel(r, []Dialect{Standard, Quartz}[r.IntN(2)])
		zone := zones[r.IntN(len(zones))]
		c := mustParse(t, m.dialect, m.expr, zone)
		// Most begin near a change of the clock.
		k := 1 + r.IntN(max(1, len(c.zone.starts)-1))
		after := time.Unix(c.zone.starts[min(k, len(c.zone.starts)-1)]-r.Int64N(100_000), r.Int64N(1e9))
		until, n := after, int64(0)
		for range r.IntN(400) {
			next, ok := c.Next(until)
			if !ok {
				break
			}
			until, n = next, n+1
			if r.IntN(8) == 0 {
				if got := c.Count(after, until); got != n {
					t.Fatalf("seed %d: %q in %s from %s to %s: counted %d, walked %d", seed, m.expr, zone, after.UTC(), until, got, n)
				}
				if got := c.Count(after, until.Add(-1)); got != n-1 {
					t.Fatalf("seed %d: %q in %s from %s to before %s: counted %d, walked %d", seed, m.expr, zone, after.UTC(), until, got, n-1)
				}
			}
		}
	}
}

func TestCountOfLongTimesNeedsNoWalk(t *testing.T) {
	start := time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC)
	for _, c := range []struct {
		dialect    Dialect
		expr, zone string
		until      time.Time
		want       int64
	}{
		{Standard, "* * * * * *", "UTC", start.AddDate(10, 0, 0), (10*365 + 2) * secondsPerDay},
		{Standard, "* * * * * *", "America/New_York", start.AddDate(10, 0, 0), (10*365 + 2) * secondsPerDay},
		{Standard, "30 2 * * *", "America/New_York", start.AddDate(10, 0, 0), 10*365 + 2}, // in gaps too, once
		{Standard, "0 0 29 2 *", "UTC", start.AddDate(100, 0, 0), 24},                     // 2100 is no leap year
		{Quartz, "0 0 12 LW * ?", "Asia/Shanghai", start.AddDate(10, 0, 0), 120},
		{Quartz, "0 0 0 1 1 ? 2030", "UTC", time.Date(9000, 1, 1, 0, 0, 0, 0, time.UTC), 1},
		{Named, "@daily", "UTC", start, 0},
		{Named, "@daily", "UTC", start.Add(-time.Hour), 0},
	} {
		if got := mustParse(t, c.dialect, c.expr, c.zone).Count(start, c.until); got != c.want {
			t.Errorf("%q in %s until %s: counted %d, want %d", c.expr, c.zone, c.until, got, c.want)
		}
	}
}

func cronOf(expr string) task.Cron {
	return task.Cron{Dialect: task.StandardCron, Expression: expr, Zone: "UTC"}
}

func TestDialectsHaveTheNumbersOfTheTask(t *testing.T) {
	for d, stored := range map[Dialect]task.Dialect{Standard: task.StandardCron, Quartz: task.QuartzCron, Named: task.NamedCron} {
		if int16(d) != int16(stored) {
			t.Errorf("%s is %d here and %d in tasks", d, d, stored)
		}
	}
}

func TestCalendarsOfLikeTasksDifferByHAndSpreadAlone(t *testing.T) {
	cs := NewCalendars(10)
	first := func(expr string, id task.ID, spread time.Duration) task.Instant {
		c, err := cs.Of(cronOf(expr), id, spread)
		if err != nil {
			t.Fatal(err)
		}
		at, ok := c.Next(-1)
		if !ok {
			t.Fatalf("%s: no instant", expr)
		}
		if n := c.Count(-1, at); n != 1 {
			t.Errorf("%s: %d instants until the first", expr, n)
		}
		if n := c.Count(-1, at-1); n != 0 {
			t.Errorf("%s: %d instants before the first", expr, n)
		}
		return at
	}
	if a, b := first("0 0 * * *", 513, 0), first("0 0 * * *", 1025, 0); a != b {
		t.Errorf("without H: %s and %s", a, b)
	}
	if a, b := first("H H * * *", 513, 0), first("H H * * *", 1025, 0); a == b || a != first("H H * * *", 513, 0) {
		t.Errorf("with H: %s and %s", a, b)
	}
	const window = 10 * time.Minute
	if at := first("0 0 * * *", 513, window); at != task.Instant(task.SpreadOf(513, window).Milliseconds()) {
		t.Errorf("spread: %s", at)
	}
}

func TestCalendarsRefuseWhatNeverFires(t *testing.T) {
	cs := NewCalendars(10)
	for _, c := range []task.Cron{
		cronOf("0 0 31 2 *"), cronOf("0 0 H(30-31) 2 *"),
		{Dialect: task.QuartzCron, Expression: "0 0 0 30 2 ?", Zone: "UTC"},
		{Dialect: task.QuartzCron, Expression: "0 0 0 31 4 ? 2030", Zone: "UTC"},
		{Dialect: 9, Expression: "* * * * *"}, {Dialect: task.NamedCron, Expression: "@every 1h"},
		{Dialect: task.StandardCron, Expression: "* * * * *", Zone: "Europe/Atlantis"},
	} {
		if _, err := cs.Of(c, 513, 0); err == nil {
			t.Errorf("%+v is taken", c)
		}
	}
}

func TestCalendarsKeepABoundedNumber(t *testing.T) {
	cs := NewCalendars(8)
	var wg sync.WaitGroup
	for g := range 4 {
		wg.Go(func() {
			for i := range 200 {
				for _, expr := range []string{"0 0 * * *", fmt.Sprintf("%d %d * * *", i%60, g), "H * * * *"} {
					if _, err := cs.Of(cronOf(expr), task.ID(i+1), 0); err != nil {
						t.Error(err)
					}
				}
			}
		})
	}
	wg.Wait()
	if n := len(cs.young) + len(cs.old); n > 16 {
		t.Errorf("%d expressions are kept", n)
	}
	if cs.known(expression{Cron: cronOf("0 0 * * *")}) == nil {
		t.Error("what is asked for all the time was forgotten")
	}
}
