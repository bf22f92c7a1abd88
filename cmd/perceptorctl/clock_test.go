package main

import (
	"testing"
	"time"

	"github.com/perceptor/perceptor/internal/dev"
	perceptorv1 "github.com/perceptor/perceptor/proto/perceptor/v1"
)

func TestAnInstallationWithAVirtualClockFollowsTheCommands(t *testing.T) {
	if testing.Short() {
		t.Skip("starts a whole installation; make test runs it")
	}
	at := installation(t, func(o *dev.Options) {
		o.VirtualClock, o.ClockStart = dev.FrozenClock, time.Date(2026, time.January, 1, 0, 0, 0, 0, time.UTC)
	})
	runScripts(t, at, "testdata/clock/*.txt")
}

func TestDistancesMayHaveDays(t *testing.T) {
	for text, want := range map[string]time.Duration{
		"3d": 72 * time.Hour, "1d12h": 36 * time.Hour, "90s": 90 * time.Second, "0d1m": time.Minute, "0s": 0,
	} {
		if got, err := distance(text); err != nil || got != want {
			t.Errorf("%s: %s, %v", text, got, err)
		}
	}
	for _, text := range []string{"", "d", "-1d", "1d-1h", "-1h", "3dd", "3", "1.5d", "999999999d"} {
		if got, err := distance(text); err == nil {
			t.Errorf("%q is taken for %s", text, got)
		}
	}
}

func TestARunThatIsLeftOpenAgainAndAgainIsNamedOnce(t *testing.T) {
	sum := &perceptorv1.AdvanceClockResponse{}
	for _, ids := range [][]string{{"1-1", "2-1", "1-1"}, {"2-1", "3-1"}} {
		part := &perceptorv1.AdvanceClockResponse{}
		for _, id := range ids {
			part.OpenRuns = append(part.OpenRuns, &perceptorv1.UnansweredRun{RunId: id})
		}
		addMove(sum, part)
	}
	if got := openCell(sum.OpenRuns); got != "1-1 2-1 3-1" {
		t.Errorf("left open: %s", got)
	}
}
