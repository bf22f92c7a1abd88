package server

import (
	"net/http"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"google.golang.org/grpc/codes"

	perceptorv1 "github.com/perceptor/perceptor/proto/perceptor/v1"
	"github.com/perceptor/perceptor/task"
)

const (
	listDead   = perceptorv1.DeadLetterService_ListDeadRuns_FullMethodName
	getDead    = perceptorv1.DeadLetterService_GetDeadRun_FullMethodName
	replayDead = perceptorv1.DeadLetterService_ReplayDeadRun_FullMethodName
)

func TestDeadRunsAreVisibleToTheirTenantOnly(t *testing.T) {
	b := setup(t)
	var got perceptorv1.DeadRun
	if a := b.overHTTP("acme-secret", getDead, &perceptorv1.GetDeadRunRequest{RunId: "512-1"}, &got); a.http != http.StatusOK {
		t.Fatal(a.message)
	}
	if got.TaskId != 512 || got.Reason != perceptorv1.DeadRun_OUT_OF_ATTEMPTS || got.Error != "no" || len(got.Tags) != 1 {
		t.Errorf("%v", &got)
	}
	var replayed perceptorv1.ReplayDeadRunResponse
	if a := b.overHTTP("acme-secret", replayDead, &perceptorv1.ReplayDeadRunRequest{RunId: "512-1"}, &replayed); a.http != http.StatusOK || replayed.TaskId != 1024 {
		t.Errorf("%s %v", a.message, &replayed)
	}
	if a := b.overGRPC("rival-secret", getDead, &perceptorv1.GetDeadRunRequest{RunId: "512-1"}, &got); a.code != codes.NotFound {
		t.Errorf("another tenant is answered %s", a.code)
	}
}

func TestPagesOfDeadRunsGoOnWhereTheyEnded(t *testing.T) {
	b := setup(t)
	var page perceptorv1.ListDeadRunsResponse
	for range 2 {
		r := &perceptorv1.ListDeadRunsRequest{Kind: "mail", Tags: []string{"b", "a"}, PageToken: page.NextPageToken}
		if a := b.overGRPC("acme-secret", listDead, r, &page); a.code != codes.OK {
			t.Fatal(a.message)
		}
	}
	q := b.dead.queries[1]
	if want := (task.DeadCursor{DiedAt: fakeNow, RunID: task.RunID{Task: 512, Seq: 1}}); q.After == nil || *q.After != want || q.Kind != "mail" || q.Limit != 100 {
		t.Errorf("the second page was asked by %+v", q)
	}
	r := &perceptorv1.ListDeadRunsRequest{PageToken: page.NextPageToken}
	expectFaults(t, b.overGRPC("acme-secret", listDead, r, &page), "", []string{"page_token"}, "other fields")
}

func TestListsAndInstantsMayBeQueryParameters(t *testing.T) {
	b := setup(t)
	path := "/v1/deadRuns?tags=b&tags=a&diedFrom=2030-01-01T00:00:00Z"
	if a := b.fetch("acme-secret", http.MethodGet, path, "", &perceptorv1.ListDeadRunsResponse{}); a.http != http.StatusOK {
		t.Fatal(a.message)
	}
	want := task.DeadFilter{Tags: []string{"a", "b"}, DiedFrom: task.At(time.Date(2030, 1, 1, 0, 0, 0, 0, time.UTC))}
	if diff := cmp.Diff(want, b.dead.queries[0].DeadFilter); diff != "" {
		t.Errorf("asked for (-want +got):\n%s", diff)
	}
	for _, query := range []string{"kind=a&kind=b", "diedFrom=x", "nothing=1"} {
		if a := b.fetch("acme-secret", http.MethodGet, "/v1/deadRuns?"+query, "", nil); a.http != http.StatusBadRequest {
			t.Errorf("%s: %d", query, a.http)
		}
	}
}

func TestBadQuestionsAboutDeadRunsAreRefused(t *testing.T) {
	b := setup(t)
	r := &perceptorv1.ListDeadRunsRequest{PageSize: -1, Kind: "a\n", Type: 9, Reason: 9, TaskId: 3, Tags: []string{""}}
	expectFaults(t, b.overGRPC("acme-secret", listDead, r, &perceptorv1.ListDeadRunsResponse{}), "",
		[]string{"kind", "page_size", "reason", "tags[0]", "task_id", "type"}, "")
	for _, id := range []string{"", "512", "512-0", "x-1", "5-1"} {
		expectFaults(t, b.overGRPC("acme-secret", getDead, &perceptorv1.GetDeadRunRequest{RunId: id}, &perceptorv1.DeadRun{}), "", []string{"run_id"}, "")
	}
}
