package main

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/perceptor/perceptor/loadtest/harness"
	"github.com/perceptor/perceptor/loadtest/scenario"
)

// loads are short runs of the subcommands with their flags.
var loads = []struct {
	load  func() *scenario.Options
	flags string
	// figures are the figures in the JSON that must be positive.
	figures []string
}{
	{
		scenario.Cycle, "--rate 300 --for 3s --warmup 1s --delay 300ms..900ms",
		[]string{"cycles_per_s", "wal_bytes_per_fire", "floor_cycles_per_s", "ratio_to_floor"},
	},
	{scenario.Fire, "--rate 200 --for 2s --warmup 1s --interval 1s", []string{"cycles_per_s", "wal_bytes_per_fire"}},
	{scenario.Add, "--rate 300 --for 2s --warmup 1s --delay 4m..8m --keyed", []string{"tasks_per_s"}},
	{scenario.Soak, "--type mix --rate 200 --for 3s --warmup 1s --interval 1s --delay 300ms --sample-every 200ms", []string{"cycles_per_s"}},
}

func TestEverySubcommandMeasuresAndBreaksNothing(t *testing.T) {
	t.Parallel()
	s := realStack(t)
	for _, c := range loads {
		o := c.load()
		t.Run(o.Command, func(t *testing.T) {
			ctx, cancel := context.WithTimeout(context.Background(), e2eLimit)
			defer cancel()
			dir := t.TempDir()
			table, picture := filepath.Join(dir, "report.json"), filepath.Join(dir, "report.svg")
			o.On, o.Progress, o.FloorFor = s, testLog{t}, 500*time.Millisecond
			cmd := harness.Command(o, guide)
			cmd.SetArgs(append(strings.Fields(c.flags), "--json", table, "--svg", picture))
			cmd.SetOut(testLog{t})
			if err := cmd.ExecuteContext(ctx); err != nil && !(o.Soak && errors.Is(err, scenario.ErrNotFlat)) {
				t.Fatal(err)
			}
			var report scenario.Report
			text, err := os.ReadFile(table)
			if err == nil {
				err = json.Unmarshal(text, &report)
			}
			if err != nil {
				t.Fatal(err)
			}
			if report.Broken() != 0 || !report.Complete {
				t.Errorf("the contract was broken %d times, complete: %v", report.Broken(), report.Complete)
			}
			hasFigures(t, text, c.figures)
			if svg, err := os.ReadFile(picture); err != nil || !bytes.Contains(svg, []byte("throughput")) {
				t.Errorf("wrong chart: %v", err)
			}
			if o.Soak && (report.Soak == nil || len(report.Soak.Growth) == 0) {
				t.Errorf("wrong verdict of the soak: %+v", report.Soak)
			}
		})
	}
}

// hasFigures checks that a report has the data needed to read its figures, and that the
// given figures are positive.
func hasFigures(t *testing.T, text []byte, positive []string) {
	t.Helper()
	var got map[string]any
	if err := json.Unmarshal(text, &got); err != nil {
		t.Fatal(err)
	}
	for _, name := range positive {
		if v, ok := got[name].(float64); !ok || v <= 0 {
			t.Errorf("%s = %v, want a positive number", name, got[name])
		}
	}
	for _, name := range []string{"lateness_ms", "violations", "machine", "versions", "commit", "command", "seed"} {
		if got[name] == nil {
			t.Errorf("the JSON report has no key %s", name)
		}
	}
	cpu, ok := got["cpu_us_per_cycle"].(map[string]any)
	for _, part := range []string{"postgres-backends", "taskd-1", "kafka", "loadtest", "total"} {
		if v, isNumber := cpu[part].(float64); !ok || !isNumber || v < 0 {
			t.Errorf("cpu_us_per_cycle of %s = %v, want a number", part, cpu[part])
		}
	}
}

func TestTheGuideHasTheQuestionOfEveryExperiment(t *testing.T) {
	for _, cmd := range experiments() {
		row := "| [" + cmd.Name() + "](#" + cmd.Name() + ") | " + cmd.Short + " |"
		if cmd.Short == "" || !strings.HasSuffix(cmd.Short, "?") || !strings.Contains(guide, row) {
			t.Errorf("the guide lacks the row %q", row)
		}
		if !strings.Contains(cmd.Example, "loadtest "+cmd.Name()+" ") || len(cmd.Long) < len(cmd.Short)+50 {
			t.Errorf("the help of %s has no explanation: %q", cmd.Name(), cmd.Long)
		}
	}
}

func TestAWrongFlagIsRefusedByItsNameAndValue(t *testing.T) {
	for args, want := range map[string][]string{
		"cycle --rate 0":                          {"--rate", "0"},
		"cycle --delay 5s..1s":                    {"--delay", "5s..1s"},
		"cycle --keyed --adds-per-call 5":         {"--keyed", "--adds-per-call", "5"},
		"cycle --set dispatcher.max_tick":         {"--set", "dispatcher.max_tick", "name=value"},
		"fire --interval 0s":                      {"--interval", "0s"},
		"add --delay 1s":                          {"--delay", "1s", "--for"},
		"soak --sample-every -1s":                 {"--sample-every", "-1s"},
		"floor --tick 0s":                         {"--tick", "0s"},
		"floor --rate 20000 --connections 1000":   {"--connections", "1000"},
		"run --type all":                          {"--type", "all"},
		"cycle --stack external --floor=false":    {"address"},
		"cycle --floor=false --listeners 0":       {"--listeners", "0"},
		"fire --floor --interval 2h":              {"--interval", "2h"},
		"cycle --adds-per-call 5000 --for 1s":     {"--adds-per-call", "5000"},
		"cycle --params-bytes -1 --floor --for 1": {"--for"},
	} {
		cmd := command()
		cmd.SetArgs(strings.Fields(args))
		cmd.SetErr(testLog{t})
		err := cmd.ExecuteContext(t.Context())
		if err == nil {
			t.Errorf("%s is accepted", args)
			continue
		}
		for _, w := range want {
			if !strings.Contains(err.Error(), w) {
				t.Errorf("%s: error %v does not contain %s", args, err, w)
			}
		}
	}
}
