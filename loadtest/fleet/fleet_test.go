package fleet

import (
	"bytes"
	"strings"
	"testing"
	"time"

	"github.com/perceptor/perceptor/loadtest/check"
	"github.com/perceptor/perceptor/loadtest/harness"
	"github.com/perceptor/perceptor/loadtest/scenario"
)

func TestSizesAreReadAsTheyAreWritten(t *testing.T) {
	o := DefaultOptions()
	flag := &sizes{&o.Sizes, false}
	for _, text := range []string{"8x16", "1x1,16x64"} {
		if err := flag.Set(text); err != nil {
			t.Errorf("Set(%q) = %v", text, err)
		}
	}
	if got := flag.String(); got != "8x16,1x1,16x64" {
		t.Errorf("sizes = %s, want those of both flags in the place of the default", got)
	}
	for _, text := range []string{"", "8", "8x", "x8", "0x1", "1x0", "3x1", "17x1", "1x65", "1x1x1", "1x1,", "8x16"} {
		if err := flag.Set(text); err == nil {
			t.Errorf("Set(%q) returned no error", text)
		}
	}
}

func TestOptionsThatCannotWorkAreRefusedByName(t *testing.T) {
	for _, c := range []struct {
		flag   string
		change func(*Options)
	}{
		{"--sizes", func(o *Options) { o.Sizes = nil }},
		{"--rate", func(o *Options) { o.Rate = 0 }},
		{"--type", func(o *Options) { o.Type = "all" }},
		{"--params-bytes", func(o *Options) { o.ParamsBytes = 1 << 20 }},
		{"--cron", func(o *Options) { o.Cron, o.Interval = 0.5, 7*time.Second }},
		{"--link", func(o *Options) { o.Link = -time.Millisecond }},
		{"--limit", func(o *Options) { o.Limit = 0.5 }},
		{"--secure", func(o *Options) { o.Real.Secure, o.Replicated = true, true }},
	} {
		o := DefaultOptions()
		if err := harness.Validate(&o); err != nil {
			t.Fatalf("defaults: %v", err)
		}
		c.change(&o)
		if err := harness.Validate(&o); err == nil || !strings.Contains(err.Error(), c.flag) {
			t.Errorf("error = %[2]v, want one about %[1]s", c.flag, err)
		}
	}
}

// measured returns the report of a load whose processes used the given time for a cycle.
func measured(us map[string]float64) *scenario.Report {
	total, seconds := 0.0, map[string]float64{}
	for name, x := range us {
		total += x
		seconds[name] = x
	}
	us["total"] = total
	return &scenario.Report{
		CPU: harness.CPU{Seconds: seconds, UsPerCycle: us}, Sessions: 67, Complete: true, MemoryMiB: map[string]float64{"dispatcher-1": 70, "dispatcher-2": 80},
	}
}

func newReport() *Report {
	return &Report{Header: harness.Header{Versions: map[string]string{}}, Limit: 1.5}
}

func TestProcessesAreAddedUpByTheirKind(t *testing.T) {
	r := newReport()
	r.add(Size{1, 2}, measured(map[string]float64{"postgres-backends": 40, "postgres-background": 5, "postgres-2": 15, "dispatcher-1": 20, "dispatcher-2": 20, own: 30}))
	s := r.Sizes[0]
	if s.UsPerCycle["postgres"] != 60 || s.UsPerCycle["dispatcher"] != 40 || s.UsPerCycle["total"] != 130 {
		t.Errorf("µs by kind = %v", s.UsPerCycle)
	}
	if s.Cost != 100 {
		t.Errorf("a cycle costs %v µs, want 100 without this program", s.Cost)
	}
	if s.MemoryMiB["dispatcher"] != 150 || s.Processes["dispatcher"] != 2 {
		t.Errorf("memory %v of %v processes, want 150 MiB of two dispatchers", s.MemoryMiB, s.Processes)
	}
}

func TestServersMayCostOnlySoMuchMore(t *testing.T) {
	r := newReport()
	us := func(x float64) *scenario.Report { return measured(map[string]float64{"kafka": x}) }
	r.add(Size{1, 1}, us(100))
	r.add(Size{1, 16}, us(400)) // more dispatchers have no limit
	r.add(Size{8, 1}, us(150))
	r.add(Size{8, 16}, us(500))
	if err := r.Verdict(); err != nil {
		t.Errorf("Verdict = %v, want none: eight servers cost 1.5 and 1.25 times one", err)
	}
	for i, want := range []struct{ first, fewest float64 }{{1, 0}, {4, 0}, {1.5, 1.5}, {5, 1.25}} {
		if s := r.Sizes[i]; s.Ratio != want.first || s.RatioToFewest != want.fewest {
			t.Errorf("%s: ratios %v and %v, want %v", s.Size, s.Ratio, s.RatioToFewest, want)
		}
	}
	r.add(Size{16, 1}, us(151))
	if err := r.Verdict(); err == nil || !strings.Contains(err.Error(), "16 PostgreSQL servers costs 1.51 times that with 1") {
		t.Errorf("Verdict = %v, want a fault of 16 servers", err)
	}
}

func TestViolationsOfAllSizesAreFaults(t *testing.T) {
	r := newReport()
	for _, n := range []int64{0, 2, 1} {
		m := measured(map[string]float64{"kafka": 1})
		m.Findings = harness.Findings{Violations: map[check.Kind]int64{check.Lost: n}}
		r.add(Size{int(n + 1), 1}, m)
	}
	var text bytes.Buffer
	if err := harness.WriteTable(&text, r); err != nil || r.Broken() != 3 || !strings.Contains(text.String(), "lost 3") {
		t.Errorf("%d violations, want 3 in the table (%v):\n%s", r.Broken(), err, text.String())
	}
	if r.Verdict() == nil {
		t.Error("lost tasks are no fault")
	}
}

func TestALoadThatWasNotDoneIsAFault(t *testing.T) {
	r := newReport()
	m := measured(map[string]float64{"kafka": 1})
	m.Complete = false
	r.add(Size{1, 1}, m)
	if err := r.Verdict(); err == nil || !strings.Contains(err.Error(), "1x1") {
		t.Errorf("Verdict = %v, want a fault of 1x1", err)
	}
}
