package scenario

import (
	"bytes"
	"encoding/json"
	"strings"
	"testing"
	"time"

	"github.com/perceptor/perceptor/loadtest/check"
	"github.com/perceptor/perceptor/loadtest/floor"
	"github.com/perceptor/perceptor/loadtest/harness"
)

func TestDisturbancesAreReadAsTheyAreWritten(t *testing.T) {
	for _, c := range []struct {
		action Action
		text   string
		want   Disturbance
	}{
		{Kill, "dispatcher@10s", Disturbance{Kill, "dispatcher", 10 * time.Second, 0, ""}},
		{Stop, "taskd-2@1500ms", Disturbance{Stop, "taskd-2", 1500 * time.Millisecond, 0, ""}},
		{Pause, "dispatcher@10s:6s", Disturbance{Pause, "dispatcher", 10 * time.Second, 6 * time.Second, ""}},
		{Restart, "kafka@0s", Disturbance{Restart, "kafka", 0, 0, ""}},
		{Replace, "taskd-2@3s:/opt/next", Disturbance{Replace, "taskd-2", 3 * time.Second, 0, "/opt/next"}},
		{Crash, "listener-2@7s", Disturbance{Crash, "listener-2", 7 * time.Second, 0, ""}},
		{Move, "3@20s", Disturbance{Move, "3", 20 * time.Second, 0, ""}},
	} {
		got, err := ParseDisturbance(c.action, c.text)
		if err != nil || got != c.want {
			t.Errorf("ParseDisturbance(%s, %s) = %+v, %v", c.action, c.text, got, err)
		}
	}
}

func TestAMalformedDisturbanceIsRefused(t *testing.T) {
	for action, texts := range map[Action][]string{
		Kill:    {"", "dispatcher", "@10s", "dispatcher@", "dispatcher@10", "dispatcher@-1s", "dispatcher@10s:6s", "dispatcher@x"},
		Replace: {"dispatcher@10s", "dispatcher@10s:", "dispatcher@x:bin"},
		Move:    {"", "3", "16@1s", "-1@1s", "x@1s", "3@1s:2s"},
		Pause:   {"dispatcher@10s", "dispatcher@10s:", "dispatcher@10s:0s", "dispatcher@10s:-6s"},
	} {
		for _, text := range texts {
			if d, err := ParseDisturbance(action, text); err == nil {
				t.Errorf("ParseDisturbance(%s, %q) = %+v, want an error", action, text, d)
			}
		}
	}
}

func TestOptionsThatCannotWorkAreRefusedByName(t *testing.T) {
	for _, c := range []struct {
		flag   string
		change func(*Options)
	}{
		{"--stack", func(o *Options) { o.Stack = "imaginary" }},
		{"--type", func(o *Options) { o.Type = "ONE" }},
		{"--rate", func(o *Options) { o.Rate = 0 }},
		{"--for", func(o *Options) { o.For = 0 }},
		{"--interval", func(o *Options) { o.Interval = -time.Second }},
		{"--warmup", func(o *Options) { o.Warmup = -1 }},
		{"--cron", func(o *Options) { o.Cron, o.Interval = 0.5, 7*time.Second }},
		{"--workers", func(o *Options) { o.Workers = 0 }},
		{"--dispatchers", func(o *Options) { o.Real.Dispatchers = 0 }},
		{"--retain", func(o *Options) { o.Retain = 1.1 }},
		{"--contract", func(o *Options) { o.Contract, o.For = true, 5*time.Second }},
		{"--fail", func(o *Options) { o.Fail = -0.1 }},
		{"--session", func(o *Options) { o.Real.Session = time.Minute }},
		{"--adds-per-call", func(o *Options) { o.AddsPerCall = 1001 }},
		{"--work", func(o *Options) { o.Work = time.Hour }},
		{"dispatcher", func(o *Options) { o.Disturbances = []Disturbance{{Kill, "dispatcher", time.Second, 0, ""}} }},
		{"postgres", func(o *Options) { o.Disturbances = []Disturbance{{Stop, "postgres", time.Second, 0, ""}} }},
		{"--pause", func(o *Options) { o.Disturbances = []Disturbance{{Pause, "listener", time.Second, time.Second, ""}} }},
		{"listener", func(o *Options) { o.Disturbances = []Disturbance{{Kill, "listener", time.Second, 0, ""}} }},
		{"--restart", func(o *Options) { o.Disturbances = []Disturbance{{Restart, "kafka", time.Hour, 0, ""}} }},
		{"--pause", func(o *Options) {
			o.Stack, o.Disturbances = "external", []Disturbance{{Pause, "kafka", time.Second, time.Second, ""}}
		}},
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

func TestTheReportHasEveryFigureByName(t *testing.T) {
	took := 12.5
	rep := &Report{
		Type: "mix", Stack: "real", Rate: 10, WindowS: 5, CyclesPerS: 9.5,
		CPU:          harness.CPU{Seconds: map[string]float64{"postgres": 2, "taskd-1": 3}, UsPerCycle: map[string]float64{"total": 100}},
		Disturbances: []DisturbanceReport{{What: "kill dispatcher@1s", Part: "dispatcher-1", TakeoverMs: &took, Shards: 256}},
		Findings: harness.Findings{
			Violations: map[check.Kind]int64{}, Examples: []check.Violation{{Kind: check.Lost, Task: 513, Seq: 2, Message: "gone"}},
		},
	}
	for _, k := range check.Kinds {
		rep.Violations[k] = 0
	}
	rep.Violations[check.Lost] = 3

	var text bytes.Buffer
	if err := harness.WriteJSON(&text, rep); err != nil {
		t.Fatal(err)
	}
	var got map[string]any
	if err := json.Unmarshal(text.Bytes(), &got); err != nil {
		t.Fatal(err)
	}
	for _, name := range []string{
		"adds_per_s", "fires_per_s", "callbacks_per_s", "results_per_s", "cycles_per_s", "lateness_ms", "cpu_s",
		"cpu_us_per_cycle", "violations", "disturbances", "machine", "versions", "commit", "command_line", "seed",
	} {
		if _, ok := got[name]; !ok {
			t.Errorf("the JSON report has no key %s", name)
		}
	}
	for _, name := range []string{"lost", "early", "duplicate_result", "out_of_bounds", "overlap", "over_count"} {
		if _, ok := got["violations"].(map[string]any)[name]; !ok {
			t.Errorf("violations have no key %s", name)
		}
	}
	for _, name := range []string{"p50", "p99", "p999", "max"} {
		if _, ok := got["lateness_ms"].(map[string]any)[name]; !ok {
			t.Errorf("lateness_ms has no key %s", name)
		}
	}
	if rep.Broken() != 3 {
		t.Errorf("Broken() = %d, want 3", rep.Broken())
	}
	text.Reset()
	if err := harness.WriteTable(&text, rep); err != nil {
		t.Fatal(err)
	}
	for _, want := range []string{"lost 3", "run 513-2: gone", "256 shards taken over after 12 ms", "taskd-1"} {
		if !strings.Contains(text.String(), want) {
			t.Errorf("the table does not contain %q:\n%s", want, text.String())
		}
	}
}

func aFloor(cycles, us, short float64) *floor.Report {
	return &floor.Report{
		CyclesPerS: cycles,
		Max:        &floor.Run{CyclesPerS: cycles, CPU: harness.CPU{UsPerCycle: map[string]float64{"total": us}}},
		Short:      &floor.Run{CyclesPerS: short},
	}
}
