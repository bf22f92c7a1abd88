package shards

import (
	"slices"
	"testing"
	"testing/synctest"
	"time"

	"github.com/perceptor/perceptor/task"
)

// lagWorld reports groups of results to a meter.
type lagWorld struct {
	meter *lagMeter
	told  [][]task.Lag
}

func newLagWorld() *lagWorld {
	w := &lagWorld{}
	w.meter = newLagMeter(func(l []task.Lag) { w.told = append(w.told, l) })
	return w
}

// report stores a group of results of a tenant whose runs have waited for so long each. The call has waited for a second in taskd.
func (w *lagWorld) report(tenant int32, idle bool, waits ...time.Duration) {
	var in []reported
	replies := make([]task.Reply, len(waits))
	now := time.Now()
	for i, wait := range waits {
		const inTaskd, handler = time.Second, 300 * time.Millisecond
		in = append(in, reported{tenant: tenant, Report: task.Report{Idle: idle, Timeline: &task.Timeline{
			PublishedAt: task.At(now.Add(-wait - inTaskd - handler)), Arrived: now.Add(-inTaskd), BegunAgo: handler,
		}}})
		replies[i].Code = task.Accepted
	}
	w.meter.note(in, replies, task.At(now), now)
}

// during reports a group every 100 ms for d.
func (w *lagWorld) during(d time.Duration, tenant int32, idle bool, waits ...time.Duration) {
	for end := time.Now().Add(d); time.Now().Before(end); time.Sleep(100 * time.Millisecond) {
		w.report(tenant, idle, waits...)
	}
}

func TestATenantLagsWhileAllOfItsRunsWaitForIdleListeners(t *testing.T) {
	const long, short = 900 * time.Millisecond, 100 * time.Millisecond
	for name, c := range map[string]struct {
		idle  bool
		waits []time.Duration
		want  bool
	}{
		"all wait":                   {true, []time.Duration{long, 2 * long}, true},
		"one does not":               {true, []time.Duration{long, short, long}, false},
		"all handlers are at work":   {false, []time.Duration{long, 2 * long}, false},
		"nobody says when they wait": {true, nil, false},
	} {
		synctest.Test(t, func(t *testing.T) {
			w := newLagWorld()
			w.during(3*time.Second, 7, c.idle, c.waits...)
			if got := len(w.told) > 0; got != c.want {
				t.Fatalf("%s: the tenant lags: %t, want %t", name, got, c.want)
			}
			if !c.want {
				return
			}
			want := []task.Lag{{Tenant: 7, Wait: long, PerSecond: 20}}
			if got := w.told[len(w.told)-1]; !slices.Equal(got, want) {
				t.Errorf("%s: told of %+v, want %+v", name, got, want)
			}
			if n := len(w.told); n < 3 || n > 5 {
				t.Errorf("%s: told %d times in 3 s, want twice a second after the first", name, n)
			}
		})
	}
}

// TestManySmallTenantsDoNotLag: their rows are not claimed apart, however long they wait.
func TestManySmallTenantsDoNotLag(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		const small, large, long = 40, 1, 900 * time.Millisecond
		w := newLagWorld()
		for range 30 {
			for i := range int32(small) {
				w.report(2+i, true, long)
			}
			w.report(large, true, slices.Repeat([]time.Duration{long}, small)...)
			time.Sleep(100 * time.Millisecond)
		}
		if len(w.told) == 0 {
			t.Fatal("nobody lags, want the large tenant to")
		}
		for _, lags := range w.told {
			if len(lags) != 1 || lags[0].Tenant != large {
				t.Fatalf("told of %+v, want the large tenant alone", lags)
			}
		}
	})
}

// TestTheRateOfALagIsTheBestOfTheLastWindows has fewer and fewer results, because the service is full.
func TestTheRateOfALagIsTheBestOfTheLastWindows(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w, wait := newLagWorld(), 2*time.Second
		w.during(2*time.Second, 7, true, wait, wait, wait, wait, wait)
		w.during(2*time.Second, 7, true, wait)
		if got := w.told[len(w.told)-1]; len(got) != 1 || got[0].PerSecond != 50 {
			t.Errorf("told of %+v, want the 50 per second of before", got)
		}
		w.during(5*time.Second, 7, true, wait)
		if got := w.told[len(w.told)-1]; len(got) != 1 || got[0].PerSecond != 10 {
			t.Errorf("told of %+v, want 10 per second", got)
		}
	})
}

// TestAPauseOfTheListenersIsNoLag has listeners that share the partitions anew for two seconds.
func TestAPauseOfTheListenersIsNoLag(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newLagWorld()
		for range 3 {
			w.during(2*time.Second, 7, true, 0)
			time.Sleep(2 * time.Second)
			w.during(500*time.Millisecond, 7, true, 2*time.Second)
		}
		if len(w.told) > 0 {
			t.Errorf("told of %v", w.told)
		}
	})
}

// TestResultsOfSeveralWindowsAtOnceAreNoRate has a server that stores nothing for a second and a half.
func TestResultsOfSeveralWindowsAtOnceAreNoRate(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w, wait := newLagWorld(), 2*time.Second
		w.during(2*time.Second, 7, true, wait)
		time.Sleep(1400 * time.Millisecond)
		w.report(7, true, slices.Repeat([]time.Duration{wait}, 15)...)
		w.during(2*time.Second, 7, true, wait)
		if got := w.told[len(w.told)-1]; len(got) != 1 || got[0].PerSecond > 25 {
			t.Errorf("told of %+v, want not much more than 10 per second", got)
		}
	})
}

func TestResultsThatComeRarelyAreNoLag(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newLagWorld()
		for range 10 {
			w.report(7, true, time.Minute)
			time.Sleep(1100 * time.Millisecond)
		}
		if len(w.told) > 0 {
			t.Errorf("told of %v", w.told)
		}
	})
}

func TestTheLagMeterForgetsTenantsWithoutResults(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newLagWorld()
		for tenant := range int32(1000) {
			w.report(tenant, true, 0)
		}
		w.during(10*time.Second, 7, true, 0)
		if n := len(w.meter.tenants); n != 1 {
			t.Errorf("%d tenants are remembered, want 1", n)
		}
	})
}

func TestResultsThatAreNotPlainCount(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newLagWorld()
		failed := []reported{{tenant: 7, Report: task.Report{Idle: true}}}
		for range 30 {
			w.report(7, true, time.Second)
			w.meter.note(failed, []task.Reply{{Code: task.Accepted}}, 0, time.Time{})
			w.meter.note(failed, []task.Reply{{Code: task.Already}}, 0, time.Time{})
			time.Sleep(100 * time.Millisecond)
		}
		if got := w.told[len(w.told)-1]; len(got) != 1 || got[0].PerSecond != 20 {
			t.Errorf("told of %+v, want 20 results per second", got)
		}
	})
}
