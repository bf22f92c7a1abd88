package fairness

import (
	"bytes"
	"strings"
	"testing"

	"github.com/perceptor/perceptor/loadtest/check"
	"github.com/perceptor/perceptor/loadtest/harness"
)

func TestJainsIndexIsOneForEqualsAndTheirInverseNumberWhenOneHasAll(t *testing.T) {
	for _, test := range []struct {
		shares []int64
		want   float64
	}{{nil, 0}, {[]int64{5, 5, 5, 5}, 1}, {[]int64{9, 0, 0, 0}, 0.25}, {[]int64{1, 3}, 0.8}} {
		if got := jain(test.shares); got != test.want {
			t.Errorf("jain(%v) = %v, want %v", test.shares, got, test.want)
		}
	}
}

func TestOptionsNameEveryFault(t *testing.T) {
	o := DefaultOptions()
	if err := harness.Validate(&o); err != nil {
		t.Errorf("Validate(defaults) = %v", err)
	}
	o.Rate, o.Backlog, o.Sharers, o.RaisedLimit, o.Drain = 0, 1, 1, 1, 0
	err := harness.Validate(&o)
	for _, field := range []string{"--rate", "--backlog", "--sharers", "--raised-limit", "--drain"} {
		if err == nil || !strings.Contains(err.Error(), field) {
			t.Errorf("err = %[2]v, want one that names %[1]s", field, err)
		}
	}
}

func TestViolationsStandInTheTable(t *testing.T) {
	rep := &Report{Findings: harness.Findings{Violations: map[check.Kind]int64{check.Lost: 3}}}
	var text bytes.Buffer
	if err := harness.WriteTable(&text, rep); err != nil || rep.Broken() != 3 || !strings.Contains(text.String(), "lost 3") {
		t.Errorf("err = %v, broken = %d, want 3 broken rules and \"lost 3\" in the table:\n%s", err, rep.Broken(), text.String())
	}
}
