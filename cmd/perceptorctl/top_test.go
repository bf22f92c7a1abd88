package main

import (
	"strings"
	"testing"
	"time"

	"google.golang.org/protobuf/types/known/durationpb"

	perceptorv1 "github.com/perceptor/perceptor/proto/perceptor/v1"
)

func TestTopShowsWhoIsLateAndWhoWaits(t *testing.T) {
	t.Parallel()
	figures := func(name string, fired int64) *perceptorv1.TenantFigures {
		return &perceptorv1.TenantFigures{
			Tenant: name,
			LastMinute: &perceptorv1.FigurePoint{
				Seconds: 60, Dead: 2, Results: &perceptorv1.ResultFigures{Failed: 30},
				Types: []*perceptorv1.TypeFigures{{Fired: fired, Added: 60}, {Fired: fired}},
				Lateness: &perceptorv1.Distribution{
					Count: 2 * fired, P50: durationpb.New(12345 * time.Microsecond), P99: durationpb.New(2345 * time.Millisecond),
				},
			},
			Backlog:   &perceptorv1.Backlog{Tasks: 7, AtLeast: true, OldestAge: durationpb.New(90*time.Second + time.Millisecond)},
			Listeners: &perceptorv1.ListenerFigures{Members: 3, Lag: 40},
		}
	}
	var out strings.Builder
	list := &perceptorv1.ListTenantFiguresResponse{
		Tenants: []*perceptorv1.TenantFigures{figures("acme", 3000), {Tenant: "quiet\x1b[2J"}}, Total: figures("", 90), TenantCount: 12,
	}
	if err := topTable(list).write(&out); err != nil {
		t.Fatal(err)
	}
	want := `
TENANT           FIRES/S  ADDS/S  LATE P50  LATE P99  DUE  OLDEST  FAILED/S  DEAD  LISTENERS  LAG
acme             100      1.0     12ms      2.3s      7+   1m30s   0.5       2     3          40
quiet\x1b[2J     0        0       -         -         0    -       0         0     -          -
(all 12)         3.0      1.0     12ms      2.3s      7+   1m30s   0.5       2     3          40
`
	if got := "\n" + out.String(); strings.Join(strings.Fields(got), " ") != strings.Join(strings.Fields(want), " ") {
		t.Errorf("got\n%s\nwant\n%s", got, want)
	}
}

func TestTopRefusesFlagsThatMakeNoSense(t *testing.T) {
	t.Parallel()
	for flag, want := range map[string]string{
		"--sort=size": `--sort: "size" is none of`, "--limit=0": "--limit: 0 is not between 1 and 1000", "--every=10ms": "--every: 10ms is below 1s",
	} {
		cmd := newCommand()
		cmd.SetArgs([]string{"top", flag})
		cmd.SilenceErrors, cmd.SilenceUsage = true, true
		if err := cmd.Execute(); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: got %v, want %s", flag, err, want)
		}
	}
}
