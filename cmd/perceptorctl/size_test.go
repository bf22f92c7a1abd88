package main

import (
	"bytes"
	"encoding/json"
	"strings"
	"testing"

	"github.com/perceptor/perceptor/internal/cli"
)

// sized runs perceptorctl size.
func sized(t *testing.T, want int, args ...string) (stdout, stderr string) {
	t.Helper()
	var out, errs bytes.Buffer
	root := newCommand()
	root.SetArgs(append([]string{"size"}, args...))
	root.SetOut(&out)
	root.SetErr(&errs)
	if got := cli.Run(t.Context(), root); got != want {
		t.Fatalf("size %v ended with %d, want %d: %s", args, got, want, errs.String())
	}
	return out.String(), errs.String()
}

func TestSizeNeedsNoServerAndPrintsWhatPeopleAndProgramsRead(t *testing.T) {
	out, _ := sized(t, 0, "--rate", "1000", "--backlog", "1e6")
	for _, want := range []string{"PostgreSQL", "dispatcher", "disk: waiting tasks in packs", "write-ahead log", "max_connections of each, if none are shared"} {
		if !strings.Contains(out, want) {
			t.Errorf("the table has no %q:\n%s", want, out)
		}
	}
	out, _ = sized(t, 0, "--rate", "1000", "--backlog", "1e6", "--retention", "1d", "-o", "json")
	var plan struct {
		Cores            float64 `json:"cores"`
		WAL              float64 `json:"walBytesPerSecond"`
		RetentionSeconds float64 `json:"retentionSeconds"`
		Demand           struct {
			Servers int `json:"servers"`
		} `json:"demand"`
		Programs []struct {
			Name  string `json:"name"`
			Count int    `json:"count"`
		} `json:"programs"`
		Warnings []string `json:"warnings"`
	}
	if err := json.Unmarshal([]byte(out), &plan); err != nil {
		t.Fatal(err)
	}
	if plan.Cores <= 0 || plan.WAL <= 0 || plan.RetentionSeconds != 86400 || plan.Demand.Servers != 1 || len(plan.Programs) != 5 || plan.Warnings == nil {
		t.Errorf("%+v", plan)
	}
	if _, warned := sized(t, 0, "--rate", "1e5", "--backlog", "0"); !strings.Contains(warned, "warning: 100000 runs a second are extrapolated") {
		t.Errorf("no warning: %s", warned)
	}
}

func TestSizeNamesEveryFlagWithNonsense(t *testing.T) {
	for _, c := range []struct {
		args []string
		want []string
	}{
		{nil, []string{"--rate: 0, and --backlog is 0, too"}},
		{[]string{"--rate", "-3", "--tenants", "0"}, []string{"--rate: -3 is not 0 to 10000000", "--tenants: 0 is not 1 to 1000000"}},
		{[]string{"--rate", "NaN"}, []string{"--rate: NaN is not"}},
		{[]string{"--rate", "1", "--backlog", "1.5"}, []string{"--backlog: 1.5 is not a number of tasks"}},
		{[]string{"--rate", "1", "--backlog", "1e30"}, []string{"--backlog: 1e+30 is not a number of tasks"}},
		{[]string{"--rate", "1", "--servers", "17"}, []string{"--servers: 17 is not 0 to 16"}},
		{[]string{"--rate", "1", "--servers", "0", "--horizon", "0s"}, []string{"--servers: 0 is not above 0", "--horizon: 0 is not above 0"}},
		{[]string{"--rate", "1", "--retention", "-1h"}, []string{"--retention: -1h0m0s is not 0s to"}},
		{[]string{"--rate", "1", "--retention", "soon"}, []string{`--retention: "soon" is not a duration`}},
		{[]string{"--rate", "1", "-o", "xml"}, []string{`--output: "xml" is none of`}},
	} {
		_, errs := sized(t, cli.Usage, c.args...)
		for _, want := range c.want {
			if !strings.Contains(errs, want) {
				t.Errorf("size %v: %s does not say %s", c.args, errs, want)
			}
		}
	}
}
