package app

import (
	"strings"
	"testing"

	"github.com/perceptor/perceptor/assign"
	"github.com/perceptor/perceptor/internal/config"
)

// Listeners skip what is signed with another secret than that of taskd: nothing else fails, and the runs are given up a day later.
func TestADispatcherWithAnotherSigningSecretIsFound(t *testing.T) {
	member := func(name, secret string) assign.MemberState {
		return assign.MemberState{Info: assign.MemberInfo{Name: name}, Figures: map[string]int64{signingFigure: signingNumber(secret)}}
	}
	older := assign.MemberState{Info: assign.MemberInfo{Name: "older"}}
	for name, c := range map[string]struct {
		secret  string
		taskd   bool
		members []assign.MemberState
		want    string
	}{
		"the same":                      {"s", false, []assign.MemberState{member("a", "s"), older, member("b", "s")}, ""},
		"another one":                   {"s", false, []assign.MemberState{member("a", "s"), member("b", "x")}, "listeners skip their runs: b"},
		"none where taskd has one":      {"s", false, []assign.MemberState{member("a", "")}, "listeners skip their runs: a"},
		"one where taskd has none":      {"", true, []assign.MemberState{member("a", "s")}, "listeners skip their runs: a"},
		"unknown to doctor, and equal":  {"", false, []assign.MemberState{member("a", "s"), member("b", "s")}, ""},
		"unknown to doctor, and differ": {"", false, []assign.MemberState{older, member("a", "s"), member("b", "x")}, "of some: b differ"},
	} {
		conf := &config.Config{}
		conf.Kafka.SigningSecret = c.secret
		e := &examination{config: conf, itself: c.taskd}
		e.signing(c.members)
		switch {
		case c.want == "" && len(e.findings) > 0, c.want != "" && len(e.findings) != 1:
			t.Errorf("%s: %+v", name, e.findings)
		case c.want != "" && (e.findings[0].State != Failed || !strings.Contains(e.findings[0].What, c.want)):
			t.Errorf("%s: %+v, want %q", name, e.findings[0], c.want)
		}
	}
}
