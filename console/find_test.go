package console

import (
	"context"
	"html"
	"net/http"
	"net/url"
	"strings"
	"testing"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/timestamppb"

	perceptorv1 "github.com/perceptor/perceptor/proto/perceptor/v1"
)

func TestTasksAreFoundByIdAndByKey(t *testing.T) {
	t.Parallel()
	b := newBrowser(t, "acme-secret")
	for _, q := range []string{"513", "order-77"} {
		if _, body := b.get("tasks?q=" + q); !strings.Contains(body, "<title>Task 513") {
			t.Errorf("%s does not lead to the task", q)
		}
	}
	calls := b.api.called("ExplainTask")
	if n := len(calls); n != 4 || calls[2].request.(*perceptorv1.ExplainTaskRequest).IdempotencyKey != "order-77" {
		t.Errorf("%d calls: %v", n, calls)
	}
}

func TestARunIsFoundByItsId(t *testing.T) {
	t.Parallel()
	b := newBrowser(t, "acme-secret")
	task := mustTask(t, b)
	b.api.answers["ExplainTask"] = func(_ context.Context, m proto.Message) (proto.Message, error) {
		switch r := m.(*perceptorv1.ExplainTaskRequest); {
		case r.Id == 513:
			return &perceptorv1.ExplainTaskResponse{Task: task}, nil
		case r.IdempotencyKey == "513-9": // keys may look like runs
			return &perceptorv1.ExplainTaskResponse{Task: &perceptorv1.Task{Id: 1025}}, nil
		case r.Id == 0 || r.Id == 1025:
			return &perceptorv1.ExplainTaskResponse{}, nil
		}
		return nil, status.Error(codes.InvalidArgument, "there is no such id")
	}
	b.api.answers["ListRunEvents"] = func(_ context.Context, m proto.Message) (proto.Message, error) {
		r, list := m.(*perceptorv1.ListRunEventsRequest), &perceptorv1.ListRunEventsResponse{}
		for seq := int64(9); seq > 6 && r.TaskId == 513; seq-- {
			list.Events = append(list.Events, &perceptorv1.RunEvent{Type: perceptorv1.RunEvent_FAILED, Seq: seq, EventTime: timestamppb.Now()})
		}
		return list, nil
	}
	if _, body := b.get("tasks?q=513-7"); !strings.Contains(body, "<title>Task 513") || !strings.Contains(body, `<details id="run-7" open`) || strings.Contains(body, `<details id="run-8" open`) || strings.Contains(body, "no event of run") {
		t.Errorf("the run is not shown: %s", body)
	}
	if _, body := b.get("tasks?q=513-2"); !strings.Contains(body, "no event of run") {
		t.Errorf("a run without events: %s", body)
	}
	for _, q := range []string{"1025-1", "512-1", "513-0", "513--7", "513-x", "-1", "513-7-7"} {
		if code, body := b.get("tasks?q=" + q); code != http.StatusOK || !strings.Contains(body, "No task has the id, run or key") {
			t.Errorf("%s: %d %s", q, code, body)
		}
	}
	b.get("tasks?q=513-9")
	if calls := b.api.called("ExplainTask"); calls[len(calls)-1].request.(*perceptorv1.ExplainTaskRequest).Id != 1025 {
		t.Errorf("a key that looks like a run leads to %v", calls[len(calls)-1].request)
	}
}

func TestLinksRepeatOnlyWhatTheirPageKnows(t *testing.T) {
	t.Parallel()
	b := newBrowser(t, "admin-secret", "acme-secret")
	list := &perceptorv1.ListTasksResponse{NextPageToken: "next"}
	for i := range 50 {
		task := &perceptorv1.Task{Id: int64(i + 1)}
		for j := range 16 {
			task.Tags = append(task.Tags, strings.Repeat("t", j+1))
		}
		list.Tasks = append(list.Tasks, task)
	}
	b.api.answers["ListTasks"] = func(context.Context, proto.Message) (proto.Message, error) { return list, nil }
	_, plain := b.get("tasks?tenant=acme&kind=mail")
	long := strings.Repeat("%26", 1300)
	for _, query := range []string{"foo=" + long, "kind=" + long, "q=&q=" + long, "page=&page=" + long, "sort=" + long, "from=" + long, "type=" + strings.Repeat("%20", 1300)} {
		if _, body := b.get("tasks?tenant=acme&kind=mail&" + query); len(body) > len(plain)+64<<10 {
			t.Errorf("%.10s makes a page of %d bytes, without it %d", query, len(body), len(plain))
		}
	}
	for path, links := range map[string][]string{
		"tasks?tenant=acme&kind=mail&state=RUNNING&type=BLOCKING&tags=a&from=2027-01-01T00:00:00Z&until=2027-01-02T00:00:00Z&sort=due&page=p": {
			"from=2027-01-01T00%3A00%3A00Z&kind=mail&page=p&sort=-due&state=RUNNING&tags=a&tenant=acme&type=BLOCKING&until=2027-01-02T00%3A00", "page=next&sort=due",
		},
		"dead?tenant=acme&kind=mail&reason=SILENT&tags=a&from=2027-01-01T00:00:00Z&page=p":          {"from=2027-01-01T00%3A00%3A00Z&kind=mail&reason=SILENT&tags=a&tenant=acme"},
		"tenants?q=a&order=BACKLOG&page=p":                                                          {"order=BACKLOG&q=a"},
		"audit?scope=tenant&tenant=acme&actor=a&action=b&object=c&from=2027-01-01T00:00:00Z&page=p": {"action=b&actor=a&from=2027-01-01T00%3A00%3A00Z&object=c&scope=tenant&tenant=acme"},
		"audit?about=acme&page=p": {"about=acme"},
	} {
		_, body := b.get(path)
		for _, link := range links {
			if !strings.Contains(html.UnescapeString(body), "?"+link) && !strings.Contains(html.UnescapeString(body), "&"+link) {
				t.Errorf("%s has no link with %s", path, link)
			}
		}
	}
}

func TestAFilterThatIsUnknownIsAFaultAndNotLeftOut(t *testing.T) {
	t.Parallel()
	b := newBrowser(t, "admin-secret", "acme-secret")
	for path, want := range map[string]string{
		"tasks?state=XX": `state "XX" is unknown`, "tasks?type=blocking": `type "blocking" is unknown`, "tasks?sort=-XX": `sort "-XX" is unknown`,
		"dead?reason=XX": `reason "XX" is unknown`, "tenants?order=XX": `order "XX" is unknown`,
	} {
		if _, body := b.get(path); !strings.Contains(body, html.EscapeString(want)) {
			t.Errorf("%s does not say %s: %s", path, want, body)
		}
	}
	for field, action := range map[string]string{"state": "CANCEL", "type": "CANCEL", "reason": "PURGE_DEAD"} {
		code, body := b.post("bulk/new", url.Values{"csrf": {b.csrf()}, "action": {action}, field: {"XX"}})
		if want := html.EscapeString(field + ` "XX" is unknown`); code != http.StatusBadRequest || !strings.Contains(body, want) {
			t.Errorf("a bulk operation: %d without %s: %s", code, want, body)
		}
	}
	for _, method := range []string{"ListTasks", "ListDeadRuns", "CreateBulkOperation"} {
		if n := len(b.api.called(method)); n > 0 {
			t.Errorf("%d calls of %s", n, method)
		}
	}
	if _, body := b.get("bulk/new"); !strings.Contains(body, "Purge finished") || !strings.Contains(body, "to purge: finished") {
		t.Errorf("the default of a purge is not named: %s", body)
	}
}
