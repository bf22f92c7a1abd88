package tenants

import (
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/HdrHistogram/hdrhistogram-go"

	"github.com/perceptor/perceptor/loadtest/check"
	"github.com/perceptor/perceptor/loadtest/harness"
)

// result returns a checked window with that number of cycles.
func result(cycles int64) check.Result {
	var res check.Result
	res.Figures.Window.Cycles = cycles
	res.Figures.Lateness, res.Figures.AddTime = hdrhistogram.New(1, 1000, 3), hdrhistogram.New(1, 1000, 3)
	return res
}

// load returns a load of 1,000 cycles in which taskd used us of processor time for each.
func load(us time.Duration) (l Load) {
	l.measured(harness.Usage{Took: 10 * time.Second, WAL: 5000, CPU: map[string]time.Duration{
		"taskd-1": 1000 * us, "kafka": 100 * time.Millisecond, "listener-1": time.Second, "loadtest": time.Second,
	}}, result(1000))
	return l
}

func TestListenersAndAddsAreNoPartOfTheInstallation(t *testing.T) {
	l := load(50 * time.Microsecond)
	if l.CyclesPerS != 100 || l.OwnUs != 50 || l.InstallationUs != 150 || l.UsPerCycle["total"] != 2150 || l.WALPerCycle != 5 {
		t.Errorf("wrong figures: %+v", l)
	}
}

func TestWindowsAreComparedWithThoseBeforeAndAfter(t *testing.T) {
	r := Report{Findings: harness.Findings{Violations: map[check.Kind]int64{}}}
	r.add(load(100*time.Microsecond), result(1000))
	if r.Ratio != 0 || r.LimitRatio != 0 {
		t.Errorf("ratios %v and %v with a single window", r.Ratio, r.LimitRatio)
	}
	r.add(load(300*time.Microsecond), result(1000))
	broken := result(1000)
	broken.Violations = map[check.Kind]int64{check.Kinds[0]: 2}
	r.add(load(500*time.Microsecond), broken)
	r.add(load(100*time.Microsecond), result(1000))
	if r.Ratio != 2 || r.LimitRatio != 2 {
		t.Errorf("ratios %v and %v, want 400 to 200, and 600 to the mean of 400 and 200", r.Ratio, r.LimitRatio)
	}
	if err := r.Verdict(); !errors.Is(err, harness.ErrBroken) || r.Broken() != 2 {
		t.Errorf("the verdict of %d violations is %v", r.Broken(), err)
	}
}

func TestALostWaitingTaskIsAFault(t *testing.T) {
	r := Report{Sizes: []Size{{Tenants: 10}}}
	if err := r.Verdict(); err != nil {
		t.Errorf("without a loss: %v", err)
	}
	r.Sizes[0].Lost = 3
	if err := r.Verdict(); !errors.Is(err, harness.ErrBroken) || !strings.Contains(err.Error(), "3 waiting tasks of 10 tenants") {
		t.Errorf("with a loss: %v", err)
	}
}

func TestOptionsThatCannotBeMeasuredAreRefused(t *testing.T) {
	for fault, change := range map[string]func(*Options){
		"--rate":    func(o *Options) { o.Rate = 0 },
		"--kill":    func(o *Options) { o.Kill, o.Waiting = true, 1 },
		"--waiting": func(o *Options) { o.Kill, o.Real.Dispatchers = true, 2 },
		"--limit":   func(o *Options) { o.Limit = 4 },
		"--delay":   func(o *Options) { o.Delay.Min = o.Delay.Max + 1 },
		"--tenants": func(o *Options) { o.Tenants = 0 },
	} {
		o := DefaultOptions()
		change(&o)
		if err := harness.Validate(&o); err == nil || !strings.Contains(err.Error(), fault) {
			t.Errorf("%s: the error is %v", fault, err)
		}
	}
	o := DefaultOptions()
	o.Limit, o.Waiting, o.Kill, o.Real.Dispatchers = 5, 100, true, 2
	if err := harness.Validate(&o); err != nil {
		t.Errorf("a rate of 5 for 5 cycles per second of each tenant: %v", err)
	}
}
