package server

import (
	"strings"
	"testing"
	"time"

	"google.golang.org/grpc/codes"

	perceptorv1 "github.com/perceptor/perceptor/proto/perceptor/v1"
	"github.com/perceptor/perceptor/task"
)

func TestResultsCarryTheTimelinesOfTheirAttempts(t *testing.T) {
	t.Parallel()
	b := setup(t)
	times := &perceptorv1.AttemptTimes{
		Dispatcher: "d-1", ScheduledMs: 1000, ClaimedMs: 2000, PublishedMs: 3000, ReceivedAgoUs: 30, BegunAgoUs: 20, EndedAgoUs: 10,
	}
	odd := &perceptorv1.AttemptTimes{Dispatcher: strings.Repeat("é\x00", 100), ScheduledMs: -1, ClaimedMs: 1 << 62, BegunAgoUs: -5, EndedAgoUs: 1 << 62}
	request := &perceptorv1.ReportResultsRequest{Holder: 7, Listener: &perceptorv1.Listener{Name: "web\n1", Host: "h", Version: "v1"}, Results: []*perceptorv1.RunResult{
		{Attempt: attempt(1000, 1, 1), Outcome: perceptorv1.RunResult_SUCCESS, Times: times},
		{Attempt: attempt(1000, 2, 1), Outcome: perceptorv1.RunResult_SUCCESS, Times: odd},
	}}
	if a := b.overHTTP("acme-secret", report, request, nil); a.http != 200 {
		t.Fatal(a.message)
	}
	l := task.Listener{Name: "web1", Host: "h", Version: "v1"}
	got := b.runs.results[0].Timeline
	if got == nil || *got.Listener != l || got.ScheduledAt != 1000 || got.ClaimedAt != 2000 || got.PublishedAt != 3000 || got.Dispatcher != "d-1" ||
		got.ReceivedAgo != 30*time.Microsecond || got.BegunAgo != 20*time.Microsecond || got.EndedAgo != 10*time.Microsecond || time.Since(got.Arrived) > time.Minute {
		t.Errorf("the timeline is %+v", got)
	}
	got = b.runs.results[1].Timeline
	if got.ScheduledAt != 0 || got.ClaimedAt != 0 || got.BegunAgo != 0 || got.EndedAgo != 0 || len(got.Dispatcher) > task.MaxNameBytes || strings.ContainsRune(got.Dispatcher, 0) {
		t.Errorf("values that make no sense: %+v", got)
	}
}

func TestHandBacksCarryTheTimelinesOfTheirAttempts(t *testing.T) {
	t.Parallel()
	b := setup(t)
	request := &perceptorv1.HandBackRunsRequest{Holder: 7, Attempts: []*perceptorv1.Attempt{attempt(0, 1, 1), attempt(1000, 1, 1)},
		Times: []*perceptorv1.AttemptTimes{{ScheduledMs: 1}, {ScheduledMs: 2}}}
	if a := b.overGRPC("acme-secret", handBack, request, &perceptorv1.HandBackRunsResponse{}); a.code != codes.OK {
		t.Fatal(a.message)
	}
	if got := b.runs.timelines; len(got) != 1 || got[0].ScheduledAt != 2 {
		t.Errorf("the timelines are %+v, want that of the valid attempt", got)
	}
	request.Times = request.Times[:1]
	if a := b.overGRPC("acme-secret", handBack, request, &perceptorv1.HandBackRunsResponse{}); a.code != codes.InvalidArgument || a.faults["times"] == "" {
		t.Errorf("fewer times than attempts: %s %v", a.code, a.faults)
	}
}
